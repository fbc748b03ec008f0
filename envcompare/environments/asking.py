"""Ask a host something that a check needs to know; one that does not answer is a finding."""

from __future__ import annotations

from collections.abc import Callable

from envcompare.command import Command, CommandResult
from envcompare.environments import Check, Environment, Isolation
from envcompare.errors import (
    CommandTimeoutError,
    EnvcompareError,
    OutputLimitError,
    StillRunningError,
)
from envcompare.transport import Transport
from envcompare.transport.hosts import InterruptibleTransport
from envcompare.transport.operations import run

PATIENCE_S = 60.0
_KILLED = 137  # 128 + SIGKILL, of the client of an engine: what it started may go on


def run_inside(
    transport: Transport,
    command: Command,
    *,
    where: Environment,
    isolation: Isolation,
    timeout_s: float,
) -> CommandResult:
    """Run a command in an environment to its end; what is given up does not go on inside.

    Raises as `run_wrapped` does.
    """
    # a watched transport kills all that is started after the user has insisted on an end
    bare = transport.bare if isinstance(transport, InterruptibleTransport) else transport
    return run_wrapped(
        transport,
        where.wrap(command, isolation),
        end=lambda: where.sweep(bare, isolation.run_id, worker=isolation.worker),
        timeout_s=timeout_s,
    )


def run_wrapped(
    transport: Transport, wrapped: Command, *, end: Callable[[], object], timeout_s: float
) -> CommandResult:
    """Run what an environment is around; where it was killed, `end` ends what goes on inside.

    Raises CommandTimeoutError after `timeout_s`, and StillRunningError where what was given up on a
    host that answers cannot be ended. Whatever else stopped it is raised as it came.
    """
    try:
        result = run(transport, wrapped, timeout_s=timeout_s)
    except BaseException as error:
        _end_after(error, end)
        raise
    if result.exit_code == _KILLED:
        end()
    return result


def _end_after(error: BaseException, end: Callable[[], object]) -> None:
    try:
        end()
    except EnvcompareError as left:
        if isinstance(error, CommandTimeoutError | OutputLimitError):
            details = f"{error.brief}; {left.details}"
            raise StillRunningError(left.brief, details=details, hint=left.hint) from error
        error.add_note(left.brief)


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
