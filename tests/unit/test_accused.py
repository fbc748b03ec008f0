"""What differs is named as a possible cause; that nothing was seen of it clears nothing."""

from __future__ import annotations

from typing import Any

import pytest
from pairs import OWN, Facts, differences

from envcompare.analysis.timing.surroundings import candidates
from envcompare.fingerprint.comparing import compare_fingerprints
from envcompare.fingerprint.evidence import ArmsContext
from envcompare.fingerprint.sentences import describe
from envcompare.run_folder.records import ArmRecord, FactDifference, FingerprintRecord


def of_images(
    reference_facts: Facts, other_facts: Facts, *, both: Facts | None = None, **arm: Any
) -> tuple[FactDifference, ...]:
    """Compare two arms of docker; what `arm` gives is given to the second alone."""
    arms = (ArmRecord(id="a", environment="docker"), ArmRecord(id="b", environment="docker", **arm))
    sides = (
        FingerprintRecord(host="local", arm=one.id, facts={**(both or {}), **facts})
        for one, facts in zip(arms, (reference_facts, other_facts), strict=True)
    )
    return compare_fingerprints(*sides, ArmsContext(arms=arms))


@pytest.mark.parametrize(
    "library",
    ["libbz2.so.1.0.4", "liblzma.so.5.4.1", "libz.so.1.2.13", "libssl.so.3", "libcrypto.so.3",
     "libsqlite3.so.0.8.6", "libjpeg.so.62.3.0", "libfoo.so"],
)  # fmt: skip
def test_another_build_of_a_library_is_a_possible_cause_whatever_its_name(library: str) -> None:
    """A name does not tell what a workload spends its time in."""
    found = of_images(
        {"loaded_libraries": ("libc.so.6 1", f"{library} 1")},
        {"loaded_libraries": ("libc.so.6 1", f"{library} 2")},
    )
    assert candidates(found, "b") == ("loaded_libraries",)
    assert (found[0].fact_class, found[0].is_felt) == ("possible-influence", None)
    assert describe(found[0]) == f"loaded libraries ({library})"
    assert "how much it uses them was not measured" in found[0].sentence


SLOW_MALLOC: Facts = {
    "preload.file": "/usr/lib/libslow.so",
    "preload.replaces": ("libslow.so malloc free",),
    "loaded_libraries": ("libc.so.6 1", "libslow.so 5"),
}
USUAL: Facts = {
    "preload.file": None, "preload.replaces": (), "loaded_libraries": ("libc.so.6 1",)
}  # fmt: skip


def test_a_library_before_the_c_library_comes_first() -> None:
    """A slow malloc of /etc/ld.so.preload is told once, before everything else that differs."""
    found = of_images(
        {**USUAL, "cuda.cudnn": "9.1", "python.sha256": "1"},
        {**SLOW_MALLOC, "cuda.cudnn": "9.2", "python.sha256": "2"},
    )
    first = found[0]
    assert (first.key, first.fact_class, first.is_felt) == ("preload.file", "confounder", True)
    assert describe(first) == "/etc/ld.so.preload none → /usr/lib/libslow.so"
    told_with = {one.key: one.part_of for one in found}
    assert first.evidence == (
        "libslow.so was loaded only in b. libslow.so replaces malloc, free of the C library in b."
    )
    assert first.remedy == (
        "write the lines that b has to /etc/ld.so.preload in every arm, or leave it empty in every "
        "arm"
    )
    assert told_with["preload.replaces"] == "preload.file"
    assert told_with["loaded_libraries"] == "preload.replaces"


def test_a_library_that_the_interpreter_is_linked_with_comes_first_too() -> None:
    """No file and no variable names it; the loader does."""
    found = of_images(
        {"preload.replaces": (), "env.MALLOC_ARENA_MAX": None, "allocator.name": "glibc"},
        {"preload.replaces": ("libslow.so malloc free",), "env.MALLOC_ARENA_MAX": "1",
         "allocator.name": "glibc"},
    )  # fmt: skip
    assert [one.key for one in found] == ["preload.replaces", "env.MALLOC_ARENA_MAX"]
    assert found[0].evidence == "libslow.so replaces malloc, free of the C library in b."


def test_a_library_before_the_c_library_leads_what_came_with_an_image() -> None:
    """Nothing is confounded between two images, and the likeliest cause is still the first."""
    found = of_images(
        {**USUAL, "python.sha256": "1", "libc.version": "2.35"},
        {**SLOW_MALLOC, "python.sha256": "2", "libc.version": "2.36"},
        reference="app:2",
        options=("--cpus", "2"),
    )
    keys = candidates(found, "b")
    assert keys[:2] == ("preload.file", "given.options")
    assert "loaded_libraries" not in keys


def test_options_that_one_arm_alone_was_given_are_named_first() -> None:
    """Before what else differs in the same way, and whatever was recorded of their effect."""
    found = of_images({"limits.nofile": 1}, {"limits.nofile": 2}, options=("--memory", "4g"))
    assert candidates(found, "b") == ("given.options", "limits.nofile")
    given = next(one for one in found if one.key == "given.options")
    assert describe(given) == "the options given with `--docker-options` (none → --memory 4g)"


def test_an_image_of_another_environment_is_named_first() -> None:
    """Between two environments the image is no part of what is compared."""
    found = differences({"cgroup.cpu_weight": 100}, {"cgroup.cpu_weight": 50}, arm=OWN)
    assert candidates(tuple(found.values()), "new") == ("given.image", "cgroup.cpu_weight")
    assert describe(found["given.image"]) == "the image none → app:2"
    assert "given.image" not in differences({"pid": 1}, {"pid": 2})


def test_the_options_of_the_engine_are_told_with_those_that_were_given() -> None:
    """One arm has more of them: the line says which."""
    found = of_images(
        {"engine.options": "--network none"},
        {"engine.options": "--network none --memory 4g"},
        options=("--memory", "4g"),
    )
    assert candidates(found, "b") == ("given.options",)


@pytest.mark.parametrize("key", ["limits.nofile", "seccomp.mode", "shm.bytes", "lsm.label"])
def test_two_arms_of_one_environment_have_no_difference_on_purpose(key: str) -> None:
    """The environment does the same in both: what differs was asked for, or is in the image."""
    (found,) = of_images({key: 1}, {key: 2})
    assert (found.fact_class, found.is_felt) == ("possible-influence", None)
    assert found.evidence
    assert differences({key: 1}, {key: 2})[key].fact_class == "varied"


def test_a_higher_limit_of_open_files_says_who_takes_longer() -> None:
    """With the option that makes it the same."""
    (found,) = of_images({"limits.nofile": 1024}, {"limits.nofile": 20000})
    assert found.evidence == (
        "A program that closes every possible descriptor takes longer with a higher limit."
    )
    assert "--ulimit nofile=VALUE" in found.remedy


def test_a_setting_that_envcompare_replaced_is_said_and_is_no_candidate() -> None:
    """The image's number of threads was never measured, so it explains nothing here."""
    found = of_images(
        {"env.OMP_NUM_THREADS": None},
        {"env.OMP_NUM_THREADS": "1"},
        both={"threads.omp": 2, "loaded_libraries": ("libgomp.so.1 3",)},
    )
    assert candidates(found, "b") == ()
    assert found[0].evidence == (
        "b sets OMP_NUM_THREADS=1; envcompare set 2 threads in both arms, so its effect is not in "
        "these numbers; `--threads as-run` measures it."
    )
    felt = of_images(
        {"env.OMP_NUM_THREADS": None, "threads.omp": None},
        {"env.OMP_NUM_THREADS": "1", "threads.omp": 1},
        both={"loaded_libraries": ("libgomp.so.1 3",)},
    )
    assert candidates(felt, "b") == ("env.OMP_NUM_THREADS",)


def test_a_changed_module_of_the_standard_library_is_a_confounder() -> None:
    """The interpreter is the same, and code was appended to a module that Python imported."""
    found = of_images(
        {"python.modules": ("json/decoder.py 1", "random.py 7"), "python.sha256": "1"},
        {"python.modules": ("json/decoder.py 2", "uuid.py 8"), "python.sha256": "1"},
    )
    assert [(one.key, one.fact_class) for one in found] == [("python.modules", "confounder")]
    assert describe(found[0]) == "modules of the standard library (json/decoder.py)"


def test_a_module_that_one_arm_alone_imported_is_a_possible_cause() -> None:
    """Nothing replaced it, and something made Python import it."""
    (found,) = of_images(
        {"python.modules": ("random.py 7",)},
        {"python.modules": ("random.py 7", "sitecustomize.py 2")},
    )
    assert (found.fact_class, found.value) == ("possible-influence", ("sitecustomize.py 2",))


def test_modules_without_byte_code_are_counted() -> None:
    """Python compiles them at each start, which a command pays each time."""
    (found,) = of_images({"python.uncompiled": 0}, {"python.uncompiled": 563})
    assert found.evidence == (
        "b has 563 more modules without byte code, which Python compiles at each start: envcompare "
        "lets no arm write byte code."
    )
