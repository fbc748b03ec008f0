"""Turns on a kernel: what is measured is alone there, and the others wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import pytest

from envcompare.errors import InterruptedRunError, Interruption
from envcompare.runner import KernelTurns

_WAIT_S = 20.0


@dataclass
class Work:
    """Something that holds a turn until it is let go."""

    turn: AbstractContextManager[None]
    begun: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Take the turn and hold it."""
        with self.turn:
            self.begun.set()
            assert self.let_go.wait(_WAIT_S)


@pytest.fixture
def turns() -> KernelTurns:
    """Give the turns of a run that nobody stops."""
    return KernelTurns(here="here", interruption=Interruption())


@pytest.fixture
def begin() -> Iterator[Callable[[AbstractContextManager[None]], Work]]:
    """Begin works in threads, and end all of them."""
    works: list[Work] = []
    with ThreadPoolExecutor(8) as pool:

        def start(turn: AbstractContextManager[None]) -> Work:
            works.append(Work(turn))
            pool.submit(works[-1].run)
            return works[-1]

        yield start
        for work in works:
            work.let_go.set()


Begin = Callable[[AbstractContextManager[None]], Work]


def test_hosts_of_one_kernel_are_prepared_at_once(turns: KernelTurns, begin: Begin) -> None:
    """Preparing disturbs nothing that is prepared."""
    assert begin(turns.preparing("k")).begun.wait(_WAIT_S)
    assert begin(turns.preparing("k")).begun.wait(_WAIT_S)


def test_other_kernels_are_measured_at_once(turns: KernelTurns, begin: Begin) -> None:
    """Neither a measured nor a prepared host keeps one with another kernel waiting."""
    assert begin(turns.preparing("a")).begun.wait(_WAIT_S)
    assert begin(turns.measuring("b")).begun.wait(_WAIT_S)
    assert begin(turns.measuring("c")).begun.wait(_WAIT_S)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            ("measuring", "here"),
            ("measuring", "there"),
        ),  # lines of a worker elsewhere cost time here
        (("measuring", "there"), ("measuring", "here")),
        (("preparing", "k"), ("measuring", "k")),
        (("measuring", "k"), ("measuring", "k")),
        (("measuring", "k"), ("preparing", "k")),  # a host that is reached late disturbs nothing
    ],
)
def test_what_is_measured_is_alone_on_its_kernel_and_its_controllers(
    turns: KernelTurns, begin: Begin, first: tuple[str, str], second: tuple[str, str]
) -> None:
    """What comes later waits until the first is over."""
    before = begin(getattr(turns, first[0])(first[1]))
    assert before.begun.wait(_WAIT_S)
    after = begin(getattr(turns, second[0])(second[1]))
    assert not after.begun.wait(0.3)
    before.let_go.set()
    assert after.begun.wait(_WAIT_S)


def test_waiting_ends_when_the_user_stops(turns: KernelTurns, begin: Begin) -> None:
    """Ctrl-C does not wait for another host."""
    assert begin(turns.measuring("k")).begun.wait(_WAIT_S)
    turns.interruption.request()
    with pytest.raises(InterruptedRunError), turns.measuring("k"):
        pass
