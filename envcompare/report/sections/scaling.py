"""How work scales: ranks and their collectives, batches that fit, and time to a goal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from envcompare.analysis.model import Comparison, RunComparison
from envcompare.analysis.model.profiling import (
    ArmSizes,
    ArmTraining,
    BatchSweep,
    CellTraining,
    EpochPoint,
    Scaling,
    SizeRate,
)
from envcompare.report import (
    Block,
    Field,
    Fold,
    Heading,
    Items,
    Line,
    PlainBlock,
    Section,
    Table,
    Words,
    grid_of,
    table_of,
    texts,
)
from envcompare.report.wording import (
    NOT_MEASURED,
    cell_labels,
    duration,
    ends_text,
    number_text,
    signed_interval,
    signed_percent,
    size,
    three_digits,
    varied_parameters,
)
from envcompare.report.wording.verdicts import estimate_line, outcome_text
from envcompare.run_folder.records import CONTROL_SUFFIX, Goal
from envcompare.text import assigned, counted, one_line, visible

_RANKS: Final = (
    "A rank is a process with its own batch. Samples a second are those of the median step. The "
    "speed-up is the ratio of typical steps to one rank of the same environment, a mean over the "
    "restarts that measured both, with its 95 % interval, not widened. Efficiency is speed-up ÷ "
    "ranks."
)
_COLLECTIVES: Final = (
    "Collectives (torch.profiler, first rank, after the timing) include waiting for the other "
    "ranks; they are exposed while nothing computes there."
)
_WAITED: Final = (
    "One rank waited for a CPU that other programs held for {share} % of its time, so the speed-up "
    "is larger than on an idle machine."
)
_MUCH_WAITED: Final = 0.1  # of the time of one rank
_NO_BASE: Final = "There is no speed-up without ranks=1: add it to --set."
_BATCHES: Final = (
    "Samples a second of the typical step at each batch, with the 95 % interval over restarts; "
    "waits for a CPU that others held are left out where they are known, but not in cells that set "
    "`ranks`. The knee is the smallest batch with at least 95 % of the best throughput. "
    "Environments are compared at equal batch."
)
_SEARCHED: Final = (
    "The largest batch that fits is found by bisection, to within a few percent. Sizes that do not "
    "fit in every environment were not measured."
)
_GOAL: Final = (
    "After the timing every environment trained a fresh model until it reached {goal} on data "
    "that it does not train on, for at most {epochs}. Seconds are those of the training steps, "
    "without evaluation. {seeds} Intervals are at 95 % over restarts, not widened; no verdict "
    "rests on them."
)
_SAME_WORK: Final = (
    "The arms of a restart have equal seeds, so they should take equally many epochs."
)
_OTHER_WORK: Final = (
    "The arms of a restart have equal seeds but other parameters, which may change the number of "
    "epochs."
)


def scaling_section(run: RunComparison) -> Section | None:
    """Return the gain from several ranks; None if no workload set `ranks`."""
    if not run.views.scaling:
        return None
    notes = (
        *(_COLLECTIVES,) * _has_collectives(run),
        *(_NO_BASE,) * all(scaling.speed_up is None for scaling in run.views.scaling),
        *_waited(run),
        *_crowded(run),
        *_networks(run),
    )
    blocks = (Line(text=_RANKS), scaling_table(run), Items(items=notes, style="small"))
    return Section(anchor="scaling", title="Several ranks", link="Ranks", blocks=blocks)


def scaling_blocks(run: RunComparison) -> Iterator[PlainBlock]:
    """Yield the tables of ranks, batches and goals, for the terminal and Markdown."""
    if run.views.scaling:
        yield scaling_table(run)
    for sweep in run.views.batch_sweeps:
        yield Line(strong=f"Batches of {_sweep_name(run, sweep)}")
        yield from _batch_tables(run, sweep)
    labels = cell_labels(run)
    for training in run.views.training if run.settings.until else ():
        assert run.settings.until is not None
        where = labels.get(training.cell, training.cell)
        yield Line(strong=f"Time to {_goal_text(run.settings.until)} in {where}")
        yield _training_table(run, training)


def scaling_table(run: RunComparison) -> Table:
    """Return a row for each environment and number of ranks."""
    hosts = {one.host for one in run.views.scaling}
    varied = varied_parameters(run.views.scaling)
    works = {}
    for row in run.views.scaling:
        varying = {
            name: value for name, value in row.parameters.items() if (row.workload, name) in varied
        }
        works[row.cell] = visible(" ".join((row.workload, *assigned(varying))))
    order = list(dict.fromkeys(works.values()))
    exchanges: tuple[Field[Scaling], ...] = (
        (
            "Collectives, of a step",
            "number",
            lambda scaling: _part(scaling.collective_share, scaling.collective_s),
        ),
        (
            "Exposed, of a step",
            "number",
            lambda scaling: _part(scaling.collective_exposed_share, scaling.collective_exposed_s),
        ),
    )
    return table_of(
        "Several ranks",
        sorted(
            run.views.scaling, key=lambda scaling: (order.index(works[scaling.cell]), scaling.host)
        ),
        ("Work", "name", lambda scaling: works[scaling.cell]),
        *((("Host", "name", lambda scaling: visible(scaling.host)),) * (len(hosts) > 1)),
        ("Environment", "name", lambda scaling: visible(scaling.arm)),
        ("Ranks", "number", _ranks),
        ("samples/s", "number", lambda scaling: number_text(scaling.samples_per_s)),
        ("Speed-up", "number", _speed_up),
        ("Efficiency", "number", lambda scaling: _percent(scaling.efficiency)),
        *(exchanges if _has_collectives(run) else ()),
        style="fit",
    )


def _has_collectives(run: RunComparison) -> bool:
    return any(scaling.collective_s is not None for scaling in run.views.scaling)


def _ranks(scaling: Scaling) -> Words:
    where = f"(on {', '.join(map(visible, scaling.hosts))})" if scaling.hosts else ""
    return Line(text=str(scaling.ranks), below=(where,))


def _percent(share: float | None) -> str:
    return NOT_MEASURED if share is None else f"{three_digits(100 * share)} %"


def _speed_up(scaling: Scaling) -> Words:
    if scaling.ranks == 1 or scaling.speed_up is None:
        return "1" if scaling.ranks == 1 else NOT_MEASURED
    ends = f"({counted(scaling.restarts, 'restart')}: no interval)"
    if scaling.speed_up_low is not None and scaling.speed_up_high is not None:
        ends = f"({three_digits(scaling.speed_up_low)} to {three_digits(scaling.speed_up_high)})"
    return Line(text=three_digits(scaling.speed_up), below=(ends,))


def _part(share: float | None, seconds: float | None) -> Words:
    if seconds is None:
        return NOT_MEASURED
    return Line(text=_percent(share), below=(f"({duration(seconds)})",))


def _waited(run: RunComparison) -> Iterator[str]:
    """Yield how long one rank waited for a CPU, if it was much of its time."""
    shares = [row.waited_share for row in run.views.scaling if row.ranks == 1 and row.waited_share]
    much = [share for share in shares if share > _MUCH_WAITED]
    if much:
        ends = dict.fromkeys(three_digits(100 * share) for share in (min(much), max(much)))
        yield _WAITED.format(share=" to ".join(ends))


def _crowded(run: RunComparison) -> Iterator[str]:
    """Yield the numbers of ranks with fewer CPUs than threads."""
    threads = run.settings.threads or 1
    cpus: dict[str, int] = {}
    for arm in run.arms:
        bound = arm.facts.get("cpu.affinity")
        if isinstance(bound, list | tuple):
            cpus.setdefault(arm.host, len(bound))
    on_gpu = {cell for host in run.hosts for cell in host.devices if host.devices[cell] != "cpu"}
    for host, known in cpus.items():
        rows = (row for row in run.views.scaling if row.host == host and row.cell not in on_gpu)
        many = {
            row.ranks
            for row in rows
            # the ranks on the host of the first one
            if math.ceil(row.ranks / max(1, len(row.hosts))) * threads > known
        }
        if many:
            numbers = ",".join(map(str, sorted(many)))
            yield (
                f"With ranks={numbers} more threads computed than {visible(host)} has CPUs "
                f"({known}): their efficiency is that of too few CPUs."
            )


def _networks(run: RunComparison) -> Iterator[str]:
    """Yield the network devices and shared memory that each environment gives its ranks."""
    hosts = dict.fromkeys(scaling.host for scaling in run.views.scaling)
    for arm in run.arms:
        is_known = arm.host in hosts and "network.interfaces" in arm.facts
        if is_known and not arm.arm.endswith(CONTROL_SUFFIX):
            where = f" on {visible(arm.host)}" * (len(hosts) > 1)
            devices, shared = arm.facts["network.interfaces"], arm.facts.get("shm.bytes")
            text = f"network devices {visible(str(devices)) if devices else 'not known'}"
            if isinstance(shared, int):
                text += f"; shared memory (/dev/shm) {size(shared)}"
            yield f"{visible(arm.arm)}{where}: {text}."


def batches_section(run: RunComparison) -> Section | None:
    """Return the tables of each sweep over batches; None without a sweep."""
    if not run.views.batch_sweeps:
        return None
    blocks = [
        block
        for sweep in run.views.batch_sweeps
        for block in (Heading(text=_sweep_name(run, sweep)), *_batch_tables(run, sweep))
    ]
    intro = [Line(text=_BATCHES)]
    if any(sweep.is_searched for sweep in run.views.batch_sweeps):
        intro.append(Line(text=_SEARCHED))
    return Section(anchor="batches", title="Batch sizes", blocks=(*intro, *blocks))


def _sweep_name(run: RunComparison, sweep: BatchSweep) -> str:
    """Return workload, parameters, and the host if there are several."""
    has_hosts = len({cell.host for cell in run.cells}) > 1
    where = [f"in {sweep.within}"] * bool(sweep.within) + [f"on {sweep.host}"] * has_hosts
    return " ".join((sweep.workload, *assigned(sweep.parameters), *where))


def _batch_tables(run: RunComparison, sweep: BatchSweep) -> tuple[Table, Table]:
    largest: list[Field[ArmSizes]] = [("largest batch that fits", "text", _largest)]
    rates = {(rate.cell, arm.arm): rate for arm in sweep.arms for rate in arm.rates}
    compared = {(comparison.cell, comparison.arm): comparison for comparison in run.comparisons}
    arms = [arm.arm for arm in sweep.arms]
    reference = run.reference_in(sweep.cells[0])
    environments = table_of(
        f"Largest batch and knee of {_sweep_name(run, sweep)}",
        sweep.arms,
        ("environment", "name", lambda arm: arm.arm),
        *largest * sweep.is_searched,
        ("knee", "text", _knee),
        ("best batch", "number", lambda arm: "–" if arm.best is None else str(arm.best)),
    )
    sizes = grid_of(
        f"Throughput by batch of {_sweep_name(run, sweep)}",
        (
            ("batch", "number"),
            *((f"{arm}, samples/s", "number") for arm in arms),
            *((f"{arm}, time against {reference}", "number") for arm in arms if arm != reference),
        ),
        (
            (
                str(size),
                *(_rate(rates.get((cell, arm)), _why_not(run, cell, arm)) for arm in arms),
                *(_ratio(compared.get((cell, arm))) for arm in arms if arm != reference),
            )
            for size, cell in zip(sweep.sizes, sweep.cells, strict=True)
        ),
    )
    return environments, sizes


def _largest(arm: ArmSizes) -> Line:
    if arm.largest is None:
        brief = f"({one_line(arm.reason)})"
        return Line(text="not known", below=(brief,) * bool(arm.reason))
    if arm.limited_by == "cap":
        return Line(text=f"{arm.largest} or more", below=("(no larger one was tried)",))
    beyond = f"({arm.beyond} does not fit: {_limit(arm)})"
    return Line(text=str(arm.largest or "none"), below=(beyond,))


def _limit(arm: ArmSizes) -> str:
    if arm.limited_by == "workload":
        return one_line(arm.reason)
    if arm.device == "cpu":
        return f"{arm.memory_mib} MiB of private memory, beyond Python and PyTorch"
    return f"{arm.memory_mib} MiB on the GPU" if arm.memory_mib else "the memory of the GPU"


def _knee(arm: ArmSizes) -> Line:
    """Return the knee, or the sizes that enclose it if it is undecided."""
    if arm.knee_low is None:
        return Line(text=NOT_MEASURED)
    measured = [rate.batch for rate in arm.rates]
    if arm.knee is None:
        ends = f"{arm.knee_low} to {arm.knee_high or measured[-1]}"
        bounds = f"({ends}, by {counted(arm.knee_restarts, 'restart')})"
        return Line(text="not decided", below=(bounds,))
    is_end = arm.knee == measured[-1]
    return Line(text=str(arm.knee), below=("(the largest that was measured)",) * is_end)


def _why_not(run: RunComparison, cell: str, arm: str) -> str:
    """Return why a size was not measured, only in the column of the reference."""
    is_reference = arm == run.reference_in(cell)
    failed = (one for one in run.cells if one.id == cell and one.state != "ok")
    return next((one.reason for one in failed if is_reference), "")


def _rate(rate: SizeRate | None, why_not: str) -> Line:
    if rate is None:
        reason = (f"({one_line(why_not)})",) if why_not else ()
        return Line(text=NOT_MEASURED, below=reason, style="said")
    ends = ends_text(rate.low, rate.high, three_digits)
    return Line(text=three_digits(rate.samples_per_s), below=(f"({ends})",))


def _ratio(comparison: Comparison | None) -> Line:
    if comparison is None or comparison.deciding is None:
        return Line(text="–")
    estimate = comparison.deciding
    word = outcome_text(comparison.outcome)
    return estimate_line(estimate.log_ratio, estimate.low, estimate.high, word)


def _goal_text(goal: Goal) -> str:
    return f"{goal.metric} {goal.value:g}"


def training_section(run: RunComparison) -> Section | None:
    """Return the way to the goal in each cell; None without a goal."""
    if run.settings.until is None or not run.views.training:
        return None
    labels = cell_labels(run)
    is_same = all(arm.is_same_work for one in run.views.training for arm in one.arms)
    intro = _GOAL.format(
        goal=_goal_text(run.settings.until),
        epochs=counted(run.settings.until.epochs, "epoch"),
        seeds=_SAME_WORK if is_same else _OTHER_WORK,
    )
    blocks: list[Block] = [Line(text=intro)]
    for training in run.views.training:
        label = labels.get(training.cell, training.cell)
        fold = Fold(
            summary=f"Epoch by epoch: {label}",
            blocks=(_epochs(run.settings.until, training, label),),
        )
        blocks += [Heading(text=label), _training_table(run, training), *_notes(training), fold]
    title = f"Time to {_goal_text(run.settings.until)}"
    return Section(anchor="goal", title=title, link="Time to goal", blocks=tuple(blocks))


def _training_table(run: RunComparison, training: CellTraining) -> Table:
    """Return a row for each environment: epochs, seconds and throughput."""
    cell = next(one for one in run.cells if one.id == training.cell)
    rates = {times.arm: times.samples_per_s for times in cell.step_times}
    reference = run.reference_in(training.cell)
    goal = run.settings.until
    return table_of(
        f"Time to the goal in {cell_labels(run).get(cell.id, cell.id)}",
        training.arms,
        ("environment", "name", lambda arm: arm.arm),
        ("epochs", "text", lambda arm: _reached(arm, goal)),
        ("time to goal", "number", _seconds),
        (f"epoch, time against {reference}", "number", _epoch_ratio),
        ("samples/s", "number", lambda arm: three_digits(rates.get(arm.arm))),
    )


def _reached(arm: ArmTraining, goal: Goal | None) -> Line:
    """Return the epochs needed, or that the goal was not reached."""
    if not arm.restarts:
        return Line(text=NOT_MEASURED, below=_in_brackets(arm.why_not))
    best = "" if arm.best is None else f", best {arm.best:.4g}"
    tried = counted(arm.restarts, "restart")
    if not arm.epochs:
        is_cut = goal is not None and arm.most_epochs < goal.epochs
        within = f"not reached within {counted(arm.most_epochs, 'epoch')}"
        text = within + ", when time was up" * is_cut
        return Line(text=text, below=(f"({tried}{best})", *_in_brackets(arm.why_not)))
    low, high = min(arm.epochs), max(arm.epochs)
    reached = f"(in {arm.reached} of {tried}{best})"
    text = str(low) if low == high else f"{low} to {high}"
    return Line(text=text, below=(reached, *_in_brackets(arm.why_not)))


def _in_brackets(reason: str) -> tuple[str, ...]:
    return (f"({one_line(reason)})",) if reason else ()


def _seconds(arm: ArmTraining) -> Line:
    if arm.training_s is None:
        return Line(text="–")
    ends = ends_text(arm.training_low_s, arm.training_high_s, duration)
    return Line(text=duration(arm.training_s), below=(f"({ends})",))


def _epoch_ratio(arm: ArmTraining) -> Line:
    if arm.log_ratio is None:
        return Line(text="–")
    interval = signed_interval(arm.ratio_low, arm.ratio_high)
    return Line(text=signed_percent(arm.log_ratio), below=(f"({interval})",))


def _notes(training: CellTraining) -> tuple[Line, ...]:
    """State whether equal seeds gave equal values, for equal work."""
    same, other = training.same_values, training.other_values
    net = "Epochs are compared without waits for a CPU that others held."
    arms = [arm for arm in training.arms if not arm.is_control]
    lacking = ", ".join(arm.arm for arm in arms if not arm.restarts)
    equal = [arm.arm for arm in arms if arm.restarts and arm.is_same_work]
    whose = "all environments" if len(equal) == len(arms) else ", ".join(equal)
    equality = ""
    if other:
        equality = (
            f"In {other} of {counted(same + other, 'epoch')} the environments had different values "
            "with equal seeds: their arithmetic differs."
        )
    elif same:
        equality = f"In {same} of {counted(same, 'epoch')} {whose} had the same value, exactly."
    untrained = f"No restart came to its end in {lacking}." if lacking else ""
    is_net = training.is_net and any(arm.log_ratio is not None for arm in training.arms)
    return texts(equality, untrained, net * is_net, style="small")


def _epochs(goal: Goal, training: CellTraining, label: str) -> Table:
    """Return the metric and the training time by epoch, as medians over restarts."""
    arms = [arm for arm in training.arms if not arm.is_control]
    points = {(point.epoch, arm.arm): point for arm in arms for point in arm.points}
    return grid_of(
        f"{goal.metric} and time by epoch of {label}",
        (("epoch", "number"), *((f"{arm.arm}, {goal.metric}", "number") for arm in arms)),
        (
            (str(epoch), *(_point(points.get((epoch, arm.arm))) for arm in arms))
            for epoch in range(1, max((arm.most_epochs for arm in arms), default=0) + 1)
        ),
    )


def _point(point: EpochPoint | None) -> Line:
    if point is None:
        return Line(text="–")
    value = NOT_MEASURED if point.value is None else f"{point.value:.4g}"
    return Line(text=value, below=(f"(after {duration(point.training_s)})",))
