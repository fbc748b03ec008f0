"""A plain process on the host, isolated by nothing: what the others are compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace

from envcompare.command import Command
from envcompare.environments import Check, Isolation, gpu
from envcompare.environments.asking import ask
from envcompare.environments.diagnosis import Cause
from envcompare.environments.marks import kill_marked, marks
from envcompare.text import spoken
from envcompare.transport import Transport

# A login may lead every Python to other files by these, past the software that is compared. No
# container sees them; what a stack or a user gives is in the command's own variables and stays.
_LEADING = (
    "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONSAFEPATH",
    "PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX", "PYTHONEXECUTABLE",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Vm:
    """Runs the command as it is, but for the variables that lead Python elsewhere."""

    name: str = "vm"

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return the command with the run's marks, without what leads its Python elsewhere."""
        given = {name for name, _ in command.env}
        dropped = (word for name in _LEADING if name not in given for word in ("-u", name))
        return replace(
            command,
            argv=("env", *dropped, *command.argv),
            env=(*marks(self.name, isolation), *command.env),
        )

    def check(self, transport: Transport) -> Check:
        """Say whether the host runs Linux; the interpreter is the business of the stack."""
        hint = "log in there and see what keeps it busy"
        result = ask(transport, Command(argv=("uname", "-sr")), what="the host", hint=hint)
        if isinstance(result, Check):
            return result
        system, _, release = result.stdout.partition("\n")[0].strip().partition(" ")
        if system == "Linux":
            return Check(is_usable=True, version=release)
        return Check(
            is_usable=False,
            reason=f"the host runs {spoken(system) if system else 'an unknown system'}, not Linux",
            hint="name a Linux host with --hosts",
        )

    def check_gpu(self, transport: Transport) -> Check:
        """Say whether the NVIDIA driver is loaded and its devices are there."""
        return gpu.find(transport)

    def explain(self, exit_code: int, stderr: str) -> Cause | None:
        """Say that the program is missing or cannot be run."""
        if exit_code not in {126, 127}:
            return None
        line = (stderr.strip().splitlines() or ["no message"])[-1]
        return Cause(reason=f"the program cannot be started on the host: {line}")

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Kill the processes of this user that a run or a worker left."""
        return kill_marked(transport, self.name, run_id=run_id, worker=worker)
