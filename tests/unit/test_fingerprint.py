"""Fingerprints are compared by class; what is unknown may always have an influence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcompare import fingerprint
from envcompare.fingerprint import CLASS_ORDER, classify
from envcompare.fingerprint.comparing import compare_fingerprints
from envcompare.fingerprint.sentences import describe
from envcompare.report.sections.environments import fact_text
from envcompare.run_folder.records import FactDifference, FingerprintRecord, FingerprintValue

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=20)
FACTS = st.dictionaries(
    st.text(max_size=20)
    | st.sampled_from(["packages", "loaded_libraries", "programs", "python.sha256"]),
    SCALARS | st.lists(st.text(max_size=12), max_size=6).map(tuple),
    max_size=12,
)


Facts = dict[str, FingerprintValue]


def compared(vm: Facts, docker: Facts) -> tuple[FactDifference, ...]:
    """Return how two arms with these facts differ."""
    return compare_fingerprints(
        FingerprintRecord(host="gpu01", arm="vm", facts=vm),
        FingerprintRecord(host="gpu01", arm="docker", facts=docker),
    )


def one_difference(key: str, before: FingerprintValue, after: FingerprintValue) -> FactDifference:
    """Return the only difference between two arms that differ in one fact."""
    (found,) = compared({key: before}, {key: after})
    return found


@given(FACTS)
def test_the_same_facts_differ_in_nothing(facts: Facts) -> None:
    """Two arms that found the same have no difference."""
    assert compared(facts, dict(facts)) == ()


@given(FACTS, FACTS)
def test_every_difference_has_both_values_a_class_and_a_sentence(here: Facts, there: Facts) -> None:
    """What differs is described whatever it is, once a key, confounders first."""
    found = compared(here, there)
    classes = [CLASS_ORDER.index(one.fact_class) for one in found]
    assert classes == sorted(classes)
    assert len({one.key for one in found}) == len(found)
    assert all(one.sentence and describe(one) and one.reference != one.value for one in found)


@given(st.from_regex(r"zz[a-z]{1,8}(\.[a-z]{1,8})?", fullmatch=True))
def test_a_key_nobody_knows_is_a_possible_influence(key: str) -> None:
    """A property that a later worker reports is never taken for harmless."""
    assert classify(key) == "possible-influence"


@pytest.mark.parametrize(
    ("key", "before", "after", "expected"),
    [
        ("pid", 12, 31, "identity"),
        ("python.executable", "/a/bin/python", "/usr/bin/python3.11", "identity"),
        ("image.id", "sha256:aa", "sha256:bb", "identity"),
        ("sif.sha256", "aa", None, "identity"),
        ("loaded_paths", ("libz.so /a",), ("libz.so /b",), "identity"),
        ("cpu.model", "Xeon", "EPYC", "host"),
        ("cpu.microcode", "0x1", "0x2", "host"),
        ("vulnerabilities.meltdown", "Mitigation: PTI", "Vulnerable", "host"),
        ("kernel.clocksource", "tsc", "hpet", "host"),
        ("lsm.label", "unconfined", "docker-default (enforce)", "varied"),
        ("mount.python", "ext4 rw", "overlay ro", "varied"),
        ("seccomp.filters", 0, 1, "varied"),
        ("gid", 0, 1000, "varied"),
        ("kernel.release", "6.1.0", "4.4.0", "host"),
        ("os.release", "Ubuntu 22.04", "Debian 12", "varied"),
        ("seccomp.mode", 0, 2, "varied"),
        ("no_new_privs", False, True, "varied"),
        ("capabilities.effective", "1ff", "0", "varied"),
        ("shm.bytes", 8 << 30, 64 << 20, "varied"),
        ("limits.nofile", 1024, 1048576, "varied"),
        ("cgroup.pids_limit", None, 100, "varied"),
        ("env.HOME", "/root", "/home/bench", "varied"),
        ("cgroup.cpu_quota", None, 150000, "possible-influence"),
        ("cgroup.cpuset", "0-7", "0-3", "possible-influence"),
        ("cgroup.memory_limit_bytes", None, 1 << 30, "possible-influence"),
        ("thp", "always", "madvise", "possible-influence"),
        ("threads.alive", 1, 9, "possible-influence"),
        ("loaded_packages", ("a==1",), ("b==1",), "possible-influence"),
        ("env.TORCH_HOME", None, "/x", "possible-influence"),
        ("loaded_libraries", ("libz.so.1 1",), ("libz.so.1 2",), "possible-influence"),
        ("torch.git", "abc", None, "possible-influence"),  # not measured: it may hide a difference
        ("torch.version", "2.13.0", "2.12.0", "confounder"),
        ("cuda.cudnn", "9.1.0", "9.5.1", "confounder"),
        ("cuda.nccl", "2.20", "2.21", "confounder"),
        ("lock.sha256", "aa", "bb", "confounder"),
        ("site_packages.sha256", "aa", "bb", "confounder"),
        ("libc.sha256", "aa", "bb", "confounder"),
        ("allocator.name", "glibc", "jemalloc", "confounder"),
        ("torch.tf32_matmul", True, False, "confounder"),
        ("torch.threads", 1, 2, "confounder"),
        ("python.version", "3.11.2", "3.11.9", "confounder"),
        ("libc.version", "2.36", "2.39", "confounder"),
        ("threads.omp", 1, 4, "confounder"),
        ("env.OMP_NUM_THREADS", "1", "4", "confounder"),
        ("env.MALLOC_TRIM_THRESHOLD_", None, "1", "confounder"),
        ("gpu.name", "H200", None, "confounder"),
    ],
)
def test_the_class_of_a_difference(
    key: str, before: FingerprintValue, after: FingerprintValue, expected: str
) -> None:
    """Each known property has the class that the report relies on."""
    assert one_difference(key, before, after).fact_class == expected


def test_the_sentence_of_a_confounder_names_what_differs_and_how_to_separate_it() -> None:
    """The reader learns which software differs and the command that splits the difference."""
    difference = one_difference("cuda.cudnn", "9.1", "9.5")
    assert difference.sentence == (
        "Besides the environment, cuDNN 9.1 → 9.5 differs. "
        "Whether this workload loaded cuDNN was not measured. "
        "A difference in speed is then real, but its cause cannot be determined."
    )
    assert difference.remedy == (
        "`envcompare run --stacks image,host` measures how much is the software; "
        "`envcompare build` makes every arm from the same wheels"
    )


def test_the_remedy_of_another_c_library_is_another_base_image() -> None:
    """The image has the C library of its base, and vm that of the host."""
    found = one_difference("libc.version", "glibc 2.41", "glibc 2.36")
    assert "`--base-image IMAGE` builds the image on the host's own distribution" in found.remedy


def test_another_build_of_python_says_who_feels_it() -> None:
    """The interpreter runs the Python code, and another build has other modules too."""
    found = one_difference("python.sha256", "aa", "bb")
    assert found.fact_class == "confounder"
    assert (
        "the build of Python differs. It runs the workload's Python code, with " in found.sentence
    )
    assert "--vm-python" in found.remedy


def test_libraries_are_compared_by_name_and_only_the_differing_ones_are_listed() -> None:
    """Two hundred libraries that agree are not repeated."""
    same = tuple(f"libsame{number}.so abc" for number in range(200))
    found = one_difference(
        "loaded_libraries",
        (*same, "libz.so.1 111", "libc.so.6 222"),
        (*same, "libz.so.1 333", "libc.so.6 444"),
    )
    assert found.reference == ("libc.so.6 222", "libz.so.1 111")
    assert found.value == ("libc.so.6 444", "libz.so.1 333")
    assert found.fact_class == "confounder"
    assert describe(found) == "loaded libraries (libc.so.6, libz.so.1)"


def test_a_package_is_a_confounder_and_an_installer_is_not() -> None:
    """Another pillow may be felt by the workload; another pip is not."""
    before, after = ("pillow==10.1", "pip==24.0"), ("pillow==11.0", "pip==25.0")
    found = compared({"packages": before}, {"packages": after})
    assert [(one.key, one.reference, one.value, one.fact_class) for one in found] == [
        ("packages", ("pillow==10.1",), ("pillow==11.0",), "confounder"),
        ("packages.not_imported", ("pip==24.0",), ("pip==25.0",), "possible-influence"),
    ]


def test_packages_with_facts_of_their_own_are_told_once() -> None:
    """Another torch stands under torch.version and not in the list of packages again."""
    found = compared(
        {"packages": ("torch==2.13",), "torch.version": "2.13"},
        {"packages": ("torch==2.12",), "torch.version": "2.12"},
    )
    assert [one.key for one in found] == ["torch.version"]


@pytest.mark.parametrize(
    ("key", "after", "words"),
    [
        ("shm.bytes", 64 << 20, "the size of /dev/shm 8192 MiB → 64 MiB"),
        ("cgroup.memory_limit_bytes", "unlimited", "the memory limit 8192 MiB → unlimited"),
        ("gpu.memory_bytes", None, "gpu.memory_bytes 8192 MiB → none"),
    ],
)
def test_bytes_have_a_unit_that_can_be_read(key: str, after: FingerprintValue, words: str) -> None:
    """Ten digits of bytes are no words."""
    assert describe(one_difference(key, 8 << 30, after)) == words


def test_many_entries_are_named_by_the_first_three() -> None:
    """A sentence stays a sentence when forty packages differ."""
    before = tuple(f"p{number:02}==1" for number in range(40))
    after = tuple(f"p{number:02}==2" for number in range(40))
    assert describe(one_difference("packages", before, after)) == (
        "packages (p00 1 → 2, p01 1 → 2, p02 1 → 2 and 37 more)"
    )


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("env.LD_PRELOAD", "not set"),
        ("threads.omp", "not set"),
        ("cuda.cudnn", "not measured: the inspected process loaded no such library"),
        ("cgroup.io_weight", "not measured: no control group shows an I/O weight"),
        ("python.libpython_sha256", "not measured: the interpreter loads none"),
        ("mystery", "not measured"),
    ],
)
def test_a_gap_says_what_it_means(key: str, text: str) -> None:
    """A variable that is not there was measured; what was not says why, where that is known."""
    assert fact_text(key, None) == text


def test_each_fact_has_one_row_in_the_table() -> None:
    """Of two rows with one key the first would be lost in silence."""
    keys = [row.key for row in fingerprint.FACTS]
    assert sorted(set(keys)) == sorted(keys)


def test_a_fact_that_is_told_with_a_group_is_one_of_it() -> None:
    """Those that stand before it in the group tell of it."""
    assert [row.key for row in fingerprint.FACTS if row.group and row.key not in row.group] == []
