"""What leads the loader or Python to other files counts where something came from there."""

from __future__ import annotations

import pytest
from pairs import OWN, Facts, differences


@pytest.mark.parametrize(
    ("value", "docker", "expected"),
    [
        ("/no/such.so", (), "possible-influence"),
        ("/opt/libown.so", ("libown.so.2 5",), "confounder"),
        ("libfirst.so /opt/libown.so", ("libown.so 5",), "confounder"),
    ],
)
def test_a_preload_confounds_where_its_library_is_mapped(
    value: str, docker: tuple[str, ...], expected: str
) -> None:
    """The loader goes on without a file that is not there."""
    for key in ("env.LD_PRELOAD", "allocator.ld_preload"):
        vm: Facts = {key: None, "loaded_libraries": ("libc.so.6 1",)}
        found = differences(vm, {key: value, "loaded_libraries": ("libc.so.6 1", *docker)})[key]
        assert found.fact_class == expected
    assert differences({key: None}, {key: value})[key].fact_class == "confounder"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("glibc.malloc.arena_max=1", "confounder"),
        ("glibc.malloc.arena_max", "possible-influence"),
        ("glibc.malloc.arena_max=many", "possible-influence"),
        ("malloc=1:nonsense", "possible-influence"),
        ("nonsense:glibc.cpu.hwcaps=-AVX2", "confounder"),
    ],
)
def test_tunables_confound_where_glibc_knows_them(value: str, expected: str) -> None:
    """What it does not understand it leaves aside."""
    for key in ("env.GLIBC_TUNABLES", "allocator.tunables"):
        found = differences({key: None}, {key: value}, both={"allocator.name": "glibc"})[key]
        assert found.fact_class == expected


@pytest.mark.parametrize(
    ("vm", "docker", "paths", "expected", "words"),
    [
        (None, "/.singularity.d/libs", ("libc.so.6 /usr/lib/libc.so.6",), "varied", "Apptainer"),
        ("/opt", "/opt:/.singularity.d/libs", (), "varied", "Apptainer"),
        (None, "/.singularity.d/libs", ("libcuda.so.1 /.singularity.d/libs/libcuda.so.1",),
         "possible-influence", "libcuda.so.1 was loaded from there"),
        (None, "/.singularity.d/libs", None, "possible-influence", "not measured"),
        (None, "/opt/lib", (), "possible-influence", "No library was loaded from there"),
    ],
)  # fmt: skip
def test_library_path_of_apptainer_is_its_own(
    vm: str | None, docker: str, paths: tuple[str, ...] | None, expected: str, words: str
) -> None:
    """It sets one whatever is asked of it; only what is loaded from there can be felt."""
    key = "env.LD_LIBRARY_PATH"
    found = differences({key: vm}, {key: docker}, both={"loaded_paths": paths})[key]
    assert found.fact_class == expected
    assert words in found.sentence


def test_package_from_outside_the_installed_ones_is_a_confounder() -> None:
    """A folder that PYTHONPATH names is no part of the software that was proven."""
    facts: Facts = {"env.PYTHONPATH": "/opt/own", "packages.outside": ("numpy 1234",)}
    found = differences({"packages.outside": ()}, facts, arm=OWN)
    assert found["packages.outside"].fact_class == "confounder"
    assert "packages from outside the installed ones (numpy)" in found["packages.outside"].sentence
    assert found["env.PYTHONPATH"].fact_class == "possible-influence"
