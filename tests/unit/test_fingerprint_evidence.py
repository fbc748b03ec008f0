"""A confounder is raised where the workload was seen to use what differs, and says so."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from pairs import OWN, Facts, differences

from envcompare.analysis.timing.surroundings import Surroundings, _Seen
from envcompare.fingerprint.sentences import describe, other_options
from envcompare.run_folder.records import Memory

TORCH = ("libc.so.6 1", "libtorch_cpu.so 2", "libgomp.so.1 3")
PATHS = ("_pcg64.so /v/site-packages/numpy/random/_pcg64.so", "_ssl.so /usr/lib-dynload/_ssl.so")


@pytest.mark.parametrize(
    ("vm", "docker", "expected", "evidence"),
    [
        (("libcudnn.so.9 1",), ("libcudnn.so.9 2",), "confounder",
         "cuDNN was loaded by this workload in both arms."),
        ((), ("libcudnn.so.9 2",), "confounder",
         "cuDNN was loaded by this workload only in docker."),
        ((), (), "possible-influence", "cuDNN was not loaded by this workload."),
    ],
)  # fmt: skip
def test_a_library_confounds_where_it_was_loaded(
    vm: tuple[str, ...], docker: tuple[str, ...], expected: str, evidence: str
) -> None:
    """Another cuDNN changes nothing of a workload that never loads it."""
    found = differences(
        {"cuda.cudnn": "9.1", "loaded_libraries": vm},
        {"cuda.cudnn": "9.5", "loaded_libraries": docker},
    )["cuda.cudnn"]
    assert (found.fact_class, found.evidence) == (expected, evidence)
    assert evidence in found.sentence


def test_a_package_confounds_where_it_was_imported() -> None:
    """Two packages differ, one of them is imported: each is told for what it is."""
    found = differences(
        {"packages": ("pillow==10", "rich==13"), "loaded_packages": ("pillow==10",)},
        {"packages": ("pillow==11", "rich==14"), "loaded_packages": ("pillow==11",)},
    )
    assert found["packages"].value == ("pillow==11",)
    assert found["packages"].evidence == "pillow was imported by this workload in both arms."
    assert found["packages.not_imported"].fact_class == "possible-influence"
    assert found["packages.not_imported"].sentence == (
        "This workload did not import them. This is only a possible influence."
    )


def test_another_numpy_that_is_not_imported_is_not_lost() -> None:
    """Its own fact is measured only where it is imported; then the list of packages tells it."""
    found = differences(
        {"packages": ("numpy==1.26",), "numpy.version": None},
        {"packages": ("numpy==2.1",), "numpy.version": None},
        both={"loaded_packages": ()},
    )
    assert found["packages.not_imported"].reference == ("numpy==1.26",)


@pytest.mark.parametrize(
    ("key", "libraries", "expected"),
    [
        ("env.OMP_NUM_THREADS", TORCH, "confounder"),
        ("env.OMP_NUM_THREADS", ("libc.so.6 1",), "possible-influence"),
        ("env.MKL_NUM_THREADS", TORCH, "confounder"),
        ("env.MKL_NUM_THREADS", ("libscipy_openblas64_-1.so 1",), "possible-influence"),
        ("env.OPENBLAS_NUM_THREADS", ("libscipy_openblas64_-1.so 1",), "confounder"),
        ("threads.openblas", TORCH, "possible-influence"),
        ("env.ONEDNN_MAX_CPU_ISA", ("libc.so.6 1", "libdnnl.so.3 2"), "confounder"),
        ("env.ONEDNN_MAX_CPU_ISA", ("libc.so.6 1",), "possible-influence"),
        ("env.ATEN_CPU_CAPABILITY", TORCH, "confounder"),
        ("torch.deterministic", TORCH, "confounder"),
        ("torch.tf32_matmul", TORCH, "possible-influence"),
        ("gpu.power_limit_w", (*TORCH, "libcuda.so.1 4"), "confounder"),
        ("gpu.power_limit_w", TORCH, "possible-influence"),
    ],
)
def test_a_setting_confounds_where_what_reads_it_was_loaded(
    key: str, libraries: tuple[str, ...], expected: str
) -> None:
    """The threads of a runtime that is not there are nobody's threads."""
    found = differences({key: 1}, {key: 4}, both={"loaded_libraries": libraries})
    assert found[key].fact_class == expected


@pytest.mark.parametrize(
    ("allocator", "expected"), [("glibc", "confounder"), ("jemalloc", "possible-influence")]
)
def test_a_variable_of_glibc_confounds_under_its_allocator(allocator: str, expected: str) -> None:
    """Another allocator does not read the variables of glibc's."""
    key = "env.MALLOC_ARENA_MAX"
    found = differences({key: None}, {key: "1"}, both={"allocator.name": allocator})[key]
    assert found.fact_class == expected
    assert "allocator is" in found.evidence


@pytest.mark.parametrize(
    ("quota", "facts", "throttled_ns", "expected"),
    [
        (0.5, {}, None, "confounder"),
        (0.5, {}, 0, "confounder"),
        (1.5, {}, 0, "possible-influence"),
        (1.5, {"torch.threads": 2}, 0, "confounder"),
        (1.5, {}, 3_000_000_000, "confounder"),
        (1, {}, None, "possible-influence"),
        (1, {"threads.alive": 2}, None, "confounder"),
        (1, {"threads.alive": 9, "torch.threads": 1}, 0, "possible-influence"),
        (2, {"cgroup.throttled_ns": 40_000_000}, None, "confounder"),
        (1, {"cgroup.throttled_ns": 0, "threads.alive": 2}, None, "confounder"),
        (1, {"cgroup.throttled_ns": 0, "threads.alive": 1}, None, "possible-influence"),
    ],
)
def test_a_quota_confounds_below_the_threads_or_when_it_stopped_them(
    quota: float, facts: Facts, throttled_ns: int | None, expected: str
) -> None:
    """A quota that nobody reaches is told and not blamed."""
    key = "cgroup.cpu_quota"
    seen = {"throttled_ns": throttled_ns, "is_program": throttled_ns is None}
    found = differences({key: "unlimited"}, {key: quota}, both=facts, **seen)
    assert found[key].fact_class == expected
    if throttled_ns:
        assert found[key].evidence == (
            "It stopped the workload for 3.0 s while it was measured: 1 thread ran on a quota of "
            "1.5 CPUs."
        )


@pytest.mark.parametrize(
    ("cpus", "threads", "expected"),
    [("0-3", 4, "possible-influence"), ("0-1,3", 4, "confounder"), ("0", 1, "possible-influence")],
)
def test_a_cpu_set_confounds_below_the_threads(cpus: str, threads: int, expected: str) -> None:
    """Four threads feel three CPUs and not four."""
    found = differences(
        {"cgroup.cpuset": "0-7"}, {"cgroup.cpuset": cpus}, both={"torch.threads": threads}
    )
    assert found["cgroup.cpuset"].fact_class == expected


def test_threads_are_those_of_the_arm_that_is_confined() -> None:
    """The other arm may run more, since it has more processors."""
    many, few = {"torch.threads": 64}, {"torch.threads": 2}
    quota, cpus = "cgroup.cpu_quota", "cgroup.cpuset"
    limited = {**few, quota: 8.0, cpus: "0-7"}
    found = differences({**many, quota: "unlimited", cpus: "0-63"}, limited, throttled_ns=0)
    ran = "2 threads ran on a quota of 8 CPUs."
    assert found[quota].evidence == f"It did not stop the workload: {ran}"
    assert found[quota].is_felt is False
    assert found[cpus].evidence == "The workload uses 2 threads, and one arm has 8 CPUs."
    assert found[cpus].is_felt is None
    found = differences({quota: "unlimited"}, {quota: 8.0}, throttled_ns=0, running=(64, 2))
    assert found[quota].is_felt is False
    found = differences({quota: 8.0}, {quota: "unlimited"}, throttled_ns=0, running=(64, 2))
    assert found[quota].evidence == "64 threads ran on a quota of 8 CPUs."
    alive = "threads.alive"
    found = differences({quota: "unlimited", alive: 64}, {quota: 8.0, alive: 2}, is_program=True)
    assert "2 threads ran" in found[quota].evidence
    found = differences({quota: "unlimited", alive: 64}, {quota: 8.0}, is_program=True)
    assert found[quota].evidence == "The threads of the command were not counted."


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("/a:/b", "/b:/a", "The same folders are searched in another order. libx.so was"),
        ("/c:/d", "/d:/c", "The same folders are searched, and no library was"),
        ("/c", "/c:/c", "The same folders are searched, and no library was"),
        ("/c", "/c:/a", "libx.so was"),
        ("/c", "/c:", "Whether a library was"),
        ("/c", "/c:lib", "Whether a library was"),
    ],
)
def test_folders_for_libraries_count_in_their_order(before: str, after: str, expected: str) -> None:
    """The first that has a library counts; a folder that is not absolute is not known."""
    key = "env.LD_LIBRARY_PATH"
    found = differences(
        {key: before, "loaded_paths": ("libx.so /a/libx.so",)},
        {key: after, "loaded_paths": ("libx.so /b/libx.so",)},
    )[key]
    assert found.evidence.partition(" loaded from there")[0] == expected
    assert found.is_felt is None


@pytest.mark.parametrize(
    ("facts", "seen", "expected", "is_felt"),
    [
        ({}, {"peak_bytes": 300_000_000},
         "Without the page cache, the peak is 300 MB, and the limit is 1000 MB.", None),
        ({}, {"peak_bytes": 900_000_000}, "Its peak is 900 MB and the limit 1000 MB.", True),
        ({}, {"peak_bytes": 300_000_000, "group_peaks": (None, 990_000_000)},
         "With the page cache, the peak is 990 MB, and the limit is 1000 MB.", None),
        ({}, {"group_peaks": (990_000_000, 400_000_000)},
         "With the page cache, the peak is 400 MB, and the limit is 1000 MB.", False),
        ({"cgroup.memory_limit_hits": 0}, {"peak_bytes": 300_000_000},
         "It was not seen to be reached, and the limit is 1000 MB.", False),
        ({"cgroup.memory_limit_hits": 1, "process.major_faults": 3}, {},
         "It was reached 1 time, with 3 reads of pages from disk.", True),
        ({}, {}, "", None),
    ],
)  # fmt: skip
def test_memory_limit_counts_the_page_cache(
    facts: Facts, seen: dict[str, Any], expected: str, *, is_felt: bool | None
) -> None:
    """Only its own peak, or how often the limit was hit, shows that it had no effect."""
    key = "cgroup.memory_limit_bytes"
    unlimited: Facts = {key: "unlimited", "cgroup.memory_limit_hits": 0}
    found = differences(unlimited, {key: 1_000_000_000, **facts}, **seen)[key]
    assert (found.evidence, found.is_felt) == (expected, is_felt)


@pytest.mark.parametrize(
    ("peak_bytes", "expected"),
    [
        (900_000_000, "confounder"),
        (300_000_000, "possible-influence"),
        (None, "possible-influence"),
    ],
)
def test_a_memory_limit_confounds_near_the_peak(peak_bytes: int | None, expected: str) -> None:
    """A limit far above what is needed is not blamed."""
    key = "cgroup.memory_limit_bytes"
    found = differences({key: "unlimited"}, {key: 1_000_000_000}, peak_bytes=peak_bytes)[key]
    assert found.fact_class == expected


def test_what_a_plain_command_loads_is_not_known_where_it_was_not_seen() -> None:
    """The facts are its launcher's: a difference stays a confounder, and the doubt is said."""
    found = differences({"torch.version": "2.1"}, {"torch.version": "2.2"}, is_program=True)
    assert found["torch.version"].fact_class == "confounder"
    assert found["torch.version"].evidence == "What the command itself loads was not seen."


@pytest.mark.parametrize(
    ("program", "fact_class", "evidence"),
    [
        ("python3.11 1", "confounder",
         "It runs the command's Python code, with its own modules such as bz2, ssl and sqlite3."
         ),
        ("ffmpeg 1", "possible-influence", "The command was not seen to run Python."),
    ],
)  # fmt: skip
def test_python_confounds_a_command_that_was_seen_to_run_it(
    program: str, fact_class: str, evidence: str
) -> None:
    """Another interpreter beside a program of another kind changes nothing of it."""
    found = differences(
        {"python.sha256": "1", "packages": ("numpy==1",)},
        {"python.sha256": "2", "packages": ("numpy==2",)},
        both={"programs": (program,), "python.executable": "/usr/bin/python3.11"},
        is_program=True,
    )
    assert found["python.sha256"].fact_class == fact_class
    assert found["python.sha256"].evidence == evidence
    assert ("packages" in found) == (fact_class == "confounder")


def test_another_build_of_a_command_is_told_by_what_was_seen_in_both_arms() -> None:
    """What is in one list alone proves nothing: a reading may have missed it in the other."""
    found = differences(
        {"programs": ("ffmpeg 1", "sh 1"), "loaded_libraries": ("libx.so 1", "libz.so 1")},
        {"programs": ("ffmpeg 2", "sh 1"), "loaded_libraries": ("liby.so 1", "libz.so 1")},
        is_program=True,
    )
    assert found["programs"].fact_class == "confounder"
    assert found["programs"].reference == ("ffmpeg 1",)
    assert found["programs"].evidence == "The command runs them."
    assert found["loaded_libraries"].fact_class == "possible-influence"
    assert "Seen in only one arm" in found["loaded_libraries"].evidence


def test_a_library_of_a_command_is_known_by_its_name_without_the_version() -> None:
    """The map of a process shows the file itself, whose name an upgrade changes."""
    found = differences(
        {"loaded_libraries": ("libavcodec.so.59.37 1",)},
        {"loaded_libraries": ("libavcodec.so.60.3 2",)},
        both={"programs": ("ffmpeg 1",)},
        is_program=True,
    )["loaded_libraries"]
    assert found.fact_class == "confounder"
    assert found.evidence == "The command loaded them in both arms."


def test_one_cause_is_told_once() -> None:
    """Another numpy is another tree, another lock and another library; one line says it all."""
    found = differences(
        {"numpy.version": "1.26", "site_packages.sha256": "a", "site_packages.files": "1",
         "lock.sha256": "x", "packages": ("numpy==1.26",),
         "loaded_libraries": ("_multiarray_umath.so 1", "_pcg64.so 1")},
        {"numpy.version": "2.1", "site_packages.sha256": "b", "site_packages.files": "2",
         "lock.sha256": "y", "packages": ("numpy==2.1",),
         "loaded_libraries": ("_multiarray_umath.so 2", "_pcg64.so 2")},
        both={"loaded_packages": ("numpy==0",), "loaded_paths": PATHS},
    )  # fmt: skip
    leaders = {key: one.part_of for key, one in found.items() if one.fact_class == "confounder"}
    assert leaders == {
        "numpy.version": "",
        "lock.sha256": "numpy.version",
        "site_packages.files": "numpy.version",
        "site_packages.sha256": "numpy.version",
        "loaded_libraries": "numpy.version",
    }


def test_a_module_of_the_standard_library_is_told_with_the_interpreter() -> None:
    """Another Python brings another `_ssl`; what belongs to neither is told by itself."""
    found = differences(
        {"python.version": "3.11.2", "loaded_libraries": ("_ssl.so 1", "libz.so 1")},
        {"python.version": "3.11.9", "loaded_libraries": ("_ssl.so 2", "libz.so 2")},
        both={"loaded_paths": PATHS},
    )["loaded_libraries"]
    assert (found.reference, found.fact_class) == (("libz.so 1",), "possible-influence")


def test_a_native_module_of_a_package_computes() -> None:
    """The same version of a package, built otherwise: its module is a confounder by its place."""
    found = differences(
        {"loaded_libraries": ("_pcg64.so 1",)},
        {"loaded_libraries": ("_pcg64.so 2",)},
        both={"loaded_paths": PATHS},
    )["loaded_libraries"]
    assert found.fact_class == "confounder"


def test_other_files_of_the_same_packages_are_a_confounder_of_their_own() -> None:
    """The versions agree and the files do not: somebody changed what was installed."""
    found = differences({"site_packages.sha256": "a"}, {"site_packages.sha256": "b"})
    one = found["site_packages.sha256"]
    assert (one.fact_class, one.part_of) == ("confounder", "")


def test_another_tree_is_explained_by_packages_that_are_not_imported() -> None:
    """Another pip alone makes the tree another one; nobody feels it."""
    found = differences(
        {"packages": ("pip==24",), "site_packages.sha256": "a"},
        {"packages": ("pip==25",), "site_packages.sha256": "b"},
        both={"loaded_packages": ("numpy==2",)},
    )
    assert {one.fact_class for one in found.values()} == {"possible-influence"}
    assert "not import" in found["site_packages.sha256"].sentence


def test_the_same_tree_from_another_lock_is_the_same_software() -> None:
    """The lock says how it came to be; the tree says what it is."""
    found = differences(
        {"lock.sha256": "a"}, {"lock.sha256": "b"}, both={"site_packages.sha256": "t"}
    )
    assert found["lock.sha256"].fact_class == "possible-influence"


def test_the_remedy_is_a_command_for_this_very_pair() -> None:
    """It can be copied: host, arms and flags are those of the run."""
    found = differences({"python.version": "3.11.2"}, {"python.version": "3.11.9"}, host="gpu01")
    assert found["python.version"].remedy.startswith(
        "`envcompare run --hosts gpu01 --envs vm,docker --stacks image,host`"
    )
    assert "--vm-python PATH" in found["python.version"].remedy


@pytest.mark.parametrize(
    ("address", "begin"),
    [
        ("me@gpu01:2222", "`envcompare run --hosts me@gpu01:2222 --envs vm,docker "),
        ("", "`envcompare run --envs vm,docker "),  # a node of a job
    ],
)
def test_the_remedy_names_the_host_by_its_address(address: str, begin: str) -> None:
    """The name in the plan reaches another host, or none."""
    sides: tuple[Facts, Facts] = ({"python.version": "3.11"}, {"python.version": "3.12"})
    found = differences(*sides, host="gpu01", hosts=(("gpu01", address),))
    assert found["python.version"].remedy.startswith(begin)


def test_the_remedy_measures_the_same_work_again() -> None:
    """Its command has the options of the run; hosts and arms it names itself."""
    words = "envcompare -q run --hosts a,b --envs=vm,docker --base-image mine --set cnn.batch=8"
    options = other_options((*words.split(), "--title", "a b"))
    found = differences({"python.version": "3.11"}, {"python.version": "3.12"}, options=options)
    assert found["python.version"].remedy.startswith(
        "`envcompare run --envs vm,docker --base-image mine --set cnn.batch=8 --title 'a b' "
        "--stacks image,host`"
    )
    assert other_options(("envcompare", "import", "nsys", "a.sqlite")) == ()


def test_an_image_of_the_users_is_measured_beside_the_tools_own() -> None:
    """A third arm has the environment of the one and the software of the other."""
    found = differences({"libc.version": "2.36"}, {"libc.version": "2.39"}, arm=OWN)
    assert found["libc.version"].remedy == (
        "`envcompare run --envs vm,docker,new=docker:app:2` measures docker with envcompare's "
        "own software as well"
    )


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("env.MALLOC_TRIM_THRESHOLD_", "`envcompare run --envs vm,docker --stabilise`"),
        (
            "env.MALLOC_ARENA_MAX",
            "set MALLOC_ARENA_MAX to the same value in every arm",
        ),
        ("allocator.tunables", "set GLIBC_TUNABLES to the same value in every arm"),
        ("torch.threads", "`envcompare run --envs vm,docker --threads N`"),
        ("torch.deterministic", "in the workload's code"),
        ("torch.cudnn_benchmark", "in the workload's code"),
        ("torch.interop_threads", "in the workload's code"),
        ("gpu.uuid", "give every arm the same GPU"),
        ("cgroup.cpu_quota", "give every arm the same quota: it comes from"),
        ("given.options", "give every arm the same options"),
        ("preload.file", "write the same lines to /etc/ld.so.preload in every arm"),
    ],
)
def test_the_remedy_of_a_setting_sets_it_everywhere(key: str, expected: str) -> None:
    """A setting needs no second measurement: it can be made the same, and what to set is said."""
    values: tuple[str | int, str | int] = (1, 2)
    if key == "allocator.tunables":
        values = ("glibc.malloc.arena_max=1", "glibc.malloc.arena_max=2")
    remedy = differences({key: values[0]}, {key: values[1]})[key].remedy
    assert expected in remedy
    assert "remove" not in remedy


@pytest.mark.parametrize(
    ("key", "who"),
    [
        ("seccomp.mode", "mostly small system calls"),
        ("speculation.ssb", "indirect branches"),
        ("mount.python", "start-up"),
        ("shm.bytes", "data loaders"),
        ("limits.nofile", "closes every possible descriptor"),
        ("limits.stack", "reaches a limit"),
        ("shm.bytes", "use slower files"),
        ("lsm.label", "opens many files"),
    ],
)
def test_what_is_varied_on_purpose_says_who_feels_it(key: str, who: str) -> None:
    """Each has a sentence of its own, and nothing of it is called a confounder."""
    found = differences({key: 1}, {key: 2})[key]
    assert found.fact_class == "varied"
    assert who in found.sentence


def test_a_variable_of_onednn_is_felt_where_the_wheels_of_pytorch_are_loaded() -> None:
    """They hold oneDNN inside libtorch_cpu, so that what reads the setting was seen in use."""
    key = "env.ONEDNN_MAX_CPU_ISA"
    found = differences({key: None}, {key: "SSE41"}, both={"loaded_libraries": TORCH})[key]
    assert found.evidence == "oneDNN was loaded by this workload in both arms."
    assert found.is_felt
    assert "set ONEDNN_MAX_CPU_ISA to the same value in every arm" in found.remedy


def test_what_a_variable_makes_pytorch_use_is_told_with_the_variable() -> None:
    """One cause is one line, and the remedy is that of the variable."""
    keys = ("env.ATEN_CPU_CAPABILITY", "torch.cpu_capability")
    found = differences(
        dict(zip(keys, (None, "AVX2"), strict=True)),
        dict(zip(keys, ("default", "DEFAULT"), strict=True)),
        both={"loaded_libraries": TORCH},
    )
    assert [found[key].part_of for key in keys] == ["", "env.ATEN_CPU_CAPABILITY"]


@pytest.mark.parametrize(
    ("key", "values", "words"),
    [
        ("process.nice", (0, 10), "the priority (nice) 0 → 10 differs"),
        ("process.scheduler", ("other", "idle"), "the scheduling policy other → idle differs"),
        ("thp.is_disabled", (False, True), "the process's ban on transparent huge pages off → on"),
    ],
)
def test_how_a_process_is_scheduled_is_a_confounder(
    key: str, values: tuple[int | str, int | str], words: str
) -> None:
    """Each can change the speed by itself, and what starts the process is told as the remedy."""
    found = differences({key: values[0]}, {key: values[1]})[key]
    assert found.fact_class == "confounder"
    assert f"Besides the environment, {words}" in found.sentence
    assert "start every arm without" in found.remedy


def test_one_cpu_for_one_thread_is_no_proof_that_nothing_is_felt() -> None:
    """Whatever else runs there interrupts the only thread; the CPUs are named in one word."""
    found = differences(
        {"cpu.affinity": (0, 1, 2, 3, 6)}, {"cpu.affinity": (0,)}, both={"torch.threads": 1}
    )["cpu.affinity"]
    assert (found.fact_class, found.is_felt) == ("possible-influence", None)
    assert found.evidence == "The workload uses 1 thread, and one arm has 1 CPU."
    assert describe(found) == "the CPU set 0-3,6 → 0"
    assert "taskset" in found.remedy


@pytest.mark.parametrize(
    ("loaded", "fact_class", "evidence"),
    [
        (("torch==2.13.0",), "confounder", "torch was imported by this workload in both arms."),
        ((), "possible-influence", "This workload did not import them."),
    ],
)
def test_changed_files_are_named_with_their_package(
    loaded: tuple[str, ...], fact_class: str, evidence: str
) -> None:
    """The package has the version it should have, and one of its files is another one."""
    numpy = "numpy==2.4.6 00"
    found = differences(
        {"site_packages.parts": (numpy, "torch==2.13.0 1"), "site_packages.sha256": "a",
         "site_packages.changed": ("torch==2.13.0 torch/__init__.py 3",)},
        {"site_packages.parts": (numpy, "torch==2.13.0 2"), "site_packages.sha256": "b",
         "site_packages.changed": ("torch==2.13.0 torch/__init__.py 4",)},
        both={"loaded_packages": loaded},
    )  # fmt: skip
    one = found["site_packages.parts"]
    assert (one.fact_class, one.evidence) == (fact_class, evidence)
    assert describe(one) == "the installed files (torch 2.13.0: torch/__init__.py)"
    assert found["site_packages.sha256"].part_of == "site_packages.parts"
    assert found["site_packages.sha256"].fact_class == fact_class
    assert "site_packages.changed" not in found


def test_a_file_of_no_package_counts_where_one_arm_alone_has_it() -> None:
    """Python runs sitecustomize.py at every start, whatever the workload imports."""
    found = differences(
        {"site_packages.parts": ("numpy==2.4.6 00",)},
        {"site_packages.parts": ("numpy==2.4.6 00", "sitecustomize.py 2")},
        both={"loaded_packages": ()},
    )["site_packages.parts"]
    assert (found.fact_class, found.is_felt) == ("confounder", True)
    assert describe(found) == "the installed files (sitecustomize.py)"
    assert found.evidence == "Python runs sitecustomize.py at every start."


def test_packages_of_other_versions_are_told_by_their_versions_alone() -> None:
    """All their files differ: the list of packages says it, and no file is named."""
    found = differences(
        {"site_packages.parts": ("pillow==10 1",), "packages": ("pillow==10",)},
        {"site_packages.parts": ("pillow==11 2",), "packages": ("pillow==11",)},
        both={"loaded_packages": ("pillow==0",)},
    )
    assert list(found) == ["packages"]


def test_what_a_cell_saw_is_kept_by_arm_and_by_host() -> None:
    """A limit concerns the threads and the memory of the arm that has it."""
    cells = [SimpleNamespace(id=f"{host}/c", host=host) for host in ("h2", "h1")]
    run = SimpleNamespace(arms=[], command_line=(), cells=cells)
    memory = {"restart": 0, "generation": 0, "max_rss_bytes": 1}
    seen = {}
    for at, (cell, arm) in enumerate(product(("h2/c", "h1/c"), ("vm", "docker"))):
        seen[cell, arm] = _Seen(running=[at, at])
        seen[cell, arm].take(Memory(cell=cell, arm=arm, cgroup_peak_bytes=at * 10, **memory))
    read = SimpleNamespace(timed=run, run=run)
    around = Surroundings(read=read, seen=seen, hosts=())  # type: ignore[arg-type]
    of_arms = around.context("h2/c", ("vm", "docker"))
    assert (of_arms.running, of_arms.group_peaks) == ((0, 1), (0, 10))
    of_hosts = around.of_hosts("docker", ("h1", "h2"))
    assert (of_hosts.running, of_hosts.group_peaks) == ((3, 1), (30, 10))
