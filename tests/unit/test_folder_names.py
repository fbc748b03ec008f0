"""Names of files and folders: never outside their folder, never one for two arms or cells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcompare.run_folder import cell_name, distinct_name, safe_name

LIKE = st.text(alphabet="a_/@.-0", max_size=6)
MARKED = distinct_name("docker@host")


@pytest.mark.parametrize("name_of", [safe_name, distinct_name, cell_name])
@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "..", "", "x\0y", "é☃", "a" * 5000])
def test_no_name_leaves_its_folder(
    tmp_path: Path, name: str, name_of: Callable[[str], str]
) -> None:
    """A hostile name makes a plain file name."""
    path = tmp_path / name_of(name)
    assert path.parent == tmp_path
    assert path != tmp_path


@pytest.mark.parametrize("name", ["vm", "docker-proposed", "gpu01", "a_b", "A.1,x=2"])
def test_a_safe_name_stays_as_it_is(name: str) -> None:
    """A folder is found by the name that the user gave."""
    assert distinct_name(name) == name
    assert cell_name("local/cnn/default") == "local_cnn_default"


@pytest.mark.parametrize(
    ("one", "other"),
    [("docker@host", "docker_host"), ("vm~control", "vm_control"), ("docker@host", MARKED)],
)
def test_arms_that_differ_in_an_unsafe_character_have_two_names(one: str, other: str) -> None:
    """The second would overwrite the first."""
    assert distinct_name(one) != distinct_name(other)


@given(LIKE, LIKE)
def test_two_texts_never_have_one_name(one: str, other: str) -> None:
    """Whatever they are made of."""
    if one != other:
        assert distinct_name(one) != distinct_name(other)
        assert cell_name(one) != cell_name(other)


def test_a_long_name_fits_into_a_file_system() -> None:
    """255 bytes are the most that most of them take, endings included."""
    assert len(distinct_name("a" * 5000)) < 200
    assert len(cell_name("a/" * 5000)) < 200
    assert distinct_name("a" * 5000) != distinct_name("a" * 5001)
