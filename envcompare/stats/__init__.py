"""Estimates, intervals, tests and stopping rules on log ratios; pure."""
