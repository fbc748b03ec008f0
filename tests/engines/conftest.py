"""The lab host, and an image of the wheels that a file of tests chooses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab import Lab, need
from runs import BASE

from envcompare.environments.oci import image_store
from envcompare.stack import Progress, building, image
from envcompare.stack.image import Image, Recipe
from envcompare.stack.storage import Wheelhouse
from envcompare.text import Command
from envcompare.transport import LOCAL, Transport, run
from envcompare.transport.hosts import connect, parse_hosts


@pytest.fixture(scope="module")
def host(lab: Lab) -> Iterator[Transport]:
    """Give a connection to the lab host."""
    transport = connect(parse_hosts([lab.alias])[0])
    yield transport
    transport.close()


@pytest.fixture(scope="module")
def recipe(wheels: Wheelhouse) -> Recipe:
    """Give the recipe of the bundled Dockerfile for these wheels on a local base."""
    need("docker")
    assert image.find(image_store(LOCAL), BASE), f"{BASE} is not here; script/lab up makes it"
    return image.recipe(wheels, base=BASE, local=image_store(LOCAL))


@pytest.fixture(scope="module")
def built(recipe: Recipe) -> Iterator[Image]:
    """Give the image of that recipe, built by the local engine."""
    one = building.build(recipe, local=image_store(LOCAL), progress=Progress(print))
    yield one
    run(LOCAL, Command(argv=("docker", "image", "rm", "-f", one.id)))
