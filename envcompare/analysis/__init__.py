"""What a run folder says: comparisons, verdicts, differences; reads, never measures."""
