"""Software of arms as tests make it: a SIF of an image, and what an environment prepares."""

from __future__ import annotations

from collections.abc import Callable

from envcompare.config import Compression
from envcompare.environments.oci import ENGINE
from envcompare.environments.registry import environment
from envcompare.environments.singularity import find_engine, make_sif
from envcompare.stack import Options, Prepared, Progress, Request
from envcompare.stack.image import Image
from envcompare.stack.sif import Sif
from envcompare.transport import LOCAL, Transport


def sif_of(
    host: Transport,
    image: Image,
    *,
    compression: Compression = "zstd",
    local: Transport = LOCAL,
    say: Callable[[str], None] = print,
    is_for_others: bool = False,
) -> Sif:
    """Return the SIF of an image on a host, made there or here; kept here where others need it."""
    request = Request(
        transport=host,
        options=Options(sif_compression=compression),
        progress=Progress(say),
        builder=ENGINE,
        local=local,
        is_for_others=is_for_others,
    )
    return make_sif(request, image, program=find_engine(host))


def prepared_by(
    name: str,
    host: Transport,
    *,
    reference: str = "",
    options: Options | None = None,
    is_host_stack: bool = False,
    say: Callable[[str], None] = print,
) -> Prepared:
    """Return what an environment of that name prepares on a host."""
    request = Request(
        transport=host,
        progress=Progress(say),
        builder=ENGINE,
        options=options or Options(),
        reference=reference,
        is_host_stack=is_host_stack,
    )
    return environment(name).prepare(request)
