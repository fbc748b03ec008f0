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
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "workloads"))

from harness import tasks
from harness.tasks import Tasks

FILLS = "import time\nwhile True: time.sleep(0.002)"
WAITS = "input()"
COMPUTES = "while True: pass"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what other tests have left running in this process."""
    used, _ = Tasks()._read()
    before, content, listed = set(used or ()), tasks._content, tasks._tasks

    def told(path: str) -> bytes:
        number = path.split("/")[2]
        return b"" if number.isdigit() and int(number) in before else content(path)

    def living(process: int) -> list[int]:
        return [] if process in before else [one for one in listed(process) if one not in before]

    monkeypatch.setattr(tasks, "_content", told)
    monkeypatch.setattr(tasks, "_tasks", living)


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
    watched.end()
    time.sleep(0.2)
    return watched.begin()


def test_process_without_others_does_nothing_between_its_blocks() -> None:
    """What the stepping thread does itself is none of it."""
    found = between_blocks(Tasks())
    assert found == {"children": 0, "outside_cpu_ns": 0, "outside_runs": 0}


def test_nothing_is_known_before_the_second_block() -> None:
    """None, not 0: nothing was measured."""
    assert Tasks().begin() == {"children": 0, "outside_cpu_ns": None, "outside_runs": None}


@pytest.mark.parametrize("source", [FILLS, COMPUTES], ids=["sleeps in flight", "computes"])
def test_child_that_goes_on_between_blocks_is_seen(source: str) -> None:
    """One that sleeps and wakes again fills a queue as well as one that computes."""
    with child(source):
        found = between_blocks(Tasks())
    assert found["children"] == 1
    assert (found["outside_runs"] or 0) + (found["outside_cpu_ns"] or 0) > 1


def test_child_of_a_shell_that_has_ended_is_still_a_child() -> None:
    """A server that was put into the background belongs to the process that started it."""
    watched = Tasks()
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
        assert Tasks().begin()["children"] == 0


def test_ranks_that_step_together_are_no_children() -> None:
    """A child beyond those that the workload has declared is one."""
    with child(WAITS):
        assert Tasks(processes=2).begin()["children"] == 0
        with child(WAITS):
            assert Tasks(processes=2).begin()["children"] == 1


def in_thread(work: Callable[[threading.Event], object]) -> dict[str, int | None]:
    """Return what is told while another thread of this process works."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,))
    thread.start()
    time.sleep(0.2)
    try:
        return between_blocks(Tasks())
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
        watched = Tasks()
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
        found = between_blocks(Tasks())
    assert found == {"children": 1, "outside_cpu_ns": None, "outside_runs": None}


def test_stopped_child_does_nothing_until_it_goes_on() -> None:
    """All its threads stand; what it does afterwards is seen again."""
    with child(FILLS):
        watched = Tasks()
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


def test_child_that_was_started_after_a_look_is_stopped_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its parent may start it after the look and stand before its state is read."""
    offspring = tasks.offspring
    with child(WAITS), child(FILLS):
        parent, started = offspring()
        os.kill(parent, signal.SIGSTOP)
        os.waitpid(parent, os.WUNTRACED)  # until it stands
        looks = iter(([parent],))
        monkeypatch.setattr(tasks, "offspring", lambda: next(looks, None) or offspring())
        watched = Tasks()
        watched.stop()
        assert watched.is_stopped
        assert tasks._stands(started)


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
        watched = Tasks()
        watched.stop()
        found = tasks.offspring()
        assert watched.is_stopped
        time.sleep(0.2)
        assert tasks.offspring() == found
        for process in found[::-1]:
            os.kill(process, 9)
