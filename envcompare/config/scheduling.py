"""Check the allocation that an experiment requests from a scheduler; pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from envcompare.config import Arm, Place, known_keys
from envcompare.config.settings import AllocationTable
from envcompare.errors import ConfigError
from envcompare.text import closest, counted

SLURM = "slurm"
_RUN = "{run}"  # in the folder of a place on the host, not inside the environment
_MOST = 10_000  # nodes, CPUs or GB
# The forms of --time in sbatch(1); a number alone is in minutes.
_TIME = re.compile(r"(?:([0-9]{1,3})-)?([0-9]{1,6})(?::([0-5]?[0-9]))?(?::([0-5]?[0-9]))?")
# Each word goes into the script that sbatch reads.
_WORD = re.compile(r"[A-Za-z0-9_.:@+&|*-]+")
# Parsl passes the path to a shell unquoted.
PATH = re.compile(r"/[A-Za-z0-9_.:@+/-]*")
# A type may begin with a digit, as in gpu:1g.10gb:7; a count may end with a letter, as in 2K.
_GRES = re.compile(
    r"(?P<name>[A-Za-z_][\w-]*)(?::(?P<type>(?![0-9]+[KMGTP]?$)[\w.-]+(?=:|$)))?"
    r"(?::(?P<count>[0-9]+)(?P<unit>[KMGTP]?))?"
)
_UNITS = " KMGTP"  # powers of 1024
_FORM = (
    "the form is slurm:OPTION=VALUE,…, as in slurm:partition=gpu,gres=gpu:1,time=01:00:00,nodes=2"
)
_JOB, _NODES, _END = "SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_JOB_END_TIME"
# Schedulers for which Parsl has, or had, a provider.
_NOT_TRIED = ("pbs", "lsf", "gridengine", "cobalt", "kubernetes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gres:
    """A generic resource of a node, such as `gpu:a100:2`; an empty type means any."""

    name: str
    type: str
    count: int

    def __str__(self) -> str:
        return ":".join(filter(None, (self.name, self.type, str(self.count))))

    def is_met_by(self, node: tuple[Gres, ...]) -> bool:
        """Return whether a node has at least this much, of all types together if any will do."""
        kinds = (each for each in node if each.name == self.name and self.type in {"", each.type})
        return sum(each.count for each in kinds) >= self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The nodes to request, or with `job` those of the current job."""

    nodes: int
    time_s: float = math.inf
    job: str = ""
    request: AllocationTable | None = None  # None inside a job

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of the nodes in the plan; their real names are known once granted."""
        return tuple(f"{SLURM}-{number}" for number in range(1, self.nodes + 1))

    @property
    def gres(self) -> Gres | None:
        """Return the generic resource that each node must have; None if none is requested."""
        return parse_gres(self.request.gres) if self.request and self.request.gres else None

    @property
    def wish(self) -> str:
        """Describe the request: "2 nodes with gres=gpu:1"."""
        gres = self.request.gres if self.request else None
        nodes = counted(self.nodes, "node") if self.nodes > 1 else "a node"
        return f"{nodes} with gres={gres}" if gres else nodes


def parse_allocation(
    value: str | AllocationTable | None, environ: Mapping[str, str], *, now_s: float
) -> Allocation | None:
    """Read `--allocation` or the table; `environ` and `now_s` describe the job for `inside`.

    Raises ConfigError for an unknown scheduler or key, and for a malformed value.
    """
    if value is None:
        return None
    if value == "inside":
        return _of_job(environ, now_s)
    request = _parsed(value) if isinstance(value, str) else value
    _check_values(request)
    return Allocation(nodes=request.nodes, time_s=_seconds(request.time), request=request)


def parse_gres(text: str) -> Gres:
    """Read what each node must have, as in `gpu:a100:2`; raises ConfigError for another form."""
    if match := _GRES.fullmatch(text):
        return _gres(match)
    raise _wrong(f"gres={text}", "the form is NAME, NAME:COUNT, NAME:TYPE or NAME:TYPE:COUNT")


def offered_gres(text: str) -> tuple[Gres, ...]:
    """Return the resources of a node as `sinfo` prints them: `gpu:a100:2(S:0-1),tmp:1`."""
    # sinfo appends the sockets of a resource in parentheses.
    items = re.sub(r"\([^)]*\)", "", text).split(",")
    return tuple(_gres(match) for match in map(_GRES.fullmatch, items) if match)


def _gres(match: re.Match[str]) -> Gres:
    count = int(match["count"] or 1) * 1024 ** _UNITS.index(match["unit"] or " ")
    return Gres(name=match["name"], type=match["type"] or "", count=count)


def check_allocation(arms: Sequence[Arm], places: Sequence[Place]) -> None:
    """Refuse what an allocation cannot hold.

    Raises ConfigError for an environment whose processes a daemon starts, since they would outlive
    the job and escape its limits, and for data in a node's memory that would outlive the job.
    """
    of_daemons = [arm.id for arm in arms if arm.traits.is_daemons]
    if of_daemons:
        raise ConfigError(
            f"{of_daemons[0]} cannot be measured in an allocation",
            details="a daemon starts its processes outside the job, beyond its limits",
            hint="choose other environments, for example --envs vm,singularity",
        )
    for arm, place in itertools.product(arms, places):
        if _RUN in arm.traits.placing(place).folder:
            raise ConfigError(
                f"{arm.id} cannot have its data at `{place}` in an allocation",
                details="a cancelled job would leave them in /dev/shm of the node",
                hint="leave the place or the arm out",
            )


def check_time(
    allocation: Allocation, *, cells: int, budget_s: float, jobs: int, has_search: bool = False
) -> None:
    """Raise ConfigError for a time shorter than the budgets of a node's cells.

    The duration of a batch search is not known in advance. If there are more nodes than `jobs`,
    the last ones wait for the first.
    """
    turns = math.ceil(allocation.nodes / jobs)
    on_top = "making the software ready" + " and the search for batches" * has_search
    needed_s = turns * cells * budget_s
    if allocation.time_s < needed_s:
        whose = "the job has left" if allocation.job else "the allocation asks for"
        at_once = f", {jobs} of {allocation.nodes} nodes at once," if turns > 1 else ""
        raise ConfigError(
            f"the time of the allocation is shorter than the plan: {_clock(allocation.time_s)}",
            details=f"{counted(cells, 'cell')} on each node of at most {budget_s:.0f} s{at_once} "
            f"take up to {_clock(needed_s)}, and {whose} less; {on_top} "
            f"{'come' if has_search else 'comes'} on top",
            hint=f"ask for more than time={_clock(needed_s)}, or lower --budget"
            + " or raise --jobs" * (turns > 1),
        )


def _parsed(text: str) -> AllocationTable:
    scheduler, colon, rest = text.partition(":")
    _require_scheduler(scheduler)
    pairs = [item.partition("=") for item in rest.split(",") if item.strip()]
    for key, equals, value in pairs:
        if not (equals and value.strip()):
            raise _wrong(key, "each key needs a value")
    given = {key.strip(): value.strip() for key, _, value in pairs}
    known = tuple(key for key in known_keys(AllocationTable) if key != "scheduler")
    for key in given:
        if key not in known:
            raise ConfigError(f"--allocation has no key `{key}`", hint=closest(key, known))
    if len(given) < len(pairs) or not colon:
        raise _wrong(text, "a key is given twice" if colon else "it names no key")
    if "time" not in given:
        raise _wrong(text, "it names no time limit for the job")
    try:
        return msgspec.convert({"scheduler": scheduler, **given}, AllocationTable, strict=False)
    except msgspec.ValidationError as error:
        raise _wrong(text, str(error)) from error


def _check_values(request: AllocationTable) -> None:
    _require_scheduler(request.scheduler)
    if request.gres is not None:
        parse_gres(request.gres)
    for key, value in msgspec.to_builtins(request).items():
        if key == "script-dir":
            if not PATH.fullmatch(value):
                why = "it must be an absolute path of letters, digits and _.:@+-"
                raise _wrong(f"{key}={value}", why)
        elif isinstance(value, str) and not _WORD.fullmatch(value):
            raise _wrong(f"{key}={value}", "a value holds letters, digits and _.:@+&|*-")
        elif type(value) is int and not 1 <= value <= _MOST:
            raise _wrong(f"{key}={value}", f"it must be a whole number from 1 to {_MOST}")


def _require_scheduler(name: str) -> None:
    if name in _NOT_TRIED:
        raise ConfigError(
            f"--allocation: the scheduler {name} is not supported yet",
            details="only Slurm is",
            hint="start a job by hand, and measure its nodes with --hosts or as `local`",
        )
    if name != SLURM:
        raise ConfigError(f"--allocation: unknown scheduler `{name}`", hint=_FORM)


def _of_job(environ: Mapping[str, str], now_s: float) -> Allocation:
    job, nodes, end = (environ.get(name, "") for name in (_JOB, _NODES, _END))
    if not (job.isdecimal() and nodes.isdecimal()):
        raise ConfigError(
            "--allocation inside is given outside a job",
            details=f"{_JOB} or {_NODES} is not set",
            hint="run it within salloc or sbatch, or use --allocation slurm:…",
        )
    left_s = float(end) - now_s if end.isdecimal() else math.inf
    return Allocation(nodes=int(nodes), time_s=left_s, job=job)


def _seconds(text: str) -> float:
    match = _TIME.fullmatch(text)
    if match is None:
        forms = "MINUTES, MINUTES:SS, HH:MM:SS, DAYS-HH, DAYS-HH:MM or DAYS-HH:MM:SS"
        raise _wrong(f"time={text}", f"the form is {forms}")
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    is_short = days is None and len(numbers) < len(parts)
    units = (60, 1) if is_short else (3600, 60, 1)
    seconds = sum(number * unit for number, unit in zip(numbers, units, strict=False))
    return float(int(days or 0) * 86_400 + seconds)


def _clock(seconds: float) -> str:
    whole = max(0, math.ceil(seconds))
    return f"{whole // 3600:02}:{whole % 3600 // 60:02}:{whole % 60:02}"


def _wrong(text: str, why: str) -> ConfigError:
    return ConfigError(f"--allocation {text} is not understood", details=why, hint=_FORM)
