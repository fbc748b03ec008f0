"""The workload image: built once by the local engine, found again by its labels."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envcompare import files
from envcompare.command import Command
from envcompare.environments.docker import connect
from envcompare.errors import StackError, UnusableError
from envcompare.stack import Progress
from envcompare.stack.cache import LOCK_LABEL, failure
from envcompare.stack.engine import buildkit
from envcompare.stack.wheelhouse import Wheelhouse
from envcompare.transport import Transport
from envcompare.transport.operations import run

if TYPE_CHECKING:
    from docker import DockerClient  # noqa: TID251 - the SDK's second home

BASE_LABEL = "envcompare.base"
RECIPE_LABEL = "envcompare.recipe"
REPOSITORY = "envcompare-workload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image of an engine: its ID there, the name to save it by, and its layers' digests."""

    id: str
    name: str
    layers: tuple[str, ...]
    size_bytes: int
    lock: str = ""  # of the wheels in it; empty for an image the user named

    @property
    def key(self) -> str:
        """Return the part of the ID that names files made from the image."""
        return self.id.removeprefix("sha256:")[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that decides what is in the workload image; the labels say it on the image."""

    wheelhouse: Wheelhouse
    base: str
    dockerfile: Path
    base_id: str = ""  # of the base in the local engine; empty while it is not there

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels by which an image of this recipe is found again.

        A base that is not here cannot have changed, so its ID is asked for only where it is known.
        """
        text = f"{self.base}\n{self.dockerfile.read_text(encoding='utf-8')}"
        digest = hashlib.sha256(text.encode()).hexdigest()
        base = {BASE_LABEL: self.base_id} if self.base_id else {}
        return {LOCK_LABEL: self.wheelhouse.key, RECIPE_LABEL: digest, **base}

    @property
    def tag(self) -> str:
        """Return the name the image gets."""
        return f"{REPOSITORY}:{self.wheelhouse.key[:12]}"


def recipe(wheelhouse: Wheelhouse, *, base: str, local: Transport) -> Recipe:
    """Return the recipe of the bundled Dockerfile on that base as the local engine holds it now."""
    try:
        found = find(local, base)
    except UnusableError:
        found = None  # a host may hold the image already
    return Recipe(
        wheelhouse=wheelhouse,
        base=base,
        dockerfile=files.root() / "Dockerfile",
        base_id=found.id if found else "",
    )


def find(transport: Transport, reference: str) -> Image | None:
    """Return the image of that name or ID in the host's engine; None when it is not there."""
    with connect(transport) as client:
        return _get(client, reference)


def find_built(transport: Transport, wanted: Recipe) -> Image | None:
    """Return an image of this recipe in the host's engine; None when there is none."""
    with connect(transport) as client:
        labels = [f"{name}={value}" for name, value in wanted.labels.items()]
        found = client.api.images(filters={"label": labels})
        return _get(client, found[0]["Id"]) if found else None


def build(wanted: Recipe, *, local: Transport, progress: Progress) -> Image:
    """Return the workload image in the local engine; built when it is not there.

    Raises StackError when the engine here cannot be used, the base is missing, or the disk is full.
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
    if not wanted.base_id:
        wanted = replace(wanted, base_id=_pull(local, wanted.base, progress))
    progress(f"building {wanted.tag} from {wanted.base}")
    command = buildkit(local, _build_argv(wanted))
    text = _build_with(local, command) if command else _build_classic(local, wanted)
    image = find_built(local, wanted)
    if image is None:
        raise failure(
            local,
            f"building {wanted.tag}",
            text,
            hint=f"check that {wanted.base} has python3 of the version the wheels are for",
        )
    progress(f"built {wanted.tag}, {image.size_bytes / 1e6:.0f} MB")
    return image


def _pull(local: Transport, base: str, progress: Progress) -> str:
    """Pull a base that is not here, so that its ID is known before the build; return the ID."""
    progress(f"pulling {base}")
    result = run(local, Command(argv=("docker", "pull", "--quiet", base)))
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
    return found.id


def _pull_without_client(local: Transport, base: str) -> str:
    try:
        with connect(local) as client:
            client.images.pull(base)
    except UnusableError as error:
        return error.details
    return ""


def _get(client: DockerClient, reference: str) -> Image | None:
    from docker.errors import ImageNotFound  # noqa: PLC0415, TID251 - loaded with the client

    try:
        facts = client.api.inspect_image(reference)  # type: ignore[no-untyped-call]
    except ImageNotFound:
        return None
    names = [reference] if reference != facts["Id"] else facts.get("RepoTags") or [facts["Id"]]
    return Image(
        id=facts["Id"],
        name=names[0],
        layers=tuple(facts["RootFS"].get("Layers") or ()),
        size_bytes=facts["Size"],
        lock=(facts["Config"].get("Labels") or {}).get(LOCK_LABEL, ""),
    )


def _build_argv(wanted: Recipe) -> tuple[str, ...]:
    labels = (f"--label={name}={value}" for name, value in wanted.labels.items())
    return (
        *("build", "--network=none", "--progress=plain", f"--file={wanted.dockerfile}"),
        *(f"--build-arg=BASE_IMAGE={wanted.base}", f"--tag={wanted.tag}"),
        *labels,
        str(wanted.wheelhouse.folder),
    )


def _build_with(local: Transport, command: Command) -> str:
    result = run(local, command)
    return f"{result.stdout}\n{result.stderr}"


def _build_classic(local: Transport, wanted: Recipe) -> str:
    from docker.errors import BuildError  # noqa: PLC0415, TID251 - loaded with the client

    try:
        with connect(local) as client:
            client.images.build(
                path=str(wanted.wheelhouse.folder),
                dockerfile=str(wanted.dockerfile),
                buildargs={"BASE_IMAGE": wanted.base},
                labels=wanted.labels,
                tag=wanted.tag,
                network_mode="none",
                rm=True,
            )
    except BuildError as error:
        return "\n".join(str(line.get("stream") or line) for line in error.build_log) + str(error)
    except UnusableError as error:
        return error.details
    return ""
