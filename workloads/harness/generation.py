"""One generation: a workload built afresh, stepped in blocks and finished, in this process."""

from __future__ import annotations

import gc
import os
import resource
import time
from typing import Any, Callable

from harness import compiling, torchparts
from harness.blockclock import BlockClock, as_number
from harness.facts.cgroups import memory_peak_bytes
from harness.facts.inside import fingerprint
from harness.failures import ContractError, PhaseError, ProtocolError, failure_reply, phase
from harness.loading import Workload
from harness.pinning import OWN_CPU, current_cpu, held
from harness.profiling import profile

PAD_LIMIT_BYTES = 1 << 30
RESULT_LIMIT = 200  # characters of a value that `finish` returned


class Job:
    """The settings from `hello` for all generations of a worker."""

    def __init__(
        self,
        workload: Workload,
        *,
        device: str,
        threads: int | None,  # None: as many as the arm itself has
        data: str | None,
        keeps_off_gpu: bool = False,
    ) -> None:
        self.workload = workload
        self.device = device
        self.keeps_off_gpu = keeps_off_gpu  # CUDA is for forks of this process alone
        self.threads = threads
        self.data = data


class Generation:
    """Answers all requests from `gen` to `end` for one fresh copy of the workload."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._steps = 0
        self._start_ns = used_times_ns(resource.RUSAGE_SELF)
        torchparts.limit_threads(job.threads)
        self._clock = BlockClock(cuda=job.device == "cuda", processes=job.workload.processes)
        self._object: Any = None
        self._pad = b""
        self._peak_bytes: int | None = None  # of what was done before `facts` or a profile

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a request, or a failure reply."""
        ops: dict[str, Callable[[dict[str, Any]], dict[str, Any]]]
        ops = {
            "gen": self._build,
            "run": self._run,
            "evaluate": self._evaluate,
            "profile": self._profile,
            "facts": self._facts,
            "end": self._end,
        }
        try:
            with phase("process"):
                return {"op": request["op"], "ok": True, **ops[request["op"]](request)}
        except PhaseError as error:
            return failure_reply(request["op"], error)

    def _build(self, request: dict[str, Any]) -> dict[str, Any]:
        seed = whole_number(request, "seed", least=0)
        # The pad moves what is allocated after it, so that no generation owes its speed to one
        # lucky layout of memory.
        self._pad = b"\1" * whole_number(request, "pad", least=0, most=PAD_LIMIT_BYTES)
        torchparts.wait_for_device(self._job.device)  # CUDA starts here in a fork, untimed
        torchparts.start_memory_record(self._job.device)
        with phase("setup"):
            torchparts.seed_everything(seed)
            start_ns = time.monotonic_ns()
            self._object = self._job.workload.fresh()
            self._object.setup(seed, self._job.device)
            torchparts.wait_for_device(self._job.device)
        compiled, built_ns = compiling.newly_compiled(), time.monotonic_ns()
        self._steps = 1
        with phase("step", 1):
            checksum = as_number(self._object.step(), 1)
            compiling.require_compiled_code()
        return {
            "pid": os.getpid(),
            "build_ns": built_ns - start_ns,
            "first_step_ns": time.monotonic_ns() - built_ns,
            "checksum": checksum,
            "compiled": compiling.newly_compiled() - compiled,
        }

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        k = whole_number(request, "k", least=1)
        self._peak_bytes = None
        with held(_cpu_of(request)) as is_held:
            self._run_in(request)
            before = compiling.compilations()
            fields = self._clock.measure(self._object.step, k, done=self._steps)
            fields |= {"cpu": current_cpu(), "is_held": is_held}
        self._steps += k
        return {**fields, "compilations": compiling.compilations() - before}

    def _run_in(self, request: dict[str, Any]) -> None:
        """Run `run_in` untimed steps, if given, to use up what a pause has left."""
        for _ in range(whole_number(request, "run_in", least=0) if "run_in" in request else 0):
            with phase("step", self._steps + 1):
                self._object.step()
            self._steps += 1
        torchparts.wait_for_device(self._job.device)

    def _evaluate(self, _request: dict[str, Any]) -> dict[str, Any]:
        """Ask the workload how well it does on data that it does not train on."""
        start_ns = time.monotonic_ns()
        with phase("step", self._steps):
            found = _as_metrics(self._object.evaluate())
        return {"values": found, "wall_ns": time.monotonic_ns() - start_ns}

    def _profile(self, request: dict[str, Any]) -> dict[str, Any]:
        k = whole_number(request, "k", least=1)
        kind, out = request.get("kind"), request.get("out", "")
        self._peak_bytes = self._peak_bytes or peak_rss_bytes(resource.RUSAGE_SELF)
        with phase("protocol"):
            if not isinstance(kind, str) or not isinstance(out, str):
                raise ProtocolError(f"'kind' and 'out' are text, not {kind!r} and {out!r}")
            with held(_cpu_of(request)):
                self._run_in(request)
                found = profile(self._object.step, kind, k, out)
                found["cpu"] = current_cpu()
        self._steps += k
        return found

    def _facts(self, _request: dict[str, Any]) -> dict[str, Any]:
        self._peak_bytes = self._peak_bytes or peak_rss_bytes(resource.RUSAGE_SELF)
        found = fingerprint(threads=None, device=self._job.device, data=self._job.data)
        return {"steps": self._steps, "fingerprint": found}

    def _end(self, _request: dict[str, Any]) -> dict[str, Any]:
        with phase("step"):
            finish = getattr(self._object, "finish", None)
            result = _as_result(finish()) if finish else None
        user_ns, sys_ns = used_times_ns(resource.RUSAGE_SELF)
        reply = {
            "steps": self._steps,
            "result": result,
            "max_rss_bytes": self._peak_bytes or peak_rss_bytes(resource.RUSAGE_SELF),
            "cgroup_peak_bytes": memory_peak_bytes(),
            **torchparts.memory_peaks(self._job.device),
            "user_ns": user_ns - self._start_ns[0],
            "sys_ns": sys_ns - self._start_ns[1],
        }
        self.discard()
        return reply

    def discard(self) -> None:
        """Drop the workload and all it holds."""
        self._object, self._pad = None, b""
        gc.collect()
        torchparts.release_memory(self._job.device)


def _as_metrics(value: Any) -> dict[str, float]:  # noqa: ANN401  what a workload makes
    try:
        return {name: float(one) for name, one in value.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ContractError(
            f"`evaluate` must return a dict of numbers, and returned {str(value)[:RESULT_LIMIT]}",
            hint='return one as in {"accuracy": 0.93}',
        ) from error


def _as_result(value: Any) -> dict[str, Any] | None:  # noqa: ANN401  what a workload makes
    """Return the result of `finish` as names and plain values; others become text."""
    if value is None:
        return None
    named = value if isinstance(value, dict) else {"result": value}
    return {
        str(name): one if _is_plain(one) else str(one)[:RESULT_LIMIT] for name, one in named.items()
    }


def _is_plain(value: Any) -> bool:  # noqa: ANN401  what a workload makes
    """Tell whether a run folder can hold a value as it is: integers have 64 bits there."""
    if isinstance(value, int):
        return abs(value) < 1 << 63
    return isinstance(value, (float, str, type(None)))


def _cpu_of(request: dict[str, Any]) -> int | None:
    """Return on which CPU the steps of a request are to run; None where that is free."""
    if request.get("cpu") is None:
        return None
    return whole_number(request, "cpu", least=OWN_CPU)


def whole_number(
    request: dict[str, Any], name: str, *, least: int, most: int = (1 << 63) - 1
) -> int:
    """Return an int of a request; raise PhaseError of phase `protocol` if it is not one."""
    value = request.get(name)
    with phase("protocol"):
        if type(value) is not int or not least <= value <= most:
            raise ProtocolError(f"{name!r} is {value!r} and must be an int from {least} to {most}")
    return value


def used_times_ns(who: int) -> tuple[int, int]:
    """Return user and system time, in ns, of this process or of its ended children."""
    usage = resource.getrusage(who)
    return round(usage.ru_utime * 1e9), round(usage.ru_stime * 1e9)


def peak_rss_bytes(who: int) -> int:
    """Return the peak of resident memory; Linux counts it in KiB (getrusage(2))."""
    return resource.getrusage(who).ru_maxrss * 1024
