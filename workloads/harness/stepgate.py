"""The gate inside the user's script, which can hold it after each step until its next block.

A step ends with a call of an optimizer's `step`; with several optimizers, with the last call of
their cycle. The user may name another function instead. Nothing here imports torch.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.abc
import importlib.util
import itertools
import os
import socket
import sys
import threading
import time
import weakref
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Sequence, Tuple

from harness.attempts import attempt
from harness.blockclock import BlockClock
from harness.compiling import compilations
from harness.stepcalls import Calls
from harness.tasks import Tasks, end_offspring, wake_with_parent
from harness.wire import encode, parse_request, read_line

_MODULE = "torch.optim.optimizer"
SEVERAL = "several processes of the script take steps"
_HINT = "time whole processes: leave --lockstep and --step out"
_RESUMED = "torch_dynamo_resume_in_wrapper"
_OLD = "the script's PyTorch is older than 2.0 and cannot report steps"
_SKIPPED = 4  # steps (compilation, autotuning), besides the first, which shows the cycle
_KILLED_S = 30.0  # the worker kills it sooner, and the shell that would run the rest of the line
_SPIN_LIMIT_S = 0.3  # threads of OpenMP spin for 0.2 s (KMP_BLOCKTIME)
_SPIN_LOOK_S = 0.002
STEP_FILE = "step"
Describe = Callable[[], Dict[str, Any]]
_GRAPH = "the script replays a CUDA graph, whose steps cannot be seen"


def watch(folder: str, describe: Describe) -> None:
    """Connect to the socket in a folder once this process takes steps.

    `describe` returns the facts of this process. The file `step` in the folder names the function
    whose calls are the steps; if it is empty, those of optimizers are.
    """
    with open(os.path.join(folder, STEP_FILE), encoding="utf-8") as file:
        name = file.read()
    gate = Gate(folder, describe)
    if name:
        Calls(name, gate.pass_through, gate.refuse).watch()
    else:
        sys.meta_path.insert(0, _Finder(Steps(gate)))


@contextlib.contextmanager
def short_path(folder: str) -> Iterator[str]:
    """Give the path of the socket in a folder; one by its full name may be too long (unix(7))."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/gate"
    finally:
        os.close(fd)


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for the module of optimizers, which only then gets its hooks."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def find_spec(
        self,
        name: str,
        path: Optional[Sequence[str]],  # noqa: ARG002  Python passes it
        target: Optional[ModuleType] = None,  # noqa: ARG002
    ) -> Optional[ModuleSpec]:
        """Return the module's own spec, with a loader that adds the hooks."""
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._steps.attach(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class Steps:
    """Finds the ends of steps: calls of optimizers within each other, or of several, are one."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._outer: Optional[FrameType] = None  # of the outermost call
        self._numbers: Any = weakref.WeakKeyDictionary()  # an address may be given anew
        self._count = itertools.count()
        self._seen: List[int] = []
        self._last: Optional[int] = None
        self._thread = threading.get_ident()
        self._ended_ns = time.monotonic_ns()

    def attach(self, module: ModuleType) -> None:
        """Register hooks for all optimizers; PyTorch has them from 2.0 on."""
        os.register_at_fork(after_in_child=wake_with_parent)  # the others may be stopped
        if hasattr(module, "register_optimizer_step_post_hook"):
            module.register_optimizer_step_pre_hook(self.on_step_begin)
            module.register_optimizer_step_post_hook(self.on_step_end)
        else:
            self._gate.refuse(_OLD)

    def on_step_begin(self, *_: Any) -> None:  # noqa: ANN401  PyTorch's own
        """Note that a step of an optimizer begins."""
        if threading.get_ident() != self._thread:
            return
        # PyTorch calls both hooks of a step from one frame, its wrapper's.
        mine = sys._getframe(1)  # noqa: SLF001
        frame: Optional[FrameType] = mine
        while frame is not None and frame is not self._outer:
            frame = frame.f_back
        if frame is None:  # no call is open, or it has raised
            self._outer = mine

    def on_step_end(self, optimizer: Any, *_: Any) -> None:  # noqa: ANN401  as above
        """Pass the gate if this was the last optimizer of a step."""
        frame = sys._getframe(1)  # noqa: SLF001
        if threading.get_ident() != self._thread:
            return
        # after a break in its graph, a compiled wrapper goes on in another frame
        if frame is not self._outer and not frame.f_code.co_name.startswith(_RESUMED):
            return
        self._outer = None
        now_ns = time.monotonic_ns()
        if self._ends(self._numbers.setdefault(optimizer, next(self._count))):
            step_ns, self._ended_ns = now_ns - self._ended_ns, now_ns
            self._gate.pass_through(step_ns, self._work)
        elif self._last is None:
            self._ended_ns = now_ns

    def _work(self) -> Dict[str, Any]:
        """Return what is trained: the number of parameters, and the batches of all loaders."""
        groups = (group for one in list(self._numbers) for group in one.param_groups)
        data: Any = sys.modules.get("torch.utils.data")
        kind = getattr(data, "DataLoader", ())
        # `isinstance` would ask what a proxy stands for
        loaders = (one for one in gc.get_objects() if issubclass(type(one), kind))
        sizes = [getattr(one, "batch_size", None) for one in loaders]
        return {
            "parameters": sum(one.numel() for group in groups for one in group["params"]),
            "batch sizes of loaders": ", ".join(sorted(map(str, sizes))),
        }

    def _ends(self, optimizer: int) -> bool:
        if optimizer == self._last:
            self._seen.clear()
            return True
        if optimizer in self._seen:  # twice without the last one: this is another cycle
            self._last = self._seen[-1]
            self._seen.clear()
            return optimizer == self._last
        self._seen.append(optimizer)
        return False


# A compiled optimizer calls the hooks as they are.
_HOOKS: Tuple[Any, ...] = (Steps.on_step_begin, Steps.on_step_end)
for _hook in _HOOKS:
    _hook._torchdynamo_disable = True  # noqa: SLF001


class Gate:
    """Lets the program take as many steps as each request asks for, and times them."""

    def __init__(self, folder: str, describe: Describe) -> None:
        self._folder = folder
        self._describe = describe
        self._socket: Optional[socket.socket] = None
        self._is_open = False  # for good: another process of the program has the gate
        self._clock: Any = None
        self._tasks: Any = None
        self._steps = 0
        self._compiled = 0
        self._untimed = 0
        self._timed = 0
        self._stops = False
        self._outside: Dict[str, Any] = {}
        self._before: Dict[str, Any] = {}
        self._wall: List[int] = []
        self._cpu: List[int] = []
        self._events: List[Any] = []
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        if self._steps:
            self._is_open = True

    def pass_through(self, step_ns: int, work: Describe = dict) -> None:
        """Return at once within a turn; else wait for the next one.

        `step_ns` is the time since the end of the step before, with what the gate waited. `work`
        returns what must be the same in all lines.
        """
        if self._is_open:
            return
        self._steps += 1
        if self._socket is None:
            if self._steps > _SKIPPED:
                self._connect(step_ns, work)
            return
        self._refuse_graph()
        if self._untimed:
            self._untimed -= 1
            if self._untimed:
                return
            self._begin_block()
            return
        if self._record_step():
            self._wait()

    def _connect(self, step_ns: int, work: Describe) -> None:
        gate = _new_socket()
        try:
            with short_path(self._folder) as path:
                gate.connect(path)
            is_ours = read_line(gate.fileno()) is not None
        except (FileNotFoundError, ConnectionResetError, BrokenPipeError):
            is_ours = False
        except OSError as error:  # its worker is gone, or this user may not reach it
            self._say(f"the script is ended: its gate cannot be reached: {error!r}")
            self._leave()
        if not is_ours:
            gate.close()
            self._is_open = True
            return
        self._socket = gate
        os.register_at_fork(after_in_child=self._let_go)
        why = SEVERAL if _is_distributed() else _GRAPH if _captures() else _other_device()
        if why:
            self._send({"op": "gen", "ok": False, "why": why})
            self._leave()
        self._clock = BlockClock(cuda=False)
        self._tasks = Tasks(os.getpid(), pipe=gate.fileno())
        device = "cuda" if _cuda() else "cpu"
        found = attempt(work) or {}
        self._send({"op": "gen", "ok": True, "step_ns": step_ns, "device": device, "work": found})
        atexit.register(self._report_end)
        self._wait()

    def _report_end(self) -> None:
        """Tell that the script ends: the exit code of a line with a pipe is not its own."""
        if not self._is_open:
            self._send({"op": "over", "is_fault": hasattr(sys, "last_type")})

    def refuse(self, why: str) -> None:
        """Report why steps cannot be seen, and end, unless another process has the gate."""
        gate = _new_socket()
        with contextlib.suppress(OSError), short_path(self._folder) as path:
            gate.connect(path)
            if read_line(gate.fileno()) is not None:
                self._socket = gate
                self._send({"op": "gen", "ok": False, "why": why})
                self._leave()
        gate.close()

    def _let_go(self) -> None:
        """Leave the gate to the process that has forked; a stopped fork goes on if that dies."""
        wake_with_parent()
        self._is_open = True
        if self._socket is not None:
            self._socket.close()

    def _leave(self) -> NoReturn:
        # A nonzero code also ends a line that continues with `&&`.
        end_offspring()
        os._exit(1)

    def _wait(self) -> None:
        """Answer requests until one asks for steps."""
        while True:
            request = self._receive()
            if request["op"] == "run":
                self._outside = {"is_stopped": self._tasks.is_stopped, **self._tasks.begin()}
                self._tasks.resume()
                self._stops = request.get("stops") is True
                self._untimed, self._timed = request.get("run_in", 0), request["k"]
                if not self._untimed:
                    self._begin_block()
                return
            facts = attempt(self._describe) or {} if request["op"] == "facts" else {}
            self._send({"op": request["op"], "ok": True, "steps": self._steps, "facts": facts})
            if request["op"] == "end":
                self._tasks.resume()
                time.sleep(_KILLED_S)
                self._leave()

    def _begin_block(self) -> None:
        cuda = _cuda()
        if cuda is not None:
            cuda.synchronize()
            self._events = [cuda.Event(enable_timing=True) for _ in range(self._timed + 1)]
        self._compiled = compilations()
        self._before = self._clock.read()
        if cuda is not None:
            self._events[0].record()
        self._wall, self._cpu = [time.monotonic_ns()], [time.process_time_ns()]

    def _record_step(self) -> bool:
        """Record the end of a step; return whether it was the last of the block."""
        cuda = _cuda() if self._events else None
        if cuda is not None:
            self._events[len(self._wall)].record()
            if len(self._wall) == self._timed:
                cuda.synchronize()
        self._wall.append(time.monotonic_ns())
        self._cpu.append(time.process_time_ns())
        if len(self._wall) <= self._timed:
            return False
        fields = self._clock.fields(self._before, self._wall, self._cpu)
        if cuda is not None:
            pairs = zip(self._events, self._events[1:])
            fields["gpu_ns"] = [round(a.elapsed_time(b) * 1e6) for a, b in pairs]
        self._events = []
        fields["compilations"] = compilations() - self._compiled
        python = fields.pop("python")
        if self._stops:
            self._tasks.stop()  # first, so that children make nothing during the rest
        if (fields["threads"] or 2) > 1:
            _await_rest()
        ended = self._tasks.end(python)
        self._send({"op": "run", "ok": True, **fields, **self._outside, **ended})
        return True

    def _refuse_graph(self) -> None:
        if _captures():
            error = {"phase": "step", "step": None, "brief": _GRAPH, "traceback": "", "hint": _HINT}
            self._send({"op": "run", "ok": False, "error": error})
            self._leave()

    def _receive(self) -> Dict[str, Any]:
        assert self._socket is not None
        try:
            line = read_line(self._socket.fileno())
        except OSError as error:  # or one that a handler of a signal raised
            self._say(f"the script is ended: its gate cannot be read: {error!r}")
            self._leave()
        if line is None:  # the worker has gone
            self._leave()
        return parse_request(line)

    def _send(self, reply: Dict[str, Any]) -> None:
        assert self._socket is not None
        try:
            self._socket.sendall(encode(reply))
        except OSError as error:
            self._say(f"the script is ended: its gate cannot be written: {error!r}")
            self._leave()

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # of the script, which may have closed it
            os.write(2, f"envcompare: {text}\n".encode())


def _new_socket() -> socket.socket:
    gate = socket.socket(socket.AF_UNIX)
    gate.settimeout(None)  # the script may have set another default
    return gate


def _await_rest() -> None:
    """Wait until threads of this process no longer spin, which would slow other arms' turns."""
    until_s = time.monotonic() + _SPIN_LIMIT_S
    while time.monotonic() < until_s:
        used_ns = time.process_time_ns()
        time.sleep(_SPIN_LOOK_S)
        if time.process_time_ns() - used_ns < _SPIN_LOOK_S * 1e9 / 4:
            return


def _is_distributed() -> bool:
    """Return whether several processes train together."""
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        return True
    ranks: Any = sys.modules.get("torch.distributed")
    if ranks is None or not ranks.is_available() or not ranks.is_initialized():
        return False
    return bool(ranks.get_world_size() > 1)


def _other_device() -> str:
    """Return why steps of a device that is no GPU cannot be timed; empty if there is none."""
    torch: Any = sys.modules.get("torch")
    for name in ("xpu", "npu", "hpu", "musa"):
        if getattr(getattr(torch, name, None), "is_initialized", bool)():
            return f"the script computes on {name}, for which envcompare cannot wait"
    if "torch_xla" in sys.modules:
        return "the script computes by XLA, for which envcompare cannot wait"
    return ""


def _captures() -> bool:
    cuda = _cuda()
    return cuda is not None and bool(cuda.is_current_stream_capturing())


def _cuda() -> Any:  # noqa: ANN401  a module of torch, which is never imported here
    """Return torch.cuda if the program uses it; else None."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None
