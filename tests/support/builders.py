"""Small run folders and their parts, made by hand so that a test says only what matters."""

from __future__ import annotations

import random
from typing import Any

from envcompare.run_folder.records import ArmRecord, Block, CellRecord, Design, RunRecord

CELL = "local/cnn/default"


def block(**changes: Any) -> Block:
    """Return a block of 3 steps of 10 ms."""
    fields: dict[str, Any] = {
        "cell": CELL,
        "arm": "vm",
        "restart": 0,
        "generation": 0,
        "round": 0,
        "order": 0,
        "k": 3,
        "t0_ns": 1,
        "wall_ns": (10_000_000,) * 3,
        "cpu_ns": (9_900_000,) * 3,
        "wait_ns": 100_000,
        "throttled_ns": 0,
        "checksum": 2.3,
    }
    return Block(**{**fields, **changes})


def design(**changes: Any) -> Design:
    """Return a design with the margins of the quick preset, and four restarts."""
    fields: dict[str, Any] = {
        "preset": "quick",
        "margin": 0.05,
        "target": 0.025,
        "budget_s": 90.0,
        "min_restarts": 4,
        "threads": 1,
    }
    return Design(**{**fields, **changes})


def run_record(**changes: Any) -> RunRecord:
    """Return a run of vm against docker with one cell."""
    fields: dict[str, Any] = {
        "run_id": "20260101-000000-abcd",
        "created": "2026-01-01T00:00:00Z",
        "seed": 7,
        "tool_version": "0.1.0",
        "design": design(),
        "arms": (
            ArmRecord(id="vm", environment="vm", is_reference=True),
            ArmRecord(id="docker", environment="docker"),
            ArmRecord(id="vm~control", environment="vm", is_control=True),
        ),
        "cells": (CellRecord(id=CELL, host="local", workload="cnn"),),
    }
    return RunRecord(**{**fields, **changes})


def blocks(
    ratios: dict[str, float], *, restarts: int = 4, generations: int = 2, noise: float = 0.002
) -> tuple[Block, ...]:
    """Return the blocks of a cell in which each arm takes `ratio` times the reference's time."""
    generator = random.Random(1)
    found = []
    for restart in range(restarts):
        for generation in range(generations):
            for number in range(3):
                for order, (arm, ratio) in enumerate(ratios.items()):
                    step = round(10_000_000 * ratio * generator.lognormvariate(0, noise))
                    found.append(
                        block(
                            arm=arm,
                            restart=restart,
                            generation=generation,
                            round=number,
                            order=order,
                            wall_ns=(step,) * 3,
                        )
                    )
    return tuple(found)


def stepped(
    arms: tuple[str, ...] = ("docker",), *, share: float = 0.0, factor: float = 1.0
) -> tuple[Block, ...]:
    """Return the blocks of a cell of equal arms but that in some a share of steps is slow.

    Four restarts of 40 rounds of 5 steps, each of CPU time alone; a slow step takes `factor` times
    as long, and comes at even distances.
    """
    draws = random.Random(3)
    every = round(1 / share) if share else 0

    def step_ns(arm: str, number: int) -> int:
        is_slow = arm in arms and every and number % every == 0
        return round(10_000_000 * draws.lognormvariate(0, 0.01) * (factor if is_slow else 1))

    found = []
    for number in range(160):
        for arm in ("vm", "docker", "vm~control"):
            times = tuple(step_ns(arm, 5 * number + step) for step in range(5))
            at = {"arm": arm, "restart": number // 40, "round": number % 40}
            found.append(block(**at, k=5, wall_ns=times, cpu_ns=times, voluntary_switches=0))
    return tuple(found)
