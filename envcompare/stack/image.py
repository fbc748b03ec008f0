"""Images of an engine: the recipe of ours, their description by the engine, and transfers.

Transfers are not compressed: a core compresses fewer bytes per second than a network of 1 Gbit/s
carries, and an engine unpacks more slowly than both.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from envcompare import bundled
from envcompare.errors import StackError, UnusableError
from envcompare.stack import LOCK_LABEL, Progress, failure, storage
from envcompare.stack.storage import ImageStore, Wheelhouse, retry_while_restarting, steps
from envcompare.text import Command, counted
from envcompare.transport import (
    CONTENT_S,
    Drain,
    OnProgress,
    Process,
    Transport,
    not_understood,
    read_json,
    run,
)
from envcompare.transport.copies import StallWatch

if TYPE_CHECKING:
    from docker import DockerClient  # noqa: TID251 - the type of the client

_BASE_LABEL = "envcompare.base"
_RECIPE_LABEL = "envcompare.recipe"
TREE_LABEL = "envcompare.tree"
CONFIG_LABEL = "envcompare.config.settings"
REPOSITORY = "envcompare-workload"
PINNED = "envcompare-pinned"  # name of a base image during a build
PYTHON = "/opt/envcompare/venv/bin/python"
"""The interpreter of the workload image."""

HELD_LABEL = f"{LOCK_LABEL}=data"  # the label of images with data, which are not workload images
# The parts of an image's configuration that change what runs in it, by the engine's names.
_CONFIG = (
    "Cmd", "Entrypoint", "Env", "ExposedPorts", "Healthcheck", "OnBuild", "Shell", "StopSignal",
    "User", "Volumes", "WorkingDir",
)  # fmt: skip
_CHUNK_BYTES = 1 << 16
_MOST_IMAGES = 500  # of a host that are asked for their layers
# `docker save ID` leaves out the name, so that a broken stream never moves a name. The ID is the
# last word of the output; an engine that keeps images in containerd has a different ID.
_LOAD = r"""
output=$("$1" load --quiet) || exit
echo "$output"
[ -z "$2" ] || "$1" tag "${output##* }" "$2"
"""
# $1: the program; $2: the image; $3: the data; $4: their path inside; the rest: options.
# The data are copied to a container that never starts, which becomes an image with the same labels.
# `cp` would copy a link as a link. A file gets a folder around it, where it keeps its name. Podman
# before 4.3 removes such an image only together with an unnamed one below it.
_HOLD = r"""
program=$1 image=$2 data=$3 inside=$4
shift 4
"$program" image rm --help | grep -q -e --no-prune || {
  echo "$program image rm has no option --no-prune: Docker, or Podman 4.3 or later, has it" >&2
  exit 1
}
container=$("$program" create --pull never "$@" --entrypoint "" "$image" true) || exit
trap '"$program" rm --force "$container" >/dev/null; rm -rf -- "$around"' EXIT
around= source=$(readlink -f -- "$data") || exit
if [ ! -d "$source" ]; then
  around=$(mktemp -d) && chmod 755 "$around" || exit
  "$program" cp --archive "$around" "$container:$inside" >&2 || exit
  inside=$inside/${data##*/}
fi
"$program" cp --archive "$source" "$container:$inside" >&2 &&
  "$program" commit --change "LABEL $KEPT" "$container"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image of an engine: its ID there, the name to save it by, and its layers' digests."""

    id: str
    name: str
    layers: tuple[str, ...]
    size_bytes: int
    lock: str = ""  # of its wheels; empty for an image the user named
    digest: str = ""  # as `name@sha256:…`, if a registry provided it
    tree: str = ""  # of its installation, from its label

    @property
    def key(self) -> str:
        """Return the part of the ID that names files made from the image."""
        return self.id.removeprefix("sha256:")[:32]

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """Return the identity of a workload image in a fingerprint."""
        return (("stack", "image"), ("lock", self.lock), ("image", self.id))

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """Return the facts that are compared between arms."""
        facts = (("image.id", self.id), ("image.digest", self.digest), ("lock.sha256", self.lock))
        return tuple((name, value) for name, value in facts if value)

    @property
    def software(self) -> tuple[tuple[str, str], ...]:
        """Return the facts that must be the same when a run is resumed."""
        return (("image.id", self.id),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The inputs of the workload image; its labels record them."""

    wheelhouse: Wheelhouse
    base: str
    dockerfile: Path
    base_id: str = ""  # of the base in the local engine; empty if missing

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels that identify an image of this recipe.

        A base that is not here cannot have changed, so its ID is included only if known.
        """
        base = {_BASE_LABEL: self.base_id} if self.base_id else {}
        recipe = _recipe_label(self.base, self.dockerfile)
        return {LOCK_LABEL: self.wheelhouse.key, **recipe, **base}

    @property
    def tag(self) -> str:
        """Return the name the image gets."""
        return f"{REPOSITORY}:{self.wheelhouse.key[:12]}"


def _recipe_label(base: str, dockerfile: Path) -> dict[str, str]:
    text = "\n".join((base, dockerfile.read_text(encoding="utf-8"), *steps().values()))
    return {_RECIPE_LABEL: hashlib.sha256(text.encode()).hexdigest()}


def is_built_on(base: str, store: ImageStore) -> bool:
    """Say whether an engine has a workload image on that base, with any wheels."""
    ((name, digest),) = _recipe_label(base, _dockerfile()).items()
    listed = store.ask("image", "ls", "--quiet", "--filter", f"label={name}={digest}")
    return bool(listed.stdout.strip())


def _dockerfile() -> Path:
    return bundled.root() / "Dockerfile"


def recipe(wheelhouse: Wheelhouse, *, base: str, local: ImageStore) -> Recipe:
    """Return the recipe of the bundled Dockerfile on that base as it is in the local engine now."""
    try:
        image = find(local, base)
    except UnusableError:
        # A host may already have the image.
        image = None
    return Recipe(
        wheelhouse=wheelhouse,
        base=base,
        dockerfile=_dockerfile(),
        base_id=image.id if image else "",
    )


def find(store: ImageStore, reference: str, *, name: str = "") -> Image | None:
    """Return the image of that name or ID in the host's engine; None if missing.

    If `reference` is an ID, `name` is the image's name, from which the digest is taken.
    """
    with store.connect() as client:
        facts = _facts(client, reference)
    return None if facts is None else _image(facts, reference, name or reference)


def look_up(store: ImageStore, reference: str) -> Image | None:
    """Return the image of that name or ID as the host's own client describes it.

    It needs no second connection, which would take longer than the query. Raises UnusableError if
    the client gives no description.
    """
    answer = store.ask("image", "inspect", "--", reference)
    if answer.succeeded:
        try:
            return _image(read_json(answer.stdout, list[Any])[0], reference, reference)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            hint = f"run {store.engine.program} image inspect {reference} there"
            what = "the facts of an image"
            raise not_understood(store.transport, what, answer.stdout, hint=hint) from error
    if re.search("No such image|image not known", answer.stderr):  # Docker's, Podman's words
        return None
    raise UnusableError(
        f"{store.is_on} does not describe its images",
        details=answer.tail(1),
        hint=f"run {store.engine.program} image inspect {reference} there",
    )


def find_built(store: ImageStore, wanted: Recipe) -> Image | None:
    """Return an image of this recipe in the host's engine; None if missing.

    Users' images built on it have its labels too, but are different images.
    """
    with store.connect() as client:
        labelled = [f"{name}={value}" for name, value in wanted.labels.items()]
        listed = client.api.images(filters={"label": labelled}, all=True)
        for identity in (entry["Id"] for entry in sorted(listed, key=lambda e: int(e["Created"]))):
            facts = _facts(client, identity)
            if facts and labels(facts).get(CONFIG_LABEL) == config_sha256(facts):
                # `docker image prune` would remove an image without a name.
                if not facts.get("RepoTags"):
                    repository, _, tag = wanted.tag.partition(":")
                    if _facts(client, wanted.tag):
                        tag = f"{tag}-{identity.removeprefix('sha256:')[:12]}"
                    client.api.tag(identity, repository, tag)
                    facts = _facts(client, identity)
                return None if facts is None else _image(facts, identity, identity)
    return None


def _facts(client: DockerClient, reference: str) -> dict[str, Any] | None:
    """Ask the engine for an image's description; None if it has no such image, or no longer."""
    from docker.errors import ImageNotFound  # noqa: PLC0415, TID251 - loaded with the client

    try:
        facts: dict[str, Any] = client.api.inspect_image(reference)  # type: ignore[no-untyped-call]  # so in docker's stubs
    except ImageNotFound:
        return None
    return facts


def _image(facts: Mapping[str, Any], reference: str, name: str) -> Image:
    names = [reference] if reference != facts["Id"] else facts.get("RepoTags") or [facts["Id"]]
    given = labels(facts)
    digest = digest_of(facts, name)
    return Image(
        # Some engines leave the prefix out.
        id=f"sha256:{facts['Id'].removeprefix('sha256:')}",
        name=names[0],
        layers=tuple(facts["RootFS"].get("Layers") or ()),
        size_bytes=facts["Size"],
        lock=given.get(LOCK_LABEL, ""),
        # No registry has given a digest of `localhost/`, under which Podman keeps what is made on
        # the host.
        digest="" if digest.startswith("localhost/") else digest,
        tree=given.get(TREE_LABEL, ""),
    )


def digest_of(facts: Mapping[str, Any], name: str) -> str:
    """Return the digest for that name's repository; for an ID, any digest.

    An image may have several digests in a repository; the one in the name has priority.
    """
    digests = tuple(facts.get("RepoDigests") or ())
    is_id = facts["Id"].removeprefix("sha256:").startswith(name.removeprefix("sha256:"))
    its = tuple(digest for digest in digests if _repository(digest) == _repository(name))
    wanted = name.rpartition("@")[2]
    return max(its or digests * is_id, key=lambda digest: digest.endswith(f"@{wanted}"), default="")


def _repository(name: str) -> str:
    """Return a name without tag and digest, and without Docker Hub's optional prefixes."""
    from docker.utils import parse_repository_tag  # noqa: PLC0415, TID251 - loaded with the client

    # the part before a digest may also have a tag
    repository: str = parse_repository_tag(name.partition("@")[0])[0]
    return repository.removeprefix("docker.io/").removeprefix("library/")


def config_sha256(facts: Mapping[str, Any], more: Mapping[str, str] | None = None) -> str:
    """Return the hash of an image's layers, configuration and labels, except the hash's own label.

    The image carries the hash as a label; `more` are the labels set with it. An image built on this
    one inherits the label, but has another layer, setting or label, and so another hash.
    """
    config = {name: facts["Config"][name] for name in _CONFIG if facts["Config"].get(name)}
    others = {**labels(facts), **(more or {})}
    others.pop(CONFIG_LABEL, None)
    text = json.dumps([facts["RootFS"].get("Layers"), config, others], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def labels(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of an image as the engine describes it."""
    return dict(facts["Config"].get("Labels") or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Piped:
    """The exit codes and messages of both ends of a pipe."""

    source_exit: int
    sink_exit: int
    stderr: str  # of both, and stdout of the sink

    @property
    def succeeded(self) -> bool:
        """Tell whether both ended with 0."""
        return self.source_exit == 0 and self.sink_exit == 0


def pipe(
    source: tuple[Transport, Command],
    sink: tuple[Transport, Command],
    *,
    on_progress: OnProgress,
    without: frozenset[str] = frozenset(),
) -> Piped:
    """Pipe the first command into the second; kill both on failure.

    `without` are digests of layers that are left out of an archive of `docker save`.

    Raises CommandTimeoutError when the transfer stalls.
    """
    with contextlib.ExitStack() as killing:
        writer = source[0].spawn(source[1])
        killing.callback(writer.kill)
        reader = sink[0].spawn(sink[1])
        killing.callback(reader.kill)
        drains = tuple(Drain(stream) for stream in (writer.stderr, reader.stderr, reader.stdout))
        copy = f"the image on its way from {source[0].name} to {sink[0].name}"
        with StallWatch(copy, writer, reader) as watch:
            writer.stdin.close()
            _copy(writer, reader, on_progress, watch, without)
            watch.note_all_sent()
            exits = (writer.wait(), reader.wait())
        killing.pop_all()
    for drain in drains:
        drain.settle()
    text = "\n".join(drain.text() for drain in drains)
    return Piped(source_exit=exits[0], sink_exit=exits[1], stderr=text)


def deliver(store: ImageStore, image: Image, *, local: ImageStore, progress: Progress) -> Image:
    """Return the image in the host's engine, sent from the local one if missing.

    Raises StackError if the stream breaks, or a different image arrives.
    """
    there = look_up(store, image.id)
    if there is None:
        size = f"{image.size_bytes / 1e6:.0f} MB"
        needs = (
            *storage.image_needs(local, "sent image"),
            *storage.image_needs(store, "received image"),
        )
        storage.require(needs, storage.of_image(image.size_bytes), purpose=image.name)
        known = _layers_there(store, image)
        but = f" without {counted(len(known), 'layer')} that it has" if known else ""
        progress.begin(f"sending {image.name}, {size}, to {store.transport.name}{but}")
        identity = _send(local, store, image, progress, without=known)
        there = look_up(store, identity)
    if there is None or there.layers != image.layers:
        raise StackError(
            f"{store.transport.name} has a different image from the one sent",
            details=f"{image.name} is {image.id} here and {there.id if there else 'missing'} there",
            hint=f"{store.engine.program} image rm {image.name} on {store.transport.name}, then "
            "run again",
        )
    return there


def _layers_there(store: ImageStore, image: Image) -> frozenset[str]:
    """Return the first layers of an image that an image of the host begins with, by digest."""
    # An engine that keeps its images in containerd's store needs whole ones.
    if not store.engine.reuses_layers or store.is_of_containerd():
        return frozenset()
    listed = store.ask("image", "ls", "--quiet", "--no-trunc").stdout.split()
    images = list(dict.fromkeys(listed))[:_MOST_IMAGES]
    form = ("--format", "{{json .RootFS.Layers}}")
    lines = (
        store.ask("image", "inspect", *form, "--", *images).stdout.splitlines() if images else []
    )
    known: list[str] = []
    for line in lines:
        pairs = zip(image.layers, json.loads(line) or (), strict=False)
        same = [mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
        known = max(known, same, key=len)
    # Layers are left out by their digests, so one that occurs again further up has to be sent.
    return frozenset(known) - {*image.layers[len(known) :]}


def _send(
    local: ImageStore,
    store: ImageStore,
    image: Image,
    progress: Progress,
    *,
    without: frozenset[str],
) -> str:
    """Return the ID that the image gets in the host's engine.

    If the engine does not take the layers that are left out from its other images, all are sent.
    """
    load = ("sh", "-c", _LOAD, "sh", store.engine.program, _given_name(image))

    def sent() -> Piped:
        with progress.moving(image.name, image.size_bytes) as on_progress:
            return pipe(
                (local.transport, local.command("save", image.id)),
                (store.transport, Command(argv=load)),
                on_progress=on_progress,
                without=without,
            )

    piped = retry_while_restarting(store.engine, store.transport, sent)
    if not piped.succeeded and without:
        return _send(local, store, image, progress, without=frozenset())
    if not piped.succeeded:
        client = store.engine.program
        raise failure(
            store.transport,
            f"loading {image.name}",
            piped.stderr,
            hint=f"run it again; {client} save and {client} load by hand show what is wrong",
            room_hint=store.engine.room_hint,
        )
    return "".join(piped.stderr.split()[-1:])


def _given_name(image: Image) -> str:
    """Return the image's name here, or nothing if the host's engine cannot use it as a tag."""
    repository, _, tag = image.name.rpartition(":")
    is_name = image.name != image.id and "@" not in image.name
    return image.name if is_name and repository and "/" not in tag else ""


def _copy(
    writer: Process,
    reader: Process,
    on_progress: OnProgress,
    watch: StallWatch,
    without: frozenset[str],
) -> None:
    source = _Watched(writer.stdout, on_progress, watch)
    try:
        if without:
            _copy_archive(source, reader.stdin, without)
        while chunk := source.read(_CHUNK_BYTES):
            reader.stdin.write(chunk)
    except (OSError, tarfile.TarError):
        # An end stopped early, and its exit code has the reason.
        writer.kill()
    finally:
        reader.stdin.close()


@dataclass(slots=True)
class _Watched:
    """A stream that tells how much of it was read."""

    stream: IO[bytes]
    on_progress: OnProgress
    watch: StallWatch
    done_bytes: int = 0

    def read(self, size: int) -> bytes:
        chunk = self.stream.read(size)
        self.watch.note_progress()
        self.done_bytes += len(chunk)
        self.on_progress(self.done_bytes)
        return chunk


def _copy_archive(source: _Watched, sink: IO[bytes], without: frozenset[str]) -> None:
    """Copy an archive of `docker save` but for layers with these digests.

    Archives of Docker 25 and later name a layer by its digest; of older ones each is read first.
    """
    with (
        tarfile.open(fileobj=source, mode="r|") as saved,  # type: ignore[call-overload]  # only read
        tarfile.open(fileobj=sink, mode="w|") as sent,
    ):
        for member in saved:
            content = saved.extractfile(member) if member.isreg() else None
            folder, _, name = member.name.rpartition("/")
            if folder == "blobs/sha256" and f"sha256:{name}" in without:
                continue
            if name != "layer.tar" or content is None:
                sent.addfile(member, content)
                continue
            with tempfile.TemporaryFile() as kept:
                digest = hashlib.sha256()
                while chunk := content.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    kept.write(chunk)
                if f"sha256:{digest.hexdigest()}" not in without:
                    kept.seek(0)
                    sent.addfile(member, _Watched(kept, lambda _: None, source.watch))  # type: ignore[arg-type]  # only read


def with_data(
    store: ImageStore, reference: str, data: str, *, target: str, options: tuple[str, ...]
) -> str:
    """Return the ID of an image on top of another, with a folder of the host in its last layer.

    `options` are for the container that is created for it but never started. Raises StackError,
    before copying if there is no room.
    """
    needs = storage.image_needs(store, "received image")
    amount = storage.of_files(store.transport, data)
    storage.require(needs, amount, purpose="an image with the data")
    words = (store.engine.program, reference, data, target, *options)
    script = Command(argv=("sh", "-c", _HOLD, "sh", *words), env=(("KEPT", HELD_LABEL),))
    result = run(store.transport, script, timeout_s=CONTENT_S)
    if result.succeeded:
        return result.stdout.strip().splitlines()[-1]
    what, hint = "putting the data into an image", store.engine.room_hint
    raise failure(store.transport, what, result.stderr, hint=hint)
