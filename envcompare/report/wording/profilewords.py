"""Sentences about profiles, and the field's terms for their contents.

The page, the terminal and Markdown share them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from envcompare.analysis.model import RunComparison
from envcompare.analysis.model.profiling import (
    PART_LABELS,
    ArmProfiles,
    Basis,
    CellProfiles,
    KernelDiff,
    Ledger,
    Part,
)
from envcompare.report.wording import (
    MINUS,
    TimeScale,
    cell_labels,
    listed,
    number_text,
    of_cells,
    piece_word,
    time_text,
)
from envcompare.report.wording.verdicts import MOVED
from envcompare.run_folder.profiles import (
    HELPERS_WINDOW,
    RUN_KERNELS_ALONE,
    Note,
    NoteKind,
    graphs_of,
    helper_of,
    hides_kernels,
)
from envcompare.text import counted, counted_kernels, one_line, sentence, visible

_LARGEST: Final = 3  # parts named in a sentence
_LEAST_SHARE: Final = 0.05  # of the change; only the table names smaller parts
_WHERE: Final[dict[Basis, str]] = {"gpu-trace": "on the GPU", "timing": "on the clock"}
PART_NAMES: Final[dict[Part, str]] = PART_LABELS | {
    "idle": "GPU idle",
    "cpu": "CPU time",
    "user": "CPU time of the program",
    "system": "CPU time in the kernel",
    "wait": "waiting for a CPU",
}
_PART_LABELS: Final[dict[Part, str]] = {
    "idle": PART_LABELS["idle"],
    "wait": "waiting for a CPU used by others",
}
WHY_HREF: Final = "#why"
WHY_LINK: Final = "Why"
NOT_PROFILED: Final = "no profile was taken"
ONE_COUNT: Final = "Each number comes from one profile; its spread is not known."
NO_CONFOUNDER: Final = (
    "No confounder is known; imported files record only some versions of the software."
)
HINTS: Final = (
    "The names of kernels hint at a confounder; imported files record only some versions of the "
    "software."
)
_MOSTLY: Final = 0.5  # of a step; a larger part decides the step's time
_COUNTED: Final[dict[str, str]] = {
    "flops_fp64": "FLOP, FP64, CUDA cores",
    "flops_fp32": "FLOP, FP32, CUDA cores",
    "flops_fp16": "FLOP, FP16, CUDA cores",
    "flops_tensor": "FLOP, tensor cores",
    "flops_model": "FLOP of the model",
    "dram_read_bytes": "device memory, read",
    "dram_write_bytes": "device memory, written",
    "dram_bytes": "device memory, both ways",
    "dram_read_sectors": "device memory, read, 32 B transactions",
    "dram_write_sectors": "device memory, written, 32 B transactions",
    "dram_sectors": "device memory, 32 B transactions",
    "dram_read_bytes_per_s": "device memory throughput, read",
    "dram_write_bytes_per_s": "device memory throughput, written",
    "dram_bytes_per_s": "device memory throughput, both ways",
    "l2_bytes": "L2 cache",
    "l2_sectors": "L2 cache, 32 B transactions",
    "l2_hit_rate": "L2 hit rate",
    "arithmetic_intensity": "arithmetic intensity",
    "occupancy": "occupancy achieved",
    "estimated_occupancy": "occupancy, estimated from launch shapes",
    "warp_efficiency": "warp execution efficiency",
    "kernel_time_ns": "kernel time",
    "kernel_busy_ns": "GPU busy with kernels",
    "busy_ns": "GPU busy",
    "span_ns": "first start to last end on the GPU",
    "launch_count": "kernel launches",
    "launch_gap_ns": "GPU idle between launches",
    "nccl_share": "NCCL, share of kernel time",
    "rccl_share": "RCCL, share of kernel time",
    "collective_share": "collectives, share of kernel time",
    "collective_ns": "collectives, time",
    "collective_exposed_ns": "collectives, exposed",
    "collective_step_share": "collectives, share of a step",
    "collective_exposed_step_share": "collectives exposed, share of a step",
    "tensor_core_share": "tensor-core kernels, share of kernel time",
    "memset_ns": "memset, time",
    "memset_bytes": "memset, bytes",
    "user_ns": "CPU time of the program",
    "sys_ns": "CPU time in the kernel",
    "task_clock_ns": "task clock",
    "throttled_ns": "stopped by a CPU quota",
    "system_calls": "system calls",
    "read_calls": "system calls that read",
    "write_calls": "system calls that write",
    "minor_faults": "minor page faults",
    "major_faults": "major page faults",
    "page_faults": "page faults",
    "context_switches": "context switches",
    "voluntary_switches": "voluntary context switches",
    "involuntary_switches": "involuntary context switches",
    "cpu_migrations": "CPU migrations",
    "cycles": "CPU cycles",
    "instructions": "CPU instructions",
    "cache_references": "last-level cache references",
    "cache_misses": "last-level cache misses",
    "branches": "CPU branches",
    "branch_misses": "CPU branch misses",
    "cpu_flops": "FLOP, CPU",
    "cpu_flops_fp32": "FLOP, FP32, CPU",
    "cpu_flops_fp64": "FLOP, FP64, CPU",
    "cpu_energy_j": "energy of the CPU",
    "max_rss_bytes": "peak resident memory",
    "cgroup_peak_bytes": "peak cgroup memory",
}
_POWER: Final[dict[str, str]] = {
    "power_w": "power",
    "energy_per_step_j": "energy per step",
    "energy_per_sample_j": "energy per sample",
    "power_against_counter_share": "energy by power samples, of that by the counter",
    "sm_clock_mhz": "SM clock",
    "memory_clock_mhz": "memory clock",
    "temperature_c": "temperature, highest",
    "throttled_share": "time with clocks held down",
    "gpu_utilization_share": "time with a kernel running",
}
_WORDS: Final = _COUNTED | _POWER
PEAKS: Final = frozenset({"max_rss_bytes", "cgroup_peak_bytes"})
"""Quantities printed in binary units like memory; traffic has decimal ones like bandwidths."""
_WAYS: Final = {
    "htod": "HtoD", "dtoh": "DtoH", "dtod": "DtoD", "htoh": "HtoH", "ptop": "PtoP",
    "unified": "unified memory", "other": "other",
}  # fmt: skip
_ENDS: Final = {"ns": "time", "bytes": "bytes"}
_TENSOR: Final = "flops_tensor_"
_USER: Final = "_user"
_NAMES: Final = re.compile(rf"\b(?:{'|'.join(name for name in _WORDS if '_' in name)})\b")
_NOUNS: Final[Mapping[str, tuple[str, ...]]] = {
    "gpus": ("GPU",),
    "graphs": ("CUDA graph",),
    "launches": ("launch", "launches"),
    "processes": ("process", "processes"),
    "rows": ("row",),
}
"""Quantities that are counts, with what they count."""
_SENTENCES: Final[Mapping[NoteKind, str]] = {
    # Kineto
    "no-gpu-events": "no GPU data: the trace contains no kernel, copy or memset",
    "distributed": "from a distributed program: rank {rank} of {world_size}, backend {backend}",
    "times-of-counting": ("counters were collected kernel by kernel: no time is used"),
    "metrics-without-sums": "left out because they have no sums: {metrics}",
    "counters-of-ranges": "some counters are of a whole range, not of one kernel",
    # Nsight Systems, and all traces
    "several-gpus": "{gpus} were used: span, busy time and gaps are given for each GPU",
    "marked-range": (
        "only what was launched inside the NVTX range {range} counts: {kept} of {kernels} kernels"
    ),
    "work-without-call": "{rows} of GPU work have no API call, so none of them counts",
    "newer-schema": "its schema is newer than {newest}, the newest that was tried: check the sums",
    "no-cuda-data": "no CUDA data: the export contains no kernel, copy or memset that counts",
    "calls-without-gpu": (
        "no CUDA data except API calls: the export contains no kernel, copy or memset that counts"
    ),
    "launches-without-kernel": (
        "{launches} have no kernel in the export: captured into a CUDA graph, lost, or run after "
        "its end"
    ),
    "whole-graphs": (
        "{graphs} were traced as a whole, which hides their kernels; use "
        "`nsys profile --cuda-graph-trace=node`"
    ),
    "untraced-graphs": (
        "{graphs} were not traced, which hides their kernels; use "
        "`nsys profile --cuda-graph-trace=node`"
    ),
    "nameless-launches": ("{launches} without a name; all sums hold them"),
    # Nsight Compute
    "metric-missing": "{metric} is missing in {launches}",
    "impossible-metrics": (
        "left out because the value is impossible and no quantity uses it: {metrics}"
    ),
    "no-time": "no time is used: counting SASS instructions changes it, in one case 146-fold",
    "unpatched-time": (
        "instructions were counted as well: the time is gpu__time_duration, of a replay without "
        "counting"
    ),
    "controls-unknown": (
        "the file does not record cache and clock control: by default ncu locks the clock and "
        "empties the caches before each pass, so bytes of device memory are an upper bound"
    ),
    "controls-off": (
        "caches and clocks were left to the program (--cache-control none, --clock-control none)"
    ),
    "launches-not-in-file": "{launches} are not in the file: filtered out, or lost",
    "uneven-rate": ("{metric} is left out: launches differ, and their times are not recorded"),
    # nvprof
    "cut-names": "some names end in $: nvprof cut them to the width of the terminal",
    "rounded-counts": ("large counts are rounded to five digits (CSV is exact)"),
    "no-api-calls": (
        "no API calls (--print-gpu-summary): if the log was cut off, only what took less than "
        "{percent} % of the GPU's time could be missing"
    ),
    "processes": "{processes} are added up",
    "events-left-out": "events are left out; only metrics are read",
    "unread-table": "not compared: {table}",
    "unread-rows": "not compared: {table} ({names})",
    "uneven-metric": (
        "line {line}: {metric} is left out of one kernel: its average is outside its range"
    ),
    "metric-of-some": ("{metric} is left out of a kernel: not every process or GPU counted it"),
    "unended-line": "the last line has no line ending, and was read",
    # reported by a tool
    "text": "{text}",
    # reported by PyTorch in the worker
    "flops-of-operator": "{operator}: {flops} FLOP",
}


def is_timed(run: RunComparison) -> bool:
    """Say whether the run planned any timing; otherwise it only has imported profiles."""
    return not run.arms or any(arm.is_timed for arm in run.arms)


def has_times(run: RunComparison) -> bool:
    """Say whether any profile of the run has times of kernels, copies or operators."""
    return any(
        profile.ledgers
        or any(arm.operators for arm in profile.arms)
        or any(
            row.unit == "ns" and row.value is not None and row.tool not in RUN_KERNELS_ALONE
            for arm in profile.arms
            for row in arm.quantities
        )
        for profile in run.profiles
    )


def why_sentences(run: RunComparison) -> tuple[str, ...]:
    """State where the change of a step comes from, and whether kernels were replaced.

    The largest change is first. An undecided difference names no parts. Comparisons with neither
    parts nor kernels are left out.
    """
    labels = cell_labels(run)
    net_cells = {one.id for one in run.cells if one.metric == "net"}
    undecided = {
        (comparison.cell, comparison.arm)
        for comparison in run.comparisons
        if comparison.outcome not in MOVED
    }
    sentences = []
    for cell in run.profiles:
        every = {ledger.arm: ledger for ledger in cell.ledgers}
        ledgers = {
            arm: ledger for arm, ledger in every.items() if (cell.cell, arm) not in undecided
        }
        diffs = {diff.arm: diff for diff in cell.kernel_diffs}
        for arm in dict.fromkeys((*every, *diffs)):
            ledger, diff = ledgers.get(arm), diffs.get(arm)
            is_net = cell.cell in net_cells
            parts = [largest_parts(ledger, is_net=is_net)] if ledger and ledger.change_ns else []
            parts += [short_sentence(diff, reference=cell.reference)] if diff else []
            is_in_parts = any(one.arm == arm for one in cell.gpu_parts)
            waited = _idle_sentence(every[arm]) if arm in every and not is_in_parts else ""
            parts += [waited] * bool(waited)
            if parts:
                size = abs(ledger.change_ns / max(1, ledger.reference_ns)) if ledger else 0.0
                where = labels.get(cell.cell, cell.cell)
                sentences.append((-size, f"{arm}, {where}: {'; '.join(parts)}."))
    return tuple(visible(text) for _, text in sorted(sentences, key=lambda pair: pair[0]))


def _idle_sentence(ledger: Ledger) -> str:
    """State that the host decides if the GPU was idle for most of a step in both arms."""
    idle = next((part for part in ledger.parts if part.part == "idle"), None)
    if idle is None or not (
        idle.reference_ns > _MOSTLY * ledger.reference_ns > 0
        and idle.arm_ns > _MOSTLY * ledger.arm_ns > 0
    ):
        return ""
    whole = "a traced step of" if ledger.is_per_step else "the"
    idle_s, whole_s = (
        f"{time_text(one.reference_ns)} → {time_text(one.arm_ns)}" for one in (idle, ledger)
    )
    return f"the GPU waited for the host for {idle_s} of {whole} {whole_s}"


def hidden_sentences(run: RunComparison, arm: str) -> tuple[str, ...]:
    """State what can be compared if CUDA graphs hide kernels of an arm or its reference."""
    sentences = []
    for cell in run.profiles:
        arms = [profiles for profiles in cell.arms if profiles.arm in {arm, cell.reference}]
        hidden = [
            f"the kernels of {graphs_of(note)} are hidden in {profiles.arm}"
            for profiles in arms
            for found in profiles.passes
            for note in found.notes
            if hides_kernels(note)
        ]
        if hidden:
            busy = _busy(next((profiles for profiles in arms if profiles.arm == arm), None))
            sentences.append((cell.cell, f"{busy}{listed(hidden)}; no kernels can be compared."))
    return of_cells(run, sentences, among=len(run.profiles))


def alone_text(cell: CellProfiles, arm: str) -> str:
    """Return the time of kernels that ncu ran one at a time; empty for times of the program.

    Nsight Compute runs each kernel alone, so its times compare kernels but not steps.
    """
    for row in next((profiles.quantities for profiles in cell.arms if profiles.arm == arm), ()):
        is_alone = row.name == "kernel_time_ns" and row.tool in RUN_KERNELS_ALONE
        if is_alone and row.ratio is not None:
            whole, step = (row.reference_value, row.value), (row.reference_per_step, row.per_step)
            is_per_step = row.per_step is not None
            took = " → ".join(map(time_text, step if is_per_step else whole))
            end = " a step." if is_per_step else "."
            return f" Run one by one by {row.tool}, the kernels took {took}{end}"
    return ""


def _busy(arm: ArmProfiles | None) -> str:
    """Return "GPU busy 80.0 ms → 76.0 ms; ", per step, if both arms have the value."""
    for row in arm.quantities if arm else ():
        values = (row.reference_per_step, row.per_step)
        per = " a step" if None not in values else ""
        before, after = values if per else (row.reference_value, row.value)
        if row.name == "busy_ns" and before is not None and after is not None:
            return f"GPU busy{per} {time_text(before)} → {time_text(after)}; "
    return ""


def missing_sentence(run: RunComparison) -> str:
    """State why the breakdown of a step is unknown, and how to get it."""
    where = f"where a {piece_word(run)} spends its time"
    if any(profile.ledgers for profile in run.profiles):
        return f"Each comparison says {where}:"
    if not is_timed(run) and len(run.arms) < 2:
        return "There is one environment only: nothing to compare yet."
    passes = [found for profile in run.profiles for arm in profile.arms for found in arm.passes]
    if not is_timed(run):
        if any(hides_kernels(note) for found in passes for note in found.notes):
            return "CUDA graphs hide their kernels, so where the time goes is not known."
        has_operators = any(arm.operators for profile in run.profiles for arm in profile.arms)
        return (
            "Only the operators on the CPU can be compared."
            if has_operators
            else "The profiles hold nothing that explains a difference."
        )
    if any(found.state == "ok" for found in passes):
        return f"The profiles that were taken do not say {where}."
    missing = next((found.lacks.problem for found in passes if found.lacks), None)
    why = f"{NOT_PROFILED}."
    if missing:
        hint = one_line(missing.hint)
        why = sentence(one_line(missing.reason))
        why += f" To fix it: {sentence(hint)}" if hint else ""
    return visible(f"W{where[1:]} is not measured: {why}")


def build_sentences(run: RunComparison, *, with_confounders: bool = True) -> tuple[str, ...]:
    """State what kernel names show, without what the fingerprints already show.

    `with_confounders=False` is for a place that already lists all confounders.
    """
    builds = (
        difference
        for cell in run.profiles
        for difference in cell.betrayed
        if not difference.part_of
        and not (difference.fact_class == "confounder" and not with_confounders)
    )
    return by_arms((build.arm, one_line(build.sentence or build.evidence)) for build in builds)


def by_arms(texts: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return each text once, after its arms: "docker and singularity: …"."""
    arms: dict[str, list[str]] = {}
    for arm, text in texts:
        arms.setdefault(text, []).append(arm)
    return tuple(
        visible(f"{listed(list(dict.fromkeys(of)), most=6)}: {text}") for text, of in arms.items()
    )


def profile_cautions(run: RunComparison) -> tuple[str, ...]:
    """State the cautions about the profiles."""
    sentences = (
        (profile.cell, one_line(text)) for profile in run.profiles for text in profile.cautions
    )
    return of_cells(run, sentences, among=len(run.profiles))


def part_label(part: Part) -> str:
    """Return the label of a part of a ledger for a table with room for its contents."""
    return _PART_LABELS.get(part, PART_NAMES[part])


def largest_parts(ledger: Ledger, *, is_net: bool = False) -> str:
    """Return "+1.93 ms a step on the GPU: idle +1.55 ms (80 %) and memcpy +120 µs (6 %)".

    Shares are left out if parts exceed the total in both directions. If the verdict is on net time
    (`is_net`), the wait for a CPU comes last and is not part of a sum.
    """
    left_out = [part for part in ledger.parts if is_net and part.part == "wait"]
    waited_ns = sum(part.change_ns for part in left_out)
    is_said = abs(waited_ns) >= _LEAST_SHARE * abs(ledger.change_ns)
    change_ns = ledger.change_ns - waited_ns * is_said
    kept = [part for part in ledger.parts if not (is_said and part in left_out)]
    shares = {part.part: part.change_ns / change_ns if change_ns else 0.0 for part in kept}
    ordered = sorted(kept, key=lambda part: -abs(part.change_ns))
    named = [part for part in ordered if abs(shares[part.part]) >= _LEAST_SHARE][:_LARGEST]
    has_shares = all(-_LEAST_SHARE < shares[part.part] <= 1 for part in named)
    texts = [
        f"{PART_NAMES[part.part]} {_signed(part.change_ns)}"
        + f" ({change_share(shares[part.part])})" * has_shares
        for part in named
    ]
    where = "without waiting for a CPU" if waited_ns and is_said else _WHERE[ledger.basis]
    change = f"{_signed(change_ns)}{_a_piece(ledger)} {where}"
    whole = f"{change}: {listed(texts)}" if texts else change
    if waited_ns and is_said:
        whole += f"; {PART_NAMES['wait']} {_signed(waited_ns)}, which the verdict leaves out"
    helpers = [
        f"{name} {_signed(ns)}"
        for name, ns in ledger.helpers.items()
        if ns >= _LEAST_SHARE * abs(ledger.change_ns)
    ]
    return f"{whole}; CPU time outside the workload: {listed(helpers)}" if helpers else whole


def _signed(ns: float) -> str:
    sign = "" if not ns else MINUS if ns < 0 else "+"
    return f"{sign}{time_text(abs(ns))}"


def change_share(share: float | None) -> str:
    """Return the share of a part in the whole change."""
    if share is None:
        return "–"
    return f"{100 * share:.0f} %".replace("-0 ", "0 ").replace("-", MINUS)


def _a_piece(ledger: Ledger) -> str:
    return f" a {ledger.piece}" if ledger.is_per_step else " in the whole profile"


def kernel_sentence(diff: KernelDiff, *, reference: str) -> str:
    """State whether both arms ran the same kernels, and how many were replaced."""
    if diff.nameless:
        return (
            f"Whether {diff.arm} and {reference} ran the same kernels is not known: "
            f"{_nameless(diff)}{_kernel_time(diff)}."
        )
    if diff.identical_kernel_set:
        return (
            f"{diff.arm} and {reference} ran the same kernels: {_both(diff)} with "
            f"the same shapes, equally often{_kernel_time(diff)}."
        )
    if diff.launch_factor:
        return (
            f"{diff.arm} and {reference} ran the same kernels in the same proportion, but "
            f"{_times(diff.launch_factor)} as many launches in {diff.arm}: "
            "a different number of steps?"
        )
    changed = _changed(diff, reference=reference)
    parts = [f"{count} {word}" for count, word in changed]
    parts += [f"{diff.both} in both"] * bool(diff.both)
    parts += ["with different shapes or counts"] * (not changed)
    return (
        f"The kernels of {diff.arm} and {reference} differ: {', '.join(parts)}{_kernel_time(diff)}."
    )


def short_sentence(diff: KernelDiff, *, reference: str) -> str:
    """Return the same in fewer words: "the same 12 kernels as vm"."""
    if diff.nameless:
        return _nameless(diff)
    if diff.identical_kernel_set:
        same = f"the same {_both(diff)} as {reference}, equally often"
        return f"{same}{_kernel_time(diff)}"
    if diff.launch_factor:
        return (
            f"the same {_both(diff)} as {reference} in the same proportion, but "
            f"{_times(diff.launch_factor)} as many launches (a different number of steps?)"
        )
    changed = _changed(diff, reference=reference)
    if not changed:
        return f"the {_both(diff)} of {reference}, with different shapes or counts"
    (first, word), *others = changed
    texts = [f"{counted(first, 'kernel')} {word}", *(f"{count} {word}" for count, word in others)]
    return listed(texts)


def _nameless(diff: KernelDiff) -> str:
    have = "has" if diff.nameless == 1 else "have"
    return f"{counted(diff.nameless, 'launch', 'launches')} {have} no name"


def _both(diff: KernelDiff) -> str:
    """Return the number of kernels in both arms, and their shapes."""
    return counted_kernels(diff.both_names or diff.both, diff.both)


def _changed(diff: KernelDiff, *, reference: str) -> list[tuple[int, str]]:
    """Return the numbers of replaced kernels and of kernels in only one arm, without zeros."""
    counts = (
        (diff.replaced, "replaced"),
        (diff.only_reference, f"only in {reference}"),
        (diff.only_arm, f"only in {diff.arm}"),
    )
    return [(count, word) for count, word in counts if count]


def _times(factor: float) -> str:
    return f"{number_text(factor)} times"


def _kernel_time(diff: KernelDiff) -> str:
    if diff.reference_ns is None or diff.arm_ns is None:
        return ""
    per = " a step" if diff.is_per_step else ""
    ends = f"{time_text(diff.reference_ns)} → {time_text(diff.arm_ns)}"
    return f"; kernel time{per} {ends}"


def ledger_sentence(ledger: Ledger, *, reference: str) -> str:
    """State the time of both arms and the change."""
    scale = TimeScale.of(max(ledger.reference_ns, ledger.arm_ns))
    ends = (scale.number(ledger.reference_ns), scale.number(ledger.arm_ns))
    change = scale.signed(ledger.change_ns)
    return (
        f"{reference} {ends[0]} {scale.unit} → {ledger.arm} {ends[1]} {scale.unit}: "
        f"{change} {scale.unit}{_a_piece(ledger)}."
    )


def helper_sentence(ledger: Ledger, *, reference: str) -> str:
    """Name the helper programs of the environment and their CPU time."""
    used = [f"{name} {_signed(ns)}" for name, ns in ledger.helpers.items()]
    return (
        f"CPU time outside the workload{_a_piece(ledger)}, against {reference}: {listed(used)}; no "
        "part above includes it."
    )


def timing_sentences(ledger: Ledger) -> tuple[str, ...]:
    """Compare the change in the profile with that of the timing pass."""
    if ledger.basis == "timing" or ledger.timing_change_ns is None:
        return ()
    change = _signed(ledger.timing_change_ns)
    text = f"In the timing pass, without a profiler, a step changed by {change}"
    if ledger.unseen_ns is None:
        return (f"{text}.",)
    return (f"{text}; the profile does not show {_signed(ledger.unseen_ns)} of that.",)


def is_power(name: str) -> bool:
    """Say whether a quantity describes power, energy, clocks or temperature."""
    return name in _POWER


def quantity_name(name: str) -> str:
    """Return a quantity in words; an unknown quantity keeps its name."""
    if name in _WORDS:
        return _WORDS[name]
    if name.startswith(_TENSOR):
        kind = name.removeprefix(_TENSOR)
        what = "operations" if kind.startswith("int") else "FLOP"
        return f"{what}, {kind.upper().replace('_', '/')}, tensor cores"
    if name == HELPERS_WINDOW:
        return "time in which helper programs were measured"
    if program := helper_of(name):
        return f"CPU time of {program}"
    if name.startswith("memcpy_"):
        return _of_copies(name) or name
    whole = name.removesuffix(_USER)
    return f"{_WORDS[whole]}, in user space" if whole in _WORDS else name


def in_words(text: str) -> str:
    """Return a reason with its quantities in words, quoted because they contain commas."""
    return _NAMES.sub(lambda match: f"“{quantity_name(match[0])}”", text)


def _of_copies(name: str) -> str:
    """Return "memcpy HtoD, bytes"; empty if the quantity is not a copy."""
    _, _, rest = name.partition("_")
    way, _, end = rest.partition("_")
    return f"memcpy {_WAYS[way]}, {_ENDS[end]}" if way in _WAYS and end in _ENDS else ""


def note_sentences(notes: Iterable[Note]) -> tuple[str, ...]:
    """Return what notes say, a sentence for each."""
    return tuple(map(_sentence, notes))


def _sentence(note: Note) -> str:
    # an edited record may lack a value or hold another type
    values: dict[str, int | float | str] = defaultdict(lambda: "?")
    for name, value in note.values.items():
        is_count = name in _NOUNS and isinstance(value, int)
        text = f"{value:.2g}" if isinstance(value, float) else value
        values[name] = counted(int(value), *_NOUNS[name]) if is_count else text
    return _SENTENCES[note.kind].format_map(values)
