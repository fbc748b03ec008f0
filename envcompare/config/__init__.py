"""Flags and TOML become a frozen experiment, and the experiment a plan; pure."""

from __future__ import annotations

import msgspec


def known_keys(table: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the keys that a configuration file, or a table in it, may hold, as spelt there."""
    return tuple(field.encode_name for field in msgspec.structs.fields(table))
