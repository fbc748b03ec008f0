"""Turn samples into times, differences and verdicts."""
