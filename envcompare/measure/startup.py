"""The passes that launch for the sake of the launch: start-up, and plain commands.

The launches of restarts are timed as they happen. A separate pass makes cold launches, and further
ones if the restarts were too few.

Plain commands are measured as whole processes: one in every arm in random order, round by round.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Literal

import msgspec
from msgspec.structs import replace

from envcompare.config.workloads import SHELL, Program
from envcompare.errors import CommandTimeoutError, WorkloadError
from envcompare.fingerprint import READ
from envcompare.measure import Amount, Fact, Facts, Values, shuffled
from envcompare.measure.cell import CellContext, QuietGate, Roster, failure_of
from envcompare.measure.limits import StopReason, budget_text
from envcompare.measure.worker import HELLO_LIMIT_S, Worker
from envcompare.measure.workers import CellWorkers, Launches, WorkerPool, is_launch_due
from envcompare.run_folder.records import Count, Failure, ProcessRun
from envcompare.stats.intervals import MIN_PROCESSES, Interval
from envcompare.stats.metrics import Readings
from envcompare.text import age_text, counted

# 1 drops the page cache alone (kernel: Documentation/admin-guide/sysctl/vm.rst)
_DROP_CACHES = "sync && echo 1 >/proc/sys/vm/drop_caches"


@dataclass(slots=True)
class StartupPass:
    """Launch every arm alone, in random order, as often as a fifth of the budget allows.

    Each launch serves all the cells. What restarts and the part before an interruption have
    launched is not launched again. Where cold launches are asked for, each kind has half the time.
    """

    cells: Sequence[Launches]

    def measure_cold(self) -> None:
        """Launch with a cold page cache, where that was asked for and can be done.

        At least once an arm. An arm that fails is recorded and left out. Raises TransportError when
        the host is lost and InterruptedRunError when the user stops.
        """
        if not self.context.design.cold_start or not self._is_due(*self._before(is_cold=True)):
            return
        try:
            self._drop_caches()
        except WorkloadError as error:
            why = f"{error.details or error.brief}; {error.hint}"
            text = f"cold start not measured: {why}"
            self.context.note("note", text=text, values={"cold": False, "why": why})
            return
        try:
            self._repeat_within(is_cold=True)
        except WorkloadError as error:  # of a later attempt to drop the page cache
            text = f"{error.brief}; cold start was measured less often"
            self.context.note("caution", text=text)

    def measure_warm(self) -> None:
        """Launch as often as restarts have not; raises as `measure_cold`."""
        self._repeat_within(is_cold=False)

    @property
    def context(self) -> CellContext:
        """Return the first of the cells."""
        return self.cells[0].context

    def _repeat_within(self, *, is_cold: bool) -> None:
        repetitions, before_s = self._before(is_cold=is_cold)
        began, spent_s = time.monotonic(), before_s
        while self._is_due(repetitions, spent_s):
            self._repeat(is_cold=is_cold)
            repetitions += 1
            spent_s = before_s + time.monotonic() - began

    def _is_due(self, repetitions: int, spent_s: float) -> bool:
        design = self.context.design
        return is_launch_due(repetitions, spent_s, design=design, cells=len(self.cells))

    def _before(self, *, is_cold: bool) -> tuple[int, float]:
        """Return the whole repetitions of a kind that every cell has, and their seconds."""
        kept = [
            [launch for launch in cell.kept if (launch.page_cache == "cold") == is_cold]
            for cell in self.cells
        ]
        counts = [Counter(launch.arm for launch in launches) for launches in kept]
        repetitions = min(
            (
                count[arm]
                for cell, count in zip(self.cells, counts, strict=True)
                for arm in self._arms
                if arm in cell.roster.arms
            ),
            default=0,
        )
        # cells share their launches
        return repetitions, max(
            sum(launch.real_ns for launch in launches) for launches in kept
        ) / 1e9

    @property
    def _arms(self) -> tuple[str, ...]:
        alive = {arm for cell in self.cells for arm in cell.roster.arms}
        return tuple(arm for arm in self.context.arms if arm in alive - {self.context.control})

    def _drop_caches(self) -> None:
        hint = "only root of the host may drop its page cache: log in as root there"
        try:
            done = self.context.on_host(_DROP_CACHES)
        except CommandTimeoutError as error:
            raise WorkloadError(error.brief, hint=hint, phase="process") from error
        if not done.succeeded:
            raise WorkloadError(
                "the page cache cannot be dropped", details=done.tail(1), hint=hint, phase="process"
            )

    def _repeat(self, *, is_cold: bool) -> None:
        context = self.context
        numbers = (launch.repetition for cell in self.cells for launch in cell.kept)
        repetition = 1 + max(numbers, default=-1)
        seed = context.seed_of("startup", repetition)
        for order, arm in enumerate(shuffled(self._arms, seed)):
            context.check_interruption()
            if is_cold:
                self._drop_caches()
            exits_ns = self._launch(arm, repetition=repetition, order=order)
            for cell in self.cells:
                cell.end(exits_ns, is_cold=is_cold)

    def _launch(self, arm: str, *, repetition: int, order: int) -> dict[str, int]:
        pool = WorkerPool(
            spec=self.context.spec,
            restart=repetition,
            cells=len(self.cells),
            known=self.cells[0].arms,
            is_timed=True,
        )
        try:
            for cell in self.cells:
                if arm in cell.roster.arms:
                    _serve(cell, arm, pool, order=order)
            pool.dismiss(self.cells[-1].context)
        finally:
            pool.kill()
        return pool.exits_ns


def _serve(cell: Launches, arm: str, pool: WorkerPool, *, order: int) -> None:
    """Let a worker load the data of a cell, build its model and train for a moment."""
    context = cell.context
    seed = context.seed_of("startup model", pool.restart) % 2**31
    workers = CellWorkers(cell.roster, pool)
    try:
        hello = workers.begin((arm,), is_alone=True).get(arm)
        if hello is not None and arm in workers.arms:
            workers.tell(arm, partial(Worker.send_begin, seed=seed, pad=0))
            cell.train(workers, arm, hello, repetition=pool.restart, order=order)
        workers.give_back()
    finally:
        workers.kill()


_SHOWN_WHOLE_S = 10.0
# A line may end before it is read, so it is run again, up to this many times.
_READINGS = 10
# With fewer rounds there is no verdict, and then the first one is not given away.
_WANTED_ROUNDS = 4
_LEAST_LIMIT_S = 1.0
_READING_SHARE = 0.1  # of the budget
# The start of a process takes some milliseconds in any environment, most of a shorter time.
_SHORT_S = 0.01
# The engine needs time too, beyond the limit of the program.
_GRACE_S = 60.0


class _Looked(msgspec.Struct, frozen=True, kw_only=True):
    program: str
    programs: dict[str, str | None] = {}  # hashes by the words of the command that name one
    code_hash: str
    fingerprint: dict[str, Fact]
    is_captured: bool = False  # it replays what ran elsewhere


class _Finished(msgspec.Struct, frozen=True, kw_only=True):
    t0_ns: Amount
    wall_ns: Amount
    user_ns: Amount | None
    sys_ns: Amount | None
    max_rss_bytes: Amount | None
    exit_code: Count
    signal: str | None
    is_late: bool
    left_processes: bool
    settling_ns: Amount  # outside its time: settling, searching, reading, --prepare, --conclude
    values: dict[str, float]
    slow_measures: tuple[str, ...] = ()  # their expression took too long, and gave no value
    written: tuple[str, ...] = ()  # files in the folder of a line that it has written
    fingerprint: dict[str, Fact] = {}  # what was seen of it, where it was watched


@dataclass(slots=True)
class ProcessPass:
    """Measure one cell of a plain command; `runs` grows, the roster says which arms are out."""

    context: CellContext
    roster: Roster
    program: Program
    runs: list[ProcessRun] = field(default_factory=list)
    stopped_by: StopReason | Literal["budget", "failure"] | None = None
    _number: int = 0
    _round_s: float | None = None  # of the last round since the start or the resumption
    _is_spent: bool = False
    _slow: set[str] = field(default_factory=set)  # measures given up
    _looks: dict[str, Facts] = field(default_factory=dict)  # of arms not watched yet
    _said: set[str] = field(default_factory=set)  # the cautions
    _readings: Readings = field(init=False)

    def __post_init__(self) -> None:
        self._readings = Readings(self.runs)
        self._number = 1 + max((run.number for run in self.runs), default=-1)

    @property
    def is_timeout(self) -> bool:
        """Tell whether not one process of the reference ended within the budget."""
        reference = self.context.reference
        ended = any(run.arm == reference and run.status == "ok" for run in self.runs)
        return self._is_spent and not ended

    def measure(self) -> None:
        """Run rounds until all arms are done, the budget is spent, or nothing is left.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        gate = QuietGate(self.context)
        self._look()
        while not self._is_done():
            gate.wait_to_launch()
            is_first, began = self._round_s is None, time.monotonic()
            self._run_round()
            self._round_s = time.monotonic() - began
            if is_first and self._is_of_lines:
                self._read_again()
                self.context.note("calibrated", text=self._outlook(self._round_s))
            self._number += 1
            self.context.recorder.progress(self.intervals(), self.context)
        for text in _cautions(self.program, self.runs, self.context.reference):
            self.context.note("caution", text=text)
        self.context.note("stopped", text=self.stopped_by or "")

    def intervals(self) -> dict[str, Interval | None]:
        """Return the printed interval of each compared arm, as far as it is known."""
        return self.roster.intervals(self._readings)

    def _read_again(self) -> None:
        """Run lines that ended before they were read again, untimed, for a part of the budget."""
        until_s = self.context.remaining_s - _READING_SHARE * self.context.design.budget_s
        for arm in tuple(self._looks):
            for _ in range(_READINGS):
                is_over = self._is_spent or self.context.remaining_s < until_s
                if arm in self.roster.failed or arm not in self._looks or is_over:
                    break
                self._run(arm, 0)
        self._looks.clear()

    @property
    def _is_of_lines(self) -> bool:
        return self.program.argv == SHELL

    @property
    def _least(self) -> int:
        return max(self.context.design.min_restarts, MIN_PROCESSES)

    def _outlook(self, round_s: float) -> str:
        """Return how long a verdict takes at least, after the first round, which only warms up."""
        known = {run.number for run in self.runs if run.status == "ok" and not run.warmup}
        missing = max(0, self._least - len(known))
        least_s = missing * round_s
        each = f"{round_s:.2g} s" if round_s < _SHOWN_WHOLE_S else age_text(round_s)
        text = (
            f"a round takes {each}; to end early takes at least {counted(missing, 'more round')}, "
            f"{age_text(least_s)}"
        )
        left_s = max(0.0, self.context.remaining_s)
        return f"{text}; {age_text(left_s)} of the budget is left"

    def _is_done(self) -> bool:
        least = self._least
        self.stopped_by = self.roster.why_done(self._readings, min_restarts=least)
        if self.stopped_by is None and self._number >= (self.program.most_rounds or math.inf):
            self.stopped_by = "planned"
        # The first round is tried however little is left of the budget.
        has_begun = bool(self.runs) or self._round_s is not None
        is_over = has_begun and (self._round_s or 0.0) >= self.context.remaining_s
        if self.stopped_by is None and (self._is_spent or is_over):
            self.stopped_by = "budget"
        return self.stopped_by is not None

    def _look(self) -> None:
        """Launch every arm once without the program: is it there, and what is around it."""
        seed = self.context.seed_of("look")
        for arm in shuffled(self.roster.arms, seed):
            self.context.check_interruption()
            worker = self.context.launch(arm, self.context.variables(0))
            try:
                request = self._request()
                looked = worker.ask_once("look", request, kind=_Looked, limit_s=HELLO_LIMIT_S)
            except WorkloadError as error:
                self._fail(arm, failure_of(error))
            else:
                self._take_look(arm, looked)
            finally:
                worker.kill()

    def _take_look(self, arm: str, looked: _Looked) -> None:
        programs = {f"command.{word}": digest for word, digest in looked.programs.items()}
        values: Values = {"code": looked.code_hash, "program": looked.program, **programs}
        changed = self.context.recorder.fingerprint(arm, looked.fingerprint, taken="start")
        self._looks[arm] = looked.fingerprint
        if looked.is_captured:
            self._say_once(
                "captured lines did not run in turns with the others: what differs between "
                "machines or hours counts as a difference between lines"
            )
        self.context.note("note", arm=arm, values=values)
        failure = self.roster.refused(arm, changed)
        failure = self.roster.changed(arm, values) or failure
        if failure is not None:
            self._fail(arm, failure)
        else:
            text = "" if self._is_of_lines else f"runs {looked.program}"
            self.context.note("arm-ready", arm=arm, text=text)

    def _request(self) -> dict[str, object]:
        return {
            "number": self._number,
            "argv": self.program.argv,
            "cwd": self.program.cwd,
            "prepare": self.program.prepare,
            "conclude": self.program.conclude,
            "cpus": self.context.spec.cpus,
            "patterns": {n: text for n, text in self.program.measures if n not in self._slow},
        }

    def _run_round(self) -> None:
        """Run the program once in every arm, one at a time; the first round warms up."""
        runs: list[ProcessRun] = []
        is_first = self._round_s is None
        began_s = self.context.remaining_s
        seed = self.context.seed_of("process", self._number)
        for order, arm in enumerate(shuffled(self.roster.arms, seed)):
            self.context.check_interruption()
            run = self._run(arm, order)
            if run is not None:
                runs.append(run)
                if not is_first:
                    self._keep(run)
            if self._is_spent or self.context.reference in self.roster.failed:
                self.context.note("round-dropped", arm=arm, text=f"round {self._number}")
                break
        if not is_first:
            return
        spent_s = began_s - self.context.remaining_s
        is_kept = self.context.remaining_s < _WANTED_ROUNDS * spent_s
        for run in runs:
            self._keep(replace(run, warmup=not is_kept))
        if is_kept and runs and not self._is_spent:
            self.context.note(
                "caution",
                text="the first round counts, perhaps with a cold page cache: the budget allows "
                f"fewer than {_WANTED_ROUNDS} more; raise --budget",
            )

    def _keep(self, run: ProcessRun) -> None:
        self.runs.append(run)
        self._readings.add(run)
        self.context.recorder.sample(run)

    def _run(self, arm: str, order: int) -> ProcessRun | None:
        limit_s = max(_LEAST_LIMIT_S, self.context.remaining_s)
        if self.program.timeout_s is not None:
            limit_s = min(limit_s, self.program.timeout_s)
        worker = self.context.launch(arm, self.context.variables(self._number))
        try:
            # what is watched would be slower than the others in a round that counts
            watch = arm in self._looks and (self._round_s is None or not self._is_of_lines)
            request = {**self._request(), "limit_s": limit_s, "watch": watch}
            # --prepare and --conclude have a limit of their own, at least a minute each
            around_s = 2 * max(60.0, limit_s) if self._is_of_lines else 0.0
            longest_s = limit_s + around_s + _GRACE_S
            done = worker.ask_once("command", request, kind=_Finished, limit_s=longest_s)
            real_ns = time.monotonic_ns() - worker.spawned_ns - done.settling_ns
            failure = self._failure(worker, done, limit_s)
        except WorkloadError as error:
            self._is_spent = self.context.remaining_s <= 0
            # The end of the budget is no failure of an arm that has a time already.
            if not (self._is_spent and self._has_run(arm)):
                self._fail(arm, failure_of(error))
            return None
        finally:
            worker.kill()
        changed = self._take_seen(arm, done)
        if changed is not None:
            self._fail(arm, changed)
            return None
        self._caution_about(arm, done)
        if failure is not None:
            self._fail(arm, failure)
        return ProcessRun(
            cell=self.context.cell,
            arm=arm,
            number=self._number,
            order=order,
            t0_ns=done.t0_ns,
            wall_ns=done.wall_ns,
            user_ns=done.user_ns,
            sys_ns=done.sys_ns,
            real_ns=real_ns,
            max_rss_bytes=done.max_rss_bytes,
            exit_code=done.exit_code,
            values=done.values,
            status="failed" if done.is_late or done.exit_code else "ok",
        )

    def _caution_about(self, arm: str, done: _Finished) -> None:
        if done.left_processes and not done.is_late:
            self._say_once(
                "the command leaves processes running when it ends: they are not measured and are "
                "killed; let it wait for them"
            )
        if done.written:
            named = ", ".join(done.written)
            text = (
                f"{arm} changes files in the folder, or another program does ({named}): if a later "
                "process finds them, its work may differ; --prepare can restore them"
            )
            self._say_once(text, about=f"files of {arm}")
        for name in done.slow_measures:
            self._slow.add(name)
            text = (
                f"the measure {name} is not measured: the expression took longer than 5 s on one "
                "line (the times stay valid): give it no repetition inside a repetition"
            )
            self.context.note("caution", text=text)

    def _say_once(self, text: str, *, about: str = "") -> None:
        if (about or text) not in self._said:
            self._said.add(about or text)
            self.context.note("caution", text=text)

    def _take_seen(self, arm: str, done: _Finished) -> Failure | None:
        """Keep what the first process of an arm loaded, and what its launcher found.

        Return why the arm must end if this is other software than before an interruption.
        """
        looked = self._looks.get(arm)
        if not self._is_of_lines or done.fingerprint.get(READ) is not None:
            self._looks.pop(arm, None)
        if looked is None or not done.fingerprint:
            return None
        seen = {**looked, **done.fingerprint}
        changed = self.context.recorder.fingerprint(arm, seen, taken="step")
        return self.roster.refused(arm, changed)

    def _failure(self, worker: Worker, done: _Finished, limit_s: float) -> Failure | None:
        """Say why a process gave no time; None for one that ended well or as the budget did."""
        if done.is_late:
            return self._late(worker, limit_s)
        if done.exit_code == 0:
            return None
        what = "line" if self._is_of_lines else "command"
        brief = f"the {what} ended with exit code {done.exit_code}"
        if done.signal:
            brief = f"the {what} was killed by {done.signal}"
            hint = "read its log; where memory ran out give it less to do"
        elif self._is_of_lines:
            hint = "read its log; it runs by `sh -c`, without a terminal and with empty input"
        else:
            hint = (
                "read its log; containers have no network, and see the command's folder read-only: "
                "write to $HOME or /tmp"
            )
        return Failure(
            # A signal may come from outside, so it is not taken for a fault of the step.
            phase="process" if done.signal else "step",
            brief=f"{worker.arm}: {brief}",
            details=worker.tail(),
            hint=hint,
            exit_code=done.exit_code,
            log=worker.log_name,
        )

    def _late(self, worker: Worker, limit_s: float) -> Failure | None:
        is_command_limit = limit_s == self.program.timeout_s
        self._is_spent = not is_command_limit
        if not is_command_limit and self._has_run(worker.arm):
            return None
        budget = budget_text(self.context.design)
        what = "its limit" if is_command_limit else f"what was left of {budget}"
        hint = (
            "raise --command-timeout" if is_command_limit else "raise --budget, or reduce its work"
        )
        if self._is_of_lines and not is_command_limit:
            hint += " (one epoch, 100 steps), or compare training steps with --lockstep"
        return Failure(
            phase="step",
            brief=f"{worker.arm}: the command did not end within {what} ({limit_s:.0f} s) and was "
            "killed",
            details=worker.tail(),
            hint=hint,
            log=worker.log_name,
        )

    def _has_run(self, arm: str) -> bool:
        return any(run.arm == arm and run.status == "ok" for run in self.runs)

    def _fail(self, arm: str, failure: Failure) -> None:
        self.context.check_interruption()
        self.roster.fail(arm, failure)


def _cautions(program: Program, runs: Iterable[ProcessRun], reference: str) -> tuple[str, ...]:
    good = [run for run in runs if run.status == "ok"]
    arms = dict.fromkeys(run.arm for run in good)
    texts: list[str] = []
    for name, _ in program.measures:
        telling = {run.arm for run in good if name in run.values}
        silent = [arm for arm in arms if arm not in telling]
        if silent:
            where = "any arm" if len(silent) == len(arms) else ", ".join(silent)
            texts.append(
                f"the measure {name} found no number in the output of {where}: compare its "
                "expression with the log"
            )
    seconds = [run.wall_ns / 1e9 for run in good if run.arm == reference]
    if seconds and median(seconds) < _SHORT_S:
        texts.append(
            f"one process takes {1000 * median(seconds):.1f} ms, most of it to start a process: "
            "give the command more to do"
        )
    return tuple(texts)
