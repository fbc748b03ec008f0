"""The profilers: how each wraps a command, and how its files become profiles."""
