"""Ask a host something that a check needs to know; one that does not answer is a finding."""

from __future__ import annotations

from envcompare.command import Command, CommandResult
from envcompare.environments import Check, Environment, Isolation
from envcompare.errors import CommandTimeoutError
from envcompare.transport import Transport
from envcompare.transport.operations import run

PATIENCE_S = 60.0


def run_inside(
    transport: Transport,
    where: Environment,
    command: Command,
    isolation: Isolation,
    *,
    timeout_s: float,
) -> CommandResult:
    """Run a command in an environment to its end; what is given up does not go on inside.

    Raises CommandTimeoutError after `timeout_s`, StillRunningError where it cannot be ended then.
    """
    try:
        return run(transport, where.wrap(command, isolation), timeout_s=timeout_s)
    except BaseException:
        where.sweep(transport, isolation.run_id, worker=isolation.worker)
        raise


def ask(
    transport: Transport, command: Command, *, what: str, hint: str, times: float = 1
) -> CommandResult | Check:
    """Return what the command said, or that `what` is unusable when no answer comes in time.

    The host itself may be well, so this is not the loss of it.
    """
    limit_s = PATIENCE_S * times
    try:
        return run(transport, command, timeout_s=limit_s)
    except CommandTimeoutError:
        return silent(what, hint=hint, limit_s=limit_s)


def silent(what: str, *, hint: str, limit_s: float = PATIENCE_S) -> Check:
    """Return that `what` is unusable, since it gave no answer in time."""
    return Check(is_usable=False, reason=f"{what} did not answer within {limit_s:g} s", hint=hint)
