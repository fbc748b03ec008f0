"""The software of an arm that environments share: wheels, the first start, the proof.

The proof of an arm's software is a hash of its installation, taken from inside.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Final

import msgspec

from envcompare import bundled
from envcompare.environments import (
    Environment,
    Isolation,
    kill_marked,
    marks,
    run_inside,
    run_wrapped,
)
from envcompare.errors import CommandTimeoutError, OutputLimitError, Problem, StackError
from envcompare.stack import Prepared, Progress, Request, storage
from envcompare.stack import image as images
from envcompare.stack.storage import ImageStore, Wheelhouse, host_cache, local_cache
from envcompare.stack.venv import LOADING, Layout, find_python, layout, left_out, software_of
from envcompare.stack.wheelhouse import check_machine, fill, is_filled
from envcompare.text import Command, CommandResult, first_few, spoken, visible
from envcompare.transport import CONTENT_S, Transport, make_folder, read_json, run, shell

TREE = "site_packages.sha256"
FILES = "site_packages.files"
LOCK = "lock.sha256"
UNPROVEN = "unproven"
_MOST_PARTS: Final = 20  # packages to inspect
_MOST_FILES: Final = 50  # named per package
_MOST_NAMED: Final = 3  # packages named in an error
# A name has at most 255 bytes, and a byte may be written as \\xff.
_MOST_NAME: Final = 1024
# The largest distributions of Python have some thousands of parts.
_MOST_INSTALLED: Final = 20_000
_KEEP = 'cat >"$1.part-$$" && mv -f -- "$1.part-$$" "$1" || { rm -f -- "$1.part-$$"; exit 1; }'


Inside = Callable[..., CommandResult]
"""Runs an arm's interpreter once, with these words, in its environment."""


class _NotReadError(Exception):
    """The installation of an arm could not be read."""


_UNREAD: Final = (_NotReadError, msgspec.DecodeError, CommandTimeoutError, OutputLimitError)
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
# Names become words of a command, which allows no NUL and limits their length.
_Name = Annotated[
    str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f]+\Z", min_length=1, max_length=_MOST_NAME)
]


class _Tree(msgspec.Struct, frozen=True, kw_only=True):
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    files: Annotated[int, msgspec.Meta(ge=0)]
    parts: Annotated[dict[_Name, _Digest], msgspec.Meta(max_length=_MOST_INSTALLED)]


class _Files(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[tuple[str, str, _Digest], ...]  # part, name and digest


class _Stamp(msgspec.Struct, frozen=True, kw_only=True):
    stamp: str


def prove(
    transport: Transport, prepared: Prepared, inside: Inside, *, name: str, progress: Progress
) -> Prepared:
    """Return the arm's software with the hash of its site-packages among the facts.

    An image or a SIF cannot change under its hash, so it is read once; a folder is read again if a
    file in it was replaced. Unreadable software has no such facts; `progress` and the identity give
    the reason. `name` is that of the environment.
    """
    try:
        key = prepared.fixed_by or read_json(_ask(inside, "--stamp"), _Stamp).stamp
        words = (name, key, prepared.interpreter, bundled.tree_program())
        kept_as = hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]
        tree = _kept(transport, inside, name=kept_as, progress=progress)
    except _UNREAD as error:
        progress.say(f"what is installed in {name} cannot be hashed, so it is not proven: {error}")
        return replace(prepared, identity=(*prepared.identity, (UNPROVEN, str(error))))
    if not tree.files:
        progress.say(f"no Python packages were found in {name}")
    facts = ((TREE, tree.sha256), (FILES, str(tree.files)))
    parts = tuple(f"{part} {digest}" for part, digest in tree.parts.items())
    # a known hash identifies the content
    known_by = () if prepared.fixed_by else ((TREE, tree.sha256),)
    return replace(
        prepared,
        facts=(*prepared.facts, *facts),
        parts=parts,
        software=(*prepared.software, *known_by),
    )


def tell_files_apart(
    arms: Mapping[str, tuple[Inside, Prepared]], *, progress: Progress
) -> dict[str, Prepared]:
    """Return the software of arms with the files that differ, by arm name.

    Each arm has a function that runs its interpreter, and its software. Only packages with equal
    versions are inspected, and files outside packages; if there are many, only the first.
    """
    listed_arms = {arm: prepared for arm, (_, prepared) in arms.items() if prepared.parts}
    parts = [dict(map(_halves, prepared.parts)) for prepared in listed_arms.values()]
    unlike = _unlike_parts(parts)
    digests: dict[str, dict[tuple[str, str], str]] = {}
    for arm in listed_arms if unlike else ():
        try:
            listed = read_json(_ask(arms[arm][0], "--files", *unlike), _Files).files
        except _UNREAD as error:
            progress.say(f"cannot tell which files of {', '.join(unlike)} differ in {arm}: {error}")
            return {}
        digests[arm] = {(part, name): digest for part, name, digest in listed}
    files_that_differ = _unlike_files(digests, unlike)
    changed = {
        arm: tuple(f"{' '.join(at)} {files[at]}" for at in files_that_differ if at in files)
        for arm, files in digests.items()
    }
    return {arm: replace(listed_arms[arm], changed=lines) for arm, lines in changed.items()}


def _unlike_parts(arms: list[dict[str, str]]) -> tuple[str, ...]:
    """Return the first parts that differ: packages of one version, and files some arms lack.

    Files outside packages come first: they are few, and no version number shows their difference.
    """
    names = sorted({name for arm in arms for name in arm}, key=lambda name: ("==" in name, name))
    unlike = []
    for name in names:
        digests = {arm.get(name, "") for arm in arms}
        # For files outside packages, absence counts too.
        if len(digests - {""} if "==" in name else digests) > 1:
            unlike.append(name)
    return tuple(unlike[:_MOST_PARTS])


def _unlike_files(
    digests: Mapping[str, Mapping[tuple[str, str], str]], parts: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Return part and name of the files that differ, the first of each part.

    Byte code is left out if its source differs too.
    """
    differing: list[tuple[str, str]] = []
    for part in parts:
        arms = [
            {name: digest for (owner, name), digest in files.items() if owner == part}
            for files in digests.values()
        ]
        holders = [files for files in arms if files or "==" not in part]
        names = sorted({name for files in holders for name in files})
        unlike = [name for name in names if len({files.get(name) for files in holders}) > 1]
        # Byte code stands next to its source: `__pycache__/NAME.TAG.pyc` next to `NAME.py`.
        source_of = {
            name: re.sub(r"__pycache__/([^/]+?)\.[^/]*\.pyc$", r"\1.py", name) for name in unlike
        }
        sources = [name for name in unlike if source_of[name] not in {*unlike} - {name}]
        differing += [(part, name) for name in sources[:_MOST_FILES]]
    return tuple(differing)


def _halves(entry: str) -> tuple[str, str]:
    """Return name and digest of an entry; names may contain blanks."""
    name, _, digest = entry.rpartition(" ")
    return name, digest


def mismatch(
    arm: str, mine: Prepared, others: Mapping[str, Prepared], *, host: str
) -> StackError | None:
    """Return the error for an arm whose software differs from that of an arm with the same wheels.

    If no other arm differs, compares with the label of the arm's image.
    """
    tree, lock = (dict(mine.facts).get(name) for name in (TREE, LOCK))
    for other, prepared in others.items():
        facts = dict(prepared.facts)
        if tree and lock and facts.get(LOCK) == lock and facts.get(TREE, tree) != tree:
            known, removals = _contradiction({arm: mine, other: prepared})
            return StackError(
                f"{arm} and {other} on {host} have different software, made from the same wheels",
                details=f"site-packages of {arm} has the hash {tree[:16]}, that of {other} "
                f"{facts[TREE][:16]}{known}",
                hint=f"{removals}, then run again; --allow-mismatch compares them as they are",
            )
    if tree and mine.meant and tree != mine.meant:
        return StackError(
            f"{arm} on {host} has different software from what its image was built with",
            details=f"its site-packages have the hash {tree[:16]}, the label of the image says "
            f"{mine.meant[:16]}",
            hint=f"{_removal(mine)}, then run again; --allow-mismatch accepts it as it is",
        )
    return None


def _contradiction(both: Mapping[str, Prepared]) -> tuple[str, str]:
    """Return what is known about two arms that differ, and the command that removes one.

    It names the arms that differ from the label of their image, the packages whose files differ,
    and the files outside packages.
    """
    trees = {prepared.meant for prepared in both.values() if prepared.meant}
    # Two labels that disagree do not tell which arm changed.
    meant = trees.pop() if len(trees) == 1 else ""
    changed = [arm for arm, one in both.items() if meant and dict(one.facts)[TREE] != meant]
    known = ""
    if changed:
        known = f"; the image was built with {meant[:16]}, so {' and '.join(changed)} changed"
    if all(prepared.parts for prepared in both.values()):
        names = _unlike_parts([dict(map(_halves, prepared.parts)) for prepared in both.values()])
        listed = first_few([name.replace("==", " ") for name in names], most=_MOST_NAMED)
        known += f"; what differs: {visible(listed)}" if names else ""
    likely = min(both, key=lambda arm: _ease_of_change(both[arm]))
    return known, " && ".join(_removal(both[arm]) for arm in changed or [likely])


def _removal(prepared: Prepared) -> str:
    if not prepared.reference:
        return f"rm -r {prepared.interpreter.removesuffix('/bin/python')}"
    command = "rm -r" if prepared.reference.startswith("/") else "docker image rm"
    return f"{command} {prepared.reference}"


def _ease_of_change(prepared: Prepared) -> int:
    """Order a venv before a SIF or a sandbox, and an image, which cannot change, last."""
    return 0 if not prepared.reference else 1 if prepared.reference.startswith("/") else 2


def _kept(transport: Transport, inside: Inside, *, name: str, progress: Progress) -> _Tree:
    folder = f"{host_cache(transport)}/proofs"
    before = shell(transport, 'cat -- "$1"', f"{folder}/{name}")
    # What is damaged is read from the installation again.
    with suppress(msgspec.DecodeError):
        if before.succeeded:
            return read_json(before.stdout, _Tree)
    tree = read_json(_ask(inside), _Tree)
    make_folder(transport, folder)
    # on stdin, since a tree may exceed the length of a command's word
    keep = Command(argv=("sh", "-c", _KEEP, "sh", f"{folder}/{name}"))
    kept = run(transport, keep, stdin=msgspec.json.encode(tree), timeout_s=CONTENT_S)
    if not kept.succeeded:
        where = f"{folder} on {transport.name}"
        progress.say(f"cannot write to {where}, so the next run hashes again: {kept.tail(1)}")
    return tree


def _ask(inside: Inside, *words: str) -> str:
    result = inside("-I", "-B", "-c", bundled.tree_program(), *words)
    if not result.succeeded:
        raise _NotReadError(result.tail(1) or f"exit code {result.exit_code}")
    return result.stdout.strip()


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
    if set(kinds) - {"venv"}:
        builder = ImageStore(engine=request.builder, transport=here)
        # Files are unpacked from the engine's stream: no archive of the image is made for them.
        is_sent = is_remote and ("image" in kinds or "sif" in kinds)
        sent: tuple[storage.StepName, ...] = ("sent image",) if is_sent else ()
        steps += storage.image_needs(builder, "image", *sent)
    if "image" in kinds and is_remote:
        store = ImageStore(engine=request.builder, transport=there)
        steps += storage.image_needs(store, "received image")
    if "sif" in kinds:
        # With an image on the host, the SIF is made from its engine, without an archive.
        if is_remote and "image" not in kinds:
            steps.append(storage.Need(step="archive", transport=there, path=cache))
        steps.append(storage.Need(step="sif", transport=there, path=cache))
    if "files" in kinds:
        steps.append(storage.Need(step="files", transport=there, path=cache))
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
