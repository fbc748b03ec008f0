"""The start of a worker that is profiled: a tool around it may fall before the worker is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from envcompare.errors import WorkloadError
from envcompare.measure.profilelimits import BEGIN_LIMIT_S, FIRST_BEGIN_LIMIT_S
from envcompare.measure.protocol import Hello
from envcompare.measure.worker import LaunchSpec, Worker

# nsys 2022.4 now and then loses its own semaphore as it starts ("sem_open: No such file or
# directory" in ProcessWaiter), or waits for its agent for ever: 2 and 1 of 66 starts of Debian's
# build on a busy machine, whatever it is to start.
TOOL_STARTS = 3


@contextmanager
def started(
    launch: Callable[[], Worker],
    spec: LaunchSpec,
    *,
    starts: int = 1,
) -> Iterator[tuple[Worker, Hello]]:
    """Give a worker that has said hello, and end it and what is around it afterwards.

    Where its process ends or is silent instead, it is started anew, `starts` times in all; each is
    ended with what it leaves, as nsys leaves an agent. Raises WorkloadError where it does not come
    up, TransportError when the host is lost.
    """
    for further in reversed(range(starts)):
        worker = launch()
        try:
            worker.send_hello(spec)
            try:
                hello = worker.await_hello(FIRST_BEGIN_LIMIT_S if further else BEGIN_LIMIT_S)
            except WorkloadError as error:
                if further and error.phase == "process":
                    continue
                raise
            yield worker, hello
            return
        finally:
            worker.kill()
