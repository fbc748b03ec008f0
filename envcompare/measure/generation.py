"""The generation of a restart: one model in every arm, the rounds that it runs, and marked ones.

Marked rounds, in which phases and operators are timed, come after the others, so that nothing of
the marks is left in what a verdict rests on; all arms take turns in them as in the others.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import msgspec
from msgspec.structs import asdict, replace

from envcompare.errors import InterruptedRunError
from envcompare.measure import Generated, Hello, Ran, shuffled
from envcompare.measure.cell import CellContext
from envcompare.measure.limits import (
    BLOCK_S,
    LOOP_S,
    MIN_STEPS,
    MOST_SETTLING_S,
    QUOTA_BLOCK_S,
    QUOTA_RUN_IN_S,
    SHORT_BLOCK_S,
    SHORT_TURNS,
    STOPPED_BLOCK_S,
    WORK_DURING_TURNS,
    HeldWaits,
    Settling,
    SlowerBlock,
    block_limit_s,
    has_quota,
    limit_s,
    longest_wait_s,
    may_wait,
    run_in_steps,
    slower_block,
    steps_a_block,
    stopped_block_s,
    too_long,
    works_outside,
)
from envcompare.measure.worker import OWN_CPU, PLAIN_TURN, Turn, Worker
from envcompare.measure.workers import CellWorkers, Launches
from envcompare.run_folder import CALIBRATION, RUN_IN_S, SETTLED, STEP_S, STEPS, STOPS
from envcompare.run_folder.records import (
    Block,
    Failure,
    MarkedBlock,
    Memory,
    OperatorTimes,
    Scalar,
    StepPhase,
)
from envcompare.text import counted

_CALIBRATION_STEPS = 4
# The first pilot block uses up what was made ahead, so only the second one is a measure.
_STOPPED_PILOTS = 2
_LEAST_PILOT_STEPS = 2
_WARMUP = -1
# The bundled workloads settle within three steps on a CPU, and a GPU has to raise its clocks.
_WARMUP_S, _GPU_WARMUP_S = 0.1, 0.3
# Reading both clocks takes 0.5 to 1 µs, up to a tenth of such a step.
_MIN_STEP_S = 10e-6
# The pad moves what is allocated after it, so that no generation owes its speed to one lucky layout
# of memory.
_MAX_PAD_BYTES = 1 << 20
_MARKED_SHARE = 0.13  # of what a restart measures
MARKED = "phases"
# Marked blocks have so many times fewer steps: more rounds say more than longer ones.
_FEWER_STEPS = 4
_MARKED_START_S = 5.0
_Phases = dict[StepPhase, OperatorTimes]


@dataclass(slots=True)
class Tuning:
    """How the arms of a cell take turns: found in its first generation, used in all."""

    steps: int | None = None  # in a block; None: not calibrated yet
    block_s: float = 0.0  # of the reference, as calibrated
    slower: dict[str, SlowerBlock] = field(default_factory=dict)
    stops: bool = False  # what an arm has started, while others have their turns
    can_stop: bool = True  # there is room in the budget for rounds that stop
    run_in_s: float = 0.0  # of untimed steps in each turn, as `run_in_steps` takes it
    calibration: int = 0  # one higher each time that turns were too short
    settling: Settling = field(default_factory=Settling)
    held: HeldWaits = field(default_factory=HeldWaits)

    @classmethod
    def of(cls, noted: Mapping[str, float], arms: Iterable[str]) -> Tuning:
        """Return what was noted before an interruption."""
        steps = noted.get(STEPS)
        slower = {
            arm: SlowerBlock(steps=int(fewer), step_s=noted.get(f"{STEP_S} {arm}", math.inf))
            for arm in arms
            if (fewer := noted.get(f"{STEPS} {arm}"))
        }
        return cls(
            steps=None if steps is None else int(steps),
            block_s=(steps or 0) * noted.get(STEP_S, 0.0),
            slower=slower,
            stops=bool(noted.get(STOPS)),
            run_in_s=noted.get(RUN_IN_S, 0.0),
            settling=Settling(is_settled=bool(noted.get(SETTLED, True))),
            calibration=int(noted.get(CALIBRATION, 0)),
        )

    @property
    def step_s(self) -> float:
        """Return how long a step of the reference takes."""
        return self.block_s / (self.steps or MIN_STEPS)

    @property
    def values(self) -> dict[str, Scalar]:
        """Return what is noted of a calibration."""
        noted: dict[str, Scalar] = {STEPS: self.steps or MIN_STEPS, STEP_S: self.step_s}
        for arm, block in self.slower.items():
            noted |= {f"{STEPS} {arm}": block.steps, f"{STEP_S} {arm}": block.step_s}
        noted |= {STOPS: self.stops, RUN_IN_S: self.run_in_s}
        return noted | {SETTLED: self.settling.is_settled, CALIBRATION: self.calibration}


@dataclass(slots=True)
class Generation:
    """The generation of a restart; the turns are calibrated when it has run."""

    workers: CellWorkers
    restart: int
    hellos: dict[str, Hello]
    launches: Launches
    tuning: Tuning
    keep: Callable[[Block], None]
    is_enough: Callable[[float | None], bool]
    forget: Callable[[float, str], bool]  # all rounds, if others of such seconds have room
    marking: Marking
    marked_s: float = 0.0
    _holds: bool = False  # all arms of a round on one CPU
    _works_outside: bool = False  # some arm, as the last round has shown
    _done: Counter[str] = field(default_factory=Counter)  # steps of each arm
    _recorded: Counter[str] = field(default_factory=Counter)  # of these, in blocks that count
    _checksums: dict[str, float | None] = field(default_factory=dict)
    _first_step_s: float = 0.0  # the longest of all arms
    _wanted_s: float = 0.0  # how long a block should last; 0: nothing is calibrated here

    @property
    def context(self) -> CellContext:
        """Return the cell that is measured."""
        return self.workers.context

    @property
    def _threads(self) -> int:
        """Return how many threads a step was given; 1 where each arm has its own number."""
        return self.context.design.threads or 1

    @property
    def _block_limit_s(self) -> float:
        """Return how long to wait for a block, whose steps were calibrated or are chosen."""
        steps = self.context.design.steps or MIN_STEPS
        return self.context.turn_limit_s(max(BLOCK_S, steps * self._first_step_s))

    def run(self) -> None:
        """Run all that follows `begin`; an arm that fails ends the generation for every arm.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        self.workers.compare_checksums(self._checksums)
        arms = self.workers.arms
        if self.tuning.steps is None:
            self._calibrate()
        rounds_s = 0.0
        try:
            if self._can_measure():
                self._run_round(_WARMUP)
                if self._works_outside and self.tuning.can_stop and not self.tuning.stops:
                    self._stop_from_now()
                elif self._wanted_s:
                    self._begin_settling()
                if self._wanted_s:
                    self._note_calibration()
                # A line may end within the rounds, so it is looked at before them.
                if self.context.is_line:
                    self.workers.look_around()
            rounds_s = self._run_rounds(arms)
        except InterruptedRunError:
            # A second Ctrl-C has killed the workers, which answer no more.
            if not self.context.interruption.is_forced:
                # Without this look, what was measured is lost on resume.
                self.workers.look_around(is_last=True)
            raise
        self.workers.look_around()
        if self.tuning.steps is not None and self.workers.arms == arms:
            self._run_marked(rounds_s)
        self._end()

    def _run_rounds(self, arms: tuple[str, ...]) -> float:
        """Run rounds until they are enough; return the seconds of those that count."""
        number, round_s, all_s = 0, None, 0.0
        while self.workers.arms == arms and self._can_measure() and not self.is_enough(round_s):
            began = time.monotonic()
            self._run_round(number)
            round_s = time.monotonic() - began
            number, all_s = number + 1, all_s + round_s
            if self.tuning.settling.is_due and self._must_settle():
                number, round_s, all_s = 0, None, 0.0
        return all_s

    def _run_marked(self, rounds_s: float) -> None:
        """Run marked rounds for their share of the time, `rounds_s` being that of the others.

        The first one is discarded: the profiler starts in it.
        """
        began = time.monotonic()
        context, arms = self.context, self.workers.arms
        wanted_s = min(rounds_s * self.marking.share / (1 - _MARKED_SHARE), context.remaining_s)
        steps = {arm: max(1, self._steps_of(arm) // _FEWER_STEPS) for arm in arms}
        most = max(steps.values(), default=1)
        number, round_s = _WARMUP, most * self.tuning.step_s * len(arms)
        while self.marking.share and self.workers.arms == arms:
            spent_s = time.monotonic() - began
            if spent_s + round_s > wanted_s:
                if not self.marking.is_settled:
                    what = f"a round of {counted(most, 'step')} in each arm"
                    text = f"{what} takes {round_s:.1f} s: give a longer --budget"
                    context.note("not-marked", text=text)
                self.marking.is_settled = True
                break
            blocks = self._marked_round(number, steps)
            for place, (arm, phases) in enumerate(blocks.items() if number >= 0 else ()):
                block = MarkedBlock(
                    cell=context.cell,
                    arm=arm,
                    restart=self.restart,
                    generation=0,
                    round=number,
                    order=place,
                    k=steps[arm],
                    phases=phases,
                    calibration=self.tuning.calibration,
                )
                context.recorder.sample(block)
            round_s = time.monotonic() - began - spent_s
            self.marking.is_settled |= number >= 0
            number += 1
        self.marked_s = time.monotonic() - began

    def _marked_round(self, number: int, steps: Mapping[str, int]) -> dict[str, _Phases]:
        """Return what each arm took, nothing where one could not tell: then no arm is marked."""
        most = max(steps.values(), default=1)
        longest_s = block_limit_s(limit_s(_MARKED_START_S, most, self.tuning.step_s))
        by_arm: dict[str, _Phases] = {}
        cpu = OWN_CPU if self._holds else None
        for arm in self._order(f"marked {number}"):
            ask = partial(
                Worker.profile,
                kind=MARKED,
                steps=steps[arm],
                out="",
                limit_s=longest_s,
                cpu=cpu,
                turn=self._turn(arm, f"marked {number}"),
            )
            reply = self.workers.ask(arm, ask)
            if reply is None:
                return {}
            cpu = reply.cpu if self._holds else None
            self.marking.reason = reply.reason
            try:
                if not reply.reason:
                    by_arm[arm] = msgspec.convert(reply.values.get("parts"), _Phases)
            except msgspec.ValidationError as error:
                self.marking.reason = f"what {arm} answered is not understood: {error}"
            if self.marking.reason:
                self.context.note("not-marked", arm=arm, text=self.marking.reason)
                return {}
        return by_arm

    def _can_measure(self) -> bool:
        return self.tuning.steps is not None and self.context.reference in self.workers.arms

    def _order(self, purpose: str) -> tuple[str, ...]:
        return shuffled(self.workers.arms, self._seed(purpose))

    def _seed(self, purpose: str) -> int:
        return self.context.seed_of(purpose, self.restart, self.tuning.calibration)

    def begin(self) -> float:
        """Build the model in every arm, one after the other if the launch is timed.

        Return the seconds of first steps that compiled models again. Raises as `run` does.
        """
        order = self._order("begin")
        began: dict[str, Generated] = {}
        if self.launches.are_due:
            for number, arm in enumerate(order):
                self._send_begin(arm)
                hello = self.hellos[arm]
                generated = self.launches.train(
                    self.workers, arm, hello, repetition=self.restart, order=number
                )
                if generated is not None:
                    began[arm] = generated
        else:
            limit_s = self.context.begin_limit_s
            for arm in order:
                self._send_begin(arm)
            began = self.workers.collect(order, lambda worker: worker.await_begin(limit_s))
            for arm, generated in began.items():
                failure = too_long(arm, generated, self.context.design)
                if failure is not None:
                    self.workers.drop(arm, failure)
        self._checksums = {arm: generated.checksum for arm, generated in began.items()}
        steps_ns = (generated.first_step_ns for generated in began.values())
        self._first_step_s = max(steps_ns, default=0) / 1e9
        compiling_ns = [one.first_step_ns for one in began.values() if one.compiled]
        in_turns = self.launches.are_due  # else all at the same time
        return (sum(compiling_ns) if in_turns else max(compiling_ns, default=0)) / 1e9

    def _send_begin(self, arm: str) -> None:
        seed, pad = self._seed("model") % 2**31, self._seed(f"pad {arm}") % _MAX_PAD_BYTES
        self.workers.tell(arm, partial(Worker.send_begin, seed=seed, pad=pad))

    def _calibrate(self) -> None:
        """Choose k on the reference so that a block lasts 20 ms; arms that are far slower do fewer.

        The warm-up, which has more steps, decides again which arms those are.
        """
        context = self.context
        self.tuning.stops, self.tuning.run_in_s = False, 0.0
        blocks: dict[str, Ran] = {}
        for arm in self._order("calibrate"):
            limit_s = self.context.turn_limit_s(_CALIBRATION_STEPS * self._first_step_s)
            ran = self.workers.ask(arm, _steps(_CALIBRATION_STEPS, limit_s))
            # Steps in which a model was compiled are no measure of the others.
            if ran is not None and ran.compilations:
                ran = self.workers.ask(arm, _steps(_CALIBRATION_STEPS, limit_s))
            if ran is not None:
                blocks[arm] = ran
        if context.reference not in blocks:
            return
        # the mean: a GPU waits in the last step
        step_s = _mean_s(blocks[context.reference])
        if any(ran.children for ran in blocks.values()):
            self._calibrate_stopped(step_s)
        else:
            self._take_steps(blocks, block_s=BLOCK_S)

    def _calibrate_stopped(self, step_s: float) -> None:
        """Choose k for turns between which arms are stopped; a step takes about `step_s` without.

        The turns are longer, by how long steps wait.
        """
        self.tuning.stops, self.tuning.run_in_s = True, 0.0
        # Blocks of stopped arms last at least 0.2 s, and long ones settle by themselves.
        self.tuning.settling.is_settled = True
        # at least some steps that nothing came for while all was stopped
        steps = max(_LEAST_PILOT_STEPS, steps_a_block(step_s, block_s=STOPPED_BLOCK_S))
        limit_s = self.context.turn_limit_s(steps * max(step_s, self._first_step_s))
        blocks: dict[str, Ran] = {}
        for number in range(_STOPPED_PILOTS):
            for arm in self._order(f"calibrate stopped {number}"):
                ran = self.workers.ask(arm, _steps(steps, limit_s, turn=Turn(run_in=1, stops=True)))
                if ran is not None:
                    blocks[arm] = ran
        if self.context.reference in self.workers.arms:
            self.tuning.run_in_s = longest_wait_s(blocks.values())
            block_s = stopped_block_s(
                self.tuning.run_in_s,
                _mean_s(blocks[self.context.reference]),
                children=max(ran.children or 0 for ran in blocks.values()),
                margin=self.context.design.margin,
            )
            self._take_steps(blocks, block_s=block_s)

    def _stop_from_now(self) -> None:
        """Stop arms between their turns; rounds before do not count, so it must be sure."""
        # In a later generation the rounds before are lost, so it has to be seen twice.
        if not self._wanted_s:
            is_seen = any(self._works(ran) for ran in self._loop("second sight").values())
            round_s = STOPPED_BLOCK_S * len(self.workers.arms)
            self.tuning.can_stop = not is_seen or self.forget(2 * round_s, WORK_DURING_TURNS)
            if not (is_seen and self.tuning.can_stop):
                return
            self._begin_again()
        self._calibrate_stopped(self.tuning.step_s)

    def _begin_settling(self) -> None:
        """Compare the first rounds with a loop, where turns can be lengthened."""
        design = self.context.design
        is_fixed = design.steps is not None or design.rounds is not None
        is_on_gpu = any(hello.device == "cuda" for hello in self.hellos.values())
        if not (
            is_fixed or is_on_gpu or self.tuning.run_in_s or self.tuning.block_s > SHORT_BLOCK_S
        ):
            self.tuning.settling.begin()

    def _must_settle(self) -> bool:
        """Look whether rounds differ from a loop; tell whether they begin again, with longer turns.

        A look takes at most a quarter of what is left of the budget; else there is none.
        """
        settling, arms = self.tuning.settling, self.workers.arms
        if settling.loops * LOOP_S * len(arms) > self.context.remaining_s / 4:
            settling.is_settled = True
            self._note_calibration()
            return False
        loops = [self._loop(f"loop {number}") for number in range(settling.loops)]
        design = self.context.design
        reference = self.context.reference
        if self.workers.arms != arms:
            return False
        wanted_s = settling.look(loops, reference=reference, margin=design.margin)
        if not wanted_s:
            if settling.is_settled:
                self._note_calibration()
            return False
        if self.tuning.run_in_s:
            wanted_s = MOST_SETTLING_S
        # There is no longer turn to try after the longest; after the shorter one, two more looks
        # follow.
        settling.is_settled = wanted_s == MOST_SETTLING_S
        settling.is_seen = False
        # untimed steps last 1.5 times as long on average
        if not self.forget(2.5 * wanted_s * len(arms), SHORT_TURNS):
            settling.is_settled = True
            self._note_calibration()
            return False
        self._begin_again()
        self.tuning.run_in_s = wanted_s
        self._take_steps(loops[-1], block_s=wanted_s)
        text = (
            f"after a pause an arm takes another time than in a loop: turns begin with "
            f"{wanted_s:g} s of untimed steps, and rounds before are discarded"
        )
        self._note_calibration(text)
        return True

    def _begin_again(self) -> None:
        self.tuning.calibration += 1
        self._recorded.clear()

    def _note_calibration(self, text: str = "") -> None:
        if self.tuning.steps is not None:
            self.context.note("calibrated", text=text, values=self.tuning.values)

    def _loop(self, purpose: str) -> dict[str, Ran]:
        """Return a long, discarded turn of each arm."""
        # A loop is held on a CPU as rounds are, so that only the pause differs.
        cpu = OWN_CPU if self._holds else None
        turns: dict[str, Ran] = {}
        for arm in self._order(purpose):
            steps = self._steps_in_loop(arm, LOOP_S)
            ran = self.workers.ask(arm, _steps(steps, self._block_limit_s, cpu=cpu))
            self._done[arm] += steps
            if ran is not None:
                turns[arm] = ran
                cpu = ran.cpu if ran.is_held else None
        return turns

    def _works(self, ran: Ran) -> bool:
        """Tell whether something of an arm may work while others have their turns."""
        is_one = self.context.design.threads == 1
        return works_outside(ran, threads=1 if is_one else max(self._threads, ran.running or 0))

    def _take_steps(self, blocks: Mapping[str, Ran], *, block_s: float) -> None:
        """Take the steps of a block from those of the reference, and fewer for slower arms.

        A block lasts longer if a quota is below the threads that ran.
        """
        threads = max(self._threads, *(ran.running or 0 for ran in blocks.values()))
        # A pause gives a quota its budget back: in short turns an arm would stay below one that
        # stops it in a loop.
        if has_quota(self.workers.roster.hellos.values(), threads=threads):
            block_s = max(block_s, QUOTA_BLOCK_S)
            self.tuning.run_in_s = max(self.tuning.run_in_s, QUOTA_RUN_IN_S)
        reference = self.context.reference
        step_s = _mean_s(blocks[reference])
        if step_s < _MIN_STEP_S:
            # The clock cannot tell such a step from the reading of the clock.
            failure = Failure(
                phase="step",
                brief=f"{reference}: a step takes {step_s * 1e6:.2g} µs, up to 1 µs of it for "
                "reading the clocks",
                hint="put more work into a step, for example 1000 rounds of what it does now",
            )
            self.workers.drop(reference, failure)
            return
        is_on_gpu = self.context.is_line and bool(blocks[reference].gpu_ns)
        fitting = steps_a_block(step_s, block_s=block_s, is_script_on_gpu=is_on_gpu)
        self.tuning.steps = self.context.design.steps or fitting
        self.tuning.block_s, self._wanted_s = self.tuning.steps * step_s, block_s
        for arm, ran in blocks.items():
            self._shorten(arm, ran)

    def _shorten(self, arm: str, ran: Ran) -> None:
        """Let an arm do fewer steps in a block where it is far slower than the reference."""
        is_fixed = self.context.design.steps or self.context.is_line  # the same steps of a script
        if not self._wanted_s or is_fixed or arm == self.context.reference or ran.compilations:
            return
        self.tuning.slower.pop(arm, None)
        # A slow step of four must not change k: a short block of a CPU is judged by its shortest
        # step.
        is_long = ran.gpu_ns or self._wanted_s > BLOCK_S
        step_s = _mean_s(ran) if is_long else min(ran.wall_ns) / 1e9
        block = slower_block(self.tuning.steps or MIN_STEPS, step_s, block_s=self._wanted_s)
        if block is not None:
            self.tuning.slower[arm] = block

    def _steps_of(self, arm: str) -> int:
        slower = self.tuning.slower.get(arm)
        return slower.steps if slower else self.tuning.steps or MIN_STEPS

    def _steps_in_loop(self, arm: str, wanted_s: float) -> int:
        """Return how many whole blocks of an arm, or steps of a far slower one, last so long."""
        slower, steps = self.tuning.slower.get(arm), self.tuning.steps or MIN_STEPS
        if slower:
            return slower.warmup_steps(wanted_s)
        return steps * max(1, round(wanted_s / max(self.tuning.block_s, 1e-9)))

    def _turn(self, arm: str, purpose: str) -> Turn:
        """Return the turn of an arm, with as many untimed steps as the others if its block has."""
        slower = self.tuning.slower.get(arm)
        step_s = slower.step_s if slower else self.tuning.step_s
        share = self._seed(f"run-in {purpose}") % 1000 / 1000
        run_in = run_in_steps(self.tuning.run_in_s, step_s, share=share, stops=self.tuning.stops)
        return Turn(run_in=run_in, stops=self.tuning.stops)

    def _run_round(self, number: int) -> None:
        cpu = OWN_CPU if self._holds else None
        design, hellos = self.context.design, self.workers.roster.hellos
        # CPUs differ in the interrupts that they serve and in their neighbours, so the arms of a
        # round run on the same one where that changes nothing else (docs/measurement.md).
        can_hold = design.same_cpu and design.threads == 1
        can_hold = can_hold and have_like_cpus(hellos[arm] for arm in self.workers.arms)
        warmup_s = _GPU_WARMUP_S if self.context.has_gpu else _WARMUP_S
        is_warmup = number == _WARMUP
        blocks: dict[str, Ran] = {}
        for order, arm in enumerate(self._order(f"round {number}")):
            steps = self._steps_in_loop(arm, warmup_s) if is_warmup else self._steps_of(arm)
            turn = self._turn(arm, str(number))
            began = time.monotonic()
            ran = self.workers.ask(arm, _steps(steps, self._block_limit_s, cpu=cpu, turn=turn))
            took_s = time.monotonic() - began
            if ran is None:
                self.context.note("round-dropped", arm=arm, text=f"round {number}")
                return
            blocks[arm] = ran
            if is_warmup:
                self._shorten(arm, ran)
            block = self._block(arm, ran, number, order=order, run_in=turn.run_in)
            block = self._checked(block, took_s)
            self.keep(block)
            self.context.recorder.sample(block)
            self._works_outside |= self._works(ran)
            # A block on one CPU is as it is without, if its only thread never gave the CPU up. A
            # kernel that reports no wait for a CPU, such as gVisor's, may ignore the affinity.
            is_alone = ran.threads == 1 and ran.voluntary_switches == 0 and ran.wait_ns is not None
            can_hold = can_hold and is_alone and (cpu is None or ran.is_held)
            cpu = ran.cpu if ran.is_held else None
        settling, held = self.tuning.settling, self.tuning.held
        if not is_warmup:
            settling.add(blocks)
        was_harmed = held.harm
        held.add(blocks, self.context.reference)
        if held.harm and not was_harmed:
            # The rounds so far were held and show nothing of a helper, so others are looked at.
            self._begin_settling()
        self._holds = can_hold and not held.harm

    def _checked(self, block: Block, took_s: float) -> Block:
        """Return the block, marked as dropped where its times cannot be true."""
        roster = self.workers.roster
        hello = roster.hellos.get(block.arm)
        cpus = ((hello.fingerprint if hello else None) or {}).get("cpu.affinity")
        count = len(cpus) if isinstance(cpus, tuple) else None  # None: it did not tell
        can_wait = may_wait(roster.context.spec)
        fault = roster.clocks.fault(block, cpus=count, took_s=took_s, may_wait=can_wait)
        if not fault:
            return block
        roster.context.note("round-dropped", arm=block.arm, text=f"round {block.round}: {fault}")
        return replace(block, status="dropped")

    def _block(self, arm: str, ran: Ran, number: int, *, order: int, run_in: int) -> Block:
        """Return what ran as a block, which warms up as well where a model was compiled in it."""
        times = asdict(ran)
        compilations = times.pop("compilations")
        del times["threads"]
        is_warmup = number == _WARMUP
        if compilations and not is_warmup:
            text = f"round {number}: torch.compile worked in it, {counted(compilations, 'time')}"
            self.context.note("round-dropped", arm=arm, text=text)
        # What ran since the last block that counts, such as a discarded loop.
        unrecorded = self._done[arm] - self._recorded[arm]
        self._done[arm] += run_in + len(ran.wall_ns)
        self._recorded[arm] = self._done[arm]
        return Block(
            cell=self.context.cell,
            arm=arm,
            restart=self.restart,
            generation=0,
            round=number,
            order=order,
            k=len(ran.wall_ns),
            run_in=run_in + unrecorded,
            calibration=self.tuning.calibration,
            checksum=self._checksums.get(arm),
            warmup=is_warmup or compilations > 0,
            **times,
        )

    def _end(self) -> None:
        for arm in self.workers.arms:
            self.workers.tell(arm, Worker.send_end)
        for arm, ended in self.workers.collect(self.workers.arms, Worker.await_end).items():
            peaks = asdict(ended)
            result = peaks.pop("result")
            if arm in self.workers.pool.served:
                # The peak of a control group is that of all cells which its worker has served.
                peaks["cgroup_peak_bytes"] = None
            memory = Memory(
                cell=self.context.cell,
                arm=arm,
                restart=self.restart,
                generation=0,
                **peaks,
            )
            self.context.recorder.sample(memory)
            if result:
                self.context.note("generation", arm=arm, values=result)


def _steps(
    count: int, limit_s: float, *, cpu: int | None = None, turn: Turn = PLAIN_TURN
) -> Callable[[Worker], Ran]:
    return lambda worker: worker.run(count, limit_s, cpu=cpu, turn=turn)


def have_like_cpus(hellos: Iterable[Hello]) -> bool:
    """Tell whether arms may use the same CPUs, each as near to all memory, and use no GPU."""
    found = [(hello.device, hello.fingerprint or {}) for hello in hellos]
    return (
        all(device == "cpu" and facts.get("numa.nodes") == 1 for device, facts in found)
        and len({facts.get("cpu.affinity") for _, facts in found}) == 1
    )


def _mean_s(ran: Ran) -> float:
    """Return the mean of the steps of a block: a GPU waits in the last one."""
    return sum(ran.wall_ns) / len(ran.wall_ns) / 1e9


@dataclass(slots=True)
class Marking:
    """The marked rounds of a cell; one reason why steps cannot be marked ends them for all arms."""

    is_wanted: bool
    reason: str = ""
    is_settled: bool = False  # a round that counts has run, or it was said that none has room

    @property
    def share(self) -> float:
        """Return which share of the measuring of a restart is for marked rounds."""
        return _MARKED_SHARE if self.is_wanted and not self.reason else 0.0
