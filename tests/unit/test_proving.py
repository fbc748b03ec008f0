"""Proofs: how lines are changed, what share of a gap that closes, and how the cause is found."""

from __future__ import annotations

import io
import math
import os
import random
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from measuredruns import Made, one_cell, run_folder

from envcompare.cli import app, conclusion, proving, running
from envcompare.config.settings import Settings
from envcompare.console import Display
from envcompare.environments.line import engine_call
from envcompare.errors import ConfigError, HostHeldError, StackError, UnusableError
from envcompare.proof import Measured, Search
from envcompare.proof.imagefiles import Differing, ImageFiles, divided
from envcompare.proof.levers import (
    PLACEBO,
    Change,
    Edit,
    changes,
    edited,
    line_changes,
    own_python,
    own_software,
    own_start,
    replaces,
    sif_change,
    sif_of,
    variable_changes,
    word_changes,
)
from envcompare.proof.packages import package_changes
from envcompare.proof.siffiles import SifFiles
from envcompare.report.wording.proofwords import proof_texts
from envcompare.run_folder.records import FactDifference, FingerprintValue, Proof, Trial
from envcompare.run_folder.results import PROOF, RunFolder
from envcompare.stats import excess_of_share, share_closed
from envcompare.text import masked

HOLDS = """import fcntl, os, sys, time
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""
MANUAL = """
      --cpus decimal     Number of CPUs
  -e, --env list         Set environment variables
      --network network  Connect a container to a network
  -p, --publish list     Publish a container's port(s) to the host
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


def lever(key: str, fast: FingerprintValue, *, is_engine: bool = True) -> Change:
    """Return the change that gives a line the fast value of a fact."""
    (change,) = changes([difference(key, fast)], cache="/c", is_engine=is_engine)
    return change


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
            "docker run --env OMP_NUM_THREADS=2 app",
        ),
        ("python x.py", ("limits.nofile", 1024), "ulimit -Sn 1024 || exit 125; python x.py"),
        ("python x.py", ("limits.stack", 8 << 20), "ulimit -Ss 8192 || exit 125; python x.py"),
        ("a && b", ("env.MALLOC_ARENA_MAX", "2"), "export MALLOC_ARENA_MAX=2; a && b"),
        (
            "OMP_NUM_THREADS=1 && python x",
            ("threads.omp", 2),
            "export OMP_NUM_THREADS=2; OMP_NUM_THREADS=1 && python x",
        ),
        ("docker run --cpus 0.5 app", ("cgroup.cpu_quota", 2), "docker run --cpus 2 app"),
        ("docker run --net x app", ("container.network", None), "docker run --network host app"),
        (
            "A='b c' OMP_NUM_THREADS=\"1\" python OMP_NUM_THREADS=1",
            ("threads.omp", 2),
            "export OMP_NUM_THREADS=2; A='b c' python OMP_NUM_THREADS=1",
        ),
        (
            "OMP_NUM_THREADS=1 python x.py",
            ("threads.omp", None),
            "unset OMP_NUM_THREADS; python x.py",
        ),
    ],
)
def test_line_takes_the_value_of_the_fast_one(
    line: str, key: tuple[str, FingerprintValue], expected: str
) -> None:
    """By an option, a command of the shell, or a variable; the rest stays as it is typed."""
    change = lever(*key, is_engine=line.startswith("docker"))
    assert edited(line, change.edit, manual=MANUAL) == expected


def test_variable_of_the_login_does_not_take_the_place_of_one_that_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`docker run --env NAME` passes the value that its client has."""
    monkeypatch.setenv("PYTHONMALLOC", "debug")
    edit = Edit(variables=(("PYTHONMALLOC", None), ("NOWHERE_SET", None)))
    options = "--env PYTHONMALLOC --env NOWHERE_SET"
    changed = edited("A=1 nice docker run app", edit, manual=MANUAL)
    assert changed == f"A=1 nice env --unset=PYTHONMALLOC docker run {options} app"
    assert engine_call(changed) is not None
    changed = edited("NOWHERE_SET=2 docker run app", edit, manual=MANUAL)
    unset = "--unset=PYTHONMALLOC --unset=NOWHERE_SET"
    assert changed == f"NOWHERE_SET=2 env {unset} docker run {options} app"
    by_root = edited("sudo docker run app", edit, manual=MANUAL)
    assert by_root == f"sudo docker run {options} app"
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")  # it may lead the client elsewhere
    own = Edit(variables=(("XDG_CACHE_HOME", None),))
    changed = edited("docker run app", own, manual=MANUAL)
    assert changed == "docker run --env XDG_CACHE_HOME app"


def test_container_starts_without_its_entrypoint() -> None:
    """If the fast line is a program of this machine."""
    (change,) = own_start("python x", "docker run app python x", entrypoint=["/entry", "-v"])
    assert edited("docker run app python x", change.edit, manual=MANUAL) == (
        "docker run --entrypoint '' app python x"
    )
    assert change.what == 'ENTRYPOINT ["/entry", "-v"] is left out'
    assert change.mend("docker run app python x", manual=MANUAL) == "docker run --entrypoint '' …"
    assert own_start("python x", "docker run app python x", entrypoint=[]) == []
    assert own_start("docker run b x", "docker run app x", entrypoint=["/entry"]) == []


def test_temporary_folder_of_a_killed_start_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a living process holds stays."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, held = (tmp_path / f"envcompare-why-{name}" for name in ("left", "held"))
    (left / "cache").mkdir(parents=True)
    held.mkdir()
    for path in (left, held):
        os.utime(path, (0, 0))
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(held)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with proving._byte_code_folder(None, "") as cache:
            assert Path(cache).is_dir()
            assert not left.exists()
            assert held.exists()
        assert list(tmp_path.iterdir()) == [held]
    finally:
        holder.kill()
        holder.communicate()


def test_folders_of_a_user_are_not_taken_for_those_of_a_killed_proof(tmp_path: Path) -> None:
    """Runs may lie among other folders, and a run folder may come from another machine."""
    own, left = tmp_path / "out/run/trials", tmp_path / "out/old/trials/envcompare-images-x"
    users, away = tmp_path / "out/study/trials/images-2020", tmp_path / "away/envcompare-images-y"
    for path in (own, left, users, away):
        path.mkdir(parents=True)
        os.utime(path, (0, 0))
    (tmp_path / "out/foreign").mkdir()
    (tmp_path / "out/foreign/trials").symlink_to(away.parent)
    with proving._temporary(proving._IMAGES, own, others="../../*/trials/"):
        assert not left.exists()
    assert users.exists()
    assert away.exists()


def test_what_cannot_be_changed_has_no_lever() -> None:
    """And facts with one option have one lever."""
    keys = ("loaded_libraries", "container.storage", "seccomp.mode", "seccomp.filters")
    found = changes([difference(key, 0) for key in keys], cache="/c", is_engine=True)
    fewer = [difference("seccomp.filters", 1), difference("capabilities.effective", "a80425fb")]
    assert changes(fewer, cache="/c", is_engine=True) == []
    assert [one.key for one in found] == ["seccomp.mode"]
    assert found[0].cost == "the container may make every system call"
    assert changes([difference("seccomp.mode", 0)], cache="/c", is_engine=False) == []


def test_changes_are_applied_together() -> None:
    """With another image and byte code that is kept."""
    (image,) = line_changes("docker run app:1", "docker run app:2", manual=MANUAL)
    code = lever("python.uncompiled", 0)
    line = edited("sudo docker run app:2 x.py", image.edit + code.edit + PLACEBO, manual=MANUAL)
    assert line == (
        "sudo docker run --volume /c:/envcompare-pycache --env "
        "PYTHONPYCACHEPREFIX=/envcompare-pycache --env PYTHONDONTWRITEBYTECODE= "
        "--env ENVCOMPARE_PLACEBO=1 app:1 x.py"
    )
    assert image.mend("docker run app:2", manual=MANUAL) == "use the image app:1"


def test_options_in_which_lines_differ_are_changes() -> None:
    """Each as it is written, with what the shell makes of it."""
    fast = "docker run --rm -v $PWD:/w -e A=1 --ulimit nofile=1024 app x"
    slow = "docker run -v '/a b:/w' --rm -e A=1 -e B=2 app x --rm"
    found = line_changes(fast, slow, manual=MANUAL)
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
    mends = [one.mend(slow, manual=MANUAL) for one in found]
    assert mends == [
        "replace -v '/a b:/w' by -v $PWD:/w",
        "leave -e B=2 out",
        "docker run --ulimit nofile=1024 …",
    ]
    limit = lever("limits.nofile", 1024)
    assert replaces(found[2], limit)
    assert not replaces(found[1], limit)
    variable = lever("env.B", None)
    assert replaces(found[1], variable)
    assert variable.mend(slow, manual=MANUAL) == "leave -e B=2 out"
    other = "docker run --ulimit memlock=1 --ulimit nofile=9 app"
    assert limit.mend(other, manual=MANUAL) == "replace --ulimit nofile=9 by --ulimit nofile=1024"
    assert line_changes("true", slow, manual=MANUAL) == []
    ports = [f"docker run -p {one} app" for one in ("1:1", "1-9:1-9")]
    (port,) = line_changes(*ports, manual=MANUAL)
    assert port.what == "-p 1-9:1-9 → -p 1:1"
    (host,) = line_changes("docker run --net=host app", "docker run app", manual=MANUAL)
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
    few = share_closed(units[:3], fast="fast", slow="slow", changed="changed")
    assert few is not None
    assert (few.low, few.high) == (-math.inf, math.inf)
    lacking = [{"fast": 1.0}, *units]  # the budget ended in that round
    assert share_closed(lacking, fast="fast", slow="slow", changed="changed") is not None


def simulated(
    effects: dict[str, float], runs: list[list[str]], *, noise: float = 0.01, seed: int = 0
) -> Callable[..., Measured]:
    """Return what times lines by the words in them: a factor for each that a line has."""

    def measure(lines: dict[str, str], rounds: int | None, budget_s: float) -> Measured:
        assert budget_s > 0
        runs.append(list(lines))
        draw = random.Random(len(runs) + 1000 * seed)
        units = []
        for _ in range((rounds or 12) - 1):
            shared = draw.lognormvariate(0, 0.05)
            times = {"fast": 1.0}
            for name, line in lines.items():
                if name != "fast":
                    times[name] = 1.0
                    for words, factor in effects.items():
                        times[name] *= 1 if words in line else factor
            units.append(
                {arm: time * shared * draw.lognormvariate(0, noise) for arm, time in times.items()}
            )
        return Measured(units=units, failed={}, folder=f"trials/{len(runs)}")

    return measure


SEARCHED = "PYTHONPATH=/p${PYTHONPATH:+:$PYTHONPATH}"
LEVERS: list[tuple[str, FingerprintValue]] = [
    ("seccomp.mode", 0),
    ("limits.nofile", 1024),
    ("threads.omp", 2),
    ("container.network", None),
    ("env.MALLOC_ARENA_MAX", "1"),
]


def levers(*more: tuple[str, FingerprintValue]) -> list[Change]:
    """Return the changes to search among."""
    return changes([difference(*one) for one in (*LEVERS, *more)], cache="/c", is_engine=True)


def prove(effects: dict[str, float], runs: list[list[str]]) -> Proof:
    """Return what a search finds for a line whose changes have these effects."""
    return searched(levers(), simulated(effects, runs))


def searched(
    found: list[Change],
    measure: Callable[..., Measured],
    *,
    fast: str = "docker run app",
    slow: str = "docker run --rm app",
    files: ImageFiles | None = None,
) -> Proof:
    """Return what a search among changes finds."""
    search = Search(
        fast=fast,
        slow=slow,
        measure=measure,
        manual=MANUAL,
        budget_s=60.0,
        files=files,
        gap=math.log(1.4),
    )
    proof = search.prove(found, arm="b", slow_arm="b")
    assert proof is not None
    return proof


def cause(proof: Proof) -> Trial:
    """Return what a proof has confirmed as the cause."""
    assert proof.outcome == "cause"
    assert proof.confirmed is not None
    return proof.confirmed


def told(proof: Proof) -> str:
    """Return what is said of a proof."""
    return " ".join(proof_texts(proof))


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
    assert (cause(proof).keys, proof.mend) == ((key,), mend)
    assert runs[-1] == ["fast", "slow", "changed", "placebo"]
    assert all(len(lines) <= 5 for lines in runs)
    assert len(proof.runs) == len(runs)
    text = told(proof)
    assert "The cause, proven by changing it: " in text
    assert "Not the cause: " in text
    assert f"To fix it: {mend}." in text


@pytest.mark.parametrize(
    ("effects", "outcome"),
    [
        ({"seccomp=": 1.3, "another": 2.0}, "contributes"),
        ({"seccomp=": 1.4, "ENVCOMPARE_PLACEBO": 1.2}, "not-proven"),
        ({"seccomp=": 1.4, "ENVCOMPARE_PLACEBO": 0.9}, "not-proven"),
    ],
    ids=[
        "it closes less than half, but more than the placebo",
        "the placebo closes much, too",
        "the placebo widens the gap",
    ],
)
def test_change_that_closes_a_part_is_no_proven_cause(
    effects: dict[str, float], outcome: str
) -> None:
    """Where a placebo does much, something else differs between the rounds' lines."""
    assert prove(effects, []).outcome == outcome


def test_two_causes_are_confirmed_together() -> None:
    """Neither closes the difference by itself, whatever group each is in."""
    proof = prove({"seccomp=": 1.3, "OMP_NUM": 1.4}, [])
    both = cause(proof)
    assert set(both.keys) == {"seccomp.mode", "threads.omp"}
    assert both.share is not None
    assert both.share.value > 0.9
    assert "seccomp=unconfined …; docker run --env OMP_NUM_THREADS=2" in proof.mend or (
        "OMP_NUM_THREADS=2 …; docker run --security-opt seccomp=unconfined" in proof.mend
    )


def test_bystander_of_a_partial_cause_is_not_named() -> None:
    """A second change counts only if it adds to the first, in noise of a fifth of the gap."""
    named = []
    for seed in range(40):
        measure = simulated({"seccomp=": 1.3, "another": 1.15}, [], noise=0.08, seed=seed)
        confirmed = searched(levers(), measure).confirmed
        named += [] if confirmed is None else [confirmed.keys]
    assert named.count(("seccomp.mode",)) >= 30
    assert sum(len(one) > 1 and "seccomp.mode" in one for one in named) <= 2


def test_nothing_that_can_be_changed_is_no_cause() -> None:
    """The report says how much at most, and nothing is confirmed."""
    proof = prove({"another": 1.4}, [])
    assert (proof.outcome, proof.confirmed) == ("none", None)
    (text,) = [one for one in proof_texts(proof) if one.startswith("Nothing")]
    assert "that was measured closes more than" in text


def test_line_that_cannot_be_run_is_named() -> None:
    """With the reason, and without a share."""
    change = Change(key="seccomp.mode", what="seccomp 2 → 0", edit=Edit(options=("--x", "y")))

    def measure(lines: dict[str, str], rounds: int | None, budget_s: float) -> Measured:
        del lines, rounds, budget_s
        return Measured(units=[], failed={"changed": "exit code 125"}, folder="trials/1")

    proof = searched([change], measure, fast="true")
    assert proof.outcome == "not-proven"
    assert "What it closes is not known: exit code 125" in told(proof)


def test_difference_that_a_trial_has_removed_is_said() -> None:
    """As where it wrote byte code that the slow line then finds."""
    measure = simulated({"OMP_NUM": 1.4}, [])

    def lasting(lines: dict[str, str], rounds: int | None, budget_s: float) -> Measured:
        given = lines if rounds else {name: f"{line} OMP_NUM" for name, line in lines.items()}
        return measure(given, rounds, budget_s)

    proof = searched(levers(), lasting)
    assert proof.outcome == "not-proven"
    assert "in fresh rounds the slow line is no longer slow" in told(proof)


def test_change_that_fails_hides_no_other_of_its_group() -> None:
    """The group is measured again in parts."""
    measure = simulated({"OMP_NUM": 1.5}, [])

    def failing(lines: dict[str, str], rounds: int | None, budget_s: float) -> Measured:
        good = measure(lines, rounds, budget_s)
        failed = {name: "exit code 125" for name, line in lines.items() if "nofile=" in line}
        return replace(good, failed=failed)

    proof = searched(levers(("env.MALLOC_TRIM_THRESHOLD_", "1")), failing)
    assert cause(proof).keys == ("threads.omp",)
    assert "Not measured: " in told(proof)


def test_every_part_of_groups_that_failed_is_measured() -> None:
    """In stages of at most five changed lines each."""
    every = [
        Change(key=f"k{at}", what=f"w{at}", edit=Edit(options=(f"--k{at}", "x")))
        for at in range(12)
    ]
    stages: list[list[str]] = []
    measure = simulated({"--k11 ": 1.5}, [])

    def failing(lines: dict[str, str], rounds: int | None, budget_s: float) -> Measured:
        stages.append([name for name in lines if name.startswith("changed")])
        good = measure(lines, rounds, budget_s)
        bad = [name for name, line in lines.items() if line.count(" --k") > 1]
        return replace(good, failed=dict.fromkeys(bad, "exit code 125"))

    proof = searched(every, failing)
    assert cause(proof).keys == ("k11",)
    assert max(map(len, stages)) == 5


def test_changes_that_only_act_together_are_confirmed_together() -> None:
    """Here either of two keeps the line slow."""
    runs: list[list[str]] = []

    def measure(lines: dict[str, str], rounds: int | None, budget_s: float) -> Measured:
        runs.append(list(lines))
        both = {name: "nofile=" in line and "OMP_NUM" in line for name, line in lines.items()}
        units = [
            {
                name: 1.0 + n / 1000 if is_both or name == "fast" else 1.4 + n / 700
                for name, is_both in both.items()
            }
            for n in range((rounds or 12) - 1)
        ]
        return Measured(units=units, failed={}, folder=f"trials/{len(runs)}")

    assert {"limits.nofile", "threads.omp"} <= set(cause(searched(levers(), measure)).keys)


def test_change_that_the_line_undoes_has_no_share() -> None:
    """Its facts show the old value."""
    change = lever("threads.omp", 2)
    assert change.is_without_effect({"uid": 0, "threads.omp": 1})
    code = lever("python.uncompiled", 0)
    assert code.is_without_effect({"uid": 0, "env.PYTHONDONTWRITEBYTECODE": "1"})
    assert not code.is_without_effect({"uid": 0, "env.PYTHONPYCACHEPREFIX": "/c"})
    assert not change.is_without_effect({"uid": 0, "threads.omp": 2})
    assert not change.is_without_effect({})
    measure = simulated({}, [])

    def kept(lines: dict[str, str], rounds: int | None, budget_s: float) -> Measured:
        facts = {"changed": {"uid": 0, "threads.omp": 1}}
        return replace(measure(lines, rounds, budget_s), facts=facts)

    proof = searched([change], kept, fast="true")
    assert "the line keeps its value" in told(proof)


def test_no_secret_of_a_line_is_kept() -> None:
    """Neither in what was changed nor in how to fix it."""
    fast, slow = (f"docker run -e HF_TOKEN={word * 20} app" for word in ("hf_a1", "hf_b2"))
    found = line_changes(fast, slow, manual=MANUAL)
    proof = searched(found, simulated({"hf_a1": 1.5}, []), fast=fast, slow=slow)
    assert proof.outcome == "cause"
    assert "hf_" not in str(proof)


def test_trial_that_cannot_be_measured_keeps_what_was_found() -> None:
    """As where its engine is gone."""

    def refused(lines: dict[str, str], rounds: int | None, budget_s: float) -> Measured:
        raise UnusableError("docker does not answer on local")

    proof = searched([lever("threads.omp", 2)], refused, fast="true")
    assert proof.outcome == "not-proven"
    assert "does not answer" in told(proof)


def test_host_that_another_client_holds_ends_the_search() -> None:
    """Nothing was measured, so a proof from before must not be replaced."""

    def refused(lines: dict[str, str], rounds: int | None, budget_s: float) -> Measured:
        raise HostHeldError("local is in use by another run")

    with pytest.raises(HostHeldError):
        searched([lever("threads.omp", 2)], refused, fast="true")


@pytest.mark.parametrize("count", [1, 5])
def test_search_without_time_for_a_trial_gives_no_proof(count: int) -> None:
    """It says nothing about the changes, so a proof from before must not be replaced."""
    search = Search(
        fast="docker run app",
        slow="docker run --rm app",
        measure=simulated({}, []),
        manual=MANUAL,
        budget_s=4.0,
    )
    assert search.prove(levers()[:count], arm="b", slow_arm="b") is None
    proof = search.prove([], arm="b", slow_arm="b")
    assert proof is not None
    assert "can test none of the differences by itself" in told(proof)


def test_variables_that_lines_set_are_changed_one_by_one() -> None:
    """No fact of the process says that any of them does something."""
    fast, slow = "A=1 B='x y' python t.py", "APP_TRACE=1 A=2 B='x y' python t.py"
    found = variable_changes(fast, slow)
    assert [change.what for change in found] == ["APP_TRACE=1 is removed", "A=2 → A=1"]
    lines = [edited(slow, change.edit, manual="") for change in found]
    assert lines[0] == "unset APP_TRACE; A=2 B='x y' python t.py"
    assert lines[1] == "export A=1; APP_TRACE=1 B='x y' python t.py"
    fixes = [change.mend(slow, manual="") for change in found]
    assert fixes == ["leave APP_TRACE=1 out", "replace A=2 by A=1"]


def test_variable_that_alone_tells_two_lines_apart_is_no_change() -> None:
    """The slow line without it is the fast line."""
    assert variable_changes("python t.py", "APP_TRACE=1 python t.py") == []
    assert "it is the cause" in told(searched([], simulated({}, []), fast="true"))


def test_fix_of_a_variable_that_the_line_sets_is_in_the_line() -> None:
    """`unset` in the shell would change nothing."""
    change = Change(
        key="threads.omp", what="", edit=Edit(variables=(("OMP_NUM_THREADS", None),)), want=None
    )
    assert change.mend("OMP_NUM_THREADS=1 python t.py", manual="") == "leave OMP_NUM_THREADS=1 out"
    assert change.mend("python t.py", manual="") == "unset OMP_NUM_THREADS"
    empty = Change(key="words", what="", edit=Edit(variables=(("A", ""),)), want=None)
    assert empty.mend("A=2 python t.py", manual="") == "replace A=2 by A=''"


@pytest.mark.parametrize(("again", "expected"), [(None, [600.0, 600.0]), ({}, [0.0, 600.0])])
def test_host_is_waited_for_between_the_runs_of_one_search(
    monkeypatch: pytest.MonkeyPatch, again: dict[str, Any] | None, expected: list[float]
) -> None:
    """The first trial of a run that ended long ago waits no longer than that run did."""
    waits: list[float | None] = []

    def carried_out(settings: Settings, *_: object, **__: object) -> tuple[int, None, None]:
        waits.append(settings.wait)
        return 0, None, None

    def proved(
        _folder: object, carry_out: Callable[[Settings], object], *_: object, **__: object
    ) -> None:
        for _ in expected:
            carry_out(Settings(wait=0.0))

    monkeypatch.setattr(running, "_carry_out", carried_out)
    monkeypatch.setattr(proving, "prove", proved)
    concluded = SimpleNamespace(compared=())
    monkeypatch.setattr(conclusion, "conclude", lambda _folder: (concluded, None))
    monkeypatch.setattr(conclusion, "show_summary", lambda *_: None)
    folder, display = (SimpleNamespace(path=Path("run")), SimpleNamespace(say=lambda _: None))
    running._proven(folder, display, budget_s=60.0, again=again)  # type: ignore[arg-type]
    assert waits == expected


@pytest.mark.parametrize(
    ("trials", "brief"),
    [(0, "the cause was not looked for"), (1, "the search for the cause was ended")],
)
def test_host_taken_between_trials_has_ended_the_search(
    monkeypatch: pytest.MonkeyPatch, trials: int, brief: str
) -> None:
    """And one taken before the first trial has prevented it."""
    left = [None] * trials

    def carried_out(*_: object, **__: object) -> tuple[int, None, None]:
        if not left:
            raise HostHeldError("local is in use by another run")
        return 0, left.pop(), None

    def proved(
        _folder: object, carry_out: Callable[[Settings], object], *_: object, **__: object
    ) -> None:
        while True:
            carry_out(Settings())

    monkeypatch.setattr(running, "_carry_out", carried_out)
    monkeypatch.setattr(proving, "prove", proved)
    monkeypatch.setattr(conclusion, "conclude", lambda _folder: (None, None))
    monkeypatch.setattr(conclusion, "show_summary", lambda *_: None)
    folder, display = (SimpleNamespace(path=Path("run")), SimpleNamespace(say=lambda _: None))
    with pytest.raises(HostHeldError, match=f"{brief}: local is in use"):
        running._proven(folder, display, budget_s=60.0, again={})  # type: ignore[arg-type]


def test_sifs_of_two_lines_are_a_change() -> None:
    """Each line names one, after the program that runs it."""
    fast, slow = "apptainer exec --nv 'my old.sif' python x.py", "apptainer exec b.sif python x.py"
    (change,) = sif_change(fast, slow)
    assert change.what == "the image b.sif → 'my old.sif'"
    assert change.is_whole
    changed = edited(slow, change.edit, manual="")
    assert changed == "apptainer exec 'my old.sif' python x.py"
    assert sif_change(fast, fast) == []
    assert sif_change(fast, "python x.py b.sif") == []
    for other in (
        "apptainer exec b.sif cp c.sif d",
        "apptainer exec --overlay o.sif b.sif python x.py",
        "apptainer exec docker://x python x.py b.sif",
        "apptainer exec ./tree python x.py b.sif",
        "apptainer exec --nv ./tree python x.py b.sif",
        "cd v1 && apptainer exec b.sif python x.py",
        "apptainer exec b.sif python x.py  # don't",
    ):
        assert sif_change(fast, other) == [], other
    bound = "/opt/bin/apptainer -q exec --bind /a:/b --nv b.sif python x.py"
    assert sif_of(bound) == ("/opt/bin/apptainer", (45, 50))
    overlaid = "apptainer exec --overlay o.sif b.sif python x.py --n 1"
    named = [one.what for one in word_changes(fast + " --n 2", overlaid, manual="")]
    assert any("b.sif" in what for what in named)


def test_files_of_a_sif_are_replaced_inside_it_only(tmp_path: Path) -> None:
    """A link of the image that leads out of it becomes the folder of the other image."""
    outside = tmp_path / "outside"
    outside.mkdir()
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for name, text in (("data/x", "fast"), ("both", "fast"), ("kept", "same")):
        (fast / name).parent.mkdir(parents=True, exist_ok=True)
        (fast / name).write_text(text)
    slow.mkdir()
    (slow / "data").symlink_to(outside)
    for name in ("both", "kept", "gone"):
        (slow / name).write_text("same" if name == "kept" else "slow")
    files = SifFiles(
        program="apptainer", names=("a", "b"), sifs=(tmp_path, tmp_path), folder=tmp_path
    )
    root = tmp_path / "tree"
    subprocess.run(["cp", "--archive", "--link", slow, root], check=True)
    for path in ("/data/x", "/both", "/gone"):
        files._replace(root, path[1:], is_removed=path == "/gone")
    held = {str(one.relative_to(root)): one for one in root.rglob("*") if one.is_file()}
    assert {name: one.read_text() for name, one in held.items()} == {
        "data/x": "fast", "both": "fast", "kept": "same",
    }  # fmt: skip
    assert list(outside.iterdir()) == []
    assert (slow / "both").read_text() == "slow"


class ListedFiles(ImageFiles):
    """Files of images that are only listed; an image is named after those that it got."""

    listed: tuple[str, ...] = ()

    def read(self, *, limit_s: float) -> tuple[str, ...]:
        """Return what is listed."""
        assert limit_s > 0
        self.paths = self.listed
        return self.listed

    def image_with(self, paths: Sequence[str], *, limit_s: float) -> str:
        """Return a name with the paths."""
        assert limit_s > 0
        if "/lib/broken.so" in paths and "/lib/works.so" not in paths:
            raise UnusableError("docker cp failed: no such file")
        return f"app:{'+'.join(paths)}+"

    def differ_in_files_alone(self) -> bool:
        """Return whether one file is all that differs."""
        return len(self.listed) == 1

    def settings_that_differ(self) -> str:
        """Return what differs besides files."""
        return 'Volumes {"/data": {}} → none'


def proven_in_image(listed: tuple[str, ...], culprit: str) -> Proof:
    """Return what a search finds for images that differ in these files."""
    fast, slow = "docker run app:1 x", "docker run app:2 x"
    files = ListedFiles(client=("docker",), fast="app:1", slow="app:2", run_id="1", folder=Path())
    files.listed = listed
    measure = simulated({culprit: 1.4}, [])

    def whole(lines: dict[str, str], rounds: int | None, budget_s: float) -> Measured:
        names = {name: line.replace("app:1 ", f"{culprit} ") for name, line in lines.items()}
        return measure(names, rounds, budget_s)

    found = line_changes(fast, slow, manual=MANUAL)
    return searched(found, whole, fast=fast, slow=slow, files=files)


def test_cause_in_an_image_is_followed_to_its_files() -> None:
    """Part by part; what cannot be made is divided as well."""
    tops, names = ("etc", "lib", "opt/app", "usr/lib/python3"), ("broken", "works", *"abcdefg")
    listed = tuple(sorted(f"/{top}/{name}.so" for top in tops for name in names))
    proof = proven_in_image(listed, "/lib/works.so+")
    found = cause(proof)
    assert (found.keys, found.files) == (("image.files",), ("/lib/works.so",))
    assert found.what == "/lib/works.so as in app:1"
    copied = 'COPY --from=app:1 ["/lib/works.so", "/lib/works.so"]'
    assert proof.mend == f"in the Dockerfile of app:2: {copied}"
    alone = proven_in_image(("/lib/works.so",), "/lib/works.so+")
    assert [one.what for one in alone.tried] == [cause(alone).what] == ["/lib/works.so as in app:1"]
    broken = proven_in_image(listed, "/lib/broken.so+")
    assert broken.confirmed is not None
    assert "/lib" in broken.confirmed.what


def exported(folder: Path, names: Sequence[str]) -> ImageFiles:
    """Return files of two images; the tar archive of those that differ holds links to the first."""
    files = ImageFiles(client=("docker",), fast="a", slow="b", run_id="1", folder=folder)
    with tarfile.open(files._kept, "w") as kept:
        for name in names:
            member = tarfile.TarInfo(name)
            if name == names[0]:
                member.size = len(b"content")
            else:
                member.type, member.linkname = tarfile.LNKTYPE, names[0]
            kept.addfile(member, io.BytesIO(b"content"))
    return files


def packed(files: ImageFiles, names: set[str]) -> dict[str, bytes | None]:
    """Return what is copied of files: their content, or None of a link."""
    stream = io.BytesIO()
    files._pack(names, stream)
    stream.seek(0)
    with tarfile.open(fileobj=stream) as made:
        return {
            member.name: content.read()
            for member in made
            if member.isreg() and (content := made.extractfile(member))
        }


def test_hard_links_are_copied_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As files where what they link to stays; looking each up anew took minutes in big images."""
    lookups = []
    search = tarfile.TarFile.getmember

    def counted(archive: tarfile.TarFile, name: str) -> tarfile.TarInfo:
        lookups.append(name)
        return search(archive, name)

    monkeypatch.setattr(tarfile.TarFile, "getmember", counted)
    names = ["source", *(f"link-{number}" for number in range(20))]
    assert packed(exported(tmp_path, names), set(names[1:3])) == dict.fromkeys(
        names[1:3], b"content"
    )
    assert lookups == []


@pytest.mark.parametrize(
    ("size", "free", "said"),
    [
        (5 << 30, 1 << 50, ("5.0 GiB of files, and envcompare divides at most 4", "in common")),
        (3 << 30, 1 << 30, ("3.0 GiB of files, for which there is no room", "make twice")),
    ],
)
def test_images_that_differ_too_much_are_told_from_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, free: int, said: tuple[str, str]
) -> None:
    """Room mends only the latter."""
    files = ImageFiles(client=("docker",), fast="a", slow="b", run_id="1", folder=tmp_path)
    files._settings = [{}, {}]
    entry = (tarfile.REGTYPE, 0o644, 0, 0)
    held = {"a": {"x": (*entry, "1")}, "b": {"x": (*entry, "2")}}
    monkeypatch.setattr(
        ImageFiles, "_entries", lambda _self, image, _until: (held[image], {"x": size})
    )
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(StackError) as raised:
        files.read(limit_s=60.0)
    brief, hint = raised.value.brief, raised.value.hint or ""
    assert said[0] in brief
    assert said[1] in hint
    assert ("room" in hint) is (size > free)


class Uncounted(list[str]):
    """A list that may not be searched."""

    def __contains__(self, _value: object) -> bool:
        raise AssertionError("each search goes through all of it")


def test_removed_files_of_a_sif_are_not_searched_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be many thousands."""
    files = SifFiles(program="true", names=("a", "b"), sifs=(tmp_path, tmp_path), folder=tmp_path)
    for name in ("fast", "slow"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    monkeypatch.setattr(Differing, "split", lambda *_: (Uncounted(["/fast"]), Uncounted(["/slow"])))
    ways = []
    monkeypatch.setattr(
        SifFiles,
        "_replace",
        lambda _self, _root, name, *, is_removed: ways.append((name, is_removed)),
    )
    files.image_with(["/fast", "/slow"], limit_s=60.0)
    assert ways == [("slow", True), ("fast", False)]


def test_image_is_the_cause_where_none_of_its_files_is() -> None:
    """Its settings are named if its files are the same."""
    proof = proven_in_image((), "app:1")
    assert cause(proof).what == 'settings of the image: Volumes {"/data": {}} → none'
    assert proof.mend == "use the image app:1"


def test_files_that_belong_together_are_not_divided() -> None:
    """A library and its links, a package and its metadata; all others are, into four parts."""
    library = ("/usr/lib/libbz2.so.1.0", "/usr/lib/libbz2.so.1.0.4")
    package = ("/s/numpy-2.0.dist-info/RECORD", "/s/numpy.libs/x.so", "/s/numpy/core.py")
    assert divided(library) == []
    assert divided(("/entry",)) == []
    assert divided((*library, *package)) == [package, library]
    assert len(divided(package)) == 3
    modules = ("/s/__pycache__/a.cpython-311.pyc", "/s/__pycache__/b.cpython-311.pyc", "/s/a.py")
    assert divided(modules) == [(modules[0], modules[2]), (modules[1],)]
    many = tuple(f"/usr/lib/{letter}.so" for letter in "abcdefghij")
    uneven = (*many[:4], *(f"/usr/lib/z-last/{n}" for n in range(50)))
    for every in (many, uneven):
        parts = divided(every)
        assert 2 <= len(parts) <= 4
        assert sorted(path for part in parts for path in part) == sorted(every)


@pytest.mark.parametrize(
    ("line", "edit", "expected"),
    [
        ("python x.py", Edit(paths=("/p",)), f"export {SEARCHED}; python x.py"),
        (
            "PYTHONPATH=/a python x.py && python y.py",
            Edit(paths=("/p",)),
            f"export {SEARCHED}; PYTHONPATH=/p:/a python x.py && python y.py",
        ),
        ("A='b c' v/bin/python3.11 x.py", Edit(python="u/bin/python"), "A='b c' u/bin/python x.py"),
        ("cd a && python x.py", Edit(python="u/bin/python"), "cd a && python x.py"),
    ],
)
def test_line_uses_another_python_or_other_packages(line: str, edit: Edit, expected: str) -> None:
    """And keeps the folders that it names itself."""
    assert edited(line, edit, manual="") == expected


def test_named_pythons_of_two_lines_are_a_change() -> None:
    """All software of the fast line's one, for lines that call no engine."""
    (change,) = own_python("a/bin/python x.py", "A=1 b/bin/python3 x.py")
    assert change.what == "b/bin/python3 → a/bin/python"
    assert change.edit == Edit(python="a/bin/python")
    assert change.is_whole
    assert own_python("docker run app a/bin/python", "docker run app b/bin/python") == []
    others = ("a/bin/python y.py", "b/bin/python x.py && b/bin/python y.py", "uv run x.py")
    assert [own_python("a/bin/python x.py", other) for other in others] == [[], [], []]


@pytest.mark.parametrize(
    ("fast", "slow", "expected"),
    [
        (
            "python x.py --workers 0 --amp",
            "python x.py --workers 4 --compile",
            [
                ("--workers 4 → --workers 0", "python x.py --workers 0 --compile"),
                ("--compile → --amp", "python x.py --workers 4 --amp"),
            ],
        ),
        (
            "apptainer exec --nv a.sif python x.py",
            "apptainer exec b.sif python x.py -v",
            [
                ("--nv is added", "apptainer exec --nv b.sif python x.py -v"),
                ("-v is removed", "apptainer exec b.sif python x.py "),
            ],
        ),
        (
            "docker run app python x.py -n 1 -a",
            "docker run app python x.py -n '2 3'\n",
            [
                ("-n '2 3' → -n 1", "docker run app python x.py -n 1\n"),
                ("-a is added", "docker run app python x.py -n '2 3' -a\n"),
            ],
        ),
        (
            "a/bin/python x.py --lr 0.1 -v",
            "OMP_NUM_THREADS=8 b/bin/python x.py --lr 0.2",
            [
                ("--lr 0.2 → --lr 0.1", "OMP_NUM_THREADS=8 b/bin/python x.py --lr 0.1"),
                ("-v is added", "OMP_NUM_THREADS=8 b/bin/python x.py --lr 0.2 -v"),
            ],
        ),
        (
            "python x.py --compile --lr 1 --amp",
            "python x.py",
            [
                ("--compile is added", "python x.py --compile"),
                ("--lr 1 is added", "python x.py --lr 1"),
                ("--amp is added", "python x.py --amp"),
            ],
        ),
        (
            "python x.py",
            "python x.py --compile --lr 1",
            [
                ("--compile is removed", "python x.py  --lr 1"),
                ("--lr 1 is removed", "python x.py --compile "),
            ],
        ),
        (
            "python x.py -a 1 b c d",
            "python x.py -a 1 -b 1 b c d -c",
            [
                ("1 -b is removed", "python x.py -a  1 b c d -c"),
                ("-c is removed", "python x.py -a 1 -b 1 b c d "),
            ],
        ),
        ("python x.py --amp", "python x.py", []),
        ("python x.py", "python x.py --amp", []),
        ("python x.py '--lr'  1", "python x.py", []),
        ("python x.py -a", "python y.py -b", []),
        ("python x.py --out runs/a -v", "python x.py --out runs/b -q", []),
        ("python x.py -a  # fast", "python x.py -b  # slow", []),
        ("uv pip install a -v", "uv pip install a -q", []),
        ("python x.py -a -b", "uv run python x.py -c", []),
        ("A=1 v/bin/python x.py", "A=2 u/bin/python x.py", []),
        ("rsync --delete a b", "rsync c d", []),
        ("python x.py && rm a", "python y.py && rm b", []),
        ("docker run app rm a b", "docker run app rm -r c", []),
    ],
)
def test_words_of_programs_that_train_are_changed_each_alone(
    fast: str, slow: str, expected: list[tuple[str, str]]
) -> None:
    """Not those of others, and not where one change is the whole fast line."""
    found = word_changes(fast, slow, manual=MANUAL)
    lines = [edited(slow, one.edit, manual=MANUAL) for one in found]
    assert list(zip((one.what for one in found), lines, strict=True)) == expected
    whole = Edit()
    for one in [*found, *sif_change(fast, slow)]:
        whole += one.edit
    assert len(edited(slow, whole, manual=MANUAL).split()) >= len(fast.split()) * bool(found)


def test_variable_before_an_equal_line_is_no_change() -> None:
    """It would make the slow line the fast one, which blanks do not alter."""
    assert variable_changes("python x.py ", "A=1 python  x.py") == []


@pytest.mark.parametrize(
    ("option", "costs_if_added", "costs_if_removed"),
    [
        ("--ipc=host", "the container shares memory with the processes of the host", ""),
        ("--pid host", "the container sees the processes of the host", ""),
        ("--userns host", "root in the container is root on the host", ""),
        ("--uts host", "the container shares the name of the host", ""),
        ("--cgroupns=host", "the container sees the control groups of the host", ""),
        ("--security-opt label=disable", "no security module confines the container", ""),
        ("--security-opt seccomp:unconfined", "the container may make every system call", ""),
        (
            "--security-opt systempaths=unconfined",
            *("the container reaches all of the host's /proc and /sys", ""),
        ),
        ("--device /dev/fuse", "the container reaches a device of the host", ""),
        ("--device-read-bps /dev/a:1m", "", ""),
        ("-u1000", "", "the container loses a protection that the line gives it"),
        ("-u 1000", "", "the container loses a protection that the line gives it"),
        ("--runtime=runsc", "", "the container loses a protection that the line gives it"),
        ("--ipc=none", "", "the container loses a protection that the line gives it"),
        ("--ulimit nofile=1024", "", ""),
    ],
)
def test_cost_names_the_protection_that_a_change_gives_up(
    option: str, costs_if_added: str, costs_if_removed: str
) -> None:
    """Whether the option is added to the slow line, or left out of it."""
    manual = f"{MANUAL}  -u, --user string   User\n" + "".join(
        f"      --{name} string   Text\n"
        for name in (
            *("ipc", "pid", "userns", "uts", "cgroupns", "security-opt", "device"),
            *("device-read-bps", "runtime"),
        )
    )
    lines = f"docker run {option} app", "docker run app"
    (added,) = line_changes(*lines, manual=manual)
    (removed,) = line_changes(*reversed(lines), manual=manual)
    assert (added.cost, removed.cost) == (costs_if_added, costs_if_removed)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("-p81:80", "-p80:80"),
        ("-p 81:80", "-p80:80"),
        ("-eOMP_NUM_THREADS=4", "--env OMP_NUM_THREADS=2"),
        ("-v/a:/w", "-v /b:/w"),
        ("-m1g", "--memory 2g"),
        ("-u1000", "--user=0"),
        ("-w/a", "-w /b"),
    ],
)
def test_value_that_follows_a_letter_is_replaced(old: str, new: str) -> None:
    """As one that stands apart is; two options, one removed and one added, would be two changes."""
    letters = {"m": "memory", "u": "user", "w": "workdir"}
    manual = MANUAL + "".join(f"  -{a}, --{name} string   Text\n" for a, name in letters.items())
    found = line_changes(f"docker run {new} app", f"docker run {old} app", manual=manual)
    assert [one.what for one in found] == [f"{old} → {new}"]


def test_variable_after_a_letter_is_replaced() -> None:
    """A second option that sets it would only hide the first."""
    line = "docker run -eOMP_NUM_THREADS=4 app"
    change = lever("threads.omp", 2)
    assert edited(line, change.edit, manual=MANUAL) == "docker run --env OMP_NUM_THREADS=2 app"
    replaced = "replace -eOMP_NUM_THREADS=4 by --env OMP_NUM_THREADS=2"
    assert change.mend(line, manual=MANUAL) == replaced


@pytest.mark.parametrize(
    ("line", "can_be_read"),
    [
        ("python -I x.py", False),
        ("v/bin/python3.11 -W ignore -uE -m x", False),
        ("docker run app sh -c 'python -Im x'", False),
        ("python -W error x.py -I", True),
        ("python -m x -E", True),
        ("python x.py", True),
        ("uv run x.py -I", True),
    ],
)
def test_python_that_ignores_variables_gets_no_packages(
    line: str, monkeypatch: pytest.MonkeyPatch, *, can_be_read: bool
) -> None:
    """And no byte code: trials without effect would name them as not the cause."""
    packages = Change(key="packages.numpy", what="numpy 1 → 2", edit=Edit(paths=("/p",)))
    assert packages.can_be_read(line) is can_be_read
    assert lever("python.uncompiled", 0).can_be_read(line) is can_be_read
    variable = difference("env.PYTHONMALLOC", "debug")
    seen = [difference("python.uncompiled", 0), variable]
    monkeypatch.setattr(proving, "line_candidates", lambda *_: (seen, True))
    decided: Any = SimpleNamespace(outcome="slower")
    found = proving._levers(decided, decided, [packages], line, cache="/c")
    assert len(found) == (3 if can_be_read else 1)
    assert found[-1].key == "env.PYTHONMALLOC"


def test_rights_that_a_user_does_not_get_have_no_effect() -> None:
    """`--cap-add ALL` leaves a container of another user without any."""
    change = lever("capabilities.effective", "1ffffffffff")
    assert change.edit.options == ("--cap-add", "ALL")
    assert change.is_without_effect({"uid": 0, "capabilities.effective": "0"})
    assert not change.is_without_effect({"uid": 0, "capabilities.effective": "1ffffffffff"})


@pytest.mark.parametrize("is_engine", [True, False])
def test_masked_value_is_not_set(*, is_engine: bool) -> None:
    """The line would get the mask itself."""
    fast = masked("https://ann:secret@mirror")
    assert "***" in fast
    found = changes([difference("env.HF_ENDPOINT", fast)], cache="/c", is_engine=is_engine)
    assert found == []


def site(folder: Path, **packages: str) -> tuple[str]:
    """Make a folder of packages, given as name=VERSION or name=VERSION:CONTENT."""
    for name, given in packages.items():
        version, _, content = given.partition(":")
        about = folder / f"{name}-{version}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        top = folder / ("space" if name.startswith("space") else name)
        top.mkdir(exist_ok=True)
        (top / f"{name}.py").write_text(content)
        files = [f"{top.name}/{name}.py,sha256={content or 'same'},1"]
        files += [f"../../bin/{name},sha256={folder.name},1", f"{about.name}/METADATA,,"]
        (about / "RECORD").write_text("\n".join(files))
    return (str(folder),)


def test_packages_of_the_fast_line_are_put_first(tmp_path: Path) -> None:
    """Those whose version or files differ, together where they share a folder."""
    same = {"python.version": "3.11"}
    fast = {**same, "packages.folders": site(
        tmp_path / "fast", equal="1", built="1:a", new="2", space_a="2", space_b="1", added="3",
    )}  # fmt: skip
    slow = {**same, "packages.folders": site(
        tmp_path / "slow", equal="1", built="1:b", new="1", space_a="1", space_b="3", gone="1",
    )}  # fmt: skip
    found = package_changes(fast, slow, place=tmp_path)
    assert [one.what for one in found] == [
        "added none → 3",
        "built 1 → another build",
        "new 1 → 2",
        "space-a 1 → 2, space-b 3 → 1",
        "1 equal package → from the fast line's folder",
    ]
    assert found[2].fix == "install new==2, built as for the fast line"
    assert {one.kind for one in found} == {"software"}
    code = (
        "import new, space.space_a; from importlib.metadata import version; print(version('new'))"
    )
    for change in found:
        assert Path(change.edit.paths[0]).is_dir()
    line = edited(
        f'PYTHONPATH={tmp_path}/slow {sys.executable} -Sc "{code}"', found[2].edit, manual=""
    )
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"
    other = {**slow, "python.version": "3.12"}
    assert package_changes(fast, other, place=tmp_path / "other") == []


def test_container_gets_the_software_of_this_machine(tmp_path: Path) -> None:
    """With the Pythons of PATH and of the line, for a fast line that is run here."""
    for name in ("env", "other", "none", "tools"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python3").touch(mode=0o644 if name == "none" else 0o755)
    for name in ("env", "other", "none"):
        (tmp_path / name / "pyvenv.cfg").touch()
    (tmp_path / "env" / "bin" / "python3").unlink()
    real = tmp_path / "store" / "bin" / "python3.11"
    (tmp_path / "store" / "lib" / "python3.11").mkdir(parents=True)
    real.parent.mkdir()
    real.touch(mode=0o755)
    (tmp_path / "env" / "bin" / "python3").symlink_to(real)
    folders = ("other", "none", "tools")
    search_path = ":".join(
        (*(f"{tmp_path}/{folder}/bin" for folder in folders), "relative", "/usr/bin")
    )
    given = {"folder": tmp_path, "search_path": search_path}
    (change,) = own_software("A=1 env/bin/python3 x.py", "docker run app x", **given)
    shown = change.edit.options[1::2]
    assert {"/usr:/usr:ro", f"{tmp_path}/env:{tmp_path}/env:ro"} <= set(shown)
    for name in ("other", "store"):
        assert f"{tmp_path}/{name}:{tmp_path}/{name}:ro" in shown
    assert not any(name in each for each in shown for name in ("none", "tools"))
    own = search_path.replace(":relative", "")
    assert change.edit.variables == (("PATH", f"{tmp_path}/env/bin:{own}"),)
    assert change.kind == "software"
    (other,) = own_software("PATH=/x/bin:$PATH python3 x.py", "docker run app x", **given)
    assert other.edit.variables == (("PATH", f"/x/bin:{search_path.replace(':relative', '')}"),)
    assert own_software("docker run app x", "docker run app:2 x", **given) == []
    assert own_software("docker run app x", "python3 x", **given) == []


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (one_cell("a", 1.02, noise=0.2), "the difference is not decided; try a longer --budget"),
        (one_cell("a", 1.0), "the lines count as equal; try a smaller --margin"),
    ],
)
def test_why_nothing_is_proven_is_said(
    made: Made, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only a decided difference has a cause, which the user has asked for."""
    folder = RunFolder.open(run_folder(tmp_path, made))
    running._proven(folder, Display(), budget_s=1.0)
    said = capsys.readouterr().err.splitlines()
    assert [said[0], said[-1]] == ["looking for the cause", f"no proof: {why}"]


@pytest.mark.parametrize("budget", ["5e9", "-5", "nan", "0"])
def test_budget_out_of_range_is_refused_for_a_run_as_for_lines(tmp_path: Path, budget: str) -> None:
    """Else no trial could be measured, and an empty proof would be written."""
    path = run_folder(tmp_path, one_cell("a", 1.5))
    done = CliRunner().invoke(app, ["why", str(path), "--budget", budget])
    assert isinstance(done.exception, ConfigError)
    assert done.exception.brief == f"--budget {float(budget)} is out of range"
    assert not (path / PROOF).exists()


def test_proof_from_before_is_kept_where_no_time_is_left_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is no proof of this search."""
    path = run_folder(tmp_path, one_cell("a", 1.5))
    folder = RunFolder.open(path)
    folder.write_json(PROOF, Proof(arm="a", cell="", slow="a", outcome="cause"))
    before = (path / PROOF).read_bytes()
    monkeypatch.setattr(proving, "chosen_comparison", lambda *_: None)
    monkeypatch.setattr(proving, "prove", lambda *_, **__: None)
    done = CliRunner().invoke(app, ["why", str(path), "--budget", "5"])
    assert done.exit_code == 7
    why = "no time was left to measure a change; give a longer --budget"
    assert done.output.splitlines()[-1] == f"no proof: {why}"
    assert (path / PROOF).read_bytes() == before
