"""Both transports to real hosts: this machine, and the lab host over SSH."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from envcompare.command import Command
from envcompare.transport import Transport, run
from envcompare.transport.hosts import connect, parse_hosts


@pytest.fixture(
    scope="module", params=["local", pytest.param("ssh", marks=pytest.mark.engine("ssh"))]
)
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    """Give an open transport of each kind."""
    host = "local" if request.param == "local" else request.getfixturevalue("lab").alias
    opened = connect(parse_hosts([host])[0])
    yield opened
    opened.close()


@pytest.fixture
def folder(transport: Transport) -> Iterator[str]:
    """Give an empty folder on the host, removed afterwards."""
    path = f"/tmp/envcompare-test-{uuid.uuid4().hex}"
    assert run(transport, Command(argv=("mkdir", "-m", "700", path))).succeeded
    yield path
    run(transport, Command(argv=("rm", "-rf", path)))
