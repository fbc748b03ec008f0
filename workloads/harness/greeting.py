"""The answers to `import` and `hello`: a process made ready, a workload imported and loaded."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from harness import torchparts
from harness.facts.inside import fingerprint
from harness.facts.variables import overwrite, scratch_folder
from harness.failures import ProcessError, ProtocolError, phase
from harness.formats.data import data_hash
from harness.generation import Job, whole_number
from harness.loading import Workload, code_hash, load_class
from harness.pinning import pin
from harness.placement import Placement
from harness.places import in_fork, unsafe_to_fork

PLACES = ("auto", "fork", "rebuild")


def import_ahead(request: dict[str, Any]) -> dict[str, Any]:
    """Import a workload for the forks to come, whatever they run; say whether forks are safe.

    What cannot be imported is no fault of the others: the fork that runs it says so.
    """
    threads = _settle_as_asked(request)
    start_ns = time.monotonic_ns()
    with contextlib.suppress(Exception, SystemExit):
        load_class(request["workload"])
        torchparts.import_what_optimizers_need()
    import_ns = time.monotonic_ns() - start_ns
    if threads is not None:
        torchparts.limit_threads(1)
    danger = unsafe_to_fork("cuda")
    return {"import_ns": import_ns, "stays": danger is None, "why_not": danger or ""}


def _settle_as_asked(request: dict[str, Any]) -> int | None:
    """Check a request that begins a process, and settle the process; return its threads.

    None: their number is left as it is.
    """
    with phase("protocol"):
        _check_types(request)
    request = {"threads": 1, **request}
    is_set = request["threads"] is not None
    threads = whole_number(request, "threads", least=1, most=4096) if is_set else None
    with phase("process"):
        settle_process(threads, request.get("cpus"))
    return threads


def greet(request: dict[str, Any]) -> tuple[Job, dict[str, Any]]:
    """Set up this process as `hello` asks; return the job and the fields of the reply."""
    threads = _settle_as_asked(request)
    start_ns = time.monotonic_ns()
    with phase("import"):
        kind = load_class(request["workload"])
        torchparts.import_what_optimizers_need()
    import_ns = time.monotonic_ns() - start_ns
    with phase("setup"):
        started, keeps_off_gpu = _start_device(request)
        workload = Workload(kind, request.get("params") or {})
    with phase("data"):
        request = Placement.settle(request)  # before what is timed: users have data there already
    # One thread until the fork: a child cannot use the threads of a pool its parent has started.
    if threads is not None:
        torchparts.limit_threads(1)
    start_ns = time.monotonic_ns()
    with phase("data"):
        workload.load(request.get("data"))
    data_ns = time.monotonic_ns() - start_ns
    job = Job(
        workload,
        device=started["device"],
        threads=threads,
        data=request.get("data"),
        keeps_off_gpu=keeps_off_gpu and not torchparts.is_gpu_in_use(),
    )
    times = {"import_ns": import_ns, "data_ns": data_ns}
    return job, {**times, **started, **_describe(request, job)}


def _start_device(request: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Choose the device and start it; say whether that was done in a fork of this process.

    Generations that are forks need a template without CUDA. A fork that cannot start what this
    process can, as after a `cuInit` that PyTorch does not know of, is no reason to give up.
    """
    wanted = request.get("device", "auto")

    def start() -> dict[str, Any]:
        device = torchparts.choose_device(wanted)
        device_ns = torchparts.start_device(device)
        capability = torchparts.compute_capability(device)
        return {"device": device, "device_ns": device_ns, "compute_capability": capability}

    if request.get("generation", "auto") == "rebuild" or not torchparts.can_keep_off_gpu(wanted):
        return start(), False
    with phase("process"):
        alone = unsafe_to_fork("cuda") is None
    if alone:
        with contextlib.suppress(ProcessError):
            found = in_fork(start)
            if found["device"] == "cuda":
                return found, True
    return start(), False


def take_fingerprint(job: Job | None) -> dict[str, Any]:
    """Return the fingerprint of this process outside any generation, even without a job."""
    if job is None:
        return fingerprint(threads=None, device="cpu")

    def take() -> dict[str, Any]:
        return fingerprint(threads=job.threads, device=job.device, data=job.data)

    return in_fork(take) if job.keeps_off_gpu and job.device == "cuda" else take()


def _describe(request: dict[str, Any], job: Job) -> dict[str, Any]:
    """Return the fields of the reply on the job and its environment."""
    start_ns = time.monotonic_ns()
    asked = request.get("fingerprint", True)
    found = take_fingerprint(job) if asked else {}
    fingerprint_ns = time.monotonic_ns() - start_ns
    with phase("process"):
        place, reason = _choose_place(request.get("generation", "auto"), job.device)
    with phase("data"):
        found_hash = data_hash(request.get("data"))
    return {
        "generation": place,
        "generation_reason": reason,
        "batch": job.workload.batch,
        "unit": "samples",
        "steps_per_epoch": job.workload.steps_per_epoch,
        "code_hash": code_hash(request["workload"], request.get("files") or ()),
        "data_hash": found_hash,
        "params": job.workload.params,
        "shift": request.get("shift"),
        "fingerprint": found,
        "fingerprint_ns": fingerprint_ns,
    }


def _check_types(request: dict[str, Any]) -> None:
    """Raise ProtocolError for a field of `hello` that cannot be meant."""
    kinds: dict[str, Any] = {
        "workload": str,
        "params": (dict, type(None)),
        "data": (str, type(None)),
        "files": (list, type(None)),
        "place": (dict, type(None)),
        "cpus": (list, type(None)),
        "generation": str,
        "device": str,
        "fingerprint": bool,
    }
    if "workload" not in request:
        raise ProtocolError("hello names no workload")
    for name, kind in kinds.items():
        if name in request and not isinstance(request[name], kind):
            raise ProtocolError(f"{name!r} of hello is {request[name]!r}")
    if request.get("generation", "auto") not in PLACES:
        raise ProtocolError(f"'generation' of hello must be one of {', '.join(PLACES)}")


def settle_process(threads: int | None, cpus: list[int] | None) -> None:
    """Set the thread variables and the CPUs, before anything reads them.

    OpenBLAS gets one thread where a number is given: its pool starts at import and would make a
    fork unsafe. None leaves all of them as they are.
    """
    if threads is not None:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            overwrite(name, str(threads))
        overwrite("OPENBLAS_NUM_THREADS", "1")
    # `torch.cuda.is_available` of a workload then asks NVML, and does not spoil later forks.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # What the driver compiles from PTX it keeps in HOME (CUDA C++ Programming Guide, CUDA
    # Environment Variables): the login's without a container, which earlier programs have filled.
    os.environ.setdefault("CUDA_CACHE_PATH", os.path.join(scratch_folder(), "cuda"))
    # What the workload starts keeps no byte code either: a read-only mount could not keep any.
    overwrite("PYTHONDONTWRITEBYTECODE", "1")
    pin(cpus)


def _choose_place(wanted: str, device: str) -> tuple[str, str]:
    """Return `fork` or `rebuild`, and why."""
    danger = unsafe_to_fork(device)
    if wanted == "rebuild":
        return "rebuild", "asked for"
    if danger is None:
        return "fork", f"one thread lives in the template and {_gpu_words(device)}"
    if wanted == "fork":
        raise ProcessError(
            f"generation 'fork' was asked for and is unsafe: {danger}",
            hint="leave --generation out, so that the tool chooses, or give --generation rebuild",
        )
    return "rebuild", danger


def _gpu_words(device: str) -> str:
    return "CUDA is started in its forks alone" if device == "cuda" else "no GPU is used"
