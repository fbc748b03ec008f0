"""Proofs: how lines are changed, what share of a gap that closes, and how the cause is found."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from envcompare.proof import Measured, Search
from envcompare.proof.levers import (
    PLACEBO,
    Change,
    Edit,
    changes,
    edited,
    image_change,
    option_changes,
)
from envcompare.report.wording.proofwords import proof_texts
from envcompare.run_folder.records import FactDifference, FingerprintValue, Proof
from envcompare.stats.shares import excess_of_share, share_closed

MANUAL = """
  -e, --env list         Set environment variables
      --rm               Remove the container
      --ulimit ulimit    Ulimit options
  -v, --volume list      Bind mount a volume
"""


def difference(
    key: str, fast: FingerprintValue, slow: FingerprintValue = "other"
) -> FactDifference:
    """Return a difference of two lines, of which the first is fast."""
    return FactDifference(
        host="local", arm="b", key=key, reference=fast, value=slow, fact_class="possible-influence"
    )


@pytest.mark.parametrize(
    ("line", "key", "expected"),
    [
        (
            "docker run --rm app x.py",
            ("limits.nofile", 1024),
            "docker run --rm --ulimit nofile=1024 app x.py",
        ),
        ("docker run app", ("limits.core", "unlimited"), "docker run --ulimit core=-1 app"),
        (
            "docker run  -v a:b app:2 sh -c 'a; b'",
            ("seccomp.mode", 0),
            "docker run  -v a:b --security-opt seccomp=unconfined app:2 sh -c 'a; b'",
        ),
        ("docker run app", ("cgroup.cpu_quota", "unlimited"), "docker run --cpus 0 app"),
        ("docker run app", ("cgroup.cpu_quota", 1.5), "docker run --cpus 1.5 app"),
        ("docker run app", ("container.network", None), "docker run --network host app"),
        ("docker run app", ("cpu.affinity", (0, 2)), "docker run --cpuset-cpus 0,2 app"),
        ("docker run app", ("threads.omp", 4), "docker run --env OMP_NUM_THREADS=4 app"),
        ("docker run app", ("env.LD_PRELOAD", None), "docker run --env LD_PRELOAD app"),
        (
            "docker run -e OMP_NUM_THREADS=1 app",
            ("threads.omp", 2),
            "docker run -e OMP_NUM_THREADS=2 --env OMP_NUM_THREADS=2 app",
        ),
        ("python x.py", ("limits.nofile", 1024), "ulimit -Sn 1024; python x.py"),
        ("python x.py", ("limits.stack", 8 << 20), "ulimit -Ss 8192; python x.py"),
        ("a && b", ("env.MALLOC_ARENA_MAX", "2"), "export MALLOC_ARENA_MAX=2; a && b"),
        (
            "docker run -e 'OMP_NUM_THREADS=1' a sh -c 'OMP_NUM_THREADS=1'",
            ("threads.omp", 2),
            "docker run -e 'OMP_NUM_THREADS=2' --env OMP_NUM_THREADS=2 a sh -c 'OMP_NUM_THREADS=2'",
        ),
        (
            "OMP_NUM_THREADS=1 python x.py",
            ("threads.omp", None),
            "unset OMP_NUM_THREADS; ENVCOMPARE_PLACEBO_OMP_NUM_THREADS= python x.py",
        ),
    ],
)
def test_line_takes_the_value_of_the_fast_one(
    line: str, key: tuple[str, FingerprintValue], expected: str
) -> None:
    """By an option, a command of the shell, or a variable; the rest stays as it is typed."""
    (change,) = changes([difference(*key)], cache="/c", is_engine=line.startswith("docker"))
    assert edited(line, change.edit, manual=MANUAL) == expected


def test_what_cannot_be_changed_has_no_lever() -> None:
    """And facts with one option have one lever."""
    keys = ("loaded_libraries", "container.storage", "seccomp.mode", "seccomp.filters")
    found = changes([difference(key, 0) for key in keys], cache="/c", is_engine=True)
    assert [one.key for one in found] == ["seccomp.mode"]
    assert found[0].cost == "the container may make every system call"
    assert changes([difference("seccomp.mode", 0)], cache="/c", is_engine=False) == []


def test_changes_are_applied_together() -> None:
    """With another image and byte code that is kept."""
    image = image_change("app:1", "app:2")
    (code,) = changes([difference("python.uncompiled", 0)], cache="/c", is_engine=True)
    line = edited("sudo docker run app:2 x.py", image.edit + code.edit + PLACEBO, manual=MANUAL)
    assert line == (
        "sudo docker run --volume /c:/envcompare-pycache --env "
        "PYTHONPYCACHEPREFIX=/envcompare-pycache --env PYTHONDONTWRITEBYTECODE "
        "--env ENVCOMPARE_PLACEBO=1 app:1 x.py"
    )
    assert image.mend("docker") == "docker run … app:1 …"


def test_options_in_which_lines_differ_are_changes() -> None:
    """Each as it is written, with what the shell makes of it."""
    fast = "docker run --rm -v $PWD:/w -e A=1 --ulimit nofile=1024 app x"
    slow = "docker run -v '/a b:/w' --rm -e A=1 -e B=2 app x --rm"
    found = option_changes(fast, slow, manual=MANUAL)
    assert [one.what for one in found] == [
        "-v '/a b:/w' → -v $PWD:/w",
        "-e B=2 is removed",
        "--ulimit nofile=1024 is added",
    ]
    assert [edited(slow, one.edit, manual=MANUAL) for one in found] == [
        "docker run  --rm -e A=1 -e B=2 -v $PWD:/w app x --rm",
        "docker run -v '/a b:/w' --rm -e A=1 app x --rm",
        "docker run -v '/a b:/w' --rm -e A=1 -e B=2 --ulimit nofile=1024 app x --rm",
    ]
    mends = [one.mend("docker") for one in found]
    assert mends == [
        "docker run -v $PWD:/w …",
        "leave -e B=2 out",
        "docker run --ulimit nofile=1024 …",
    ]
    assert option_changes("true", slow, manual=MANUAL) == []
    (host,) = option_changes("docker run --net=host app", "docker run app", manual=MANUAL)
    assert host.cost == "the container reaches every port of the host"


def test_share_of_a_gap_covers_the_truth() -> None:
    """In simulated rounds that share their noise, as rounds of one machine do."""
    covered = placebos = 0
    for seed in range(400):
        draw = random.Random(seed)
        units = []
        for _ in range(10):
            times = {"fast": 1.0, "slow": 1.5, "changed": 1.2, "placebo": 1.5}
            noise = draw.lognormvariate(0, 0.1)
            units.append({a: t * noise * draw.lognormvariate(0, 0.03) for a, t in times.items()})
        share = share_closed(units, fast="fast", slow="slow", changed="changed")
        assert share is not None
        covered += share.low <= 0.5503 <= share.high  # 1 - ln 1.2 / ln 1.5
        excess = excess_of_share(units, fast="fast", slow="slow", changed="placebo", placebo="slow")
        assert excess is not None
        placebos += excess.low > 0
    assert 366 <= covered <= 394  # 95 %, four standard errors
    assert placebos <= 22  # 2.5 %, four standard errors
    assert share_closed(units[:2], fast="fast", slow="slow", changed="changed") is None


def simulated(effects: dict[str, float], runs: list[list[str]]) -> Callable[..., Measured]:
    """Return what times lines by the words in them: a factor for each that a line has."""

    def measure(lines: dict[str, str], rounds: int | None, budget_s: float) -> Measured:
        assert budget_s > 0
        runs.append(list(lines))
        draw = random.Random(len(runs))
        units = []
        for _ in range((rounds or 12) - 1):
            noise = draw.lognormvariate(0, 0.05)
            times = {"fast": 1.0}
            for name, line in lines.items():
                if name != "fast":
                    times[name] = 1.0
                    for words, factor in effects.items():
                        times[name] *= 1 if words in line else factor
            units.append({a: t * noise * draw.lognormvariate(0, 0.01) for a, t in times.items()})
        return Measured(units=units, failed={}, folder=f"trials/{len(runs)}")

    return measure


LEVERS = [
    ("seccomp.mode", 0),
    ("limits.nofile", 1024),
    ("threads.omp", 2),
    ("container.network", None),
    ("env.MALLOC_ARENA_MAX", "1"),
]


def prove(effects: dict[str, float], runs: list[list[str]]) -> Proof:
    """Return what a search finds for a line whose changes have these effects."""
    found = changes([difference(*one) for one in LEVERS], cache="/c", is_engine=True)
    search = Search(
        fast="docker run app",
        slow="docker run --rm app",
        measure=simulated(effects, runs),
        manual=MANUAL,
        budget_s=60.0,
    )
    return search.prove(found, arm="b", slow_arm="b", client="docker")


@pytest.mark.parametrize(
    ("word", "key", "mend"),
    [
        ("seccomp=", "seccomp.mode", "docker run --security-opt seccomp=unconfined …"),
        ("nofile=", "limits.nofile", "docker run --ulimit nofile=1024 …"),
        ("OMP_NUM", "threads.omp", "docker run --env OMP_NUM_THREADS=2 …"),
    ],
)
def test_cause_is_found_and_confirmed_beside_a_placebo(word: str, key: str, mend: str) -> None:
    """Among five properties, in runs of at most three changed lines."""
    runs: list[list[str]] = []
    proof = prove({word: 1.4}, runs)
    assert (proof.outcome, proof.mend) == ("cause", mend)
    assert proof.confirmed is not None
    assert proof.confirmed.keys == (key,)
    assert runs[-1] == ["fast", "slow", "changed", "placebo"]
    assert all(len(lines) <= 5 for lines in runs)
    assert len(proof.runs) == len(runs)
    text = " ".join(proof_texts(proof))
    assert "The cause, proven by changing it: " in text
    assert "Not the cause: " in text
    assert f"To mend it: {mend}." in text


def test_one_of_two_causes_contributes() -> None:
    """It closes less than half, but more than the placebo."""
    proof = prove({"seccomp=": 1.3, "nofile=": 1.5, "OMP_NUM": 1.5, "MALLOC": 1.5}, [])
    assert proof.outcome == "contributes"


def test_nothing_that_can_be_changed_is_no_cause() -> None:
    """The report says how much at most, and nothing is confirmed."""
    proof = prove({"another": 1.4}, [])
    assert proof.outcome == "none"
    assert proof.confirmed is None
    (text,) = [one for one in proof_texts(proof) if one.startswith("Nothing")]
    assert "can change closes more than" in text


def test_line_that_cannot_be_run_is_named() -> None:
    """With the reason, and without a share."""
    change = Change(key="seccomp.mode", what="seccomp 2 → 0", edit=Edit(options=("--x",)))

    def measure(lines: dict[str, str], rounds: int | None, budget_s: float) -> Measured:
        del lines, rounds, budget_s
        return Measured(units=[], failed={"changed": "exit code 125"}, folder="trials/1")

    search = Search(
        fast="true", slow="docker run app", measure=measure, manual=MANUAL, budget_s=9.0
    )
    proof = search.prove([change], arm="b", slow_arm="b", client="docker")
    assert proof.outcome == "not-proven"
    assert "was not measured: exit code 125" in " ".join(proof_texts(proof))
