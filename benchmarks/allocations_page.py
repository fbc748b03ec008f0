"""The page of the faults of allocations: what was taken from runs, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from faults_page import figures, keep_record, kept_records, latest, list_problems, tell_repeats

from bookkeeping import Conditions, Places
from envcompare.text import counted

RECORDS, PAGE = "allocations.jsonl", "allocations.md"
CANCELLED, CLIENT_KILLED, ABANDONED = "cancelled", "client-killed", "abandoned"
OVER = "over"  # the client had ended: the fault hit nothing
DOINGS = {  # what a run is at, as its events tell
    "queued": "waiting for its nodes",
    "preparing": "preparing the nodes",
    "measuring": "measuring",
    "ended": "giving the nodes back",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One fault of an allocation, and what became of the run that it met."""

    name: str
    says: str
    seed: int
    nodes: int
    at_s: float | None  # from when Slurm listed the job
    doing: str | None  # a key of DOINGS, or OVER
    exit_code: int | None  # of the client; of the signal that killed it, as a shell gives it
    kept: int | None  # samples that had arrived
    left: int | None  # jobs, processes, mounts, folders: after the fault, and the resumed run
    is_finished: bool | None  # by --resume; None where it was not resumed
    problem: str  # empty where the run survived
    conditions: Conditions
    is_removed: bool = True  # what a broken trial left: else it was the last one of its call
    has_all_checks: bool = False  # earlier records were judged by less

    @property
    def key(self) -> tuple[str, int]:
        """Return which of all faults it is."""
        return self.name, self.seed


def read_records(places: Places) -> tuple[Record, ...]:
    """Return all records, the oldest first."""
    return kept_records(places.results / RECORDS, Record)


def append_record(places: Places, record: Record) -> None:
    """Add a record to those that are kept."""
    keep_record(places.results / RECORDS, record)


def write_page(places: Places) -> str:
    """Write the tables of all faults; return the page."""
    every = read_records(places)
    last = latest(every)
    hits = tuple(record for record in last if record.doing != OVER)
    cancelled = [record for record in hits if record.name == CANCELLED]
    lines = [
        "# Faults of allocations",
        "",
        "A run of a fixed size (3 restarts of 60 rounds, more where it must outlast its client or "
        "a time limit; a plain process, Apptainer and the A/A control, with the files of the "
        "nodes) is measured on one or two nodes of the Slurm cluster of the "
        "lab, by a user without root. It loses its job, its client or its node, and is resumed "
        "with a new allocation. It survives where the client ends with the exit code that the "
        "documentation gives; where no job, process, mount or folder of it is left on nodes or "
        "login node, after `clean --run` or `--resume` where the client was killed, and after "
        "`clean --run` if the node hung or was down; where all samples that had "
        "arrived when the fault struck, and when the client had ended, are kept; and where the "
        "resumed run finishes all cells as planned, has each planned block once and leaves nothing "
        "either (`script/allocations`; raw data in "
        "`benchmarks/results/allocations.jsonl`). At a time limit it is resumed up to eight times, "
        "and its restarts are shorter than a job: with longer ones it never finished.",
        "",
        "| fault | injected | survived | left behind | finished by `--resume` "
        "| samples that had arrived, median (max) |",
        "|---|---|---|---|---|---|",
        *_grouped(hits, lambda record: record.says, _fault_row),
        "",
        *_tell_misses(len(last) - len(hits)),
        *_tell_lesser(sum(not (record.has_all_checks or record.problem) for record in hits)),
        "The moment of each cancel is drawn from its seed, up to 30 s after Slurm listed the job:",
        "",
        "| the run was | cancelled | survived | seconds, from to | exit codes |",
        "|---|---|---|---|---|",
        *_grouped(
            sorted(cancelled, key=lambda record: list(DOINGS).index(record.doing or "queued")),
            lambda record: DOINGS.get(record.doing or "", "not known"),
            _moment_row,
        ),
        "",
        *list_problems((f"{one.says}, seed {one.seed}", one.problem) for one in last),
        *tell_repeats(every),
    ]
    page = "\n".join(lines).rstrip() + "\n"
    places.write_page(PAGE, page, [record.conditions for record in last])
    return page


def _tell_misses(count: int) -> list[str]:
    """Say how many faults came too late to hit anything."""
    if not count:
        return []
    return [f"{counted(count, 'further fault')} hit nothing: the run was over by then.", ""]


def _tell_lesser(count: int) -> list[str]:
    """Say how many trials survived by the rule of earlier records, which asked for less."""
    if not count:
        return []
    was = "was" if count == 1 else "were"
    return [
        f"{counted(count, 'trial')} in the table {was} judged by less, and not measured again yet: "
        "the resumed run ended its cells as ok and kept what had arrived when the client had "
        "ended, and left no job, folder or process of the kinds that runs start. It is not known "
        "whether each planned block is there once, whether a cell ended as planned, and whether "
        "all that had arrived when the fault struck was kept; nor was any other process, or a "
        "mount, looked for. Where nobody resumes, no samples were compared.",
        "",
    ]


def _grouped(
    records: Sequence[Record],
    label: Callable[[Record], str],
    row: Callable[[str, Sequence[Record]], str],
) -> list[str]:
    """Return a row for each label."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(f"| {label(record)} ", []).append(record)
    return [row(start, group) for start, group in groups.items()]


def _fault_row(start: str, records: Sequence[Record]) -> str:
    left = str(sum(record.left or 0 for record in records))
    is_never_resumed = all(record.name == ABANDONED for record in records)
    finished = "removed" if is_never_resumed else sum(bool(each.is_finished) for each in records)
    if all(record.name == CLIENT_KILLED for record in records):
        left = f"{left}, not checked before `--resume`"
    kept = figures([record.kept for record in records], ".0f")
    return f"{start}| {len(records)} | {_survived(records)} | {left} | {finished} | {kept} |"


def _moment_row(start: str, records: Sequence[Record]) -> str:
    moments = [record.at_s for record in records if record.at_s is not None]
    between = f"{min(moments):.1f} to {max(moments):.1f}" if moments else "not known"
    codes = sorted({record.exit_code for record in records if record.exit_code is not None})
    told = ", ".join(map(str, codes))
    return f"{start}| {len(records)} | {_survived(records)} | {between} | {told} |"


def _survived(records: Sequence[Record]) -> int:
    return sum(not record.problem for record in records)
