"""The run folder: versioned, append-only, atomic; the waist between measuring and reading."""
