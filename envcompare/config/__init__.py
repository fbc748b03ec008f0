"""Flags and TOML become a frozen experiment, and the experiment a plan; pure."""
