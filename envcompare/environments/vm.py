"""A plain process on the host without isolation, the usual reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from envcompare.config import Placing, Rung, Traits
from envcompare.environments import Check, Isolation, ask, kill_marked, marks, swept, unusable
from envcompare.environments.software import host_python, wheelhouse, with_proof, without_leading
from envcompare.errors import Problem
from envcompare.stack import Prepared, Request, last_line, venv
from envcompare.stack.storage import OPEN_FOLDERS, host_temporary
from envcompare.stack.venv import LOADING
from envcompare.text import Command, spoken
from envcompare.transport import Transport, shell

_TMPFS = "/dev/shm/envcompare-"  # noqa: S108 — a folder there is private to the user
_TEMPORARY = "envcompare-{run}"
# Files of another user there are not part of the run.
_DROP = (
    OPEN_FOLDERS
    + r"""
[ -d "$1" ] && [ ! -L "$1" ] && [ "$(stat -c %u "$1")" = "$(id -u)" ] || { echo 0; exit; }
open_folders "$1"
rm -rf -- "$1" && echo 0
"""
)
# $@: the variables that lead the loader. A folder of the driver counts if the loader finds no
# libcuda.so.1 without it, as on Container-Optimized OS.
_LOGIN = r"""
libcuda='libcuda\.so\.1 \(libc6,(x86-64|AArch64)'
for name; do
  [ -z "$(printenv "$name")" ] || printf 'set %s\n' "$name"
done
! PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null | grep -Eq "$libcuda" || exit 0
set -f
IFS=:
for folder in $LD_LIBRARY_PATH; do
  case $folder in
    /*) [ ! -e "$folder/libcuda.so.1" ] || printf 'driver %s\n' "$folder" ;;
  esac
done
exit 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vm:
    """Runs the command unchanged, without variables that lead Python or the loader elsewhere."""

    name: ClassVar[str] = "vm"
    traits: ClassVar[Traits] = Traits(
        reference="folder",
        is_default=True,
        is_isolated=False,
        software="venv",
        rung=Rung(1, "plain process"),
        # its files are the host's own, on the disk for every place of a container
        places={
            "image": Placing(),
            "overlay": Placing(),
            "tmpfs": Placing(folder=f"{_TMPFS}{{run}}/{{arm}}", private=f"{_TMPFS}{{run}}"),
            "sif": Placing(),
        },
        temporary=_TEMPORARY,
    )
    engine: ClassVar[None] = None

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return the command with the run's marks, without variables that redirect its Python.

        Each arm has its own TMPDIR, so arms do not find each other's files there.
        """
        temporary = (("TMPDIR", isolation.temporary),) if isolation.temporary else ()
        env = (*marks(self.name, isolation), *temporary, *command.env)
        return without_leading(replace(command, env=env))

    def engine_options(self, isolation: Isolation) -> tuple[str, ...]:  # noqa: ARG002 — no engine
        """Return nothing: the process has the login's settings."""
        return ()

    def check(self, transport: Transport) -> Check:
        """Check whether the host runs Linux; the stack checks the interpreter."""
        hint = "log in there and see what keeps it busy"
        result = ask(transport, Command(argv=("uname", "-sr")), what="the host", hint=hint)
        if isinstance(result, Check):
            return result
        system, _, release = result.stdout.partition("\n")[0].strip().partition(" ")
        if system == "Linux":
            return Check(version=release)
        return unusable(
            f"the host runs {spoken(system) if system else 'an unknown system'}, not Linux",
            "name a Linux host with --hosts",
        )

    def check_gpu(self, transport: Transport, driver: Check) -> Check:  # noqa: ARG002 — the host was asked
        """Check whether the NVIDIA driver is loaded and its devices exist."""
        return driver

    def prepare(self, request: Request) -> Prepared:
        """Return a venv of the locked wheels, or the interpreter of the user's folder or login."""
        if request.reference:
            python = f"{request.reference}/bin/python"
            own = replace(request, options=replace(request.options, host_python=python))
            return host_python(own)[0]
        if request.is_host_stack:
            return host_python(request)[0]
        transport, options = request.transport, request.options
        interpreter = venv.find_interpreter(
            transport, python=options.python, chosen=options.vm_python
        )
        wheels, progress = wheelhouse(request), request.progress
        made = venv.make(transport, wheels, interpreter=interpreter, progress=progress)
        return with_proof(self, request, without_login(request, made))

    def explain(self, exit_code: int, stderr: str) -> Problem | None:
        """Return that the program is missing or cannot be run."""
        if exit_code not in {126, 127}:
            return None
        return Problem(brief=f"the program cannot be started on the host: {last_line(stderr)}")

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Kill this user's processes that a run or a worker left, and remove a run's folders."""
        count = kill_marked(transport, self.name, run_id=run_id, worker=worker)
        if not worker:
            temporary = f"{host_temporary(transport)}/{_TEMPORARY.format(run=run_id)}"
            for folder in (f"{_TMPFS}{run_id}", temporary):
                drop = Command(argv=("sh", "-c", _DROP, "sh", folder))
                swept(transport, drop, hint=f"remove it there with: rm -rf {folder}")
        return count


def without_login(request: Request, made: Prepared) -> Prepared:
    """Drop the login's variables for libraries from the software, and report which.

    Keeps only the folders of the GPU driver in the library path; they are not compared.
    """
    lines = shell(request.transport, _LOGIN, *LOADING).stdout.splitlines()
    fields = [line.partition(" ") for line in lines]
    names = [value for word, _, value in fields if word == "set"]
    kept = ":".join(value for word, _, value in fields if word == "driver")
    if not names:
        return made
    where, dropped = request.transport.name, ", ".join(names)
    request.progress.say(
        f"{where} vm: drops {dropped} of the login, which no container sees; "
        "--stacks host keeps what the login sets"
    )
    made = replace(made, identity=(*made.identity, ("login.dropped", dropped)))
    if not kept:
        return made
    request.progress.say(f"{where} vm: keeps LD_LIBRARY_PATH={kept}: only there is libcuda.so.1")
    return replace(
        made,
        identity=(*made.identity, ("login.libcuda", kept)),
        variables=(*made.variables, ("LD_LIBRARY_PATH", kept)),
    )
