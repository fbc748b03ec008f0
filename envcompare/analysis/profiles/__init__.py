"""Analyse profiles: kernels, quantities and causes of a difference."""
