"""`--docker-options`: for which arms they are, and what cannot be chosen."""

from __future__ import annotations

import pytest

from envcompare.config import Arm, parse_arms, with_options
from envcompare.environments.registry import all_traits
from envcompare.errors import ConfigError

ARMS = ("vm", "docker", "new=docker:app:2")


def chosen(*items: str) -> dict[str, tuple[str, ...]]:
    """Return the options of each arm."""
    arms: tuple[Arm, ...] = with_options(parse_arms(ARMS, all_traits()), items)
    return {arm.id: arm.options for arm in arms}


def test_options_are_for_every_arm_that_takes_them_or_for_one() -> None:
    """Each item adds to those before it, and is split as a shell does."""
    found = chosen("--shm-size 1g", "new=--env 'A=b c' -PeD=it --cap-add=SYS_NICE")
    assert found == {
        "vm": (),
        "docker": ("--shm-size", "1g"),
        "new": ("--shm-size", "1g", "--env", "A=b c", "-PeD=it", "--cap-add=SYS_NICE"),
    }


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("vm=--privileged", "no arm takes these options"),
        ("other=--privileged", "no arm takes these options"),
        ("docker=--env 'A", "cannot be split into words"),
        ("docker=ubuntu", "names no option"),
        ("docker=", "names no option"),
        ("--detach", "--detach cannot be chosen"),
        ("--rm=false", "--rm cannot be chosen"),
        ("-it", "-it cannot be chosen"),
        ("-Pd", "-Pd cannot be chosen"),
        ("-qPit", "-qPit cannot be chosen"),
        ("docker=--shm-size 1g --entrypoint sh", "--entrypoint cannot be chosen"),
    ],
)
def test_what_cannot_be_meant_is_refused(item: str, words: str) -> None:
    """Before anything is started, with the item in the sentence and a way out."""
    with pytest.raises(ConfigError) as caught:
        chosen(item)
    assert words in caught.value.brief
    assert caught.value.hint
