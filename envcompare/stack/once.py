"""What is made on this machine for all hosts is made once, however many are prepared at a time."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def one_at_a_time(make: Callable[P, R]) -> Callable[P, R]:
    """Let the threads of this process make one after another; a later one finds what was made."""
    lock = threading.Lock()

    @functools.wraps(make)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with lock:
            return make(*args, **kwargs)

    return wrapped
