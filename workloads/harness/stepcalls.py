"""Steps that are calls of one function of the script, which the user names."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
from types import FrameType, FunctionType, ModuleType
from typing import Any, Callable, List, Optional

_LOOK_S = 0.002
_LATER_LOOK_S = 0.05  # of a process that has not called it for so long
_SOON_S = 60.0


class Calls:
    """Waits until the main thread calls the function MODULE:NAME, and ends a step with each call.

    The function is replaced wherever a module holds it, once it runs: by then the script has
    decorated or compiled it. NAME may lead through a class, as in `Trainer.step`.
    """

    def __init__(
        self, name: str, end: Callable[[int], None], refuse: Callable[[str], None]
    ) -> None:
        self._module, _, path = name.partition(":")
        self._path = path.split(".")
        self._end = end
        self._refuse = refuse
        self._main = threading.get_ident()
        self._is_inside = False
        self._is_begun = False  # the call that was running when it was found has ended
        self._ended_ns = time.monotonic_ns()

    def watch(self) -> None:
        """Look at what the main thread runs, in a thread that ends once the function is found."""
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        began_s = time.monotonic()
        try:
            while not (self._is_running(self._frame()) and self._replace()):
                is_soon = time.monotonic() - began_s < _SOON_S
                time.sleep(_LOOK_S if is_soon else _LATER_LOOK_S)
        except Exception as error:  # noqa: BLE001  of the script's own objects
            self._refuse(f"{self._module}:{'.'.join(self._path)} cannot be replaced: {error!r}")

    def _frame(self) -> Optional[FrameType]:
        return sys._current_frames().get(self._main)  # noqa: SLF001

    def _is_running(self, frame: Optional[FrameType]) -> bool:
        while frame is not None:
            is_named = frame.f_code.co_name == self._path[-1]
            if is_named and frame.f_globals.get("__name__") == self._module:
                return True
            frame = frame.f_back
        return False

    def _replace(self) -> bool:
        """Count its calls from now on; return whether there is something of that name."""
        owner: Any = sys.modules.get(self._module)
        for name in self._path[:-1]:
            owner = getattr(owner, name, None)
        held = inspect.getattr_static(owner, self._path[-1], None)
        if held is None:  # not yet, or it is of a function that runs
            return False
        function = held.__func__ if isinstance(held, (staticmethod, classmethod)) else held
        why = _unusable(function)
        if why:
            self._refuse(f"{self._module}:{'.'.join(self._path)} {why}")
        counting = self._counting(function)
        setattr(owner, self._path[-1], counting if held is function else type(held)(counting))
        modules: List[Any] = list(sys.modules.values())  # which may have imported it by its name
        for module in modules:
            # a module that is to be loaded later would be loaded by any other access
            if not isinstance(module, ModuleType):
                continue
            for name, value in list(object.__getattribute__(module, "__dict__").items()):
                if value is function:
                    setattr(module, name, counting)
        return True

    def _counting(self, function: Any) -> Any:  # noqa: ANN401  any callable
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            if self._is_inside or threading.get_ident() != self._main:
                return function(*arguments, **options)
            if not self._is_begun:
                if self._is_running(sys._getframe(1)):  # noqa: SLF001
                    return function(*arguments, **options)
                self._is_begun = True
            self._is_inside = True
            try:
                return function(*arguments, **options)
            finally:  # a call that raises is one as well
                self._is_inside = False
                now_ns = time.monotonic_ns()
                step_ns, self._ended_ns = now_ns - self._ended_ns, now_ns
                self._end(step_ns)

        return call


def _unusable(function: Any) -> str:  # noqa: ANN401  whatever the name stands for
    """Return why calls of what a name stands for are no steps; empty if they may be."""
    if not isinstance(function, FunctionType):
        return "is not a function that is written in Python"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "is asynchronous: its call returns before the work"
    if inspect.isgeneratorfunction(function):
        return "is a generator: its call returns before the work"
    return ""
