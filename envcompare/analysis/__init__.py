"""Read a run folder: comparisons, verdicts and differences, without measuring."""
