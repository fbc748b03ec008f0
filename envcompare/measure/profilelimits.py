"""How many steps a profile has, how long it may take, and where it was cut."""

from __future__ import annotations

import msgspec

from envcompare.run_folder.profiles import PassName, Profile, ProfileRecord

WARMUP_STEPS = 3  # what is loaded late, or chosen by trial, is so before anything is looked at
STEPS, COUNTER_STEPS = 5, 2
STEPS_S = 30.0  # that the steps of a profile may take at their usual speed; one is always run
BEGIN_LIMIT_S = 300.0  # for a start, and for a setup with the first step, under a profiler
FIRST_BEGIN_LIMIT_S = 60.0  # for a start that can be tried again
ENDING_LIMIT_S = 300.0  # in which a tool writes its report
LIMITS_S: dict[PassName, float] = {"ncu-memory": 1800.0, "ncu-flops": 1800.0}
SAID_LINES = 10_000  # ncu complains at the first kernel, and a line for each may follow
OTHER_LIMIT_S = 300.0
SLOWER = 20  # times, that a step of many seconds may be under a profiler


def steps_that_fit(step_s: float) -> int:
    """Return how many steps are profiled in every arm: at least one, however long it takes."""
    return max(1, min(STEPS, int(STEPS_S / max(step_s, 1e-9))))


def counted_steps(steps: int, traced: Profile | None, *, most: int) -> int:
    """Return of how many steps kernels are counted: all launches of them, as far as a trace tells.

    A count of `most` launches would be cut, and say nothing of a step.
    """
    launches = sum(kernel.calls for kernel in traced.kernels) if traced else 0
    in_step = launches / (traced.steps or 1) if traced else 0
    fitting = int((most - 1) / in_step) if in_step else COUNTER_STEPS
    return max(1, min(steps, COUNTER_STEPS, fitting))


def limit_s(kind: PassName, steps: int, step_s: float) -> float:
    """Return how long to wait for a profile of steps that usually take `step_s` each."""
    return LIMITS_S.get(kind, OTHER_LIMIT_S) + SLOWER * steps * step_s


def cut_at(most: int, record: ProfileRecord) -> ProfileRecord:
    """Return the record without its steps where a tool stopped counting within them."""
    launches = sum(kernel.calls for kernel in record.profile.kernels) if record.profile else 0
    if record.kind == "nsys" or launches < most or record.profile is None:
        return record
    reason = f"only the first {most} launches of kernels were counted: not all of the steps"
    profile = msgspec.structs.replace(record.profile, steps=None)
    return msgspec.structs.replace(record, steps=None, reason=reason, profile=profile)
