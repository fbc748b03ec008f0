"""The workload image: its recipe, and how an engine that has it finds it again by its labels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envcompare import bundled
from envcompare.environments import Check
from envcompare.environments.docker import ask_client, connect
from envcompare.errors import UnusableError
from envcompare.stack import ownership
from envcompare.stack.cache import LOCK_LABEL
from envcompare.stack.ownership import CONFIG_LABEL, config_sha256
from envcompare.stack.wheelhouse import Wheelhouse, steps
from envcompare.transport import Transport
from envcompare.transport.operations import not_understood, read_json

if TYPE_CHECKING:
    from docker import DockerClient  # noqa: TID251 - the SDK's second home

BASE_LABEL = "envcompare.base"
RECIPE_LABEL = "envcompare.recipe"
TREE_LABEL = "envcompare.tree"
REPOSITORY = "envcompare-workload"
PYTHON = "/opt/envcompare/venv/bin/python"
"""The interpreter of the workload image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image of an engine: its ID there, the name to save it by, and its layers' digests."""

    id: str
    name: str
    layers: tuple[str, ...]
    size_bytes: int
    lock: str = ""  # of the wheels in it; empty for an image the user named
    digest: str = ""  # as `name@sha256:…`, where a registry gave it
    tree: str = ""  # of what is installed in it, as its label says

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
        recipe = self.dockerfile.read_text(encoding="utf-8")
        text = "\n".join((self.base, recipe, *steps().values()))
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
        dockerfile=bundled.root() / "Dockerfile",
        base_id=found.id if found else "",
    )


def find(transport: Transport, reference: str, *, name: str = "") -> Image | None:
    """Return the image of that name or ID in the host's engine; None when it is not there.

    `name` is what the image is called by, where `reference` is an ID: its digest is that name's.
    """
    with connect(transport) as client:
        return _get(client, reference, name or reference)


def look_up(transport: Transport, reference: str) -> Image | None:
    """Return the image of that name or ID as the host's own docker client tells of it.

    It needs no second connection, which takes longer than all that is asked. Raises UnusableError
    where the client tells nothing.
    """
    asked = ask_client(transport, "image", "inspect", "--", reference)
    if isinstance(asked, Check):
        raise _silent(transport, asked.reason, asked.hint)
    if asked.succeeded:
        try:
            return _image(read_json(asked.stdout, list[Any])[0], reference, reference)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            hint = f"run docker image inspect {reference} there"
            said = asked.stdout
            raise not_understood(transport, "the facts of an image", said, hint=hint) from error
    if "No such image" in asked.stderr:
        return None
    hint = f"envcompare doctor --envs docker --hosts {transport.name}"
    raise _silent(transport, asked.tail(1), hint)


def _silent(transport: Transport, why: str, hint: str) -> UnusableError:
    brief = f"docker on {transport.name} tells nothing of its images"
    return UnusableError(brief, details=why, hint=hint)


def find_built(transport: Transport, wanted: Recipe) -> Image | None:
    """Return an image of this recipe in the host's engine; None when there is none.

    What a user builds on it has its labels as well, and is another image.
    """
    with connect(transport) as client:
        labels = [f"{name}={value}" for name, value in wanted.labels.items()]
        listed = client.api.images(filters={"label": labels}, all=True)
        for one in sorted(listed, key=lambda one: int(one["Created"])):
            facts = _facts(client, one["Id"])
            if facts and ownership.labels(facts).get(CONFIG_LABEL) == config_sha256(facts):
                if not facts.get("RepoTags"):
                    _name(client, one["Id"], wanted)
                return _get(client, one["Id"], one["Id"])
    return None


def _name(client: DockerClient, identity: str, wanted: Recipe) -> None:
    """Name an image that lost its name, since `docker image prune` removes what has none."""
    repository, _, tag = wanted.tag.partition(":")
    if _facts(client, wanted.tag):
        tag = f"{tag}-{identity.removeprefix('sha256:')[:12]}"
    client.api.tag(identity, repository, tag)


def _facts(client: DockerClient, reference: str) -> dict[str, Any] | None:
    """Ask the engine of an image; None where it has none of that name, or no longer."""
    from docker.errors import ImageNotFound  # noqa: PLC0415, TID251 - loaded with the client

    try:
        found: dict[str, Any] = client.api.inspect_image(reference)  # type: ignore[no-untyped-call]
    except ImageNotFound:
        return None
    return found


def _get(client: DockerClient, reference: str, name: str) -> Image | None:
    facts = _facts(client, reference)
    return None if facts is None else _image(facts, reference, name)


def _image(facts: Mapping[str, Any], reference: str, name: str) -> Image:
    names = [reference] if reference != facts["Id"] else facts.get("RepoTags") or [facts["Id"]]
    labels = ownership.labels(facts)
    return Image(
        id=facts["Id"],
        name=names[0],
        layers=tuple(facts["RootFS"].get("Layers") or ()),
        size_bytes=facts["Size"],
        lock=labels.get(LOCK_LABEL, ""),
        digest=digest_of(facts, name),
        tree=labels.get(TREE_LABEL, ""),
    )


def digest_of(facts: Mapping[str, Any], name: str) -> str:
    """Return the digest of that name's repository; of any for an ID, which belongs to none.

    A repository may have several for one image; the one that the name says comes first.
    """
    digests = tuple(facts.get("RepoDigests") or ())
    is_id = facts["Id"].removeprefix("sha256:").startswith(name.removeprefix("sha256:"))
    own = tuple(one for one in digests if _repository(one) == _repository(name))
    said = name.rpartition("@")[2]
    return max(own or digests * is_id, key=lambda one: one.endswith(f"@{said}"), default="")


def _repository(name: str) -> str:
    """Return a name without tag and digest, as Docker Hub's short names are meant."""
    from docker.utils import parse_repository_tag  # noqa: PLC0415, TID251 - loaded with the client

    # what stands before a digest may have a tag as well
    repository: str = parse_repository_tag(name.partition("@")[0])[0]
    return repository.removeprefix("docker.io/").removeprefix("library/")
