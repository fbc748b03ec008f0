"""What a process and all that it has started do between two blocks, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "workloads"))

from harness import tasks
from harness.tasks import Tasks, adopt_orphans, end_offspring

FILLS = "import time\nwhile True: time.sleep(0.002)"
WAITS = "input()"
COMPUTES = "while True: pass"
# One that never stays: each forks the next and ends, in a session of its own.
# It ends by itself: whatever a test leaves of it would slow all that follow.
FLEES = (
    "import os, time\nlimit_s = time.monotonic() + 3\n"
    "while time.monotonic() < limit_s:\n    if os.fork(): os._exit(0)\n    os.setsid()"
)
OTHER_USER = 65534
# It starts a process as root and one as nobody, is nobody, and says what came of a stop.
AS_NOBODY = f"""
import os, subprocess, sys
sys.path.append(sys.argv[1])
from harness.tasks import Tasks
def sleep(user): return subprocess.Popen(["sleep", "60"], user=user, stdout=subprocess.DEVNULL)
other, own = sleep(0), sleep({OTHER_USER})
os.setresuid({OTHER_USER}, {OTHER_USER}, {OTHER_USER})
watched = Tasks(os.getpid())
watched.stop()
state = open(f"/proc/{{own.pid}}/stat").read().rpartition(")")[2].split()[0]
found = watched.is_stopped, watched.begin()["children"], state
watched.resume()
own.kill()
print(*found, other.pid, flush=True)
"""


def tasks_here(*, ranks: int = 1) -> Tasks:
    """Return what watches this process."""
    adopt_orphans()
    return Tasks(os.getpid(), ranks=ranks)


def without(before: set[int], read: Callable[[int], list[int]], process: int) -> list[int]:
    """Return what is read of a process but for what was there before."""
    return [one for one in read(process) if one not in before]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave out what other tests have left running in this process, and leave nothing."""
    started, listed = tasks.offspring, tasks._tasks
    before = {*started(os.getpid()), *listed(os.getpid())} - {os.getpid()}
    for name, read in (("offspring", started), ("_tasks", listed)):
        monkeypatch.setattr(tasks, name, partial(without, before, read))
    yield
    end_offspring()


@contextmanager
def child(source: str, *words: str) -> Iterator[None]:
    """Let a process of Python run during the body."""
    started = subprocess.Popen(
        [sys.executable, "-c", source, *words], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    time.sleep(0.2)
    try:
        yield
    finally:
        started.kill()
        started.communicate()


def between_blocks(watched: Tasks) -> dict[str, int | None]:
    """Return what is told at the start of the second block, a fifth of a second after the first."""
    watched.begin()
    watched.end([thread.native_id or 0 for thread in threading.enumerate()])
    time.sleep(0.2)
    return watched.begin()


def test_process_without_others_does_nothing_between_its_blocks() -> None:
    """What the stepping thread does itself is none of it."""
    found = between_blocks(tasks_here())
    assert found == {"children": 0, "outside_cpu_ns": 0, "outside_runs": 0}


def test_nothing_is_known_before_the_second_block() -> None:
    """None, not 0: nothing was measured."""
    assert tasks_here().begin() == {"children": 0, "outside_cpu_ns": None, "outside_runs": None}


@pytest.mark.parametrize("source", [FILLS, COMPUTES], ids=["sleeps in flight", "computes"])
def test_child_that_goes_on_between_blocks_is_seen(source: str) -> None:
    """One that sleeps and wakes again fills a queue as well as one that computes."""
    with child(source):
        found = between_blocks(tasks_here())
    assert found["children"] == 1
    assert (found["outside_runs"] or 0) + (found["outside_cpu_ns"] or 0) > 1


def test_child_of_a_shell_that_has_ended_is_still_a_child() -> None:
    """A server that was put into the background belongs to the process that started it."""
    watched = tasks_here()
    told = subprocess.run(
        ["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"],
        capture_output=True,
        text=True,
        check=True,
    )
    try:
        assert watched.begin()["children"] == 1
    finally:
        os.kill(int(told.stdout), 9)
        os.waitpid(int(told.stdout), 0)


@pytest.mark.parametrize("service", ["resource_tracker", "forkserver"])
def test_services_of_python_are_no_children(service: str) -> None:
    """They wait, whatever the workload does."""
    with child(WAITS, f"multiprocessing.{service}"):
        assert tasks_here().begin()["children"] == 0


def test_worker_of_the_fork_server_is_a_child() -> None:
    """It has the command line of the server that forked it, and fills the queue of a loader."""
    source = (
        "import multiprocessing, time\n"
        "context = multiprocessing.get_context('forkserver')\n"
        "context.Process(target=time.sleep, args=(60,)).start()\n"
        "time.sleep(60)"
    )
    with child(source):
        limit_s = time.monotonic() + 30
        counted = 0
        while counted < 2 and time.monotonic() < limit_s:
            counted = tasks_here().begin()["children"] or 0
            time.sleep(0.1)
        assert counted == 2  # the program and its worker, and neither server nor tracker


def test_ranks_that_step_together_are_no_children() -> None:
    """A child beyond those that the workload has declared is one."""
    with child(WAITS):
        assert tasks_here(ranks=2).begin()["children"] == 0
        with child(WAITS):
            assert tasks_here(ranks=2).begin()["children"] == 1


def in_thread(work: Callable[[threading.Event], object]) -> dict[str, int | None]:
    """Return what is told while another thread of this process works."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,))
    thread.start()
    time.sleep(0.2)
    try:
        return between_blocks(tasks_here())
    finally:
        done.set()
        thread.join()


def test_thread_that_wakes_between_blocks_is_seen() -> None:
    """It may fill a queue, though it uses hardly any time of a CPU."""

    def fill(done: threading.Event) -> None:
        while not done.wait(0.002):
            pass

    found = in_thread(fill)
    assert (found["outside_runs"] or 0) > 10
    assert found["children"] == 0


def test_thread_that_waits_all_the_time_is_not() -> None:
    """It has done nothing."""
    found = in_thread(lambda done: done.wait())
    assert (found["outside_cpu_ns"], found["outside_runs"]) == (0, 0)


def test_threads_that_run_in_a_block_are_counted() -> None:
    """A quota of CPUs is held against them."""
    with child(COMPUTES):
        watched = tasks_here()
        watched.begin()
        time.sleep(0.2)
        assert watched.end() == {"running": 2}


def test_kernel_that_tells_nothing_of_threads_still_tells_of_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As gVisor: no schedstat, and no list of children; what was used is not known, never 0."""
    content = tasks._content

    def told(path: str) -> bytes:
        return b"" if path.endswith(("/schedstat", "/children")) else content(path)

    monkeypatch.setattr(tasks, "_content", told)
    monkeypatch.setattr(tasks.os.path, "exists", lambda path: not path.endswith("/children"))
    with child(WAITS):
        found = between_blocks(tasks_here())
    assert found == {"children": 1, "outside_cpu_ns": None, "outside_runs": None}


def test_stopped_child_does_nothing_until_it_goes_on() -> None:
    """All its threads stand; what it does afterwards is seen again."""
    with child(FILLS):
        watched = tasks_here()
        watched.begin()
        watched.stop()
        assert watched.is_stopped
        watched.end()
        time.sleep(0.2)
        found = watched.begin()
        assert found == {"children": 1, "outside_cpu_ns": 0, "outside_runs": 0}
        watched.resume()
        assert not watched.is_stopped
        time.sleep(0.2)
        assert (watched.begin()["outside_runs"] or 0) > 10


@pytest.mark.parametrize("missed", [1, 2])
def test_child_that_was_started_after_a_look_is_stopped_too(
    monkeypatch: pytest.MonkeyPatch, missed: int
) -> None:
    """Its parent may start it after the last look and stand before its state is read."""
    offspring = tasks.offspring
    with child(WAITS), child(FILLS):
        parent, started = offspring(os.getpid())
        os.kill(parent, signal.SIGSTOP)
        os.waitpid(parent, os.WUNTRACED)  # until it stands
        looks = iter(([parent],) * missed)
        monkeypatch.setattr(
            tasks, "offspring", lambda process: next(looks, None) or offspring(process)
        )
        watched = tasks_here()
        watched.stop()
        assert watched.is_stopped
        assert tasks._is_stopped(started)


def test_child_that_goes_on_starting_others_is_stopped_with_them() -> None:
    """A tree that grows while it is stopped is looked at again until it stands."""
    source = (
        "import os, time\n"
        "for _ in range(40):\n"
        "    if os.fork() == 0: time.sleep(60); os._exit(0)\n"
        "    time.sleep(0.005)\n"
        "time.sleep(60)"
    )
    with child(source):
        watched = tasks_here()
        watched.stop()
        found = tasks.offspring(os.getpid())
        assert watched.is_stopped
        time.sleep(0.2)
        assert tasks.offspring(os.getpid()) == found
        for process in found[::-1]:
            os.kill(process, 9)


def test_process_is_stopped_with_its_threads_and_children_by_another() -> None:
    """What steps is a fork of the worker: nothing that is read takes time of its threads."""
    source = (
        "import subprocess, sys, threading, time\n"
        "subprocess.Popen([sys.executable, '-c', 'while True: pass'])\n"
        "threading.Thread(target=lambda: [time.sleep(0.002) for _ in range(30000)]).start()"
    )
    with child(source):
        (stepping, *_) = found = tasks.offspring(os.getpid())
        watched = Tasks(stepping)
        watched.begin()
        watched.stop()
        watched.end(tasks._tasks(stepping))
        assert all(map(tasks._is_stopped, found))
        time.sleep(0.2)
        assert watched.is_stopped
        assert watched.begin() == {"children": 1, "outside_cpu_ns": 0, "outside_runs": 0}
        watched.resume()
        time.sleep(0.2)
        assert (watched.begin()["outside_runs"] or 0) > 10
        end_offspring()


def test_child_that_never_stays_is_not_said_to_be_stopped() -> None:
    """It forks and ends faster than it is found, or stands: never neither."""
    with child(FLEES):
        watched = tasks_here()
        watched.begin()
        watched.stop()
        watched.end()
        time.sleep(0.1)
        found = watched.begin()
        time.sleep(3)
        end_offspring()  # what it has left to be waited for
        assert tasks.offspring(os.getpid()) == []
        # between its death and a look at its fork no child is there to be counted
        assert not watched.is_stopped or (found["children"], found["outside_runs"]) == (1, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_child_of_another_user_is_not_stopped_and_all_others_are() -> None:
    """As one that `sudo` starts: its arm is told to have a child that works."""
    words = [sys.executable, "-c", AS_NOBODY, str(Path(tasks.__file__).parents[1])]
    said = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    *found, other = said.stdout.split()
    os.kill(int(other), 9)
    assert found == ["False", "2", "T"]


def test_nothing_is_left_of_a_tree_that_is_stopped() -> None:
    """What is stopped does not end by itself; one that has lost its parent is killed too."""
    before = set(tasks.offspring(os.getpid()))
    with child("import os, time\nif os.fork(): os._exit(0)\nos.setsid()\ntime.sleep(60)"):
        watched = tasks_here()
        watched.stop()
        assert watched.is_stopped
        left = [
            one for one in set(tasks.offspring(os.getpid())) - before if not tasks._has_ended(one)
        ]
        assert left
        end_offspring(keeping=before)
        assert all(map(tasks._has_ended, left))
