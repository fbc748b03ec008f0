"""Bring to a host what an arm needs, whichever environment it is; a second call does nothing."""

from __future__ import annotations

import uuid
from pathlib import Path

from envcompare import files
from envcompare.command import Command
from envcompare.environments import Isolation
from envcompare.environments.registry import environment as named
from envcompare.errors import StackError, UnusableError
from envcompare.stack import Options, Prepared, Progress, image, inspection, sif, venv
from envcompare.stack.wheelhouse import Wheelhouse, fill
from envcompare.transport import Transport
from envcompare.transport.local import LocalTransport
from envcompare.transport.operations import run

_IMAGE_PYTHON = "/opt/envcompare/venv/bin/python"
_WHICH = "import sys; print(sys.executable); print(sys.version.split()[0])"


def prepare(
    transport: Transport,
    environment: str,
    *,
    reference: str = "",
    options: Options,
    progress: Progress,
) -> Prepared:
    """Return interpreter, reference and identity of an arm's software on the host, made if needed.

    `reference` is an image or SIF the user named. Raises StackError, saying what to do.
    """
    try:
        if environment == "vm":
            return _vm(transport, options, progress)
        if environment == "docker":
            return _docker(transport, reference, options=options, progress=progress)
        return _singularity(transport, reference, options=options, progress=progress)
    except StackError:
        raise
    except UnusableError as error:
        raise StackError(error.brief, details=error.details, hint=error.hint) from error


def wheelhouse(options: Options, *, progress: Progress) -> Wheelhouse:
    """Return the wheelhouse of the bundled workloads."""
    requirements = files.workloads() / "requirements.in"
    return fill(requirements, python=options.python, progress=progress)


def workload_image(transport: Transport, options: Options, *, progress: Progress) -> image.Image:
    """Return the workload image as an engine holds it: the host's, else the local one, built."""
    recipe = image.recipe(wheelhouse(options, progress=progress), base=options.base_image)
    try:
        found = image.find_built(transport, recipe)
    except UnusableError:
        found = None  # a host without Docker may still run the SIF
    return found or image.build(recipe, progress=progress)


def _vm(transport: Transport, options: Options, progress: Progress) -> Prepared:
    interpreter = venv.find_interpreter(transport, python=options.python, chosen=options.vm_python)
    wheels = wheelhouse(options, progress=progress)
    return venv.make(transport, wheels, interpreter=interpreter, progress=progress)


def _docker(
    transport: Transport, reference: str, *, options: Options, progress: Progress
) -> Prepared:
    if reference:
        found = _users_image(transport, reference)
        there = image.deliver(transport, found, progress=progress)
        prepared = Prepared(interpreter="python3", reference=there.id)
        return _asked(
            transport, "docker", prepared, (("image", there.id), ("image.name", reference))
        )
    built = workload_image(transport, options, progress=progress)
    there = image.deliver(transport, built, progress=progress)
    return Prepared(
        interpreter=_IMAGE_PYTHON,
        reference=there.id,
        identity=(*_image_identity(there), ("image.name", built.name)),
    )


def _singularity(
    transport: Transport, reference: str, *, options: Options, progress: Progress
) -> Prepared:
    engine = sif.find_engine(transport)
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
    built = workload_image(transport, options, progress=progress)
    made = sif.make(transport, built, compression=options.sif_compression, progress=progress)
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
    if transport.name != LocalTransport().name:
        return ()
    facts = (("sif.from", inspection.origin(Path(path))), ("sif.reader", inspection.version()))
    return tuple((name, value) for name, value in facts if value)


def _users_image(transport: Transport, reference: str) -> image.Image:
    """Find an image the user named: on the host, else in the local engine."""
    found = image.find(transport, reference)
    if found is None and transport.name != LocalTransport().name:
        try:
            found = image.find(LocalTransport(), reference)
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
    result = run(transport, command, timeout_s=300)
    if not result.succeeded:
        raise StackError(
            f"{dict(identity).get('image.name', prepared.reference)} cannot be used "
            f"on {transport.name}",
            details=wrapper.explain(result.exit_code, result.stderr) or result.tail(1),
            hint="an image needs python3 with torch; run it by hand and mend what it says",
        )
    interpreter, version = result.stdout.split("\n")[:2]
    return Prepared(
        interpreter=interpreter,
        reference=prepared.reference,
        engine=prepared.engine,
        identity=(("stack", "given"), *identity, ("python", version)),
    )
