"""The files of an image as a folder of the host's cache, for what runs a folder as it is."""

from __future__ import annotations

from typing import Any, Final

from envcompare.command import Command
from envcompare.stack import Request, room
from envcompare.stack.cache import host_cache
from envcompare.stack.diagnosis import failure
from envcompare.stack.engine import ImageStore
from envcompare.stack.image import Image, pipe
from envcompare.transport import CONTENT_S, make_folder, not_understood, read_json, shell

# The first word is what is done. The container that is needed to export files never starts, devices
# are the host's own, and what fails before a pipe is noticed by the file it leaves.
_FILES: Final = r"""
export_files() {
  id=$("$1" create --label "envcompare.run=$3" "$2" true) || return
  "$1" export "$id"
  code=$?
  "$1" rm --volumes "$id" >/dev/null
  return "$code"
}

unpack() {
  chmod -R u+rwX "$1.partial" 2>/dev/null
  rm -rf "$1.partial" && mkdir "$1.partial" &&
    tar -x -C "$1.partial" --no-same-owner --exclude 'dev/*' && chmod -R u+rwX "$1.partial"
}

both() {
  rm -f "$4.failed"
  { export_files "$1" "$2" "$3" || : >"$4.failed"; } | unpack "$4" || return
  [ ! -e "$4.failed" ] || { rm -f "$4.failed"; return 1; }
}

"$@"
"""
_KEEP: Final = 'rm -rf "$1" && mv "$1.partial" "$1"'
_VARIABLES: Final = "{{json .Config.Env}}"


def unpack(request: Request, store: ImageStore, image: Image) -> str:
    """Return the folder of the host's cache with the files of an image; unpacked where it is not.

    They come from the engine of `store`, there or here. Raises StackError where that fails.
    """
    transport = request.transport
    parent = f"{host_cache(transport)}/{image.key}"
    folder = f"{parent}/files"
    if shell(transport, '[ -d "$1" ]', folder).succeeded:
        return folder
    needs = (room.Need(step="sif", transport=transport, path=parent),)
    room.require(needs, room.of_image(image.size_bytes), purpose=image.name)
    request.progress.begin(f"unpacking {image.name} on {transport.name}")
    make_folder(transport, parent)
    export = (store.engine.program, image.id, request.run_id or "prepare")
    if store.transport is transport:
        done: Any = shell(transport, _FILES, "both", *export, folder, timeout_s=CONTENT_S)
    else:
        with request.progress.moving(image.name, image.size_bytes) as told:
            done = pipe(
                (store.transport, _on("export_files", *export)),
                (transport, _on("unpack", folder)),
                told=told,
            )
    if not done.succeeded or not shell(transport, _KEEP, folder, timeout_s=CONTENT_S).succeeded:
        what = f"unpacking {image.name}"
        raise failure(transport, what, done.stderr, hint="run it again; check the disk")
    return folder


def variables(store: ImageStore, image: Image) -> tuple[tuple[str, str], ...]:
    """Return the variables that an image sets, which its files do not tell."""
    said = store.ask("image", "inspect", "--format", _VARIABLES, image.id).stdout
    try:
        given = read_json(said, list[str]) if said.strip() != "null" else []
    except ValueError as error:
        hint = f"run {store.engine.program} image inspect {image.id} there"
        raise not_understood(store.transport, "an image's variables", said, hint=hint) from error
    pairs = (text.partition("=") for text in given)
    return tuple((name, value) for name, _, value in pairs)


def _on(*words: str) -> Command:
    return Command(argv=("sh", "-c", _FILES, "sh", *words))
