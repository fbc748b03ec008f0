"""Our images: built by the local engine, labelled with their contents, and removed again."""

from __future__ import annotations

import io
import json
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from envcompare import bundled
from envcompare.bundled import __version__
from envcompare.errors import CommandTimeoutError, StackError, UnusableError
from envcompare.stack import LOCK_LABEL, PYTHONS, Progress, failure, is_full, storage
from envcompare.stack.image import (
    CONFIG_LABEL,
    HELD_LABEL,
    PINNED,
    PYTHON,
    TREE_LABEL,
    Image,
    Recipe,
    config_sha256,
    find,
    find_built,
    is_built_on,
    labels,
    look_up,
)
from envcompare.stack.storage import ImageStore, check_whole
from envcompare.stack.wheelhouse import one_at_a_time
from envcompare.text import Command, spoken
from envcompare.transport import ANSWER_S, CONTENT_S, FOLDER_S, Transport, read_json, run

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OF_BUILDKIT = re.compile(r"^#\d+ \d+\.\d+ (.*\S)", re.MULTILINE)
_OF_CLASSIC = re.compile(r"^ ---> Running in [0-9a-f]+$", re.MULTILINE)
_END = ("{'errorDetail'", "The command '", " ---> ", "Removing intermediate", "Step ")
_OCI = "org.opencontainers.image"
_PART = "envcompare-part"
_FAILED: dict[frozenset[tuple[str, str]], StackError] = {}  # of this process, by labels
_OUR_NAMES = ("envcompare-workload:", "envcompare-skeleton:", "envcompare-part:")
_NAME = "{{.Repository}}:{{.Tag}}"
_BUILT_UPON = "has dependent child images"
_IMAGE_ID = re.compile(r"(?:sha256:)?[0-9a-f]{12,64}")
_NO_PROGRAM = 127


def held_or_built(
    on_host: ImageStore, wanted: Recipe, *, local: ImageStore, progress: Progress
) -> tuple[ImageStore, Image]:
    """Return the workload image and the engine that has it: the host's, or else the local one.

    A host without a usable engine may still run the image in another way. Raises as `build` does.
    """
    with suppress(UnusableError):
        if image := find_built(on_host, wanted):
            return on_host, image
    return local, build(wanted, local=local, progress=progress)


@one_at_a_time
def require_base(
    base: str, *, local: ImageStore, is_elsewhere: Callable[[], bool], progress: Progress
) -> None:
    """Pull a missing base, unless it `is_elsewhere`; raises StackError if it cannot be pulled.

    An unusable engine is left to `build`, as is one with an image built on the base.
    """
    try:
        is_here = find(local, base) is not None or is_built_on(base, local)
    except UnusableError:
        return
    if not is_here and not is_elsewhere():
        _pull(local, base, progress)


def where_base_is(base: str, *, local: ImageStore, there: ImageStore) -> str:
    """Return where the base image, or an image built on it, can be had; nothing is pulled.

    Raises StackError if it cannot be had, and UnusableError if an engine cannot be used.
    """
    if is_built_on(base, there) or is_built_on(base, local):
        return "an image is built on it"
    if look_up(local, base) is not None:
        return "is here"
    try:
        with local.connect() as client:
            client.images.get_registry_data(base)
    except UnusableError as error:
        raise _no_base(base, error.details, local) from error
    return "not here yet; its registry has it"


@one_at_a_time
def build(wanted: Recipe, *, local: ImageStore, progress: Progress) -> Image:
    """Return the workload image in the local engine, built if missing.

    Raises StackError if the engine here cannot be used, the base is missing, a wheel is damaged, or
    the disk is full.
    """
    try:
        image = find_built(local, wanted)
    except UnusableError as error:
        raise StackError(
            "the workload image cannot be built here",
            details=f"{error.brief}: {error.details}",
            hint=error.hint or f"make {local.engine.program} usable on this machine",
        ) from error
    if image:
        return image
    check_whole(wanted.wheelhouse)
    base = find(local, wanted.base_id or wanted.base, name=wanted.base)
    if base is None:
        base = _pull(local, wanted.base, progress)
    wanted = replace(wanted, base_id=base.id)
    if earlier := _FAILED.get(frozenset(wanted.labels.items())):
        # For another arm or host it would fail again.
        raise earlier
    needs = storage.image_needs(local, "image")
    storage.require(needs, wanted.wheelhouse.amount, purpose=f"building {wanted.tag}")
    _check_python(wanted, base, local)
    progress.begin(f"building {wanted.tag} from {wanted.base}")
    tag = _build(wanted, base, local)
    try:
        image = _label(wanted, base, tag, local)
    finally:
        _untag(local, tag)
    progress.say(f"built {wanted.tag}, {image.size_bytes / 1e6:.0f} MB, tree {image.tree[:12]}")
    return image


def revision(local: Transport) -> str:
    """Return the commit of envcompare's checkout; empty if it is installed."""
    root = bundled.root()
    if not (root / ".git").exists():
        return ""
    head = run(local, Command(argv=("git", "-C", str(root), "rev-parse", "HEAD")))
    return head.stdout.strip() if head.succeeded else ""


def _check_python(wanted: Recipe, base: Image, local: ImageStore) -> None:
    """Raise StackError if the base's Python differs from that of the wheels."""
    program = ["python3", "-I", "-c", 'import sys; print("%d.%d" % sys.version_info[:2])']
    needed = wanted.wheelhouse.python
    try:
        with local.connect() as client:
            container = client.containers.create(
                base.id, program, entrypoint="", network_disabled=True
            )
            # The engine does not remove a container that failed to start.
            try:
                container.start()
                container.wait()
                output = container.logs(stderr=False)
            finally:
                container.remove(force=True)
    except UnusableError as error:
        raise StackError(
            f"the base image {wanted.base} cannot run python3",
            details=error.details,
            hint=f"name an image with Python {needed or 3} with --base-image",
        ) from error
    python = output.decode().strip()
    if needed and python != needed:
        fits = f", or choose the wheels for {python} with --python {python}" * (python in PYTHONS)
        raise StackError(
            f"the base image {wanted.base} has Python {python}, but the wheels are for {needed}",
            hint=f"name an image with Python {needed} with --base-image{fits}",
        )


def _build(wanted: Recipe, base: Image, local: ImageStore) -> str:
    """Build on exactly the base that was found, even if its name moves; return a tag."""
    # Another build may be running, so the names are random.
    token = secrets.token_hex(4)
    pinned, tag = base.digest or f"{PINNED}:{token}", f"{_PART}:{token}"
    if not base.digest:
        with local.connect() as client:
            client.api.tag(base.id, PINNED, token)
    try:
        command = local.buildkit(
            *("build", "--network=none", "--progress=plain"),
            *(f"--file={wanted.dockerfile}", f"--build-arg=BASE_IMAGE={pinned}"),
            # `clean` finds what a killed build left by the label of the lock
            *(f"--tag={tag}", f"--label={LOCK_LABEL}={wanted.wheelhouse.key}"),
            str(wanted.wheelhouse.folder),
        )
        if command:
            result = run(local.transport, command, timeout_s=CONTENT_S)
            text = f"{result.stdout}\n{result.stderr}"
        else:
            text = _build_classic(wanted, pinned, tag, local)
    finally:
        if not base.digest:
            _untag(local, pinned)
    if find(local, tag) is None:
        error = failure(
            local.transport,
            f"building {wanted.tag}",
            _output_of_step(text),
            hint=f"check that {wanted.base} has python3 of the version the wheels are for",
            room_hint=local.engine.room_hint,
        )
        _FAILED[frozenset(wanted.labels.items())] = error
        raise error
    return tag


def _label(wanted: Recipe, base: Image, tag: str, local: ImageStore) -> Image:
    """Label the image with the hash of its content, which it reports; keep its layers."""
    program = [PYTHON, "-I", "-B", "-c", bundled.tree_program()]
    with local.connect() as client:
        output = client.containers.run(
            tag, program, entrypoint="", network_disabled=True, remove=True
        )
        facts = client.api.inspect_image(tag)  # type: ignore[no-untyped-call]  # so in docker's stubs
        given = {
            **wanted.labels,
            TREE_LABEL: json.loads(output)["sha256"],
            f"{_OCI}.version": __version__,
            f"{_OCI}.revision": revision(local.transport),
            f"{_OCI}.base.name": wanted.base,
            f"{_OCI}.base.digest": base.digest.rpartition("@")[2] or base.id,
        }
        given = {name: value for name, value in given.items() if value}
        client.images.build(
            fileobj=io.BytesIO(f"FROM {tag}\n".encode()),
            labels={**given, CONFIG_LABEL: config_sha256(facts, given)},
            tag=wanted.tag,
            rm=True,
        )
    image = find_built(local, wanted)
    if image is None:
        raise StackError(
            f"{wanted.tag} was built but is missing",
            hint="run it again, and make sure that nothing else removes images meanwhile",
        )
    return image


def _untag(local: ImageStore, name: str) -> None:
    """Remove a name that served the build; keep layers that other images use."""
    with local.connect() as client:
        client.api.remove_image(name, noprune=True)


def _pull(local: ImageStore, base: str, progress: Progress) -> Image:
    """Pull a missing base, so that its ID is known before the build."""
    progress.begin(f"pulling {base}")
    result = local.run("pull", "--quiet", "--", base, timeout_s=CONTENT_S)
    message = result.tail(1)
    # Without a client here, the engine may still answer on its socket.
    if result.exit_code == 127:
        try:
            with local.connect() as client:
                client.images.pull(base)
        except UnusableError as error:
            message = error.details
        else:
            message = ""
    image = find(local, base)
    if image is None:
        raise _no_base(base, message, local)
    return image


def _no_base(base: str, why: str, local: ImageStore) -> StackError:
    return StackError(
        f"the base image {base} is not here and cannot be pulled",
        details=why,
        hint=f"correct the name, bring it here with {local.engine.program} pull or load, or "
        "name another with --base-image (containers/base.sh makes one without a registry)",
    )


def _build_classic(wanted: Recipe, base: str, tag: str, local: ImageStore) -> str:
    try:
        with local.connect() as client:
            client.images.build(
                path=str(wanted.wheelhouse.folder),
                dockerfile=str(wanted.dockerfile),
                buildargs={"BASE_IMAGE": base},
                tag=tag,
                labels={LOCK_LABEL: wanted.wheelhouse.key},
                network_mode="none",
                rm=True,
                forcerm=True,
            )
    except UnusableError as error:
        # Of the errors of the SDK, only that of a failed build holds the output of its steps.
        log = getattr(error.__cause__, "build_log", ())
        lines = [str(line.get("stream") or line) for line in log]
        return "\n".join([*lines, error.details])
    return ""


def _output_of_step(text: str) -> str:
    """Return the output of the last step that ran; the whole log if none did.

    The last lines of a builder, the instruction and its exit code, explain nothing.
    """
    text = _COLOUR.sub("", text)
    lines = _OF_BUILDKIT.findall(text)
    if not lines and (parts := _OF_CLASSIC.split(text)[1:]):
        printed = filter(str.strip, parts[-1].splitlines())
        lines = [line for line in printed if not line.startswith(_END)]
    return text if is_full(text) or not lines else "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """The number of our images removed from an engine, and those still in use."""

    count: int = 0
    kept: tuple[str, ...] = ()
    unseen: str = ""  # why the engine could not list them


def remove_images(store: ImageStore, *, label: str = LOCK_LABEL) -> Removed:
    """Remove our images with that label from the host's engine, if the host has it.

    Keeps images that users built on ours, and the layers below them. Raises StackError when the
    engine keeps an image for another reason.
    """
    ours, unseen = _ours(store, label)
    if not ours:
        return Removed(unseen=unseen)
    result = store.run("image", "rm", "--force", *ours, timeout_s=FOLDER_S)
    left = _ours(store, label)[0].keys() & ours.keys()
    refusals = [line for line in result.stderr.splitlines() if line and _BUILT_UPON not in line]
    if left and refusals:
        raise StackError(
            f"cannot remove the workload images on {store.transport.name}",
            details=refusals[0],
            hint="stop the containers that use them, then run envcompare clean again",
        )
    kept = tuple(sorted(ours[identity] for identity in left))
    return Removed(count=len(ours) - len(left), kept=kept)


def remove_pins(store: ImageStore) -> None:
    """Remove the names that an interrupted build left on base images."""
    ask = ("image", "ls", "--filter", f"reference={PINNED}", "--format", _NAME)
    with suppress(CommandTimeoutError):
        listed = store.run(*ask, timeout_s=ANSWER_S).stdout.split()
        names = [name for name in listed if name.startswith(f"{PINNED}:") and name.isprintable()]
        if names:
            store.run("image", "rm", "--no-prune", *names)


def remove_held(store: ImageStore) -> int:
    """Remove unnamed images with data that runs left; return their number."""
    filters = ("--filter", f"label={HELD_LABEL}", "--filter", "dangling=true")
    with suppress(CommandTimeoutError):
        listed = store.run("image", "ls", "--quiet", "--no-trunc", *filters, timeout_s=ANSWER_S)
        ids = [each for each in listed.stdout.split() if _IMAGE_ID.fullmatch(each)]
        command = ("image", "rm", "--force", "--no-prune", *ids)
        return len(ids) if ids and store.run(*command, timeout_s=FOLDER_S).succeeded else 0
    return 0


def _ours(store: ImageStore, label: str) -> tuple[dict[str, str], str]:
    """Return ID and name of each image with that label, without those built on ours.

    The second part says why an existing engine gave no list.
    """
    ask = ("image", "ls", "--quiet", "--no-trunc", "--filter", f"label={label}")
    program = store.engine.program
    try:
        listed = store.run(*ask, timeout_s=ANSWER_S)
        if not listed.succeeded:
            return {}, "" if listed.exit_code == _NO_PROGRAM else listed.tail(1)
        ids = dict.fromkeys(listed.stdout.split())
        if not ids:
            return {}, ""
        if not all(map(_IMAGE_ID.fullmatch, ids)):
            return {}, f"{program} image ls printed: {spoken(listed.stdout)}"
        details = store.run("image", "inspect", *ids, timeout_s=ANSWER_S)
    except CommandTimeoutError:
        return {}, f"no answer within {ANSWER_S:g} s"
    try:
        images = read_json(details.stdout or "[]", list[Any])
        ours = [facts for facts in images if not _is_users_own(facts)]
        return {facts["Id"]: (facts.get("RepoTags") or [facts["Id"]])[0] for facts in ours}, ""
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}, f"{program} image inspect printed: {spoken(details.stdout)}"


def _is_users_own(facts: Mapping[str, Any]) -> bool:
    """Tell whether an image with our labels is a user's own, from the engine's description.

    An image without a hash is ours if we named it: a skeleton, or an interrupted build.
    """
    sha256 = labels(facts).get(CONFIG_LABEL)
    if sha256 is None:
        # Podman writes this before the name of an image that no registry has.
        names = (name.removeprefix("localhost/") for name in facts.get("RepoTags") or ())
        return not any(name.startswith(_OUR_NAMES) for name in names)
    return sha256 != config_sha256(facts)
