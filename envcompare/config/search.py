"""Parse the searches other than timing: batches that fit (`--search`), and a goal (`--until`)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from envcompare.config.workloads import Known, Workload, WorkloadInfo, info_of, out_of_range
from envcompare.errors import ConfigError
from envcompare.run_folder.records import Goal, Scalar

BATCH = "batch"
DOUBLINGS = 6  # from the first size, if no last one is given
CPU_MEMORY_MIB = 1024  # of a try on a CPU, if no limit is given; a GPU has its own
_MOST = 1 << 20  # samples of a given batch
_MEMORY = re.compile(r"memory=([0-9]{1,9})")
_LEAST_MIB = 16
_SIZES = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_GOAL = re.compile(r"(\w+)=([0-9.eE+-]+)(?:,\s*epochs=([0-9]{1,5}))?")
EPOCHS = 20  # limit, if none is given
_FORM = "the form is batch, batch=FIRST-LAST or batch=FIRST-LAST,memory=MIB"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch:
    """The first and the last size, None for the workload's own, and a limit of memory in MiB."""

    first: int | None = None
    last: int | None = None
    memory_mib: int | None = None

    def sizes(self, own: int) -> tuple[int, ...]:
        """Return the sizes to try, by doubling; `own` is the batch of the workload."""
        first = self.first or own
        return tuple(_doubled(first, self.last or first << DOUBLINGS))

    @property
    def limit(self) -> str:
        """Describe the memory limit of a try."""
        if self.memory_mib:
            return f"{self.memory_mib} MiB of a GPU, or of private memory on a CPU"
        return f"the memory of a GPU, or {CPU_MEMORY_MIB} MiB of private memory on a CPU"


def _doubled(size: int, last: int) -> Iterator[int]:
    while size <= last:
        yield size
        size *= 2


def parse_search(text: str | None) -> BatchSearch | None:
    """Parse `batch[=FIRST-LAST][,memory=MIB]`; None stays None.

    Raises ConfigError for anything else, and if the range holds fewer than two sizes.
    """
    if text is None:
        return None
    what, *rest = (part.strip() for part in text.split(","))
    kind, equals, span = what.partition("=")
    sizes = _SIZES.fullmatch(span) if equals else None
    if kind != BATCH or bool(equals) != bool(sizes):
        raise _not_understood(text, _FORM)
    search = BatchSearch(memory_mib=_memory(text, rest))
    if sizes is None:
        return search
    first, last = int(sizes[1]), int(sizes[2])
    if not 1 <= first <= last // 2 or last > _MOST:
        raise _not_understood(
            text, f"FIRST is at least 1, LAST at least twice as much and at most {_MOST}"
        )
    return replace(search, first=first, last=last)


def _memory(text: str, rest: list[str]) -> int | None:
    if not rest:
        return None
    named = _MEMORY.fullmatch(rest[0])
    if len(rest) > 1 or named is None or int(named[1]) < _LEAST_MIB:
        raise _not_understood(text, f"{_FORM}; MIB is a whole number from {_LEAST_MIB} up")
    return int(named[1])


def _not_understood(text: str, details: str) -> ConfigError:
    return ConfigError(
        f"--search {text} is not understood",
        details=details,
        hint="for example --search batch, or --search batch=16-1024",
    )


def with_sizes(
    search: BatchSearch | None, workloads: tuple[Workload, ...], known: Known
) -> tuple[Workload, ...]:
    """Return the workloads with the sizes of the search as values of their batch.

    Raises ConfigError for a workload without a batch, or with one that is already set.
    """
    if search is None:
        return workloads
    return tuple(_with_sizes(search, workload, known) for workload in workloads)


def _with_sizes(search: BatchSearch, workload: Workload, known: Known) -> Workload:
    info = info_of(workload, known)
    own = info.parameters.get(BATCH)
    if type(own) is not int or own < 1:
        able = [name for name, one in known.workloads.items() if BATCH in one.parameters]
        raise ConfigError(
            f"--search batch: {workload.name} has no parameter `{BATCH}`",
            details=f"bundled workloads that have it: {', '.join(able)}",
            hint="choose with --workloads, or declare `batch` in PARAMS",
        )
    if BATCH in dict(workload.parameters):
        raise ConfigError(
            f"--search batch and --set {workload.name}.batch exclude each other",
            hint="give sizes as in --search batch=16-1024, or only --set, which finds the knee too",
        )
    if workload.path is None and True in dict(workload.parameters).get("compile", ()):
        raise ConfigError(
            f"--search batch and {workload.name}.compile=true exclude each other",
            details="the compiler's memory would decide what fits",
            hint=f"give batches instead, as in --set {workload.name}.batch=8,16",
        )
    sizes = search.sizes(own)
    _check_range(info, sizes)
    values: tuple[tuple[str, tuple[Scalar, ...]], ...] = (*workload.parameters, (BATCH, sizes))
    return replace(workload, parameters=tuple(sorted(values)))


def _check_range(info: WorkloadInfo, sizes: tuple[int, ...]) -> None:
    """Refuse sizes that the workload does not accept."""
    accepted = info.ranges.get(BATCH, (None, None))
    for size in (sizes[0], sizes[-1]):
        if wanted := out_of_range(size, accepted):
            raise ConfigError(
                f"--search batch: {info.name} does not accept a batch of {size}",
                details=f"it accepts {wanted}",
                hint="name sizes in that range, as in --search batch=16-1024",
            )


def parse_until(text: str | None) -> Goal | None:
    """Parse `METRIC=VALUE[,epochs=N]`; None stays None. Raises ConfigError for anything else."""
    if text is None:
        return None
    parts = _GOAL.fullmatch(text.strip())
    try:
        value = float(parts[2]) if parts else math.nan
    except ValueError:
        value = math.nan
    epochs = int(parts[3] or EPOCHS) if parts else 0
    if parts is None or not math.isfinite(value) or epochs < 1:
        raise ConfigError(
            f"--until {text} is not understood",
            hint="the form is METRIC=VALUE[,epochs=N], as in --until accuracy=0.95,epochs=40",
        )
    return Goal(metric=parts[1], value=value, epochs=epochs)


def require_metric(goal: Goal | None, workloads: tuple[Workload, ...], known: Known) -> None:
    """Raise ConfigError for a workload that does not report the metric of a goal."""
    if goal is None:
        return
    for workload in workloads:
        metrics = info_of(workload, known).metrics
        if goal.metric in metrics:
            continue
        able = [name for name, one in known.workloads.items() if goal.metric in one.metrics]
        raise ConfigError(
            f"--until {goal.metric}: {workload.name} does not report `{goal.metric}`",
            details=f"it reports {', '.join(metrics) or 'no metric'}; bundled workloads "
            f"that report `{goal.metric}`: {', '.join(able) or 'none'}",
            hint="choose with --workloads; your class needs METRICS and `evaluate`",
        )
