"""`envcompare why --prove`: trials of changed lines, in run folders below that of the run."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shlex
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from msgspec.structs import replace

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import Comparison, RunComparison
from envcompare.cli.planning import resolved, settings_of
from envcompare.config.settings import Settings, WorkloadTable
from envcompare.environments.line import (
    IMAGE_NAME,
    EngineCall,
    engine_call,
    given_options,
    name_of,
    option_texts,
)
from envcompare.environments.oci import remove_labelled
from envcompare.errors import ConfigError, EnvcompareError, InterruptedRunError
from envcompare.proof import Measured, Search
from envcompare.proof.imagefiles import CONFINED, FilesOfImages, ImageFiles
from envcompare.proof.levers import (
    Change,
    changes,
    line_changes,
    own_python,
    own_software,
    own_start,
    replaces,
    sif_change,
    sif_of,
    variable_changes,
    word_changes,
)
from envcompare.proof.packages import package_changes
from envcompare.proof.siffiles import SifFiles, opened
from envcompare.report.wording.linewords import line_candidates
from envcompare.report.wording.proofwords import is_changeable
from envcompare.report.wording.verdicts import MOVED
from envcompare.run_folder.records import (
    CAPTURED,
    PLACE_OF_DATA,
    ArmRecord,
    Block,
    ProcessRun,
    Proof,
    Sample,
)
from envcompare.run_folder.results import RunFolder
from envcompare.stats import Unit
from envcompare.stats.metrics import wall_ns
from envcompare.text import Command, CommandResult
from envcompare.transport import LOCAL, run

_ANSWER_S: Final = 60.0
# No folder of a user has such a name, since those that a killed process left are removed.
_IMAGES: Final = "envcompare-images-"
_BUILT: Final = "envcompare-built"  # stands for the image that the run builds


def chosen_comparison(whole: RunComparison, which: str) -> Comparison:
    """Return the decided difference that `ARM`, `ARM/WORKLOAD` or `ARM/CELL` names.

    An empty name means the first that can be explained. Raises ConfigError if there is none, if the
    name fits several, or if the slow arm cannot be changed.
    """
    decided = [comparison for comparison in whole.compared if comparison.outcome in MOVED]
    arm, _, work = which.partition("/")
    named = [
        comparison
        for comparison in decided
        if arm in {"", comparison.arm} and work in {"", comparison.workload, comparison.cell}
    ]
    if not named:
        known = ", ".join(f"{comparison.arm}/{comparison.cell}" for comparison in decided)
        raise ConfigError(
            f"no decided difference is called {which!r}"
            if which and decided
            else "no comparison of this run is decided as slower or faster",
            hint=f"decided: {known}" if known else "a longer --budget of `run` may decide one",
        )
    able = [
        comparison
        for comparison in named
        if _is_line(whole, comparison) or is_changeable(whole, comparison)
    ]
    if not able:
        raise ConfigError(
            f"{_slow_arm(whole, named[0])} is not an arm that envcompare can change",
            details="it changes options, variables and images of arms that take --docker-options, "
            "on this machine",
            hint="--envs ladder measures what each layer of isolation adds",
        )
    if which and len(able) > 1:
        known = ", ".join(f"{comparison.arm}/{comparison.cell}" for comparison in able)
        raise ConfigError(
            f"--comparison {which} fits {len(able)} differences", hint=f"name one: {known}"
        )
    first = able[0]
    names = {whole.reference_in(first.cell), first.arm}
    if any(summary.arm in names and summary.environment == CAPTURED for summary in whole.arms):
        raise ConfigError(
            "a capture holds times, and no line that could be changed",
            hint="compare two lines on one machine",
        )
    return first


def _is_line(whole: RunComparison, decided: Comparison) -> bool:
    return any(arm.arm == decided.arm and arm.stack == "line" for arm in whole.arms)


def prove(
    folder: RunFolder,
    carry_out: Callable[[Settings], tuple[RunComparison, RunFolder]],
    say: Callable[[str], object],
    *,
    budget_s: float,
    chosen: Comparison | None,
) -> Proof | None:
    """Look for the cause of a difference, by default the first decided one.

    None without any, and if the budget is too short for a trial. Trials are runs below the run's
    folder, with its settings. Raises InterruptedRunError on SIGINT, SIGTERM and SIGHUP.
    """
    whole = compare_run(folder)
    moved = (comparison for comparison in whole.compared if comparison.outcome in MOVED)
    decided = chosen or next(moved, None)
    if decided is None or decided.deciding is None:
        return None
    slow_arm, reference = _slow_arm(whole, decided), whole.reference_in(decided.cell)
    names = (reference if slow_arm == decided.arm else decided.arm, slow_arm)
    # in percent: an eighth of the gap
    margin = min(50.0, 100 * math.expm1(abs(decided.deciding.log_ratio) / 8))
    arms = {arm.id: arm for arm in folder.read_run().arms}
    fast, slow = (_as_line(arms[name]) for name in names)
    kinds = tuple(arms[name].environment for name in names)
    call = engine_call(slow)
    manual = "" if call is None else _answer(call, "run", "--help").stdout
    is_typed = _is_line(whole, decided)
    base = _of_one_cell(settings_of(folder), decided, is_typed=is_typed)
    here = Path(next((table.cwd for _, table in _tables(base) if table.cwd), "."))
    trials = folder.path / "trials"

    def measured(lines: dict[str, str], rounds: int | None, limit_s: float) -> Measured:
        given = _typed(base, lines, rounds) if is_typed else _with_arms(base, lines, manual, kinds)
        given = replace(given, budget=limit_s, margin=margin, out=str(trials))
        result, trial = carry_out(given)
        return _measured(result, trial, folder.path)

    trials.mkdir(exist_ok=True)
    with (
        _ending_on_signals(),
        _byte_code_folder(call, manual) as cache,
        _image_files((fast, slow), manual, whole.run_id, trials, here) as files,
    ):
        search = Search(
            fast=fast,
            slow=slow,
            measure=measured,
            manual=manual,
            budget_s=budget_s,
            files=files,
            say=say,
            gap=abs(decided.deciding.log_ratio),
        )
        own = line_changes(fast, slow, manual=manual)
        if is_typed:
            own += _changes_of_lines(fast, slow, manual, here)
            own += _packages(folder, names, (fast, slow), Path(cache).parent, say)
        levers = _levers(whole, decided, own, slow, cache=cache)
        return search.prove(levers, arm=decided.arm, slow_arm=slow_arm, cell=decided.cell)


def _measured(result: RunComparison, trial: RunFolder, parent: Path) -> Measured:
    return Measured(
        units=units(trial.read_samples().samples),
        failed={
            row.arm: row.brief.removeprefix(f"{row.arm}: ")
            for row in result.course.failures
            if row.arm
        },
        facts={record.arm: record.facts for record in trial.read_fingerprints()},
        folder=str(trial.path.relative_to(parent)),
    )


def _changes_of_lines(fast: str, slow: str, manual: str, folder: Path) -> list[Change]:
    """Return what two lines, run in a folder, differ in besides their options and images."""
    search_path = os.environ.get("PATH", "")
    return [
        *sif_change(fast, slow),
        *word_changes(fast, slow, manual=manual),
        *variable_changes(fast, slow),
        *own_software(fast, slow, folder=folder, search_path=search_path),
        *own_python(fast, slow),
        *own_start(
            *(fast, slow), entrypoint=[] if engine_call(fast) else _entrypoint(slow, manual)
        ),
    ]


def _entrypoint(line: str, manual: str) -> list[str]:
    """Return the program that a container starts first; none for another line, or if not known."""
    call = engine_call(line)
    if call is None:
        return []
    given = [text for text in option_texts(line, call, manual) if text.startswith("--entrypoint")]
    if given:
        return [value for one in given if (value := one[len("--entrypoint") :].strip(" ='\""))]
    image = call.words[given_options(call.words, manual)[1]]
    asked = _answer(call, "image", "inspect", "--format", "{{json .Config.Entrypoint}}", image)
    return json.loads(asked.stdout) or [] if asked.succeeded else []


def _answer(call: EngineCall, *words: str) -> CommandResult:
    return run(LOCAL, Command(argv=(*call.client, *words)), timeout_s=_ANSWER_S)


def _slow_arm(whole: RunComparison, decided: Comparison) -> str:
    return decided.arm if decided.outcome == "slower" else whole.reference_in(decided.cell)


def _as_line(arm: ArmRecord) -> str:
    """Return a user's line, or one that stands for an arm: the call of its engine, else its name.

    The call has the user's own options alone.
    """
    if arm.stack == "line":
        return arm.reference
    if arm.takes_options and arm.stack == "image":
        return f"{arm.limit_command} {shlex.join(arm.options)} {arm.reference or _BUILT}"
    place = f":{arm.reference}" if arm.reference else "@host" * (arm.stack == "host")
    return f"{arm.environment}{place} {shlex.join(arm.options)}"


def _of_one_cell(settings: Settings, cell: Comparison, *, is_typed: bool) -> Settings:
    """Return the settings of a run for one of its cells alone, measured once and not profiled."""
    (workload,) = (
        one
        for one in resolved(Settings(), settings, is_run=True)[0].workloads
        if one.name == cell.workload
    )
    values = {**(settings.set or {}).get(workload.name, {}), **cell.parameters}
    place = values.pop(PLACE_OF_DATA, None)
    tables = settings.workloads if isinstance(settings.workloads, dict) else {}
    own = workload.path is not None
    left_out = (
        *("reference", "hosts", "search", "until", "sessions", "stacks", "target"),
        *("restarts", "rounds", "cold_start"),
    )
    return replace(
        settings,
        workloads=() if own else {workload.name: tables.get(workload.name, WorkloadTable())},
        workload=(f"{workload.path}:{workload.class_name}",) if own else None,
        set={workload.name: values} if values else None,
        **dict.fromkeys(left_out),
        place=None if place is None else f"data={place}",
        # others end after two restarts if the budget is short, and a share needs four
        preset=settings.preset if is_typed else "strict",
        profile="none",
        startup=False,
    )


def _typed(settings: Settings, lines: Mapping[str, str], rounds: int | None) -> Settings:
    calls = {name: engine_call(line) for name, line in lines.items()}
    kinds = {name: name_of(call.client) if call else "line" for name, call in calls.items()}
    return replace(
        settings,
        envs=tuple(f"{name}={kinds[name]}:{line}" for name, line in lines.items()),
        workloads={name: replace(one, most_rounds=rounds) for name, one in _tables(settings)},
    )


def _tables(settings: Settings) -> list[tuple[str, WorkloadTable]]:
    return list(settings.workloads.items()) if isinstance(settings.workloads, dict) else []


def _with_arms(
    settings: Settings, lines: Mapping[str, str], manual: str, environments: tuple[str, ...]
) -> Settings:
    """Return the settings with the arms that lines stand for: the first is fast, others slow."""
    arms: list[str] = []
    options: list[str] = []
    for number, (name, line) in enumerate(lines.items()):
        call = engine_call(line)
        if call is None:
            place, *words = shlex.split(line)
        else:
            at = given_options(call.words, manual)[1]
            image, words = call.words[at], list(call.words[:at])
            environment = environments[min(number, 1)]
            place = environment if image == _BUILT else f"{environment}:{image}"
        arms.append(f"{name}={place}")
        options += [f"{name}={shlex.join(words)}"] if words else []
    return replace(settings, envs=tuple(arms), docker_options=tuple(options) or None)


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """Turn the signals that end a process into an error, so that what was made is removed."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        raise InterruptedRunError(f"{signal.Signals(number).name}")

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        # A program started by nohup ignores SIGHUP, and must continue after its terminal has
        # closed.
        if handler != signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _image_files(
    lines: tuple[str, str], manual: str, run_id: str, place: Path, here: Path
) -> Iterator[FilesOfImages | None]:
    """Give the files of the images of two lines; remove what was made of them.

    The lines are calls of one engine, or name a SIF each, in the folder `here`.
    """
    fast, slow = (engine_call(line) for line in lines)
    with _temporary(_IMAGES, place, others="../../*/trials/") as folder:
        if fast is None and slow is None:
            try:
                yield _sif_files(lines, here, Path(folder))
            finally:
                # `opened` gives this login the rights that removing all of it needs.
                for _ in opened(Path(folder)):
                    pass
        elif fast is not None and slow is not None:
            images = [call.words[given_options(call.words, manual)[1]] for call in (fast, slow)]
            is_known = all(map(IMAGE_NAME.fullmatch, images)) and _BUILT not in images
            if fast.client != slow.client or images[0] == images[1] or not is_known:
                yield None
                return
            try:
                yield ImageFiles(
                    client=slow.client,
                    fast=images[0],
                    slow=images[1],
                    run_id=run_id,
                    folder=Path(folder),
                )
            finally:
                remove_labelled(LOCAL, slow.client, run_id=run_id, worker="")
        else:
            yield None


def _sif_files(lines: tuple[str, str], here: Path, folder: Path) -> SifFiles | None:
    """Return the files of two SIFs; None if a line names none, or if both are one."""
    sifs = [(sif[0], line[slice(*sif[1])]) for line in lines if (sif := sif_of(line))]
    if len(sifs) != len(lines):
        return None
    fast, slow = (shlex.split(word)[0] for _, word in sifs)
    paths = [here / os.path.expandvars(Path(name).expanduser()) for name in (fast, slow)]
    if not all(map(Path.is_file, paths)) or paths[0].samefile(paths[1]):
        return None
    return SifFiles(
        program=sifs[1][0], names=(fast, slow), sifs=(paths[0], paths[1]), folder=folder
    )


@contextmanager
def _byte_code_folder(call: EngineCall | None, manual: str) -> Iterator[str]:
    """Give a folder that only this login can reach, and a container, whatever its user."""
    with _temporary("envcompare-why-", Path(tempfile.gettempdir())) as parent:
        cache = Path(parent) / "cache"
        cache.mkdir()
        if call is not None:
            # A container may run as another user; the folder above keeps out all others.
            cache.chmod(0o777)
        try:
            yield str(cache)
        finally:
            with suppress(OSError):
                shutil.rmtree(cache)
            # Files of another user may be left, such as those of root in a container.
            if call is not None and cache.exists():
                image = call.words[given_options(call.words, manual)[1]]
                # what is in it: the image's `rm` shall not reach the folder above
                volume = ("--volume", f"{cache}:/d", "--entrypoint", "rm", "--user", "0", image)
                with suppress(EnvcompareError):
                    _answer(call, "run", "--rm", *CONFINED, *volume, "-rf", "/d")


@contextmanager
def _temporary(prefix: str, place: Path, *, others: str = "") -> Iterator[str]:
    """Give a folder in a place; remove those that killed processes left there or in `others`.

    It is locked (flock) where the file system can do that.
    """
    for left in place.glob(f"{others}{prefix}*"):
        if left.parent.is_symlink():
            # The link is in a run folder that came from elsewhere.
            continue
        with suppress(OSError):
            lock = _locked(left)
            try:
                # a living process locks its folder within a minute of making it
                if time.time() - left.stat().st_mtime > 60:
                    # `opened` gives this login the rights that removing all of it needs.
                    for _ in opened(left):
                        pass
                    shutil.rmtree(left)
            finally:
                os.close(lock)
    with tempfile.TemporaryDirectory(
        prefix=prefix, dir=place, ignore_cleanup_errors=True
    ) as folder:
        held: int | None = None
        with suppress(OSError):
            held = _locked(folder)
        try:
            yield folder
        finally:
            if held is not None:
                os.close(held)


def _locked(folder: str | Path) -> int:
    """Lock a folder until the descriptor that is returned is closed.

    Raises OSError if another process has it, or if the file system has no locks.
    """
    # A link could lead to a folder elsewhere, which must not be removed.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _packages(
    folder: RunFolder,
    arms: tuple[str, str],
    lines: tuple[str, str],
    place: Path,
    say: Callable[[str], object],
) -> list[Change]:
    """Return the packages in which two lines without an engine differ, as links below a folder."""
    if any(map(engine_call, lines)):
        return []
    facts = {record.arm: record.facts for record in folder.read_fingerprints()}
    fast, slow = (facts.get(name, {}) for name in arms)
    try:
        return package_changes(fast, slow, place=place)
    except (OSError, ValueError, TypeError, IndexError) as error:
        # The list of files of a package may be broken.
        say(f"  the packages are not compared: {error}")
        return []


def _levers(
    whole: RunComparison, decided: Comparison, own: list[Change], slow: str, *, cache: str
) -> list[Change]:
    """Return what can be changed: what the lines say, and what was read of their processes."""
    differences, _ = line_candidates(whole, decided)
    if decided.outcome == "faster":  # the reference is the slow one
        differences = [
            replace(each, reference=each.value, value=each.reference) for each in differences
        ]
    levers = changes(differences, cache=cache, is_engine=engine_call(slow) is not None)
    # The effect of a lever on such a variable is read back from the changed line.
    read_back = {lever.edit.variables for lever in levers}
    own = [each for each in own if not each.edit.variables or each.edit.variables not in read_back]
    levers = [lever for lever in levers if not any(replaces(each, lever) for each in own)]
    return [lever for lever in (*own, *levers) if lever.can_be_read(slow)]


def units(samples: Iterable[Sample]) -> list[Unit]:
    """Return the mean time of every arm in each round of processes, or in each restart."""
    times: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    for one in samples:
        if not isinstance(one, Block | ProcessRun) or one.warmup or one.status != "ok":
            continue
        total = times[one.restart][one.arm]
        total[0] += wall_ns(one)
        total[1] += one.k if isinstance(one, Block) else 1
    return [{arm: whole / count for arm, (whole, count) in each.items()} for each in times.values()]
