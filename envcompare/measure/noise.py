"""What a host has taught of its own noise: how far restarts scatter, from its A/A controls.

A verdict adds to the noise of the rounds what restarts add, which few restarts can hardly tell.
The controls of earlier cells on a host tell it too. `--no-noise-memory` neither reads nor writes.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta

from envcompare.command import Command
from envcompare.errors import StackError
from envcompare.stats.typical import (
    LEAST_SPREAD,
    PRIOR_SPREAD,
    PRIOR_WEIGHT,
    WIDE_SPREAD,
    Spread,
    prior_of,
)
from envcompare.transport import Transport, make_folder, read_json, run, shell

_FILE = "noise.json"
_FADING = 0.9  # of what is remembered, with each cell: a host changes
_LARGEST = (2 * WIDE_SPREAD) ** 2  # of one cell: a worker that is far off is not the host
_MOST = 1.0  # a variance beyond is none of a host, but of a broken file


class NoiseMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of the formula: degrees of freedom, and variance times these."""

    df: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    variance_sum: Annotated[float, Meta(ge=-1e6, le=1e6)] = 0.0

    @property
    def spread(self) -> Spread:
        """Return the prior of a host: the shipped one, moved by what its controls showed."""
        weighted = PRIOR_WEIGHT * PRIOR_SPREAD**2 + self.variance_sum
        variance = weighted / (PRIOR_WEIGHT + self.df)
        return prior_of(math.sqrt(min(_MOST, max(LEAST_SPREAD**2, variance))))

    def with_cell(self, control: Spread) -> NoiseMemory:
        """Return what is remembered after a cell, of which the spread of the control alone."""
        excess = min(control.own_excess, _LARGEST)
        return NoiseMemory(
            df=_FADING * self.df + control.own_df,
            variance_sum=_FADING * self.variance_sum + control.own_df * excess,
        )


def recall(transport: Transport, cache: str) -> NoiseMemory:
    """Return what a host's cache remembers; nothing where it has none that can be read."""
    try:
        return read_json(shell(transport, 'cat -- "$1"', f"{cache}/{_FILE}").stdout, NoiseMemory)
    except msgspec.MsgspecError:
        return NoiseMemory()


def remember(transport: Transport, cache: str, memory: NoiseMemory) -> None:
    """Keep it whole or not at all; a disk that refuses costs what was learnt."""
    with suppress(StackError):
        make_folder(transport, cache)
    script = 'cat > "$1.partial" && mv -- "$1.partial" "$1"'
    argv = ("sh", "-c", script, "sh", f"{cache}/{_FILE}")
    run(transport, Command(argv=argv), stdin=msgspec.json.encode(memory))
