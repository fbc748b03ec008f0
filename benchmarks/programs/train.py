"""A training run as a user would time it: imports, data, some steps, the end.

Called as `train.py WORKLOADS DATA STEPS`. Everything that is no step, imports above all, is slowed
by SLOWDOWN as well, at the end, so that the whole process has one true ratio.
"""

import sys
import time

WORKLOADS, DATA, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.path.insert(0, WORKLOADS)

import torch  # noqa: E402

from slowed import SHARE, Slowed, compute_until  # noqa: E402


def main() -> None:
    """Train, then slow down what was no step."""
    torch.set_num_threads(1)
    model = Slowed(**Slowed.PARAMS)
    model.load(DATA)
    model.setup(1, "cpu")
    began_ns = time.thread_time_ns()
    for _ in range(STEPS):
        model.step()
    steps_ns = time.thread_time_ns() - began_ns
    other_ns = time.thread_time_ns() - steps_ns
    compute_until(time.thread_time_ns() + other_ns * SHARE)


if __name__ == "__main__":
    main()
