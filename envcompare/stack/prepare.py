"""Bring to a host what an arm needs, whichever environment it is; a second call does nothing."""

from __future__ import annotations

import uuid
from pathlib import Path

from envcompare import files
from envcompare.command import Command
from envcompare.environments import Isolation
from envcompare.environments.registry import environment as named
from envcompare.environments.singularity import find_engine
from envcompare.errors import CommandTimeoutError, StackError, UnusableError
from envcompare.stack import Options, Prepared, Progress, image, inspection, sif, venv
from envcompare.stack.delivery import deliver
from envcompare.stack.wheelhouse import Wheelhouse, fill
from envcompare.transport import Transport
from envcompare.transport.local import LOCAL
from envcompare.transport.operations import run

_IMAGE_PYTHON = "/opt/envcompare/venv/bin/python"
_START_S = 300.0
_WHICH = "import sys; print(sys.executable); print(sys.version.split()[0])"


def prepare(  # noqa: PLR0913 — what, where, how, and the two sides it is done from
    transport: Transport,
    environment: str,
    *,
    reference: str = "",
    options: Options,
    progress: Progress,
    local: Transport = LOCAL,
) -> Prepared:
    """Return interpreter, reference and identity of an arm's software on the host, made if needed.

    `reference` is an image or SIF the user named; every command on this machine goes over `local`.
    Raises UnusableError when the host lacks an interpreter or an engine, and StackError when the
    software cannot be made, found or sent.
    """
    if environment == "vm":
        return _vm(transport, options, local=local, progress=progress)
    make = _docker if environment == "docker" else _singularity
    return make(transport, reference, options=options, local=local, progress=progress)


def wheelhouse(options: Options, *, local: Transport, progress: Progress) -> Wheelhouse:
    """Return the wheelhouse of the bundled workloads."""
    requirements = files.workloads() / "requirements.in"
    return fill(requirements, python=options.python, local=local, progress=progress)


def _recipe(options: Options, *, local: Transport, progress: Progress) -> image.Recipe:
    wheels = wheelhouse(options, local=local, progress=progress)
    return image.recipe(wheels, base=options.base, local=local)


def _held(transport: Transport, recipe: image.Recipe) -> image.Image | None:
    """Return the workload image of the host's engine; a host without Docker may run the SIF."""
    try:
        return image.find_built(transport, recipe)
    except UnusableError:
        return None


def _vm(
    transport: Transport, options: Options, *, local: Transport, progress: Progress
) -> Prepared:
    interpreter = venv.find_interpreter(transport, python=options.python, chosen=options.vm_python)
    wheels = wheelhouse(options, local=local, progress=progress)
    return venv.make(transport, wheels, interpreter=interpreter, progress=progress)


def _docker(
    transport: Transport,
    reference: str,
    *,
    options: Options,
    local: Transport,
    progress: Progress,
) -> Prepared:
    if reference:
        found = _users_image(transport, reference, local)
        there = deliver(transport, found, local=local, progress=progress)
        prepared = Prepared(interpreter="python3", reference=there.id)
        return _asked(
            transport, "docker", prepared, (("image", there.id), ("image.name", reference))
        )
    recipe = _recipe(options, local=local, progress=progress)
    built = image.find_built(transport, recipe)
    built = built or image.build(recipe, local=local, progress=progress)
    there = deliver(transport, built, local=local, progress=progress)
    return Prepared(
        interpreter=_IMAGE_PYTHON,
        reference=there.id,
        identity=(*_image_identity(there), ("image.name", built.name)),
    )


def _singularity(
    transport: Transport,
    reference: str,
    *,
    options: Options,
    local: Transport,
    progress: Progress,
) -> Prepared:
    engine = find_engine(transport)
    if reference:
        if "://" in reference:
            raise StackError(
                f"{reference} is not a file",
                details="nothing is pulled while measuring",
                hint=f"run on {transport.name}: {engine} pull image.sif {reference}",
            )
        found = sif.inspect(transport, reference)
        prepared = Prepared(interpreter="python3", reference=found.path, engine=engine)
        identity = (*_sif_identity(found), *_origin(transport, found.path))
        return _asked(transport, "singularity", prepared, identity)
    recipe = _recipe(options, local=local, progress=progress)
    built = _held(transport, recipe) or image.build(recipe, local=local, progress=progress)
    compression = options.sif_compression
    made = sif.make(transport, built, compression=compression, local=local, progress=progress)
    return Prepared(
        interpreter=_IMAGE_PYTHON,
        reference=made.path,
        engine=engine,
        identity=(*_image_identity(built), *_sif_identity(made)),
    )


def _image_identity(built: image.Image) -> tuple[tuple[str, str], ...]:
    return (("stack", "image"), ("lock", built.lock), ("image", built.id))


def _sif_identity(made: sif.Sif) -> tuple[tuple[str, str], ...]:
    return (("sif", made.path), ("sif.sha256", made.sha256), ("sif.compression", made.compression))


def _origin(transport: Transport, path: str) -> tuple[tuple[str, str], ...]:
    """Say from what a SIF on this machine was made and what reads it, where they tell."""
    if transport.name != LOCAL.name:
        return ()
    facts = (("sif.from", inspection.origin(Path(path))), ("sif.reader", inspection.version()))
    return tuple((name, value) for name, value in facts if value)


def _users_image(transport: Transport, reference: str, local: Transport) -> image.Image:
    """Find an image the user named: on the host, else in the local engine."""
    found = image.find(transport, reference)
    if found is None and transport.name != LOCAL.name:
        try:
            found = image.find(local, reference)
        except UnusableError:
            found = None
    if found is None:
        raise StackError(
            f"the image {reference} is not on {transport.name}",
            details="it is not in the engine there, nor in the one here",
            hint=f"run docker pull {reference} on {transport.name}, or build it here",
        )
    return found


def _asked(
    transport: Transport,
    environment: str,
    prepared: Prepared,
    identity: tuple[tuple[str, str], ...],
) -> Prepared:
    """Start the user's image once, to see that it starts and which interpreter it has."""
    wrapper = named(environment)
    isolation = Isolation(
        run_id=f"prepare-{uuid.uuid4().hex[:8]}",
        arm="prepare",
        reference=prepared.reference,
        engine=prepared.engine,
        uid=65534,
        gid=65534,
    )
    command = wrapper.wrap(Command(argv=(prepared.interpreter, "-c", _WHICH)), isolation)
    brief = f"{dict(identity).get('image.name', prepared.reference)} cannot be used"
    hint = "an image needs python3 with torch; run it by hand and mend what it says"
    try:
        result = run(transport, command, timeout_s=_START_S)
    except CommandTimeoutError as error:
        details = f"it did not answer within {_START_S:g} s"
        raise StackError(f"{brief} on {transport.name}", details=details, hint=hint) from error
    if not result.succeeded:
        details = wrapper.explain(result.exit_code, result.stderr) or result.tail(1)
        raise StackError(f"{brief} on {transport.name}", details=details, hint=hint)
    interpreter, version = result.stdout.split("\n")[:2]
    return Prepared(
        interpreter=interpreter,
        reference=prepared.reference,
        engine=prepared.engine,
        identity=(("stack", "given"), *identity, ("python", version)),
    )
