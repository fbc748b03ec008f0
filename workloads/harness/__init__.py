"""Runs a workload inside an arm: worker, protocol, clock and generations."""
