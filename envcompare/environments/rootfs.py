"""The files of an image in a folder of the host, for environments without an engine."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Final

from envcompare.environments import Environment
from envcompare.environments.software import PYTHON, started, wheelhouse, with_proof
from envcompare.errors import StackError
from envcompare.stack import Prepared, Request, failure, storage
from envcompare.stack import image as images
from envcompare.stack.building import held_or_built
from envcompare.stack.image import Image, Piped, pipe
from envcompare.stack.storage import ImageStore, host_cache
from envcompare.text import Command, CommandResult
from envcompare.transport import CONTENT_S, make_folder, not_understood, read_json, shell

# As Docker sets it for an image without one; an image's own one comes later.
PATH = ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
# The first word is the action. The container for the export never starts, and devices are the
# host's own. A failure before a pipe is detected by the file it leaves. Several processes may
# unpack at the same time, each into its own folder; the first to finish wins.
# A partial folder of four hours is of nothing that still unpacks, since that may take two.
_FILES: Final = r"""
export_files() {
  id=$("$1" create --label "$3" "$2" true) && "$1" export "$id"
}

remove_exported() {
  for id in $("$1" ps --all --quiet --filter "label=$2"); do
    "$1" rm --volumes "$id"
  done
}

discard() {
  chmod -R u+rwX "$@" 2>/dev/null
  rm -rf "$@"
}

unpack() {
  find "${1%/*}" -maxdepth 1 -name '*.partial' -mmin +240 |
    while read -r old; do discard "$old"; done
  mkdir "$1" && tar -x -C "$1" --no-same-owner --anchored --exclude 'dev/*' &&
    chmod -R u+rwX "$1" || { discard "$1"; return 1; }
}

keep() {
  [ -d "$2" ] || mv -T "$1" "$2" || [ -d "$2" ] || return
  [ ! -d "$1" ] || discard "$1"
}

both() {
  rm -f "$4.failed"
  { export_files "$1" "$2" "$3" || : >"$4.failed"; } | unpack "$4" ||
    { rm -f "$4.failed"; return 1; }
  [ ! -e "$4.failed" ] || { rm -f "$4.failed"; discard "$4"; return 1; }
}

"$@"
"""
_VARIABLES: Final = "{{json .Config.Env}}"


def files_of_workloads(request: Request) -> Prepared:
    """Return the files of the workload image as a folder of the host.

    They come from the engine there where it has the image, else from the one here.
    """
    local = ImageStore(engine=request.builder, transport=request.local)
    store = replace(local, transport=request.transport)
    recipe = images.recipe(wheelhouse(request), base=request.options.base, local=local)
    store, built = held_or_built(store, recipe, local=local, progress=request.progress)
    return Prepared(
        interpreter=images.PYTHON,
        reference=unpack(request, store, built),
        fixed_by=built.id,
        identity=(*built.identity, ("image.name", built.name)),
        facts=built.facts,
        software=built.software,
        meant=built.tree,
        variables=_image_variables(store, built),
    )


def of_given_files(where: Environment, request: Request) -> Prepared:
    """Return the files of an image that the user named; raises StackError if there are none."""
    path, host = request.reference, request.transport.name
    if not shell(request.transport, '[ -e "$1" ]', path).succeeded:
        raise StackError(
            f"{path} is not on {host}",
            hint="unpack the image there, for example: docker export CONTAINER | tar -x -C FOLDER",
        )
    prepared = Prepared(interpreter=PYTHON, reference=path)
    return with_proof(where, request, started(where, request, prepared, (("image.name", path),)))


def unpack(request: Request, store: ImageStore, image: Image) -> str:
    """Return the folder of the host's cache with the files of an image; unpacked if missing.

    They come from the engine of `store`, there or here. Raises StackError if that fails.
    """
    transport = request.transport
    parent = f"{host_cache(transport)}/{image.key}"
    folder = f"{parent}/files"
    if shell(transport, '[ -d "$1" ]', folder).succeeded:
        return folder
    needs = (storage.Need(step="files", transport=transport, path=parent),)
    storage.require(needs, storage.of_image(image.size_bytes), purpose=image.name)
    request.progress.begin(f"unpacking {image.name} on {transport.name}")
    make_folder(transport, parent)
    token = uuid.uuid4().hex[:12]
    partial, label = f"{folder}.{token}.partial", f"envcompare.export={token}"
    export = (store.engine.program, image.id, label)
    done: CommandResult | Piped
    try:
        if store.transport is transport:
            done = shell(transport, _FILES, "both", *export, partial, timeout_s=CONTENT_S)
        else:
            with request.progress.moving(image.name, image.size_bytes) as on_progress:
                done = pipe(
                    (store.transport, _on("export_files", *export)),
                    (transport, _on("unpack", partial)),
                    on_progress=on_progress,
                )
    finally:
        # The label finds the container whatever has ended the export.
        shell(store.transport, _FILES, "remove_exported", store.engine.program, label)
    last = shell(transport, _FILES, "keep", partial, folder) if done.succeeded else done
    if not last.succeeded:
        what = f"unpacking {image.name}"
        raise failure(transport, what, last.stderr, hint="run it again; check the disk")
    return folder


def _image_variables(store: ImageStore, image: Image) -> tuple[tuple[str, str], ...]:
    output = store.ask("image", "inspect", "--format", _VARIABLES, image.id).stdout
    try:
        variables = read_json(output, list[str]) if output.strip() != "null" else []
    except ValueError as error:
        hint = f"run {store.engine.program} image inspect {image.id} there"
        raise not_understood(store.transport, "an image's variables", output, hint=hint) from error
    pairs = (text.partition("=") for text in variables)
    return tuple((name, value) for name, _, value in pairs)


def _on(*words: str) -> Command:
    return Command(argv=("sh", "-c", _FILES, "sh", *words))
