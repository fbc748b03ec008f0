"""From profiles to kernels, quantities and what explains a difference."""
