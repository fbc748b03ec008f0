"""What must be true of a run on a GPU, whatever the GPU: formulas, passes and tools agree.

Each check reads one run folder and says of every arm "passed", "failed" or "not possible here",
with the numbers. Nothing here starts a program: `script/gpu-check` measures, these functions judge.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from envcompare.gpu import table_roofs
from envcompare.gpu.kernels import identity
from envcompare.run_folder import standing
from envcompare.run_folder.profiles import Device, PassName, Profile, ProfileRecord, Roofs
from envcompare.run_folder.records import ArmRecord, Block, Event, GpuReading, RunRecord, Sample
from envcompare.run_folder.results import RunFolder

State = Literal["passed", "failed", "not possible here"]
WORKLOADS: Final = ("cnn", "rnn")
_BATCH: Final = 64
_FIRST_CONVOLUTION: Final = 2 * _BATCH * 26 * 26 * 32 * 9
_SECOND_CONVOLUTION: Final = 2 * _BATCH * 24 * 24 * 64 * 9 * 32
_LINEAR: Final = 2 * _BATCH * (9216 * 128 + 128 * 10)
CONVOLUTION: Final = {
    "aten.convolution": _FIRST_CONVOLUTION + _SECOND_CONVOLUTION,
    "aten.convolution_backward": _FIRST_CONVOLUTION + 2 * _SECOND_CONVOLUTION,
}
"""FLOPs of a training step of the CNN; the images need no gradient."""


def _rnn_flops() -> int:
    steps, inputs, hidden = 100, 20, 40
    recurrent = 2 * steps * _BATCH * hidden * (inputs + hidden)
    first_state = 2 * _BATCH * hidden * hidden  # needs no gradient
    return 3 * recurrent - first_state + 3 * (2 * _BATCH * hidden)


FLOPS: Final = {"cnn": sum(CONVOLUTION.values()) + 3 * _LINEAR, "rnn": _rnn_flops()}
"""FLOPs of a training step by its formula."""

COUNTED: Final = ("flops_fp64", "flops_fp32", "flops_fp16", "flops_tensor")
"""The quantities that add up to all FLOPs; those of tensor cores are also listed by precision."""

SECTOR_BYTES: Final = 32
"""Of device memory: NVIDIA, Nsight Compute, Kernel Profiling Guide, Memory Tables."""
_LEAST_STRETCH_S: Final = 5.0  # the counter of energy is coarse, see docs/measurement.md
_MOST_APART_NS: Final = 500_000_000
_UNREAD: Final = "no GPU was read beside the timing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a check says of one arm."""

    arm: str
    state: State
    detail: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table: a check with what it says of all arms together."""

    check: str
    state: State
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRun:
    """What a run folder holds, read once."""

    record: RunRecord
    profiles: Mapping[tuple[str, str, PassName], ProfileRecord]
    samples: tuple[Sample, ...]
    events: tuple[Event, ...]
    roofs: tuple[Roofs, ...]
    energies: Mapping[tuple[str, str], bool]  # of workload and arm: told, or a reason why not

    @classmethod
    def read(cls, path: Path) -> GpuRun:
        """Read a run folder; raises RunFolderError where it is none or damaged."""
        folder = RunFolder.open(path)
        record = folder.read_run()
        workloads = {cell.id: cell.workload for cell in record.cells}
        return cls(
            record=record,
            profiles={
                (workloads[profile.cell], profile.arm, profile.kind): profile
                for profile in folder.read_profiles()
                if profile.cell in workloads
            },
            samples=folder.read_samples().samples,
            events=standing(folder.read_events().events),
            roofs=folder.read_roofs(),
            energies=_energies(path / "comparison.json", workloads),
        )

    @property
    def arms(self) -> tuple[ArmRecord, ...]:
        """Return the arms that are profiled: the control repeats the reference."""
        return tuple(arm for arm in self.record.arms if not arm.is_control)

    def cells_of(self, workload: str) -> frozenset[str]:
        """Return the cells of a workload."""
        return frozenset(cell.id for cell in self.record.cells if cell.workload == workload)


def _energies(path: Path, workloads: Mapping[str, str]) -> dict[tuple[str, str], bool]:
    if not path.is_file():
        return {}
    return {
        (workloads[cell["cell"]], arm["arm"]): bool(row["value"]) or bool(row["reason"])
        for cell in json.loads(path.read_text("utf-8")).get("profiles", [])
        for arm in cell["arms"]
        for row in arm["quantities"]
        if row["name"] == "energy_per_sample_j" and cell["cell"] in workloads
    }


Check = Callable[[GpuRun, str], Iterator[Outcome]]


def reached_gpu(run: GpuRun, workload: str) -> Iterator[Outcome]:
    """Check that every arm computed on a CUDA device, as its worker said."""
    cells = run.cells_of(workload)
    of_cells = [event for event in run.events if event.cell in cells or not event.cell]
    for arm in run.arms:
        devices = {
            str(event.values["device"])
            for event in of_cells
            if event.what == "note" and event.arm == arm.id and "device" in event.values
        }
        if devices and all(device.startswith("cuda") for device in devices):
            yield Outcome(arm=arm.id, state="passed", detail=", ".join(sorted(devices)))
        elif devices:
            yield Outcome(arm=arm.id, state="failed", detail=f"ran on {', '.join(sorted(devices))}")
        else:
            why = [e.failure.brief for e in of_cells if e.failure and e.arm in {arm.id, ""}]
            detail = why[0] if why else "its worker never said a device"
            yield Outcome(arm=arm.id, state="failed", detail=detail)


def model_flops(run: GpuRun, workload: str) -> Iterator[Outcome]:
    """Check that PyTorch counts exactly the FLOPs of the formula."""
    for arm, profile, steps in _profiled(run, workload, "flops"):
        if isinstance(profile, Outcome):
            yield profile
        else:
            counted, formula = _quantity(profile, "flops_model"), FLOPS[workload] * steps
            yield _equal(arm, counted, formula, "FLOP", steps)


def convolution_flops(run: GpuRun, workload: str) -> Iterator[Outcome]:
    """Check that the convolutions alone have exactly the FLOPs of their formula."""
    if workload != "cnn":
        return
    for arm, profile, steps in _profiled(run, workload, "flops"):
        if isinstance(profile, Outcome):
            yield profile
            continue
        counted = {
            str(note.values["operator"]): int(note.values["flops"])
            for note in profile.notes
            if note.kind == "flops-of-operator"
        }
        if not counted:
            detail = "the profile does not tell operators apart"
            yield Outcome(arm=arm, state="not possible here", detail=detail)
            continue
        for operator, flops in CONVOLUTION.items():
            yield _equal(arm, counted.get(operator), flops * steps, operator, steps)


def counted_flops(run: GpuRun, workload: str) -> Iterator[Outcome]:
    """Check that counters lie near the formula, and that the same software computes the same."""
    totals: dict[str, float] = {}
    for arm, profile, steps in _profiled(run, workload, "ncu-flops"):
        if isinstance(profile, Outcome):
            yield profile
            continue
        counted = (_quantity(profile, name) or 0.0 for name in COUNTED)
        totals[arm] = sum(counted) / steps
    for arms in _by_stack(run, totals):
        first = totals[arms[0]]
        for arm in arms:
            ratio = totals[arm] / FLOPS[workload]
            is_right = 0.5 < ratio < 3 and _is_near(totals[arm], first, 0.01)
            detail = f"{ratio:.3g} times the formula; {arms[0]}: {first / FLOPS[workload]:.3g}"
            yield Outcome(arm=arm, state=_state(is_right=is_right), detail=detail)


def memory_sectors(run: GpuRun, workload: str) -> Iterator[Outcome]:
    """Check that a sector of device memory is 32 bytes, for each kernel and direction."""
    for arm, profile, _ in _profiled(run, workload, "ncu-memory"):
        yield profile if isinstance(profile, Outcome) else sector_sizes(arm, profile)


def sector_sizes(arm: str, profile: Profile) -> Outcome:
    """Compare the sectors of each kernel with its bytes."""
    wrong, seen = [], 0
    for kernel in profile.kernels:
        for way in ("read", "write"):
            sectors = kernel.metrics.get(f"dram__sectors_{way}.sum")
            moved = kernel.metrics.get(f"dram__bytes_{way}.sum")
            if sectors is None or moved is None:
                continue
            seen += 1
            if moved != SECTOR_BYTES * sectors:
                wrong.append(f"{kernel.name[:60]}: {sectors:g} sectors, {moved:g} bytes {way}")
    if not seen:
        detail = "the counters of sectors and bytes are not both there"
        return Outcome(arm=arm, state="not possible here", detail=detail)
    detail = wrong[0] if wrong else f"{seen} counts × {SECTOR_BYTES} bytes"
    return Outcome(arm=arm, state=_state(is_right=not wrong), detail=detail)


def same_kernels(run: GpuRun, workload: str) -> Iterator[Outcome]:
    """Check that Nsight Systems and Nsight Compute see the same kernels and shapes, as often."""
    kinds: tuple[PassName, ...] = ("ncu-memory", "ncu-flops")
    for kind in kinds:
        for arm, seen in _both(run, workload, ("nsys", kind)):
            if isinstance(seen, Outcome):
                yield seen
            else:
                traced, counted = (launches(profile, steps) for profile, steps in seen)
                yield _same_launches(arm, traced, counted, ("nsys", kind))


def launches(
    profile: Profile, steps: int, named: Callable[[str], str] = identity
) -> Counter[tuple[str, object, object]]:
    """Return how often each kernel was launched in a step, by name (normalised) and shape."""
    counted: Counter[tuple[str, object, object]] = Counter()
    for kernel in profile.kernels:
        counted[named(kernel.name), kernel.grid, kernel.block] += kernel.calls
    return Counter({key: calls // steps for key, calls in counted.items()})


def kernels_of_arms(run: GpuRun, workload: str) -> Iterator[Outcome]:
    """Check that arms of the same software launch the same kernels: an environment chooses none."""
    seen = {}
    for arm, profile, steps in _profiled(run, workload, "nsys"):
        if isinstance(profile, Outcome):
            yield profile
        else:
            seen[arm] = launches(profile, steps, str)  # one tool spells a name one way
    for arms in _by_stack(run, seen):
        for arm in arms[1:]:
            yield _same_launches(arm, seen[arms[0]], seen[arm], (arms[0], arm))


def tracers_agree(run: GpuRun, workload: str) -> Iterator[Outcome]:
    """Check that Nsight Systems and PyTorch's profiler see the same kernel time."""
    for arm, seen in _both(run, workload, ("nsys", "torch")):
        if isinstance(seen, Outcome):
            yield seen
            continue
        nsys, kineto = (
            sum(kernel.total_ns or 0.0 for kernel in profile.kernels) / steps / 1e6
            for profile, steps in seen
        )
        is_right = kineto > 0 and _is_near(nsys, kineto, 0.1)
        detail = f"nsys {nsys:.3g} ms, torch.profiler {kineto:.3g} ms a step"
        yield Outcome(arm=arm, state=_state(is_right=is_right), detail=detail)


def events_within_wall(run: GpuRun, workload: str) -> Iterator[Outcome]:
    """Check that the time between CUDA events fills most of the wall time, and no more."""
    cells = run.cells_of(workload)
    for arm in run.arms:
        timed = [
            sample
            for sample in run.samples
            if isinstance(sample, Block) and sample.cell in cells and sample.arm == arm.id
        ]
        yield events_of_blocks(arm.id, timed)


def events_of_blocks(arm: str, blocks: Iterable[Block]) -> Outcome:
    """Compare CUDA events with the clock in the measured blocks of an arm."""
    pairs = [
        (gpu, wall)
        for block in blocks
        if block.status == "ok" and not block.warmup and block.gpu_ns
        for gpu, wall in zip(block.gpu_ns, block.wall_ns, strict=True)
    ]
    if not pairs:
        return Outcome(arm=arm, state="not possible here", detail="no step was timed by events")
    share = float(np.median([gpu / wall for gpu, wall in pairs if wall > 0]))
    detail = f"events take {share:.1%} of the wall time in the median of {len(pairs)} steps"
    return Outcome(arm=arm, state=_state(is_right=0.5 < share <= 1.02), detail=detail)


def energy_agrees(run: GpuRun, workload: str) -> Iterator[Outcome]:
    """Check that the energy counter grows by the integral of the power read beside it."""
    cells = run.cells_of(workload)
    readings = [s for s in run.samples if isinstance(s, GpuReading) and s.cell in cells]
    if not readings:
        yield Outcome(arm="the GPU", state="not possible here", detail=_UNREAD)
    for uuid, of_gpu in groupby(sorted(readings, key=lambda r: r.uuid), key=lambda r: r.uuid):
        yield counter_against_integral(uuid, list(of_gpu))


def energy_is_told(run: GpuRun, workload: str) -> Iterator[Outcome]:
    """Check that the comparison has an energy of a sample for each arm, or a reason why not."""
    cells = run.cells_of(workload)
    is_read = any(isinstance(s, GpuReading) and s.cell in cells for s in run.samples)
    for arm in run.arms:
        is_told = run.energies.get((workload, arm.id), False)
        detail = "it has a value or a reason" if is_told else "it has neither a value nor a reason"
        state: State = _state(is_right=is_told) if is_read else "not possible here"
        yield Outcome(arm=arm.id, state=state, detail=detail if is_read else _UNREAD)


def counter_against_integral(uuid: str, readings: Sequence[GpuReading]) -> Outcome:
    """Compare the counter with the integral, over neighbours that lie close together."""
    watts = [p / 1000 for reading in readings for p in reading.power_mw if p is not None]
    counted = integrated = seconds = 0.0
    for reading in readings:
        columns = zip(reading.t_ns, reading.power_mw, reading.energy_mj, strict=True)
        lines = [(t, p, e) for t, p, e in columns if p is not None and e is not None]
        for (t0, p0, e0), (t1, p1, e1) in pairwise(lines):
            if 0 < t1 - t0 <= _MOST_APART_NS:
                seconds += (t1 - t0) / 1e9
                counted += (e1 - e0) / 1e3
                integrated += (p0 + p1) / 2e3 * (t1 - t0) / 1e9
    if seconds < _LEAST_STRETCH_S:
        detail = f"power and counter were read together for {seconds:.1f} s only"
        return Outcome(arm=uuid, state="not possible here", detail=detail)
    is_right = 1 < min(watts) <= max(watts) < 2000 and _is_near(counted, integrated, 0.1)
    detail = f"counter {counted:.4g} J, integral {integrated:.4g} J in {seconds:.0f} s"
    return Outcome(arm=uuid, state=_state(is_right=is_right), detail=detail)


def roofs_below_table(run: GpuRun) -> Iterator[Outcome]:
    """Check that no product and no copy is faster than what the maker of the GPU says."""
    measured = [roofs for roofs in run.roofs if roofs.is_measured and roofs.bytes_per_s]
    if not measured:
        why = next((roofs.reason for roofs in run.roofs if roofs.reason), "none were measured")
        yield Outcome(arm="the GPU", state="not possible here", detail=why)
    for roofs in measured:
        yield roofs_of_host(roofs)


def roofs_of_host(measured: Roofs) -> Outcome:
    """Compare measured roofs with the table's."""
    table = table_roofs(Device(name=measured.device), host=measured.host)
    if not isinstance(table, Roofs) or not table.bytes_per_s:
        detail = table if isinstance(table, str) else "the table has no bandwidth"
        return Outcome(arm=measured.device, state="not possible here", detail=detail)
    shares = {"memory": (measured.bytes_per_s or 0.0) / table.bytes_per_s}
    for precision, rate in measured.flops_per_s.items():
        if precision in table.flops_per_s:
            shares[precision] = rate / table.flops_per_s[precision]
    is_right = shares["memory"] > 0.4 and all(0.1 < share < 1.1 for share in shares.values())
    detail = ", ".join(f"{name} {share:.0%} of the peak" for name, share in shares.items())
    return Outcome(arm=measured.device, state=_state(is_right=is_right), detail=detail)


CHECKS: Final[Mapping[str, Check]] = {
    "every arm computed on the GPU": reached_gpu,
    "FLOPs of the model are the formula's": model_flops,
    "FLOPs of the convolution are the formula's": convolution_flops,
    "counted FLOPs lie near the formula's": counted_flops,
    "DRAM sectors × 32 are the bytes": memory_sectors,
    "nsys and ncu name the same kernels": same_kernels,
    "arms of one stack launch the same kernels": kernels_of_arms,
    "nsys and torch.profiler agree on kernel time": tracers_agree,
    "CUDA events fill the wall time": events_within_wall,
    "energy counter is the integral of power": energy_agrees,
    "energy of a sample is told": energy_is_told,
}
"""The checks that are made for each workload, in the order of the table."""

ROOFS: Final = "measured roofs lie below the peaks"


def names() -> tuple[str, ...]:
    """Return the names of all rows that `judge` gives, in order."""
    of_workloads = [
        f"{check}: {workload}"
        for workload in WORKLOADS
        for check, function in CHECKS.items()
        if workload == "cnn" or function is not convolution_flops
    ]
    return (*of_workloads, ROOFS)


def judge(run: GpuRun) -> tuple[Row, ...]:
    """Return the row of every check."""
    rows = [
        summarised(f"{check}: {workload}", tuple(function(run, workload)))
        for workload in WORKLOADS
        for check, function in CHECKS.items()
        if f"{check}: {workload}" in names()
    ]
    return (*rows, summarised(ROOFS, tuple(roofs_below_table(run))))


def unjudged(why: str) -> tuple[Row, ...]:
    """Return the row of every check where nothing was measured."""
    return tuple(Row(check=name, state="not possible here", detail=why) for name in names())


def summarised(check: str, outcomes: tuple[Outcome, ...]) -> Row:
    """Return one row: failed where an arm failed, else passed where one could be judged."""
    state: State = "not possible here"
    for worst in ("passed", "failed"):
        if any(outcome.state == worst for outcome in outcomes):
            state = worst
    told = [outcome for outcome in outcomes if outcome.state == state]
    count = len({outcome.arm for outcome in told})
    of_all = len({outcome.arm for outcome in outcomes})
    if not told:
        return Row(check=check, state=state, detail="the run has nothing to compare")
    first = f"{told[0].arm}: {told[0].detail}"
    detail = first if count == of_all == 1 else f"{count} of {of_all}; {first}"
    return Row(check=check, state=state, detail=detail)


def has_reached_gpu(run: GpuRun) -> bool:
    """Say whether every arm with the image's software computed on the GPU, in every workload.

    Where the run has the host's software alone, it is that which is asked for.
    """
    image = {arm.id for arm in run.arms if arm.stack == "image"} or {arm.id for arm in run.arms}
    outcomes = [o for workload in WORKLOADS for o in reached_gpu(run, workload) if o.arm in image]
    return bool(outcomes) and all(outcome.state == "passed" for outcome in outcomes)


def _profiled(
    run: GpuRun, workload: str, kind: PassName
) -> Iterator[tuple[str, Profile | Outcome, int]]:
    """Yield each arm with its profile and steps, or with the outcome that says what it lacks."""
    for arm in run.arms:
        record = run.profiles.get((workload, arm.id, kind))
        profile = record.profile if record else None
        if profile is not None and profile.steps:
            yield arm.id, profile, profile.steps
            continue
        lacks = record.lacks if record else None
        why = lacks.problem.brief if lacks else "the arm has no such profile"
        remedy = f" (try: {lacks.problem.hint})" if lacks and lacks.problem.hint else ""
        # a pass that was tried in vain is a fault to be looked into, what the host lacks is none
        state: State = "failed" if record and record.is_failure else "not possible here"
        yield arm.id, Outcome(arm=arm.id, state=state, detail=f"{kind}: {why}{remedy}"), 0


def _both(
    run: GpuRun, workload: str, kinds: tuple[PassName, PassName]
) -> Iterator[tuple[str, Outcome | list[tuple[Profile, int]]]]:
    """Yield each arm with its profiles of two passes, or with the outcome of what it lacks."""
    first, second = (_profiled(run, workload, kind) for kind in kinds)
    for pair in zip(first, second, strict=True):
        lacks = [profile for _, profile, _ in pair if isinstance(profile, Outcome)]
        seen = [(profile, n) for _, profile, n in pair if isinstance(profile, Profile)]
        yield pair[0][0], lacks[0] if lacks else seen


def _by_stack(run: GpuRun, arms: Iterable[str]) -> Iterator[list[str]]:
    """Yield the arms that have the same software."""
    known = set(arms)
    for stack in ("image", "host"):
        of_stack = [arm.id for arm in run.arms if arm.stack == stack and arm.id in known]
        if of_stack:
            yield of_stack


def _same_launches(
    arm: str,
    expected: Counter[tuple[str, object, object]],
    counted: Counter[tuple[str, object, object]],
    sources: tuple[str, str],
) -> Outcome:
    different = [key for key in expected | counted if expected[key] != counted[key]]
    if not expected:
        return Outcome(arm=arm, state="failed", detail=f"{sources[0]} saw no kernel")
    detail = f"{len(expected)} kernels, {expected.total()} launches a step"
    if different:
        name, grid, block = different[0]
        pair = (f"{source} {seen[different[0]]}" for source, seen in
                zip(sources, (expected, counted), strict=True))  # fmt: skip
        detail = f"{name[:60]} (grid {grid}, block {block}): launched {', '.join(pair)} times"
    return Outcome(arm=arm, state=_state(is_right=not different), detail=detail)


def _equal(arm: str, counted: float | None, formula: int, what: str, steps: int) -> Outcome:
    detail = f"{what}: {counted} counted, {formula} by the formula, in {steps} steps"
    return Outcome(arm=arm, state=_state(is_right=counted == formula), detail=detail)


def _quantity(profile: Profile, name: str) -> float | None:
    return next((q.value for q in profile.quantities if q.name == name), None)


def _state(*, is_right: bool) -> State:
    return "passed" if is_right else "failed"


def _is_near(value: float, other: float, tolerance: float) -> bool:
    return abs(value - other) <= tolerance * abs(other)
