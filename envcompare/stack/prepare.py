"""Bring to a host what an arm needs, whichever environment it is; a second call does nothing."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from envcompare import bundled
from envcompare.environments.diagnosis import Cause
from envcompare.environments.registry import environment as named
from envcompare.environments.singularity import find_engine
from envcompare.errors import CommandTimeoutError, StackError, UnusableError
from envcompare.stack import Options, Prepared, Progress, image, inspection, sif, variants, venv
from envcompare.stack.building import build
from envcompare.stack.delivery import deliver
from envcompare.stack.proof import inside, prove
from envcompare.stack.wheelhouse import Wheelhouse, fill
from envcompare.text import spoken
from envcompare.transport import Transport
from envcompare.transport.local import LOCAL

_PYTHON = "python3"  # as a user of an image starts it, by the PATH of the image
_OWN_PYTHON = "ENVCOMPARE_PYTHON"  # tells it to what runs inside (workloads/pinning.py)
# Docker's words, and those of `env`, which Singularity starts it by.
_NO_PYTHON = re.compile(r'"python3": executable file not found|env: \W?python3\W')
_VERSION = re.compile(r"[0-9]+\.[0-9]+\S*")
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
    """Return an arm's software on the host, made if needed, with the proof of what it is.

    `reference` is an image or SIF the user named; every command on this machine goes over `local`.
    Raises UnusableError when the host lacks an interpreter or an engine, and StackError when the
    software cannot be made, found or sent.
    """
    if environment == "vm":
        made = _vm(transport, options, local=local, progress=progress)
    else:
        make = _docker if environment == "docker" else _singularity
        made = make(transport, reference, options=options, local=local, progress=progress)
    made = replace(made, run_id=options.run_id)
    return prove(transport, environment, made, progress=progress)


def wheelhouse(
    transport: Transport, options: Options, *, local: Transport, progress: Progress
) -> Wheelhouse:
    """Return the wheelhouse of the bundled workloads for a host.

    Raises StackError where the host cannot run what is in it.
    """
    variants.check_machine(transport)
    wheels = fill(
        bundled.workloads() / "requirements.in",
        python=options.python,
        variant=options.variant,
        local=local,
        progress=progress,
    )
    variants.check_driver(transport, (name for name, _ in wheels.sums))
    return wheels


def _recipe(
    transport: Transport, options: Options, *, local: Transport, progress: Progress
) -> image.Recipe:
    wheels = wheelhouse(transport, options, local=local, progress=progress)
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
    wheels = wheelhouse(transport, options, local=local, progress=progress)
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
        found = _users_image(transport, reference, local=local, progress=progress)
        there = deliver(transport, found, local=local, progress=progress)
        facts = _image_facts(replace(there, digest=found.digest))  # as the name it was given says
        prepared = Prepared(
            interpreter=_PYTHON,
            run_id=options.run_id,
            reference=there.id,
            facts=facts,
            software=_image_software(there),
        )
        return _asked(
            transport, "docker", prepared, (("image", there.id), ("image.name", reference))
        )
    recipe = _recipe(transport, options, local=local, progress=progress)
    built = image.find_built(transport, recipe)
    built = built or build(recipe, local=local, progress=progress)
    there = deliver(transport, built, local=local, progress=progress)
    return Prepared(
        interpreter=image.PYTHON,
        reference=there.id,
        identity=(*_image_identity(there), ("image.name", built.name)),
        facts=_image_facts(there),
        software=_image_software(there),
        meant=there.tree,
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
        found = sif.given(transport, reference, local=local, progress=progress)
        prepared = Prepared(
            interpreter=_PYTHON,
            run_id=options.run_id,
            reference=found.path,
            engine=engine,
            facts=_sif_facts(found),
            software=_sif_facts(found),
        )
        identity = (*_sif_identity(found), *_origin(transport, found.path))
        return _asked(transport, "singularity", prepared, identity)
    recipe = _recipe(transport, options, local=local, progress=progress)
    built = _held(transport, recipe) or build(recipe, local=local, progress=progress)
    compression = options.sif_compression
    made = sif.make(transport, built, compression=compression, local=local, progress=progress)
    return Prepared(
        interpreter=image.PYTHON,
        reference=made.path,
        engine=engine,
        identity=(*_image_identity(built), *_sif_identity(made)),
        facts=(*_image_facts(built), *_sif_facts(made)),
        software=(*_image_software(built), *_sif_facts(made)),
        meant=built.tree,
    )


def _image_identity(built: image.Image) -> tuple[tuple[str, str], ...]:
    return (("stack", "image"), ("lock", built.lock), ("image", built.id))


def _image_facts(one: image.Image) -> tuple[tuple[str, str], ...]:
    facts = (("image.id", one.id), ("image.digest", one.digest), ("lock.sha256", one.lock))
    return tuple((name, value) for name, value in facts if value)


def _image_software(one: image.Image) -> tuple[tuple[str, str], ...]:
    return (("image.id", one.id),)


def _sif_facts(made: sif.Sif) -> tuple[tuple[str, str], ...]:
    return () if made.sha256 == "sandbox" else (("sif.sha256", made.sha256),)


def _sif_identity(made: sif.Sif) -> tuple[tuple[str, str], ...]:
    return (("sif", made.path), ("sif.sha256", made.sha256), ("sif.compression", made.compression))


def _origin(transport: Transport, path: str) -> tuple[tuple[str, str], ...]:
    """Say from what a SIF on this machine was made and what reads it, where they tell."""
    if transport.name != LOCAL.name:
        return ()
    facts = (("sif.from", inspection.origin(Path(path))), ("sif.reader", inspection.version()))
    return tuple((name, value) for name, value in facts if value)


def _users_image(
    transport: Transport, reference: str, *, local: Transport, progress: Progress
) -> image.Image:
    """Find an image the user named: on the host, else in the local engine."""
    there = image.find(transport, reference)
    here = None
    if transport.name != LOCAL.name:
        with suppress(UnusableError):
            here = image.find(local, reference)
    if there and here and there.id != here.id:
        ids = f"{here.key[:12]} here and {there.key[:12]} on {transport.name}"
        remedy = f"docker image rm {reference} there first"
        progress(f"{reference} is {ids}: the one there is taken; for the one from here, {remedy}")
    found = there or here
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
    brief = f"{dict(identity).get('image.name', prepared.reference)} cannot be used"
    hint = "run python3 in it by hand and mend what it says"
    try:
        result = inside(transport, environment, prepared, "-c", _WHICH)
    except CommandTimeoutError as error:
        raise StackError(f"{brief} on {transport.name}", details=str(error), hint=hint) from error
    if result.exit_code == 127 and _NO_PYTHON.search(result.stderr):
        raise StackError(
            f"{brief} on {transport.name}",
            details="no python3 is on the PATH of the image",
            hint="install it in the image, or add its folder to PATH: ENV PATH=/its/folder:$PATH",
        )
    if not result.succeeded:
        cause = named(environment).explain(result.exit_code, result.stderr)
        cause = cause or Cause(reason=result.tail(1))
        raise StackError(
            f"{brief} on {transport.name}", details=cause.reason, hint=cause.hint or hint
        )
    interpreter, _, version = result.stdout.strip().partition("\n")
    if not interpreter.startswith("/") or not _VERSION.fullmatch(version):
        raise StackError(
            f"{brief} on {transport.name}",
            details="python3 in the image did not print its path and version; it printed: "
            f"{spoken(result.stdout)}",
            hint=hint,
        )
    started = (("python", version), ("started_as", _PYTHON))
    return replace(
        prepared,
        interpreter=interpreter,
        started_as=_PYTHON,
        identity=(("stack", "given"), *identity, *started),
        variables=((_OWN_PYTHON, _PYTHON),),
    )
