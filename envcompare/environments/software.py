"""The software of an arm that environments share: wheels, the first start, the proof."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import replace

from envcompare.command import Command, CommandResult
from envcompare.environments import (
    Environment,
    Isolation,
    kill_marked,
    marks,
    run_inside,
    run_wrapped,
)
from envcompare.errors import CommandTimeoutError, Problem, StackError
from envcompare.stack import Prepared, Progress, Request, storage
from envcompare.stack import image as images
from envcompare.stack.proof import Inside, prove
from envcompare.stack.storage import ImageStore, Wheelhouse, host_cache, local_cache
from envcompare.stack.venv import LOADING, Layout, find_python, layout, left_out, software_of
from envcompare.stack.wheelhouse import check_machine, fill, is_filled
from envcompare.text import spoken
from envcompare.transport import Transport

PYTHON = "python3"
"""How a user of an image starts Python, through the image's PATH."""

# With these a login may lead every Python and its libraries to files outside the compared
# software. No container sees them. Those of a stack or a user are in the command's own variables
# and stay.
_LEADING = (
    "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONSAFEPATH",
    "PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX", "PYTHONEXECUTABLE", *LOADING,
)  # fmt: skip
_OWN_PYTHON = "ENVCOMPARE_PYTHON"  # read by the harness inside (workloads/harness/placement.py)
_LOGIN = "login"  # marks a plain process that belongs to no arm
_NOBODY = 65534
_START_S = 300.0
# The wording of Docker, and of `env`, which starts it in other environments.
_NO_PYTHON = re.compile(r'"python3": executable file not found|env: \W?python3\W')
_VERSION = re.compile(r"[0-9]+\.[0-9]+\S*")
_WHICH = "import sys; print(sys.executable); print(sys.version.split()[0])"


def wheelhouse(request: Request) -> Wheelhouse:
    """Return the wheelhouse of the bundled workloads for a host.

    Before downloading, raises StackError if the machine has no wheels, or a disk lacks the room for
    everything made from them.
    """
    python, variant = request.options.python, request.wheels.variant
    check_machine(request.transport)
    if request.progress.may_make and not is_filled(request.wheels, python=python):
        storage.require(needs(request), storage.expected(variant), purpose=f"the stack {variant}")
    return fill(
        request.wheels.tier.requirements,
        python=python,
        variant=variant,
        local=request.local,
        progress=request.progress,
    )


def needs(request: Request) -> tuple[storage.Need, ...]:
    """Return the room that the software of all arms of a host needs, here and there."""
    here, there, kinds = request.local, request.transport, request.kinds
    is_remote = here.name != there.name
    cache = host_cache(there)
    steps = (
        []
        if is_remote and not kinds
        else [storage.Need(step="wheels", transport=here, path=str(local_cache()))]
    )
    if "venv" in kinds:
        steps += [storage.Need(step="sent wheels", transport=there, path=cache)] * is_remote
        steps.append(storage.Need(step="venv", transport=there, path=cache))
    if "image" in kinds or "sif" in kinds:
        builder = ImageStore(engine=request.builder, transport=here)
        sent: tuple[storage.StepName, ...] = ("sent image",) if is_remote else ()
        steps += storage.image_needs(builder, "image", *sent)
    if "image" in kinds and is_remote:
        store = ImageStore(engine=request.builder, transport=there)
        steps += storage.image_needs(store, "received image")
    if "sif" in kinds:
        if is_remote and "image" not in kinds:  # otherwise it is made from the host's engine
            steps.append(storage.Need(step="archive", transport=there, path=cache))
        steps.append(storage.Need(step="sif", transport=there, path=cache))
    return tuple(steps)


def inside(
    where: Environment, transport: Transport, prepared: Prepared, *, run_id: str = ""
) -> Inside:
    """Return a function that runs the arm's interpreter once, without the host's variables."""

    def start(*words: str) -> CommandResult:
        isolation = Isolation(
            run_id=run_id or _new_run_id(),
            arm="prepare",
            reference=prepared.reference,
            engine=prepared.engine,
            layers=prepared.layers,
            uid=_NOBODY,
            gid=_NOBODY,
        )
        command = Command(argv=(prepared.interpreter, *words), env=prepared.variables)
        return run_inside(transport, command, where=where, isolation=isolation, timeout_s=_START_S)

    return start


def with_proof(where: Environment, request: Request, prepared: Prepared) -> Prepared:
    """Return the software with the proof of its installed content, taken from inside."""
    start = inside(where, request.transport, prepared, run_id=request.run_id)
    return prove(request.transport, prepared, start, name=where.name, progress=request.progress)


def started(
    where: Environment, request: Request, prepared: Prepared, identity: tuple[tuple[str, str], ...]
) -> Prepared:
    """Start the user's image once, to check that it starts and to find its interpreter.

    Raises StackError if it does not start, or has no Python.
    """
    name = dict(identity).get("image.name", prepared.reference)
    brief = f"{name} cannot be used on {request.transport.name}"
    hint = "run python3 in it by hand and fix what it reports"
    try:
        result = inside(where, request.transport, prepared, run_id=request.run_id)("-c", _WHICH)
    except CommandTimeoutError as error:
        raise StackError(brief, details=str(error), hint=hint) from error
    if result.exit_code == 127 and _NO_PYTHON.search(result.stderr):
        raise StackError(
            brief,
            details="no python3 is on the PATH of the image",
            hint="install it in the image, or add its folder to PATH: ENV PATH=/its/folder:$PATH",
        )
    if not result.succeeded:
        problem = where.explain(result.exit_code, result.stderr) or Problem(brief=result.tail(1))
        raise StackError(brief, details=problem.brief, hint=problem.hint or hint)
    interpreter, _, version = result.stdout.strip().partition("\n")
    if not interpreter.startswith("/") or not _VERSION.fullmatch(version):
        raise StackError(
            brief,
            details="python3 in the image did not print its path and version; it printed: "
            f"{spoken(result.stdout)}",
            hint=hint,
        )
    python = (("python", version), ("started_as", PYTHON))
    return replace(
        prepared,
        interpreter=interpreter,
        started_as=PYTHON,
        identity=(("stack", "given"), *identity, *python),
        variables=((_OWN_PYTHON, PYTHON),),
    )


def workload_software(image: images.Image, *, name: str) -> Prepared:
    """Return the software in an engine's workload image."""
    return Prepared(
        interpreter=images.PYTHON,
        reference=image.id,
        fixed_by=image.id,
        identity=(*image.identity, ("image.name", name)),
        facts=image.facts,
        software=image.software,
        meant=image.tree,
    )


def user_software(where: Environment, request: Request, image: images.Image) -> Prepared:
    """Return the software in a user's image, with its proof; raises as `started`."""
    prepared = Prepared(
        interpreter=PYTHON,
        reference=image.id,
        fixed_by=image.id,
        facts=image.facts,
        software=image.software,
    )
    identity = (("image", image.id), ("image.name", request.reference))
    return with_proof(where, request, started(where, request, prepared, identity))


def without_leading(command: Command) -> Command:
    """Return a command without the login's variables that lead to other software."""
    given = {name for name, _ in command.env}
    dropped = (word for name in _LEADING if name not in given for word in ("-u", name))
    return replace(command, argv=("env", *dropped, *command.argv))


def show_host(request: Request, make_root: Callable[[Layout], str]) -> Prepared:
    """Return the host's own interpreter, in a container with the host's files bound read-only.

    Reports the folders of Python that the container does not show. Raises UnusableError if a needed
    import fails, and StackError if the container's empty root cannot be made.
    """
    plain, shown = host_python(request, is_shown=True)
    root = make_root(shown)
    return replace(
        plain, reference=root, identity=(*plain.identity, ("skeleton", root)), mounts=shown.mounts
    )


def host_python(request: Request, *, is_shown: bool = False) -> tuple[Prepared, Layout]:
    """Return the interpreter of a login, and the parts of the host that a container must show."""
    options = request.options
    python = find_python(
        request.transport, python=options.host_python, imports=options.host_imports
    )
    plain = Prepared(
        interpreter=python.path,
        identity=(("stack", "host"), ("python", python.version), *python.imported.items()),
        variables=tuple(python.variables.items()),
    )
    # a container sees the same files; their content is not promised
    start = _by_login(request, plain)
    silent = Progress(lambda _text: None)
    packages = prove(request.transport, plain, start, name=_LOGIN, progress=silent).software
    software = (*software_of(python), *packages)
    for path in left_out(python) if is_shown else ():
        request.progress.say(
            f"{path}, where Python looks, is not shown in the container: name one below it"
        )
    return replace(plain, software=software), layout(python)


def _by_login(request: Request, prepared: Prepared) -> Inside:
    """Return a function that runs the interpreter of a login once, as a plain process."""
    transport = request.transport

    def start(*words: str) -> CommandResult:
        isolation = Isolation(run_id=request.run_id or _new_run_id(), arm="prepare")
        env = (*marks(_LOGIN, isolation), *prepared.variables)
        command = without_leading(Command(argv=(prepared.interpreter, *words), env=env))

        def end() -> int:
            worker = isolation.worker
            return kill_marked(transport.bare, _LOGIN, run_id=isolation.run_id, worker=worker)

        return run_wrapped(transport, command, end=end, timeout_s=_START_S)

    return start


def _new_run_id() -> str:
    return f"prepare-{uuid.uuid4().hex[:8]}"
