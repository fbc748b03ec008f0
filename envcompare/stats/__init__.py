"""Estimates, intervals, tests and stopping mathematics on log ratios; pure, and said once."""
