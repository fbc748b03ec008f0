"""A lab host that looks as if it had an NVIDIA GPU: make it, and remove it again.

It is for what is decided and said before anything is computed: the stubs describe devices and
refuse every context and every reading, so that nothing can be measured on them. What tells them
from a real GPU in any record is the UUID, which begins with GPU-1m1tated-.
The files below /proc/driver are seen by what runs on the host itself, not in a container, which
has a /proc of its own: what reads them inside a container cannot be tried here.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpumodels import (
    FAILURES,
    MODELS,
    Imitation,
    bus_files,
    c_table,
    cdi,
    driver_files,
    library_path,
    nodes,
    smi,
)

STUBS = Path(__file__).resolve().parent / "gpustubs"
LABEL = "envcompare.lab=1"
SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1")


class GpuHostError(Exception):
    """A lab host did not get the GPU, or still has it."""


def build(imitation: Imitation, folder: Path, *, options: tuple[str, ...] = ()) -> None:
    """Compile both stub libraries for these GPUs into a folder, under their sonames."""
    (folder / "table.h").write_text(c_table(imitation))
    for soname in SONAMES:
        source = STUBS / f"{soname.partition('.so')[0]}.c"
        argv = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Wno-unused-parameter",
                "-Wno-unused-function", "-Werror", f"-I{folder}", f"-I{STUBS}",
                f"-Wl,-soname,{soname}", *options]  # fmt: skip
        subprocess.run([*argv, str(source), "-o", str(folder / soname)], check=True)


def _placed(imitation: Imitation) -> dict[str, bytes]:
    """Return the files of the driver's packages and of the engine, by path on the host."""
    if imitation.has("bus-only"):
        return {}
    template = (STUBS / "nvidia-smi").read_text()
    files = {"/usr/bin/nvidia-smi": smi(template, imitation).encode()}
    with tempfile.TemporaryDirectory() as folder:
        build(imitation, Path(folder))
        for soname in SONAMES:
            path = library_path(soname.removesuffix(".1"), imitation.library)
            files[path] = (Path(folder) / soname).read_bytes()
    if not imitation.has("no-cdi"):
        files["/etc/cdi/nvidia.yaml"] = cdi(imitation).encode()
        files["/etc/docker/daemon.json"] = b'{"features": {"cdi": true}}\n'
    return files


def packed(imitation: Imitation) -> bytes:
    """Return the archive that host.sh unpacks."""
    files: dict[str, bytes] = {"driver/": b"", "bus/": b"", "root/": b""}
    for folder, texts in (("driver", driver_files(imitation)), ("bus", bus_files(imitation))):
        files |= {f"{folder}/{path}": text.encode() for path, text in texts.items()}
    files |= {f"root{path}": content for path, content in _placed(imitation).items()}
    files["nodes"] = "".join(f"{path} {mode}\n" for path, mode in nodes(imitation).items()).encode()
    if imitation.python:
        files["python"] = imitation.python.encode()
        folder = "root/usr/lib/python3/dist-packages"
        files[f"{folder}/imitated_python.py"] = (STUBS / "imitated_python.py").read_bytes()
        files[f"{folder}/imitated_python.pth"] = b"import imitated_python\n"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path.rstrip("/"))
            entry.type = tarfile.DIRTYPE if path.endswith("/") else tarfile.REGTYPE
            entry.mode = 0o755
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def make(host: str, imitation: Imitation, *, docker: str = "docker") -> None:
    """Give a lab host the GPU, in the place of one that it may have."""
    _on_host(host, "make", packed(imitation), docker=docker)


def remove(host: str, *, docker: str = "docker") -> None:
    """Take the GPU from a lab host; nothing happens where it has none."""
    _on_host(host, "remove", docker=docker)


@contextmanager
def imitated(host: str, imitation: Imitation, *, docker: str = "docker") -> Iterator[None]:
    """Let a lab host have the GPU for a while."""
    try:
        make(host, imitation, docker=docker)
        yield
    finally:
        remove(host, docker=docker)


def _on_host(host: str, action: str, archive: bytes = b"", *, docker: str) -> None:
    """Run host.sh in the container of a lab host, and in no other."""
    name, _, value = LABEL.partition("=")
    form = f'{{{{index .Config.Labels "{name}"}}}}'
    asked = [docker, "container", "inspect", "--format", form, host]
    if subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() != value:
        raise GpuHostError(f"{host} is no lab host\n  try: script/lab up 2")
    script = (STUBS / "host.sh").read_text()
    argv = [docker, "exec", "-i", host, "sh", "-c", script, "host.sh", action]
    done = subprocess.run(argv, input=archive, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace")
        raise GpuHostError(f"cannot {action} the imitated GPU of {host}\n  why: {said}")


def main() -> None:
    """Make or remove it, as script/lab asks."""
    named = "\n".join(f"  {name:14} {what}" for name, what in FAILURES.items())
    parser = argparse.ArgumentParser(
        prog="script/lab",
        epilog=f"failures:\n{named}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True)
    making = actions.add_parser("gpu", epilog=parser.epilog, formatter_class=parser.formatter_class)
    making.add_argument("host")
    making.add_argument("--gpu", choices=MODELS, default="t4")
    making.add_argument("--driver", default="570.86.10", metavar="VERSION")
    making.add_argument("--open", action="store_true", help="the open kernel module")
    making.add_argument("--python", default="", metavar="3.X", help="the only Python's version")
    making.add_argument("--failure", choices=FAILURES, action="append", default=[], metavar="NAME")
    actions.add_parser("nogpu").add_argument("host")
    asked, docker = parser.parse_args(), os.environ.get("DOCKER", "docker")
    if asked.action == "nogpu":
        remove(asked.host, docker=docker)
        return
    failures = frozenset(asked.failure)
    imitation = Imitation(
        model=MODELS[asked.gpu],
        driver=asked.driver,
        is_open=asked.open,
        python=asked.python,
        failures=failures,
    )
    make(asked.host, imitation, docker=docker)
    sys.stderr.write(f"{asked.host} has {imitation.count} × {imitation.model.name} (imitated)\n")


if __name__ == "__main__":
    try:
        main()
    except GpuHostError as error:
        sys.exit(f"error: {error}")
