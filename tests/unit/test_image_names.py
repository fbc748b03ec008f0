"""Which names an image can have, that no other reaches an engine, and whose digest is told."""

from __future__ import annotations

import pytest

from envcompare.cli.planning import resolved
from envcompare.config import check_image
from envcompare.config.settings import Settings
from envcompare.errors import ConfigError
from envcompare.stack.image import digest_of

ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "name",
    [
        "debian",
        "python:3.11-slim-bookworm",
        "user/name__x.y--z:Tag_1.0",
        "localhost/a",
        "gpu01:5000/team/a:1",
        "registry.example.org/a/b/c:1",
        "[::1]:5000/a",
        f"debian@sha256:{ID}",
        f"registry.example.org:443/a:1@sha256:{ID}",
        f"sha256:{ID}",
        ID[:12],
    ],
)
def test_what_an_image_can_be_called_is_taken(name: str) -> None:
    """As docker pull takes it, and the ID of an image as well."""
    check_image(name, flag="--base-image")


@pytest.mark.parametrize(
    "name",
    ["", "Bad Name!!", "UPPER/x:1", "-a", "--privileged", "a:", "a:-1", "a//b", "a/", "a\nb", "ä"],
)
def test_what_no_image_can_be_called_is_a_wrong_flag(name: str) -> None:
    """It ends with 2 before anything is started, and is never a flag to an engine."""
    with pytest.raises(ConfigError) as caught:
        resolved(Settings(base_image=name), Settings())
    assert caught.value.brief == f"--base-image: `{name}` is not a valid image name"


def test_an_image_of_the_users_is_checked_as_well() -> None:
    """The item is named; a SIF is a file and may be called anything."""
    with pytest.raises(ConfigError) as caught:
        resolved(Settings(envs="vm,mine=docker:Bad Name"), Settings())
    assert caught.value.brief == (
        "--envs mine=docker:Bad Name: `Bad Name` is not a valid image name"
    )
    resolved(Settings(envs="vm,mine=singularity:/tmp/My File.sif"), Settings())


PYTHON = (f"python@sha256:{'1' * 64}", f"python@sha256:{'2' * 64}")
TEAM = f"gpu01:5000/team/python@sha256:{'3' * 64}"


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("python", PYTHON[0]),
        ("python:3.11-slim-bookworm", PYTHON[0]),
        ("docker.io/library/python:3.11", PYTHON[0]),
        (PYTHON[1], PYTHON[1]),
        (f"python:3.11@{PYTHON[1].partition('@')[2]}", PYTHON[1]),
        ("gpu01:5000/team/python:3.11", TEAM),
        ("team/python:3.11", ""),
        (f"sha256:{ID}", PYTHON[0]),
        (ID[:12], PYTHON[0]),
    ],
)
def test_a_digest_is_that_of_the_names_own_repository(name: str, digest: str) -> None:
    """Several names of one image may come from several registries; an ID belongs to none."""
    facts = {"Id": f"sha256:{ID}", "RepoDigests": [*PYTHON, TEAM]}
    assert digest_of(facts, name) == digest
    assert digest_of({**facts, "RepoDigests": None}, name) == ""
