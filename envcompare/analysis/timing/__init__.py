"""From samples to times, differences and verdicts of a run."""
