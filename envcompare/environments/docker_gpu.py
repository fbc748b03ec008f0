"""How Docker gives a container the GPUs: by CDI, by NVIDIA's hook, or as the driver's own files."""

from __future__ import annotations

from dataclasses import replace

from envcompare.command import Command
from envcompare.environments import Check, Gpu, GpuWay, gpu
from envcompare.environments.asking import ask
from envcompare.environments.mounts import bind
from envcompare.transport import Transport

NO_GPU = "the engine has no NVIDIA runtime and no CDI description of the GPU"
NO_GPU_HINT = "install nvidia-container-toolkit and run: sudo nvidia-ctk runtime configure"
_WAYS: dict[str, GpuWay] = {"cdi": "cdi", "engine": "engine"}
# Images made for NVIDIA's runtime look for the driver's libraries here as well.
_LIBRARIES = "/usr/local/nvidia/lib64"
# An engine that does not know CDI, or has it switched off, names no folders.
_PROBE = r"""
docker info --format '{{range .CDISpecDirs}}{{println .}}{{end}}' 2>/dev/null |
while read -r folder; do
  cat "$folder"/*.yaml "$folder"/*.json 2>/dev/null
done | grep -Eq '"?kind"?: *"?nvidia\.com/gpu"?( |,|$)' && echo cdi && exit
command -v nvidia-container-runtime-hook >/dev/null && echo engine && exit
docker info --format '{{json .Runtimes}}' | grep -q '"nvidia' && echo engine && exit
echo devices
"""


def options(found: Gpu) -> tuple[str, ...]:
    """Return the options of `docker run` that give a container the GPUs.

    A container has none of the user's groups, and some hosts let one group alone have the GPUs.
    """
    groups = tuple(word for group in found.groups for word in ("--group-add", group))
    if found.way == "cdi":
        return (*groups, "--device", "nvidia.com/gpu=all")
    if found.way == "engine":
        return (*groups, "--gpus", "all")
    devices = (word for path in found.devices for word in ("--device", path))
    binds = (bind(path, target=f"{_LIBRARIES}/{name}") for name, path in found.libraries)
    mounts = (word for value in binds for word in ("--mount", value))
    # The image's own loader cache does not know them.
    search = ("--env", f"LD_LIBRARY_PATH={_LIBRARIES}") if found.libraries else ()
    return (*groups, *devices, *mounts, *search)


def check(transport: Transport) -> Check:
    """Say whether the driver works, and by which way the engine gives a container the GPUs."""
    driver = gpu.find(transport)
    if driver.gpu.way == "none":
        return driver
    hint = "sudo systemctl restart docker, and see what journalctl -u docker says"
    probe = Command(argv=("sh", "-c", _PROBE))
    result = ask(transport, probe, what="the Docker daemon", hint=hint)
    if isinstance(result, Check):
        return result
    if way := _WAYS.get(result.stdout.strip()):
        return replace(driver, gpu=replace(driver.gpu, way=way))
    if "libcuda.so.1" in dict(driver.gpu.libraries):
        return driver
    return Check(is_usable=False, version=driver.version, reason=NO_GPU, hint=NO_GPU_HINT)
