"""When two arms made from the same wheels have other software, and what is said of it."""

from __future__ import annotations

import pytest

from envcompare.stack import Prepared
from envcompare.stack.proof import mismatch

VENV, IMAGE, SIF = "/cache/key/venv-1/bin/python", "sha256:1", "/cache/key/zstd.sif"


def _prepared(reference: str, *, tree: str = "a" * 64, lock: str = "l") -> Prepared:
    facts = {"lock.sha256": lock, "site_packages.sha256": tree}
    return Prepared(
        interpreter="/opt/python" if reference else VENV,
        reference=reference,
        facts=tuple((name, value) for name, value in facts.items() if value),
    )


@pytest.mark.parametrize(
    "other",
    [
        _prepared(""),
        _prepared("", tree="b" * 64, lock="another"),
        _prepared("", tree="b" * 64, lock=""),
        _prepared("", tree=""),
    ],
    ids=["equal", "of another lock", "of the user", "not proven"],
)
def test_what_is_equal_or_was_never_meant_to_be_is_no_mismatch(other: Prepared) -> None:
    """An image of the user is compared, and not expected to be the same."""
    assert mismatch("docker", _prepared(IMAGE), {"vm": other}, host="h1") is None
    assert mismatch("vm", other, {"docker": _prepared(IMAGE)}, host="h1") is None


@pytest.mark.parametrize(
    ("mine", "other", "remedy"),
    [
        (IMAGE, "", "rm -r /cache/key/venv-1"),
        ("", IMAGE, "rm -r /cache/key/venv-1"),
        (IMAGE, SIF, "rm -r /cache/key/zstd.sif"),
        (IMAGE, "sha256:2", "docker image rm sha256:1"),
    ],
)
def test_the_remedy_is_to_make_again_what_can_have_changed(
    mine: str, other: str, remedy: str
) -> None:
    """A venv can be changed in place, an image cannot."""
    error = mismatch(
        "docker", _prepared(mine), {"other": _prepared(other, tree="b" * 64)}, host="h1"
    )
    assert error is not None
    assert error.exit_code == 3
    assert error.hint.startswith(f"{remedy}, then run again; --allow-mismatch ")


def test_the_error_names_host_arms_and_hashes() -> None:
    """Whoever reads it knows what was compared."""
    others = {"vm": _prepared(""), "singularity": _prepared(SIF, tree="b" * 64)}
    error = mismatch("docker", _prepared(IMAGE), others, host="h1")
    assert error is not None
    assert error.lines()[:2] == (
        "error: docker and singularity on h1 have different software, made from the same wheels",
        f"  why: site-packages of docker has the hash {'a' * 16}, that of singularity {'b' * 16}",
    )
