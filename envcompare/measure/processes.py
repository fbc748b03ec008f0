"""The pass of plain commands: whole processes, one in every arm in random order, round by round."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from envcompare.config.plan import derive_seed, shuffled
from envcompare.config.programs import Program
from envcompare.errors import WorkloadError
from envcompare.fingerprint.identity import program_key
from envcompare.measure.bench import Bench, Facts, Values, failure_of
from envcompare.measure.crew import Roster
from envcompare.measure.programcautions import cautions
from envcompare.measure.protocol import Finished, Looked
from envcompare.measure.quiet import QuietGate
from envcompare.measure.stopping import StopReason, stop_reason
from envcompare.measure.worker import HELLO_LIMIT_S, Worker
from envcompare.run_folder.records import Failure, ProcessRun
from envcompare.stats.intervals import Interval
from envcompare.stats.metrics import look

WANTED_ROUNDS = 4  # below it there is no verdict; then the first round is not given away
LEAST_LIMIT_S = 1.0
_GRACE_S = 60.0  # for the engine, beyond the limit of the program


@dataclass(slots=True)
class ProcessPass:
    """Measure one cell of a plain command; `runs` grows, the roster says which arms are out."""

    bench: Bench
    roster: Roster
    program: Program
    runs: list[ProcessRun] = field(default_factory=list)
    stopped_by: StopReason | Literal["budget", "failure"] | None = None
    _number: int = 0
    _round_s: float | None = None  # of the last round since the start or the resumption
    _is_spent: bool = False
    _slow: set[str] = field(default_factory=set)  # measures given up
    _is_leaving: bool = False  # it left processes when it ended, and that was said
    _looks: dict[str, Facts] = field(default_factory=dict)  # of arms not watched yet

    def __post_init__(self) -> None:
        self._number = 1 + max((run.number for run in self.runs), default=-1)

    @property
    def is_timeout(self) -> bool:
        """Tell whether not one process of the reference ended within the budget."""
        reference = self.bench.reference
        ended = any(run.arm == reference and run.status == "ok" for run in self.runs)
        return self._is_spent and not ended

    def measure(self) -> None:
        """Run rounds until all arms are done, the budget is spent, or nothing is left.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        gate = QuietGate(self.bench)
        self._look()
        while not self._is_done():
            gate.wait()
            began = time.monotonic()
            self._run_round()
            self._round_s = time.monotonic() - began
            self._number += 1
            self.bench.recorder.progress(self.intervals(), self.bench)
        for text in cautions(self.program, self.runs, self.bench.reference):
            self.bench.note("caution", text=text)
        self.bench.note("stopped", text=self.stopped_by or "")

    def intervals(self) -> dict[str, Interval | None]:
        """Return the printed interval of each compared arm, as far as it is known."""
        return look(
            tuple(self.runs),
            self.roster.compared,
            reference=self.bench.reference,
            design=self.bench.design,
            m=self.bench.comparisons,
        )

    def _is_done(self) -> bool:
        if self.bench.reference in self.roster.failed or not self.roster.compared:
            self.stopped_by = "failure"
        elif reason := stop_reason(
            self.intervals().values(),
            design=self.bench.design,
            min_restarts=self.bench.design.min_restarts,
        ):
            self.stopped_by = reason
        elif self._is_spent or self._is_over():
            self.stopped_by = "budget"
        return self.stopped_by is not None

    def _is_over(self) -> bool:
        """Tell whether no other round fits; the first is tried always."""
        has_begun = bool(self.runs) or self._round_s is not None
        return has_begun and (self._round_s or 0.0) >= self.bench.remaining_s

    def _look(self) -> None:
        """Launch every arm once without the program: is it there, and what is around it."""
        seed = derive_seed(self.bench.seed, "look", self.bench.cell)
        for arm in shuffled(self.roster.arms, seed):
            self.bench.check_interruption()
            worker = self.bench.launch(arm, self.bench.variables(0))
            try:
                request = self._request()
                found = worker.ask_once("look", request, kind=Looked, limit_s=HELLO_LIMIT_S)
            except WorkloadError as error:
                self._fail(arm, failure_of(error))
            else:
                self._take_look(arm, found)
            finally:
                worker.kill()

    def _take_look(self, arm: str, found: Looked) -> None:
        programs = {program_key(word): digest for word, digest in found.programs.items()}
        values: Values = {"code": found.code_hash, "program": found.program, **programs}
        changed = self.bench.recorder.fingerprint(arm, found.fingerprint, taken="start")
        self._looks[arm] = found.fingerprint
        self.bench.note("note", arm=arm, values=values)
        failure = self.roster.refused(arm, changed)
        failure = self.roster.changed(arm, values) or failure
        if failure is not None:
            self._fail(arm, failure)
        else:
            self.bench.note("arm-ready", arm=arm, text=f"runs {found.program}")

    def _request(self) -> dict[str, object]:
        return {
            "argv": self.program.argv,
            "cwd": self.program.cwd,
            "cpus": self.bench.spec.cpus,
            "patterns": {n: text for n, text in self.program.measures if n not in self._slow},
        }

    def _run_round(self) -> None:
        """Run the program once in every arm, one at a time; the first round warms up."""
        found: list[ProcessRun] = []
        is_first = self._round_s is None
        began_s = self.bench.remaining_s
        seed = derive_seed(self.bench.seed, "process", self.bench.cell, self._number)
        for order, arm in enumerate(shuffled(self.roster.arms, seed)):
            self.bench.check_interruption()
            run = self._run(arm, order)
            if run is not None:
                found.append(run)
                if not is_first:
                    self._keep(run)
            if self._is_spent or self.bench.reference in self.roster.failed:
                self.bench.note("round-dropped", arm=arm, text=f"round {self._number}")
                break
        if is_first:
            is_kept = self.bench.remaining_s < WANTED_ROUNDS * (began_s - self.bench.remaining_s)
            self._keep_first(found, is_kept=is_kept)

    def _keep_first(self, found: list[ProcessRun], *, is_kept: bool) -> None:
        for run in found:
            self._keep(replace(run, warmup=not is_kept))
        if is_kept and found and not self._is_spent:
            self.bench.note(
                "caution",
                text=f"the first round counts, though files may not have been in memory yet: the "
                f"budget holds fewer than {WANTED_ROUNDS} more; raise --budget",
            )

    def _keep(self, run: ProcessRun) -> None:
        self.runs.append(run)
        self.bench.recorder.sample(run)

    def _run(self, arm: str, order: int) -> ProcessRun | None:
        """Run the program once in an arm; None where its launcher did not come to its end."""
        limit_s = max(LEAST_LIMIT_S, self.bench.remaining_s)
        if self.program.timeout_s is not None:
            limit_s = min(limit_s, self.program.timeout_s)
        worker = self.bench.launch(arm, self.bench.variables(self._number))
        try:
            request = {**self._request(), "limit_s": limit_s, "watch": arm in self._looks}
            done = worker.ask_once("command", request, kind=Finished, limit_s=limit_s + _GRACE_S)
            real_ns = time.monotonic_ns() - worker.spawned_ns - done.settling_ns
            failure = self._failure(worker, done, limit_s)
        except WorkloadError as error:
            self._is_spent = self.bench.remaining_s <= 0
            self._fail(arm, failure_of(error))
            return None
        finally:
            worker.kill()
        changed = self._take_seen(arm, done)
        if changed is not None:
            self._fail(arm, changed)
            return None
        if done.left_processes and not (done.is_late or self._is_leaving):
            self._is_leaving = True
            self.bench.note("caution", text=_LEAVING)
        for name in done.slow_measures:
            self._slow.add(name)
            self.bench.note("caution", text=f"the measure {name} {_SLOW}")
        if failure is not None:
            self._fail(arm, failure)
        return self._process_run(arm, order, done, real_ns=real_ns)

    def _take_seen(self, arm: str, done: Finished) -> Failure | None:
        """Keep what the first process of an arm had loaded, beside what its launcher found.

        Return why the arm must end where that is other software than before an interruption.
        """
        looked = self._looks.pop(arm, None)
        if looked is None or not done.fingerprint:
            return None
        seen = {**looked, **done.fingerprint}
        changed = self.bench.recorder.fingerprint(arm, seen, taken="step")
        return self.roster.refused(arm, changed)

    def _process_run(self, arm: str, order: int, done: Finished, *, real_ns: int) -> ProcessRun:
        return ProcessRun(
            cell=self.bench.cell,
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

    def _failure(self, worker: Worker, done: Finished, limit_s: float) -> Failure | None:
        """Say why a process gave no time; None for one that ended well or as the budget did."""
        if done.is_late:
            return self._late(worker, limit_s)
        if done.exit_code == 0:
            return None
        brief, hint = f"the command ended with exit code {done.exit_code}", _EXIT_HINT
        if done.signal:
            brief, hint = f"the command was killed by {done.signal}", _SIGNAL_HINT
        return Failure(
            phase="process" if done.signal else "step",  # a signal may come from outside
            brief=f"{worker.arm}: {brief}",
            details=worker.tail(),
            hint=hint,
            exit_code=done.exit_code,
            log=worker.log_name,
        )

    def _late(self, worker: Worker, limit_s: float) -> Failure | None:
        own = limit_s == self.program.timeout_s
        self._is_spent = not own
        if not own and any(run.arm == worker.arm and run.status == "ok" for run in self.runs):
            return None
        budget_s = self.bench.design.budget_s
        what = "its limit" if own else f"what was left of the budget of {budget_s:g} s"
        return Failure(
            phase="step",
            brief=f"{worker.arm}: the command did not end within {what} ({limit_s:.0f} s) and was "
            "killed",
            details=worker.tail(),
            hint="raise --command-timeout" if own else "raise --budget, or give it less to do",
            log=worker.log_name,
        )

    def _fail(self, arm: str, failure: Failure) -> None:
        self.bench.check_interruption()
        self.roster.fail(arm, failure)


_SLOW = (
    "is not measured: the expression took longer than 5 s on one line; the times stay valid: give "
    "it no repetition inside a repetition"
)
_LEAVING = (
    "the command leaves processes running when it ends; what they do is in no number, and they are "
    "killed: let it wait for them"
)
_EXIT_HINT = (
    "read its log; containers have no network, and see the command's folder read-only: write to "
    "$HOME or /tmp"
)
_SIGNAL_HINT = "read its log; where memory ran out give it less to do"
