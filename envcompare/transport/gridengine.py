"""A job of Grid Engine: what `qstat` lists of it, and commands on its node, given from within it.

Grid Engine has nothing that runs a command beside a job from outside, as `srun --overlap` does.
"""

from __future__ import annotations

import os
import pwd
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import ClassVar

from envcompare.command import Command
from envcompare.errors import CommandTimeoutError, TransportError
from envcompare.transport import run
from envcompare.transport.local import LOCAL, LocalProcess, LocalTransport

_SIGNALLED = 128
# A job that ends has its processes killed one by one, and the client in it among them.
_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GridEngineJob:
    """A job whose node is measured by a client within it."""

    scheduler: ClassVar[str] = "gridengine"
    id: str
    loss: str = ""  # a client in a job that was lost is gone itself

    @property
    def ending(self) -> tuple[str, ...]:
        """Return the command that ends it."""
        return ("qdel", self.id)

    def state(self, *, name: str = "") -> str:
        """Return the letters with which `qstat` lists the job, empty where it does not list it.

        With a name a job is meant whose own begins so. Raises TransportError where Grid Engine
        does not answer.
        """
        user = pwd.getpwuid(os.getuid()).pw_name
        silence = f"Grid Engine does not say what became of job {self.id}"
        hint = "check `qstat` on this machine; a run can be resumed"
        try:
            listing = run(LOCAL, Command(argv=("qstat", "-xml", "-u", user)))
            listed = ET.fromstring(listing.stdout) if listing.succeeded else None  # noqa: S314 — of qstat
        except CommandTimeoutError as error:
            raise TransportError(silence, details=error.brief, hint=hint) from error
        except ET.ParseError as error:
            raise TransportError(silence, details=f"no XML: {error}", hint=hint) from error
        if listed is None:
            raise TransportError(silence, details=listing.tail(1), hint=hint)
        for each in listed.iter("job_list"):
            its_name = each.findtext("JB_name", "")
            if each.findtext("JB_job_number") == self.id and its_name.startswith(name):
                return each.findtext("state", "")
        return ""


class _JobProcess(LocalProcess):
    """A command in a job, whose end by a signal may be the beginning of the job's."""

    _is_killed = False

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code; a job that ends takes this process away before it does."""
        code = super().wait(timeout_s)
        if code > _SIGNALLED and not self._is_killed:
            time.sleep(_GRACE_S)
        return code

    def kill(self) -> None:
        """Kill the command and all its children; safe to repeat."""
        self._is_killed = True
        super().kill()


class JobTransport(LocalTransport):
    """Carries commands and files to the node of the job that this process runs in."""

    process: ClassVar[type[LocalProcess]] = _JobProcess
