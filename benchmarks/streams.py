"""Streams of round log ratios whose truth is known: drawn from a law, or from what was recorded."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envcompare.measure.limits import BLOCK_S

RECORDED = Path(__file__).parent / "data" / "recorded-streams.json"
MOST_ROUNDS = 1000  # of a restart: more than any schedule here asks for
STRETCH = 10  # recorded rounds that stay together
LAUNCH_S, ARMS, ANSWER_S = 12.0, 4, 0.003  # of a run of three environments and a control

Floats = NDArray[np.float64]

Draw = Callable[[np.random.Generator], Iterator[Floats]]
"""Yields the restarts of one cell without end, each with its log ratios around 0."""

Law = Callable[[int], Floats]
"""Draws so many values of variance 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds: to launch all arms up to the first round, and for a round of blocks."""

    launch_s: float = LAUNCH_S
    round_s: float = ARMS * (BLOCK_S + ANSWER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A source of cells with its costs."""

    name: str
    note: str
    draw: Draw
    cost: Cost = Cost()
    is_beyond: bool = False  # restarts scatter further than any goal asks for


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Standard deviations of the log ratio: of a restart and of a round."""

    restart: float = 0.005
    round: float = 0.05


def streams() -> tuple[Stream, ...]:
    """Return all streams, those recorded last."""
    return (
        Stream(
            name="steady",
            note="normal rounds of 3 %, restarts add nothing",
            draw=lambda g: _levels(Spread(restart=0, round=0.03), g.standard_normal),
        ),
        Stream(
            name="normal",
            note="normal rounds of 5 %, normal restarts of 0.5 %",
            draw=lambda g: _levels(Spread(), g.standard_normal),
        ),
        Stream(
            name="heavy",
            note="the same with Student t of 3 degrees of freedom for both",
            draw=lambda g: _levels(Spread(), _heavy(g)),
        ),
        Stream(
            name="contaminated",
            note="one value in ten five times as wide",
            draw=lambda g: _levels(Spread(), _contaminated(g)),
        ),
        Stream(
            name="drift",
            note="rounds of 5 % follow a drift of 1.5 %, AR(1) at 0.9; restarts add nothing more",
            draw=_drifting,
        ),
        Stream(
            name="mixed",
            note="as normal, cells whose spreads differ, up to fourfold",
            draw=_mixed,
        ),
        Stream(
            name="restarts-1",
            note="normal rounds of 5 %, restarts of 1 % with Student t of 3 degrees of freedom",
            draw=lambda g: _levels(Spread(restart=0.01), g.standard_normal, restarts=_heavy(g)),
        ),
        Stream(
            name="restarts-2",
            note="normal rounds of 5 %, normal restarts of 2 %: beyond the goals",
            draw=lambda g: _levels(Spread(restart=0.02), g.standard_normal),
            is_beyond=True,
        ),
        Stream(
            name="restarts-5",
            note="normal rounds of 5 %, normal restarts of 5 %: beyond the goals",
            draw=lambda g: _levels(Spread(restart=0.05), g.standard_normal),
            is_beyond=True,
        ),
        *(recorded(RECORDED) if RECORDED.exists() else ()),
    )


def recorded(path: Path) -> tuple[Stream, ...]:
    """Return the streams of a file that `record_streams.py` wrote, at what they would cost today.

    A block lasts one step or 20 ms. Restarts add 0.5 %, Student t of 3 degrees of freedom.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    return tuple(
        Stream(
            name=one["name"],
            note=f"{one['note']}; stretches of {STRETCH} recorded rounds, restarts add 0.5 % (t₃)",
            cost=Cost(round_s=ARMS * (max(BLOCK_S, one["step_s"]) + ANSWER_S)),
            draw=_resampler(one["restarts"]),
        )
        for one in content["streams"]
    )


def _levels(spread: Spread, law: Law, *, restarts: Law | None = None) -> Iterator[Floats]:
    while True:
        yield spread.restart * (restarts or law)(1) + spread.round * law(MOST_ROUNDS)


def _heavy(generator: np.random.Generator) -> Law:
    return lambda count: generator.standard_t(3, count) / np.sqrt(3)


def _contaminated(generator: np.random.Generator) -> Law:
    def law(count: int) -> Floats:
        scale = np.where(generator.random(count) < 0.1, 5.0, 1.0)
        values: Floats = scale * generator.standard_normal(count) / np.sqrt(0.9 + 0.1 * 25)
        return values

    return law


def _drifting(generator: np.random.Generator) -> Iterator[Floats]:
    """Add what wanders within a restart; signs of rounds are then correlated by 0.05 or so.

    Those recorded are within 0.11.
    """
    for rounds in _levels(Spread(restart=0), generator.standard_normal):
        noise = (0.015 * generator.standard_normal(MOST_ROUNDS)).tolist()
        steps = itertools.accumulate(noise, lambda last, new: 0.9 * last + np.sqrt(0.19) * new)
        yield rounds + np.fromiter(steps, dtype=float, count=MOST_ROUNDS)


def _mixed(generator: np.random.Generator) -> Iterator[Floats]:
    factor = float(np.exp(generator.uniform(-np.log(2), np.log(2))))
    spread = Spread(restart=0.005 * factor, round=0.05 / factor)
    return _levels(spread, generator.standard_normal)


def _resampler(restarts: Iterable[list[float]]) -> Draw:
    """Resample stretches of what was recorded.

    Reference and control are exchangeable, so each resampled restart has its sign at random: the
    truth is 0 exactly, for every estimator.
    """
    pieces = [
        np.asarray(rounds[at : at + STRETCH])
        for rounds in restarts
        for at in range(0, len(rounds), STRETCH)
    ]

    def draw(generator: np.random.Generator) -> Iterator[Floats]:
        heavy, shortest = _heavy(generator), min(map(len, pieces))
        while True:
            chosen = generator.integers(0, len(pieces), -(-MOST_ROUNDS // shortest))
            rounds = np.concatenate([pieces[number] for number in chosen])[:MOST_ROUNDS]
            yield 0.005 * heavy(1) + generator.choice((-1.0, 1.0)) * rounds

    return draw
