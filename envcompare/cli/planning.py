"""From flags and file, or from an earlier run, to experiment, hosts and plan; and its lines."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import Any

import msgspec

from envcompare.bundled import __version__
from envcompare.config import Arm, parse_arms
from envcompare.config.experiment import Experiment, resolve
from envcompare.config.plan import Cell, Plan, make_plan, not_placed
from envcompare.config.scheduling import check_time
from envcompare.config.settings import (
    HostTable,
    Settings,
    WorkloadTable,
    merge,
    parse_settings,
    settings_toml,
)
from envcompare.config.workloads import Known, Program, catalogue, left_behind
from envcompare.environments.registry import all_traits
from envcompare.errors import ConfigError, RunFolderError
from envcompare.measure import derive_seed, shuffled
from envcompare.run_folder import next_session, written_samples
from envcompare.run_folder.records import ArmRecord, ProfileChoice
from envcompare.run_folder.results import RunFolder, configuration_of
from envcompare.text import (
    assigned,
    counted,
    first_few,
    listed,
    masked_toml,
    parse_toml,
    shown_text,
)
from envcompare.transport.hosts import HostSpec, Inventory, KnownHost, host_groups, parse_hosts

PROFILES: dict[ProfileChoice, str] = {
    "auto": "after timing, outside the budget; on a GPU with nsys and ncu if available",
    "trace": "after timing, outside the budget; without GPU hardware counters",
    "none": "none",
}
_SHOWN_CELLS = 20
_SHOWN_HOSTS = 20
_SHOWN_ROUNDS = 3


def resolved(
    flags: Settings, file: Settings, *, is_run: bool = False
) -> tuple[Experiment, tuple[HostSpec, ...]]:
    """Return the experiment of flags over file, and its hosts.

    Ignores an allocation, which is only for measuring, and returns this machine for its nodes.
    `file` may be the settings of a run, whose hosts are no files of hosts.
    """
    without = (msgspec.structs.replace(each, allocation=None) for each in (flags, file))
    return _resolved(*without, is_run=is_run)


def _resolved(
    flags: Settings, file: Settings, *, is_run: bool
) -> tuple[Experiment, tuple[HostSpec, ...]]:
    known = Known(environments=all_traits(), workloads=catalogue())
    experiment = resolve(flags, file, known=known)
    tables = (layer.hosts for layer in (flags, file) if isinstance(layer.hosts, dict))
    inventory = Inventory(
        hosts={
            name: KnownHost(address=host.address or name, tags=host.tags, group=host.group)
            for table in tables
            for name, host in table.items()
        },
        groups=merge(flags, file).groups or {},
    )
    # The nodes of an allocation have names that are made up.
    is_typed = not is_run and experiment.allocation is None
    hosts = parse_hosts(experiment.hosts, inventory, reads_files=is_typed)
    return standalone(experiment, hosts), hosts


def usable_defaults(flags: Settings, file: Settings) -> tuple[Settings, str]:
    """Leave out default arms whose engine is not installed here; also return what to say of it.

    What the user named stays, and so does everything on other hosts.
    """
    named = ("envs", "hosts", "allocation", "reference", "docker_options")
    # An empty name is the user's mistake, and refused later.
    if any(getattr(each, name) is not None for each in (flags, file) for name in named):
        return flags, ""
    programs = {
        name: traits.programs or tuple(traits.limit_command.split()[:1])
        for name, traits in all_traits().items()
        if traits.is_default
    }
    missing = [name for name, any_of in programs.items() if any_of and not any(map(which, any_of))]
    usable = tuple(name for name in programs if name not in missing)
    if not missing or len(usable) == 1:
        return flags, ""
    states = (f"{name} – not installed" if name in missing else f"{name} ✓" for name in programs)
    return msgspec.structs.replace(flags, envs=usable), f"arms: {', '.join(states)}"


def standalone(experiment: Experiment, hosts: tuple[HostSpec, ...]) -> Experiment:
    """Return the experiment with settings that mean the same in any working directory."""
    own_workloads = tuple(
        f"{w.path}:{w.class_name}" for w in experiment.workloads if w.path is not None
    )
    experiment = _with_absolute_paths(experiment, hosts)
    config = experiment.ssh_config and str(Path(experiment.ssh_config).expanduser().resolve())
    named = tuple(map(str, hosts))
    tagged = {
        host.label: HostTable(address=str(host), tags=host.tags or (), group=host.group)
        for host in hosts
    }
    has_table = any(host.tags is not None or host.group for host in hosts)
    settings = msgspec.structs.replace(
        experiment.settings,
        hosts=None if experiment.allocation else tagged if has_table else named,
        groups=None,
        workload=own_workloads or None,
        ssh_config=config,
    )
    if any(w.program is not None for w in experiment.workloads):
        tables = {
            w.name: WorkloadTable() if w.program is None else _table_of(w.program)
            for w in experiment.workloads
            if w.path is None
        }
        settings = msgspec.structs.replace(settings, workloads=tables)
    return replace(experiment, hosts=named, settings=settings, ssh_config=config)


def _with_absolute_paths(experiment: Experiment, hosts: tuple[HostSpec, ...]) -> Experiment:
    """Make the paths of files on this machine absolute; on other hosts they mean those there.

    The nodes of a job see the folder in which it is requested. Raises ConfigError for relative data
    on another host, where an engine would refuse them.
    """
    is_here = experiment.allocation is not None or all(host.is_local for host in hosts)
    data = experiment.data
    if data is not None and not (is_here or data.startswith("/")):
        raise ConfigError(
            f"--data {data} is no absolute path",
            details="on another host it is not relative to this folder, and no engine mounts it",
            hint="give the path on the hosts, as in --data /data/imgs",
        )
    paths: dict[str, Any] = {}
    for name in ("data", "vm_python", "host_python"):
        path = getattr(experiment, name)
        # A program without a slash is searched for in PATH; ~ means the same in any folder.
        if is_here and path and not path.startswith("~") and (name == "data" or "/" in path):
            paths[name] = str(Path(path).absolute())
    arms = tuple(_with_absolute_file(arm, is_here=is_here) for arm in experiment.arms)
    settings = msgspec.structs.replace(experiment.settings, **paths)
    if arms != experiment.arms:
        items = (_absolute_item(item, is_here=is_here) for item in listed(settings.envs))
        settings = msgspec.structs.replace(settings, envs=tuple(items))
    return replace(experiment, arms=arms, settings=settings, **paths)


def _absolute_item(item: str, *, is_here: bool) -> str:
    arm = parse_arms((item,), all_traits())[0]
    return item.removesuffix(arm.reference) + _with_absolute_file(arm, is_here=is_here).reference


def _with_absolute_file(arm: Arm, *, is_here: bool) -> Arm:
    """Return an arm of a SIF on this machine, or of a sandbox where it is the host, by its path."""
    path = arm.reference
    # For a text that is too long for a path these are False, and those of Path raise OSError.
    is_known = os.path.isfile(path) or (is_here and os.path.isdir(path))  # noqa: PTH112, PTH113
    is_file = arm.traits.reference == "file" and is_known
    return replace(arm, reference=str(Path(path).absolute())) if is_file else arm


def _table_of(program: Program) -> WorkloadTable:
    return WorkloadTable(
        command=program.argv,
        measures=dict(program.measures),
        cwd=program.cwd,
        timeout=program.timeout_s,
        prepare=program.prepare or None,
        conclude=program.conclude or None,
        lockstep=program.lockstep,
        most_rounds=program.most_rounds,
        step=program.step or None,
    )


def planned(
    flags: Settings, file: Settings, *, accept_many: bool
) -> tuple[Experiment, Plan, tuple[HostSpec, ...]]:
    """Return experiment, plan and hosts of a new run; raises ConfigError for an invalid one."""
    experiment, made, hosts = _planned(flags, file, accept_many=accept_many)
    if experiment.allocation:
        cells = len(made.cells) // len(hosts)
        check_time(
            experiment.allocation,
            cells=cells,
            budget_s=experiment.budget_s
            / experiment.sessions
            * (1 + (experiment.until is not None)),
            jobs=experiment.jobs,
            has_search=experiment.search is not None,
        )
    return experiment, made, hosts


def _planned(
    flags: Settings, file: Settings, *, accept_many: bool, is_run: bool = False
) -> tuple[Experiment, Plan, tuple[HostSpec, ...]]:
    experiment, hosts = _resolved(flags, file, is_run=is_run)
    ordered = _leading(experiment, hosts)
    labels = tuple(host.label for host in ordered)
    made = make_plan(experiment, labels, accept_many=accept_many)
    return experiment, replace(made, groups=host_groups(hosts)), hosts


def resumed(folder: RunFolder, again: Settings) -> tuple[Experiment, Plan, tuple[HostSpec, ...]]:
    """Return experiment, plan and hosts of a run to resume.

    Only the settings `again` apply to this resumption; all others come from the run. Raises
    ConfigError if this version would plan another run, and RunFolderError if samples were lost:
    their cells have ended and would not be measured again.
    """
    record = folder.read_run()
    if not any(arm.is_timed for arm in record.arms):
        raise ConfigError(
            f"{folder.path} cannot be resumed: it holds imported profiles and measures nothing",
            hint="add profiles to it with `envcompare import`, or start a new run",
        )
    written, held = written_samples(folder.read_events().events), folder.count_samples()
    if held < written:
        raise RunFolderError(
            f"{folder.path} cannot be resumed: some of its samples were lost",
            details=f"samples.jsonl holds {held} of {written} samples",
            hint="restore samples.jsonl from a copy, or start a new run",
        )
    file = settings_of(folder)
    experiment, made, hosts = _planned(again, file, accept_many=True, is_run=True)
    same = (
        (record.tool_version, __version__, "the version of envcompare"),
        (record.cells, tuple(cell.record() for cell in made.cells), "the plan of cells"),
        (tuple(arm for arm in record.arms if arm.is_timed), made.arms, "the plan of arms"),
        (record.design, made.design, "the design"),
        (record.groups, made.groups, "the groups of hosts"),
    )
    for before, now, what in same:
        if before != now:
            raise ConfigError(
                f"{folder.path} cannot be resumed: {what} differs",
                details=f"{before!r} then, {now!r} now",
                hint="start a new run; this one stays readable",
            )
    return experiment, made, hosts


def session_run(experiment: Experiment, *, is_seeded: bool) -> RunFolder | None:
    """Return the run that a command with --sessions continues; None to begin one.

    Picks the last one in `--out` with these settings. Without a given seed, that of the run counts.
    Raises ConfigError if a run in `--out` has sessions left with other settings.
    """
    wanted = parse_toml(settings_toml(experiment.settings))
    wanted = _compared_settings(wanted, is_seeded=is_seeded)
    unlike: list[tuple[RunFolder, dict[str, Any]]] = []
    for path in sorted(experiment.out.glob("*/run.json"), reverse=True):
        folder = RunFolder(path.parent)
        try:
            record = folder.read_run()
            events = folder.read_events().events
            settings = _compared_settings(configuration_of(record), is_seeded=is_seeded)
        except RunFolderError:
            # A run of another version, or a damaged one, is not continued.
            continue
        if record.design.sessions == 1:
            continue
        if settings == wanted:
            return folder
        if next_session(events) <= record.design.sessions:
            unlike.append((folder, settings))
    for folder, settings in unlike:
        keys = [key for key in (*settings, *wanted) if settings.get(key) != wanted.get(key)]
        texts = (f"{key}: {settings.get(key)!r} there, {wanted.get(key)!r} now" for key in keys)
        raise ConfigError(
            f"{folder.path} has sessions left to measure, with other settings",
            details="; ".join(dict.fromkeys(texts)),
            hint="repeat the command of that run, or change --out",
        )
    return None


def _compared_settings(content: dict[str, Any], *, is_seeded: bool) -> dict[str, Any]:
    ignored = {"out", "wait", "allow-mismatch", *(() if is_seeded else ("seed",))}
    return {key: value for key, value in content.items() if key not in ignored}


def places_of(folder: RunFolder, again: Settings) -> tuple[Experiment, tuple[HostSpec, ...], str]:
    """Return experiment, hosts and ID of a run in any state, `again` as in `resumed`.

    Its workloads are left out, since their files may be gone.
    """
    about_work = (
        *("workload", "workloads", "set", "compare", "reference"),
        *("search", "until", "place", "rendezvous", "data"),
    )
    file = msgspec.structs.replace(settings_of(folder), **dict.fromkeys(about_work))
    return *resolved(again, file, is_run=True), folder.run_id


def settings_of(folder: RunFolder) -> Settings:
    """Return the settings with which a run began; raises as `configuration_of`."""
    content = configuration_of(folder.read_run())
    return parse_settings(content, source=str(folder.path / "run.json"))


def plan_lines(experiment: Experiment, plan: Plan) -> tuple[str, ...]:
    """Return the plan as lines of text, with the experiment as a configuration file."""
    design = plan.design
    besides = (experiment.search is not None) * ("search",) + bool(design.until) * ("training",)
    turns = f"if hosts take turns, without {', '.join((*besides, 'profiles and waiting'))}"
    lines = [
        "experiment (as a configuration file):",
        *(f"  {line}" for line in masked_toml(settings_toml(experiment.settings)).splitlines()),
        *_host_lines(experiment),
        *_group_lines(plan),
        "arms:",
        *(f"  {arm.id}: {_arm_text(arm)}" for arm in plan.arms),
        *_design_lines(experiment, plan),
        *_measured_lines(experiment, plan),
        f"cells: {len(plan.cells)}, {plan.duration(len(plan.cells))} {turns};",
        f"  the intervals are widened for {counted(plan.comparisons, 'comparison')}",
    ]
    for cell in plan.cells[:_SHOWN_CELLS]:
        refused = not_placed(experiment, cell.place)
        lines += [f"  {cell.id}", *(f"      {line}" for line in _orders(plan, cell, refused))]
        lines += [f"      not run: {arm}: {reason}" for arm, reason in refused.items()]
    if len(plan.cells) > _SHOWN_CELLS:
        lines.append(f"  … and {len(plan.cells) - _SHOWN_CELLS} more")
    return tuple(lines)


def _design_lines(experiment: Experiment, plan: Plan) -> Iterator[str]:
    """Yield margins, budget and restarts, sessions, and the number of compute threads."""
    design = plan.design
    margin, target = (f"{100 * fraction:.4g} %" for fraction in (design.margin, design.target))
    yield f"design: margin ±{margin}, half-width target {target},"
    yield f"  budget {design.budget_s:.0f} s a cell, at least {design.min_restarts} restarts"
    if experiment.may_use_gpu and design.gpu_restarts > design.min_restarts:
        why = "successive rounds are correlated there"
        yield f"  (on a GPU at least {design.gpu_restarts}: {why})"
    yield "  (if these do not fit, up to half of the budget more)"
    if design.sessions > 1:
        budget_s = design.budget_s / design.sessions
        yield f"sessions: {design.sessions}, one for each call, each with {budget_s:.0f} s a cell"
    if all(cell.workload.program is not None for cell in plan.cells):
        # Plain commands choose their own threads.
        return
    if design.threads is None:
        yield "threads: as-run; each arm's variables, CPU set and quota decide"
    else:
        yield f"threads: {design.threads} in every arm"


def _measured_lines(experiment: Experiment, plan: Plan) -> Iterator[str]:
    """Yield what is sent and measured besides the time, and what that needs."""
    yield from file_lines(plan)
    yield f"profiles: {PROFILES[plan.design.profile]}"
    cells = [cell for cell in plan.cells if cell.workload.path is None]
    values = [dict(cell.parameters) for cell in cells]
    values += [arm.parameters for arm in plan.arms] if cells else []
    if any(each.get("compile") is True for each in values):
        needed = "g++ and Python.h are needed, which the default base image lacks"
        yield f"compiled models: {needed}: give"
        yield "  another with --base-image (docs/guide/software.md)"
    if experiment.search is not None:
        yield f"search: in every arm before timing, within {experiment.search.limit};"
        yield "  only batches that fit in all arms are measured"
    if (goal := plan.design.until) is not None:
        most = f"{counted(goal.epochs, 'epoch')}, within a second budget"
        yield f"training: after timing, to {goal.metric} {goal.value:g}, at most {most}"


def file_lines(plan: Plan) -> list[str]:
    """Say of each file of the user's what is sent with it, where that is more or less than it."""
    workloads = (cell.workload for cell in plan.cells)
    own = {workload.path: workload.files for workload in workloads if workload.path is not None}
    lines = []
    for path, files in own.items():
        if len(files) > 1:
            others = counted(len(files) - 1, "other file")
            lines.append(f"files: {path.name} is sent with {others} of its folder")
        elif why := left_behind(path):
            lines += [
                f"files: {path.name} is sent alone, without the rest of its folder: {why}",
                "  if it reads other files there, name what is large in a .gitignore",
            ]
    return lines


def _host_lines(experiment: Experiment) -> list[str]:
    """Return the hosts with their addresses and tags; nothing if the file has no table of them."""
    tables = experiment.settings.hosts
    if not isinstance(tables, dict):
        return []
    lines = [
        f"  {name}: {table.address}" + f" ({', '.join(table.tags)})" * bool(table.tags)
        for name, table in tables.items()
    ]
    more = [f"  … and {len(lines) - _SHOWN_HOSTS} more"] * (len(lines) > _SHOWN_HOSTS)
    at_once = min(experiment.jobs, len(lines))
    return [f"hosts: {len(lines)}, {at_once} at once", *lines[:_SHOWN_HOSTS], *more]


def _group_lines(plan: Plan) -> list[str]:
    if not plan.groups:
        return []
    first = plan.groups[0].name
    lines = [
        f"  {group.name}: {first_few(group.hosts, most=_SHOWN_HOSTS)}"
        + " (the others are compared with it)" * (group.name == first)
        for group in plan.groups
    ]
    return [f"groups of hosts: {len(plan.groups)}", *lines]


def _arm_text(arm: ArmRecord) -> str:
    software = arm.reference or f"stack {arm.stack}"
    text = ", ".join((arm.environment, software, *assigned(arm.parameters)))
    if arm.is_reference:
        return f"{text} (reference)"
    return f"{text} (the reference again: A/A control)" if arm.is_control else text


def _orders(plan: Plan, cell: Cell, refused: Collection[str]) -> list[str]:
    arms = tuple(arm.id for arm in plan.of(cell).arms if arm.id not in refused)
    if cell.workload.program is not None:
        seeds = (derive_seed(plan.seed, "process", cell.id, n) for n in range(_SHOWN_ROUNDS))
        rounds = (" ".join(shuffled(arms, seed)) for seed in seeds)
        command = shown_text(cell.workload.program.argv)
        return [f"command: {command}", *(f"round {n}: {text}" for n, text in enumerate(rounds))]
    launch = shuffled(arms, derive_seed(plan.seed, "launch", cell.id, 0))
    orders = [f"launch: {' '.join(launch)}"]
    for number in range(_SHOWN_ROUNDS):
        seed = derive_seed(plan.seed, f"round {number}", cell.id, 0, 0)
        orders.append(f"round {number}: {' '.join(shuffled(arms, seed))}")
    return orders


def _leading(experiment: Experiment, hosts: tuple[HostSpec, ...]) -> tuple[HostSpec, ...]:
    """Return the hosts, that of the first rank first if ranks are spread over them.

    Raises ConfigError if --rendezvous names none of several hosts, or these are in groups.
    """
    if experiment.rendezvous is None:
        return hosts
    named = tuple(host for host in hosts if experiment.rendezvous in {host.label, str(host)})
    if not named or len(hosts) < 2:
        raise ConfigError(
            f"--rendezvous {experiment.rendezvous} is none of several --hosts",
            details=f"hosts: {', '.join(host.label for host in hosts)}",
            hint="name two hosts or more, as in --hosts gpu01,gpu02 --rendezvous gpu01",
        )
    if any(host.group for host in hosts):
        raise ConfigError(
            "--rendezvous and groups of hosts exclude each other",
            hint="name the hosts without groups",
        )
    return (*named, *(host for host in hosts if host not in named))
