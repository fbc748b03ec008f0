"""Compare the speed of the same ML work in different environments, honestly."""

__version__ = "0.1.0"
