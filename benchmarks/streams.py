"""Streams of round log ratios whose truth is known: drawn from a law, or from what was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envcompare.measure.limits import BLOCK_S, MAX_GENERATIONS_A_RESTART, MAX_ROUNDS

RECORDED = Path(__file__).parent / "data" / "recorded-streams.json"
MOST_RESTARTS = 160  # more than any budget here allows
SHAPE = (MOST_RESTARTS, MAX_GENERATIONS_A_RESTART, MAX_ROUNDS)

Floats = NDArray[np.float64]

Draw = Callable[[np.random.Generator], Floats]
"""Returns one cell: log ratios of shape restart × generation × round, around 0."""

Law = Callable[[tuple[int, ...]], Floats]
"""Draws values of variance 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds: to launch all arms, for a generation without its rounds, for a round of blocks.

    `block_s` is what a block of the reference took when it was calibrated: as a rule what was
    aimed at.
    """

    launch_s: float
    generation_s: float
    round_s: float
    block_s: float = BLOCK_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A source of cells with its costs."""

    name: str
    note: str
    cost: Cost
    draw: Draw
    is_recorded: bool = False
    is_calm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Standard deviations of the log ratio: of a restart, of a generation, of a round."""

    restart: float = 0.005
    generation: float = 0.015
    round: float = 0.03


# an arm and its reference, on two cores
CNN = Cost(launch_s=4.0, generation_s=1.4, round_s=0.24)


def streams() -> tuple[Stream, ...]:
    """Return all streams, those recorded last."""
    spread = Spread()
    made = (
        ("normal", "three normal levels", lambda g: _levels(spread, g.standard_normal)),
        (
            "restarts",
            "normal, most of the spread between restarts",
            lambda g: _levels(Spread(restart=0.015, generation=0.008), g.standard_normal),
        ),
        ("heavy", "Student t with 3 degrees of freedom", lambda g: _levels(spread, _heavy(g))),
        (
            "contaminated",
            "one value in ten five times as wide",
            lambda g: _levels(spread, _contaminated(g)),
        ),
        ("drift", "rounds follow each other, AR(1) at 0.9", lambda g: _drifting(g, spread)),
        ("mixed", "cells whose spreads differ, up to fourfold", _mixed),
    )
    synthetic = tuple(Stream(name=n, note=t, cost=CNN, draw=d) for n, t, d in made)
    return (*synthetic, *(recorded(RECORDED) if RECORDED.exists() else ()))


def recorded(path: Path) -> tuple[Stream, ...]:
    """Return the streams of a file that `record_streams.py` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return tuple(
        Stream(
            name=one["name"],
            note=one["note"],
            cost=Cost(**one["cost"]),
            draw=_resampler(one["restarts"]),
            is_recorded=True,
            is_calm=one.get("calm", False),
        )
        for one in content["streams"]
    )


def _levels(spread: Spread, law: Law) -> Floats:
    restarts, generations, _ = SHAPE
    return (
        spread.restart * law((restarts, 1, 1))
        + spread.generation * law((restarts, generations, 1))
        + spread.round * law(SHAPE)
    )


def _heavy(generator: np.random.Generator) -> Law:
    return lambda shape: generator.standard_t(3, shape) / np.sqrt(3)


def _contaminated(generator: np.random.Generator) -> Law:
    def law(shape: tuple[int, ...]) -> Floats:
        scale = np.where(generator.random(shape) < 0.1, 5.0, 1.0)
        values: Floats = scale * generator.standard_normal(shape) / np.sqrt(0.9 + 0.1 * 25)
        return values

    return law


def _drifting(generator: np.random.Generator, spread: Spread) -> Floats:
    """Add what wanders within a restart: an AR(1) series over all its rounds."""
    restarts, generations, rounds = SHAPE
    noise = generator.standard_normal((restarts, generations * rounds))
    for step in range(1, noise.shape[1]):
        noise[:, step] = 0.9 * noise[:, step - 1] + np.sqrt(1 - 0.81) * noise[:, step]
    wandering = spread.round * noise.reshape(SHAPE)
    return wandering + _levels(Spread(round=0.015), generator.standard_normal)


def _mixed(generator: np.random.Generator) -> Floats:
    factor = float(np.exp(generator.uniform(-np.log(2), np.log(2))))
    spread = Spread(restart=0.005 * factor, generation=0.015 / factor)
    return _levels(spread, generator.standard_normal)


def _resampler(restarts: list[list[list[float]]]) -> Draw:
    """Resample restarts, then their generations, then their rounds.

    Reference and control are exchangeable, so each resampled restart has its sign at random: the
    truth is 0 exactly, for every estimator.
    """
    sizes = [(len(gens), [len(rounds) for rounds in gens]) for gens in restarts]
    most_generations = max(size for size, _ in sizes)
    most_rounds = max(max(own) for _, own in sizes)
    values = np.zeros((len(restarts), most_generations, most_rounds))
    rounds_of = np.ones((len(restarts), most_generations), dtype=int)
    for r, gens in enumerate(restarts):
        for g, rounds in enumerate(gens):
            values[r, g, : len(rounds)] = rounds
            rounds_of[r, g] = len(rounds)
    generations_of = np.array([size for size, _ in sizes])

    def draw(generator: np.random.Generator) -> Floats:
        restart = generator.integers(0, len(restarts), (SHAPE[0], 1, 1))
        sign = generator.choice((-1.0, 1.0), restart.shape)
        chosen = generator.random((*SHAPE[:2], 1))
        generation = (chosen * generations_of[restart]).astype(int)
        number = (generator.random(SHAPE) * rounds_of[restart, generation]).astype(int)
        drawn: Floats = sign * values[restart, generation, number]
        return drawn

    return draw
