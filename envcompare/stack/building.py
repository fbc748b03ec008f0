"""Build the workload image by the local engine; its labels say what is in it and on what it is."""

from __future__ import annotations

import io
import json
import secrets
from dataclasses import dataclass, replace

from envcompare import __version__, bundled
from envcompare.command import Command
from envcompare.environments.docker import connect
from envcompare.errors import StackError, UnusableError
from envcompare.stack import Progress, begin
from envcompare.stack.buildlog import said_by_step
from envcompare.stack.cache import ENGINE_ROOM_HINT, LOCK_LABEL, PINNED, failure
from envcompare.stack.engine import buildkit
from envcompare.stack.image import PYTHON, TREE_LABEL, Image, Recipe, find, find_built
from envcompare.stack.once import one_at_a_time
from envcompare.stack.ownership import CONFIG_LABEL, config_sha256
from envcompare.stack.wheelhouse import check_whole
from envcompare.transport import Transport
from envcompare.transport.operations import CONTENT_S, run

_OCI = "org.opencontainers.image"
_PART = "envcompare-part"
_FAILED: dict[frozenset[tuple[str, str]], StackError] = {}  # in this process, by its labels


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What the engine is told: on what to build, from what, and the name of the result.

    The result has the label of the lock, so that `clean` finds what a killed build left.
    """

    base: str
    recipe: Recipe
    tag: str


@one_at_a_time
def build(wanted: Recipe, *, local: Transport, progress: Progress) -> Image:
    """Return the workload image in the local engine; built when it is not there.

    Raises StackError when the engine here cannot be used, the base is missing, a wheel is damaged,
    or the disk is full.
    """
    try:
        found = find_built(local, wanted)
    except UnusableError as error:
        raise StackError(
            "the workload image cannot be built here",
            details=f"{error.brief}: {error.details}",
            hint=error.hint or "make docker usable on this machine, or use --envs vm",
        ) from error
    if found:
        return found
    check_whole(wanted.wheelhouse)
    base = find(local, wanted.base_id or wanted.base, name=wanted.base)
    if base is None:
        base = _pull(local, wanted.base, progress)
    wanted = replace(wanted, base_id=base.id)
    if earlier := _FAILED.get(frozenset(wanted.labels.items())):
        raise earlier  # for another arm or host; what failed a moment ago fails again
    begin(progress, f"building {wanted.tag} from {wanted.base}")
    tag = _build(wanted, base, local)
    try:
        image = _label(wanted, base, tag, local)
    finally:
        _untag(local, tag)
    progress(f"built {wanted.tag}, {image.size_bytes / 1e6:.0f} MB, tree {image.tree[:12]}")
    return image


def revision(local: Transport) -> str:
    """Return the commit of the checkout that envcompare runs from; empty where it is installed."""
    root = bundled.root()
    if not (root / ".git").exists():
        return ""
    asked = run(local, Command(argv=("git", "-C", str(root), "rev-parse", "HEAD")))
    return asked.stdout.strip() if asked.succeeded else ""


def _build(wanted: Recipe, base: Image, local: Transport) -> str:
    """Build on the very base that was found, whatever its name means by then; return a tag."""
    token = secrets.token_hex(4)  # another build may be on its way
    pinned = base.digest or f"{PINNED}:{token}"
    if not base.digest:
        with connect(local) as client:
            client.api.tag(base.id, PINNED, token)
    order = _Order(base=pinned, recipe=wanted, tag=f"{_PART}:{token}")
    try:
        command = buildkit(local, _argv(order))
        text = _build_with(local, command) if command else _build_classic(local, order)
    finally:
        if not base.digest:
            _untag(local, pinned)
    if find(local, order.tag) is None:
        error = failure(
            local,
            f"building {wanted.tag}",
            said_by_step(text),
            hint=f"check that {wanted.base} has python3 of the version the wheels are for",
            room_hint=ENGINE_ROOM_HINT,
        )
        _FAILED[frozenset(wanted.labels.items())] = error
        raise error
    return order.tag


def _label(wanted: Recipe, base: Image, tag: str, local: Transport) -> Image:
    """Say on the image what it says is in it; its layers stay as they are."""
    asked = [PYTHON, "-I", "-B", "-c", bundled.tree_program()]
    with connect(local) as client:
        said = client.containers.run(tag, asked, entrypoint="", network_disabled=True, remove=True)
        facts = client.api.inspect_image(tag)  # type: ignore[no-untyped-call]
        own = {
            **wanted.labels,
            TREE_LABEL: json.loads(said)["sha256"],
            f"{_OCI}.version": __version__,
            f"{_OCI}.revision": revision(local),
            f"{_OCI}.base.name": wanted.base,
            f"{_OCI}.base.digest": base.digest.rpartition("@")[2] or base.id,
        }
        own = {name: value for name, value in own.items() if value}
        client.images.build(
            fileobj=io.BytesIO(f"FROM {tag}\n".encode()),
            labels={**own, CONFIG_LABEL: config_sha256(facts, own)},
            tag=wanted.tag,
            rm=True,
        )
    image = find_built(local, wanted)
    if image is None:
        raise StackError(
            f"{wanted.tag} was built and is not there",
            details="the engine finds no image with its labels",
            hint="run it again, and see that nothing else removes images meanwhile",
        )
    return image


def _untag(local: Transport, name: str) -> None:
    """Take away a name that served the build; what other images stand on stays."""
    with connect(local) as client:
        client.api.remove_image(name, noprune=True)


def _pull(local: Transport, base: str, progress: Progress) -> Image:
    """Pull a base that is not here, so that its ID is known before the build."""
    begin(progress, f"pulling {base}")
    pull = Command(argv=("docker", "pull", "--quiet", "--", base))
    result = run(local, pull, timeout_s=CONTENT_S)
    said = result.tail(1)
    if result.exit_code == 127:
        said = _pull_without_client(local, base)
    found = find(local, base)
    if found is None:
        raise StackError(
            f"the base image {base} is not here and cannot be pulled",
            details=said,
            hint="docker pull it where a registry can be reached, or make one with "
            "containers/base.sh and name it with --base-image",
        )
    return found


def _pull_without_client(local: Transport, base: str) -> str:
    try:
        with connect(local) as client:
            client.images.pull(base)
    except UnusableError as error:
        return error.details
    return ""


def _argv(order: _Order) -> tuple[str, ...]:
    return (
        *("build", "--network=none", "--progress=plain"),
        *(f"--file={order.recipe.dockerfile}", f"--build-arg=BASE_IMAGE={order.base}"),
        *(f"--tag={order.tag}", f"--label={LOCK_LABEL}={order.recipe.wheelhouse.key}"),
        str(order.recipe.wheelhouse.folder),
    )


def _build_with(local: Transport, command: Command) -> str:
    result = run(local, command, timeout_s=CONTENT_S)
    return f"{result.stdout}\n{result.stderr}"


def _build_classic(local: Transport, order: _Order) -> str:
    try:
        with connect(local) as client:
            client.images.build(
                path=str(order.recipe.wheelhouse.folder),
                dockerfile=str(order.recipe.dockerfile),
                buildargs={"BASE_IMAGE": order.base},
                tag=order.tag,
                labels={LOCK_LABEL: order.recipe.wheelhouse.key},
                network_mode="none",
                rm=True,
                forcerm=True,
            )
    except UnusableError as error:
        log = getattr(error.__cause__, "build_log", ())
        said = [str(line.get("stream") or line) for line in log]
        return "\n".join([*said, error.details])
    return ""
