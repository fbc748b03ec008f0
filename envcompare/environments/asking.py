"""Ask a host something that a check needs to know; one that does not answer is a finding."""

from __future__ import annotations

from envcompare.command import Command, CommandResult
from envcompare.environments import Check
from envcompare.errors import CommandTimeoutError
from envcompare.transport import Transport
from envcompare.transport.operations import run

PATIENCE_S = 60.0


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
        return Check(
            is_usable=False, reason=f"{what} did not answer within {limit_s:g} s", hint=hint
        )
