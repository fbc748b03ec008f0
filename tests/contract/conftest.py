"""All transports to real hosts: this machine, SSH, and srun."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from envcompare.text import Command
from envcompare.transport import Transport, run
from envcompare.transport.hosts import SlurmJob, SrunTransport, connect, parse_hosts

JOB, NODE = "SLURM_JOB_ID", "SLURM_JOB_NODELIST"  # within a job of one node
_IN_JOB = pytest.mark.skipif(
    JOB not in os.environ, reason="tests/engines/test_allocations.py runs it in a job of Slurm"
)


@pytest.fixture(
    scope="module",
    params=[
        "local",
        pytest.param("ssh", marks=pytest.mark.engine("ssh")),
        pytest.param("srun", marks=_IN_JOB),
    ],
)
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    """Give an open transport of each kind."""
    if request.param == "srun":
        yield SrunTransport(
            "slurm-1", SlurmJob(id=os.environ[JOB], on_loss=print), os.environ[NODE]
        )
        return
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
