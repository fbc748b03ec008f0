"""Steps with light marks: how long each phase of a step took, and each operator in it.

The operators are those that PyTorch's own profiler sees on the CPU, without shapes and stacks. A
phase begins where the step, the forward pass of a module with parameters, the backward pass or the
optimiser does. Measured on the workloads here, the marks lengthen a step of large operators by 0 to
3 %, and one of a thousand small operators by a quarter; a `TorchDispatchMode` takes 7 and 140 %.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Iterable, Iterator, NamedTuple

from harness.compiling import compiled_graphs
from harness.counters.flops import NO_TORCH
from harness.torchparts import device_in_use, loaded_torch

ON_GPU = "the work runs on a GPU: on the host, the time of an operator is that of its launch"
COMPILED = "the model is compiled: its code runs few operators, and marks would compile it again"
NO_STEPS = "PyTorch's profiler saw none of the marks"
DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER = "data", "forward", "backward", "optimizer", "other"
OUTSIDE = ""  # of a phase: what no operator took, which is Python and PyTorch's own dispatch
REST = "(all others)"
LEAST_SHARE = 0.001  # of the steps; operators below it are added up in one
NAME_LIMIT = 200
_MARK = "envcompare::"
_STEP, _END = f"{_MARK}step", f"{_MARK}end"
_BEGINS = {_STEP: DATA, f"{_MARK}{FORWARD}": FORWARD, f"{_MARK}{BACKWARD}": BACKWARD, _END: OTHER}
_ENGINE = "autograd::engine::evaluate_function: "
# What PyTorch itself names: a phase for as long as it lasts.
_SPANS = (("Optimizer.", OPTIMIZER), ("enumerate(DataLoader)", DATA))
_USER_SCOPE = 7  # at::RecordScope::USER_SCOPE: a name given to a stretch, not an operator


class Event(NamedTuple):
    """An event of the profiler: times in ns, and whether it only names a stretch."""

    start_ns: int
    end_ns: int
    name: str
    is_stretch: bool


def mark(step: Callable[[], Any], k: int) -> dict[str, Any]:
    """Run k steps with marks; return the ns of the steps by phase and operator."""
    torch = loaded_torch()
    reason = NO_TORCH if torch is None else ON_GPU if device_in_use() == "cuda" else ""
    reason = COMPILED if compiled_graphs() else reason
    if torch is None or reason:
        return {"reason": reason}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the profiler, about itself
        with torch.autograd.profiler.profile() as seen, _phases(torch) as at:
            for _ in range(k):
                at("step")
                step()
            at("end")
    parts = divided(_events(seen.kineto_results))
    if not parts:
        return {"reason": NO_STEPS}
    return {"parts": {phase: largest(found, parts) for phase, found in parts.items()}}


@contextmanager
def _phases(torch: Any) -> Iterator[Callable[[str], None]]:  # noqa: ANN401  PyTorch has no types
    """Mark where forward and backward begin; give what marks anything else."""
    now = ""

    def at(name: str) -> None:
        nonlocal now
        now = name
        with torch.autograd.profiler.record_function(_MARK + name):
            pass

    def before_forward(module: Any, _inputs: Any) -> None:  # noqa: ANN401
        # A transform of data may be a module too, without parameters.
        if now not in {FORWARD, BACKWARD} and next(module.parameters(), None) is not None:
            at(FORWARD)

    def marked(call: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            at(BACKWARD)
            try:
                return call(*args, **kwargs)
            finally:
                at("end")

        return backward

    with ExitStack() as undoing:
        hook = torch.nn.modules.module.register_module_forward_pre_hook(before_forward)
        undoing.callback(hook.remove)
        for name in ("backward", "grad"):
            call = getattr(torch.autograd, name)
            undoing.callback(setattr, torch.autograd, name, call)
            setattr(torch.autograd, name, marked(call))
        yield at


def _events(results: Any) -> list[Event]:  # noqa: ANN401  PyTorch has no types here
    """Return the events of the thread that ran the steps, in the order in which they began."""
    found = list(results.events())
    threads = {one.start_thread_id() for one in found if one.name() == _STEP}
    own = (one for one in found if one.start_thread_id() in threads)
    return sorted(map(_event, own), key=lambda one: (one.start_ns, -one.end_ns))


def _event(seen: Any) -> Event:  # noqa: ANN401
    if hasattr(seen, "start_ns"):
        start, duration = seen.start_ns(), seen.duration_ns()
    else:  # before PyTorch 2.4
        start, duration = 1000 * seen.start_us(), 1000 * seen.duration_us()
    is_stretch = hasattr(seen, "scope") and seen.scope() == _USER_SCOPE
    return Event(start, start + duration, seen.name(), is_stretch)


def divided(events: Iterable[Event]) -> dict[str, dict[str, int]]:
    """Divide the time from the first step to the end among phases, and these among operators.

    An operator has the time in which none runs that it called; a phase has what is left as well,
    so that all times add up to that of the steps. Where no module was called, what comes before
    the backward pass cannot be divided and is `other`.
    """
    timeline = _Timeline()
    for event in events:
        timeline.take(event)
    parts = timeline.parts  # nothing is spent after the mark of the end
    if FORWARD not in parts and DATA in parts:
        others = parts.setdefault(OTHER, {})
        for name, spent_ns in parts.pop(DATA).items():
            others[name] = others.get(name, 0) + spent_ns
    return parts


class _Call(NamedTuple):
    """A running call: its end, its operator, and the phase that overrides the marked one."""

    end_ns: int
    name: str
    phase: str | None


class _Timeline:
    """Follows the phases through the events of one thread."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, int]] = {}
        self._marked = ""  # the phase by the last mark; none before the first step
        self._since_ns = 0  # until there all time is given to what took it
        self._calls: list[_Call] = []

    def take(self, event: Event) -> None:
        """Take the next event, in the order in which they began."""
        while self._calls and self._calls[-1].end_ns <= event.start_ns:
            self._spend(self._calls[-1].end_ns)
            self._calls.pop()
        self._spend(event.start_ns)
        if event.name in _BEGINS:
            self._marked = _BEGINS[event.name]
            # in the closure of an optimizer too: what is marked is no longer the optimizer's own
            self._calls = [call._replace(phase=None) for call in self._calls]
            return
        span = next((phase for head, phase in _SPANS if event.name.startswith(head)), None)
        if span is not None:
            self._calls.append(_Call(event.end_ns, OUTSIDE, span))
        elif not event.is_stretch:
            inherited = self._calls[-1].phase if self._calls else None
            name = event.name.removeprefix(_ENGINE)[:NAME_LIMIT]
            self._calls.append(_Call(event.end_ns, name, inherited))

    def _spend(self, until_ns: int) -> None:
        """Give the time since the last border to what ran there."""
        call = self._calls[-1] if self._calls else _Call(0, OUTSIDE, None)
        phase, spent_ns = call.phase or self._marked, until_ns - self._since_ns
        if self._marked and spent_ns > 0:
            found = self.parts.setdefault(phase, {})
            found[call.name] = found.get(call.name, 0) + spent_ns
        self._since_ns = max(self._since_ns, until_ns)


def largest(found: dict[str, int], of: dict[str, dict[str, int]]) -> dict[str, int]:
    """Return the operators of a phase that hold a thousandth of all steps, and the rest as one."""
    least_ns = LEAST_SHARE * sum(sum(times.values()) for times in of.values())
    kept = {name: ns for name, ns in found.items() if ns >= least_ns or name == OUTSIDE}
    rest_ns = sum(found.values()) - sum(kept.values())
    return {**kept, REST: rest_ns} if rest_ns else kept
