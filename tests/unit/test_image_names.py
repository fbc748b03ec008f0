"""Which names an image can have, and that no other reaches an engine."""

from __future__ import annotations

import pytest

from envcompare.arms import check_image
from envcompare.config import Settings
from envcompare.errors import ConfigError
from envcompare.planning import resolved

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
    assert caught.value.brief == f"--base-image: `{name}` is no valid image name"


def test_an_image_of_the_users_is_checked_as_well() -> None:
    """The item is named; a SIF is a file and may be called anything."""
    with pytest.raises(ConfigError) as caught:
        resolved(Settings(envs="vm,mine=docker:Bad Name"), Settings())
    assert caught.value.brief == ("--envs mine=docker:Bad Name: `Bad Name` is no valid image name")
    resolved(Settings(envs="vm,mine=singularity:/tmp/My File.sif"), Settings())
