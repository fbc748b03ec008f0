"""Who joins ranks on several hosts: whoever proves the secret of the run, and nobody else."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conversation import WORKER, Conversation, Start
from nightly import nightly_except

from envcompare.hosts import folders

pytestmark = pytest.mark.torch
WORKLOADS = WORKER.parents[1]


@pytest.fixture
def python(
    torch_interpreter: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., subprocess.Popen[str]]:
    """Give a function that starts a program which finds the team in its variables."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    for name in ("secret", "other"):
        (tmp_path / name).write_text(f"the {name} one")
    monkeypatch.setenv("ENVCOMPARE_TEAM", str(tmp_path / "secret"))
    monkeypatch.setenv("ENVCOMPARE_TEAM_HOSTS", "gpu01,gpu02")
    monkeypatch.setenv("PYTHONPATH", str(WORKLOADS))

    def start(program: str, *words: str, secret: str = "secret") -> subprocess.Popen[str]:
        return subprocess.Popen(
            (torch_interpreter, "-c", program, *words),
            env={**os.environ, "ENVCOMPARE_TEAM": str(tmp_path / secret)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def ended(process: subprocess.Popen[str]) -> str:
    """Return what a program has printed."""
    told, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return told


_FIRST = """
import sys
from harness import joining
joining.JOIN_LIMIT_S = float(sys.argv[1])
meeting = joining.Meeting(joining.read_secret())
print("listens", flush=True)
try:
    joined, = meeting.accept(["host gpu02"])
    joined.sendall(b"the team\\n")
except RuntimeError as error:
    print(error)
"""
_JOINS = """
from harness import joining
try:
    with joining.connect("host gpu02", joining.read_secret()) as leader:
        print(leader.makefile().readline(), end="")
except RuntimeError as error:
    print(error)
"""


def place() -> tuple[str, int]:
    """Return where the first process listens."""
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def listening(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """Wait until the first process listens."""
    assert process.stdout is not None
    assert process.stdout.readline() == "listens\n"
    return process


def test_host_joins_although_strangers_came_first(
    python: Callable[..., subprocess.Popen[str]],
) -> None:
    """Those that write anything, nothing or a proof of another secret are told nothing."""
    first = listening(python(_FIRST, "60"))
    strangers = [socket.create_connection(place()) for _ in range(4)]
    strangers[3].sendall(b"[" * 1023 + b"\n")
    strangers[0].sendall(b'["host gpu02", "00", "00"]\n')
    strangers[1].sendall(b"x" * 5000)
    assert "did not prove" in ended(python(_JOINS, secret="other"))
    assert ended(python(_JOINS)) == "the team\n"
    assert ended(first) == ""
    for stranger in strangers:
        with stranger:
            told = b""
            try:
                while part := stranger.recv(4096):
                    told += part
            except ConnectionResetError:
                pass
            assert len(told) in {0, 33}  # a number to prove the secret by, at most


def test_first_process_tells_of_strangers_where_a_host_is_missing(
    python: Callable[..., subprocess.Popen[str]],
) -> None:
    """And of the ports that a firewall has to let pass."""
    first = listening(python(_FIRST, "3"))
    with socket.create_connection(place()) as stranger:
        stranger.sendall(b"[]\n")
        told = ended(first)
    assert told.startswith("host gpu02 did not join within 3 s at 127.0.0.1, port ")
    assert "connections without the secret of this run: 1" in told
    last = folders._FIRST_PORT + folders._PORTS - 1
    assert f"to ports from {folders._FIRST_PORT} to {last} of the first host" in told


def test_port_that_another_program_has_is_told(
    python: Callable[..., subprocess.Popen[str]],
) -> None:
    """It may be a stranger, who gets the hosts to connect to it."""
    with socket.create_server(place()):
        done = python(_FIRST, "3")
        _, errors = done.communicate(timeout=60)
    assert done.returncode == 1
    assert errors.rstrip().endswith("Address already in use; another program listens there")


@pytest.mark.parametrize("answer", ["", "00", "reflected"])
def test_host_tells_nothing_to_what_cannot_prove_the_secret(
    python: Callable[..., subprocess.Popen[str]], answer: str
) -> None:
    """Not even where its own proof is sent back to it."""
    heard: list[str] = []

    def pose() -> None:
        connection, _ = server.accept()
        with connection, connection.makefile("rw") as lines:
            lines.write("ab" * 16 + "\n")
            lines.flush()
            heard.append(lines.readline())
            shown = json.loads(heard[0])[2]
            if answer:
                lines.write((shown if answer == "reflected" else answer) + "\n")
                lines.flush()
                heard.extend(lines)

    with socket.create_server(place()) as server:
        posing = threading.Thread(target=pose)
        posing.start()
        told = ended(python(_JOINS))
        posing.join()
    assert "did not prove that it is the first rank of this run" in told
    assert "so it gets no data" in told
    assert len(heard) == 1
    assert "the secret one" not in heard[0]


def test_what_was_overheard_does_not_serve_a_second_time(
    python: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process draws a new number for each connection."""
    first_place = place()
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        joining = python(_JOINS)
        connection, _ = server.accept()  # it has imported all; the limit of the other begins now
    monkeypatch.setenv("MASTER_PORT", str(first_place[1]))
    first = listening(python(_FIRST, "5"))
    with connection, socket.create_connection(first_place) as leader:
        connection.sendall(leader.recv(4096))
        spoken = connection.recv(4096)  # and keeps it from the first process
    with socket.create_connection(first_place) as again:
        again.recv(4096)
        again.sendall(spoken)
        assert "connections without the secret of this run: 2" in ended(first)
    assert "did not prove" in ended(joining)


def test_proofs_that_are_relayed_between_two_connections_do_not_serve(
    python: Callable[..., subprocess.Popen[str]],
) -> None:
    """A program that was first at the port could else read and change what the hosts are told."""
    heard: list[bytes] = []

    def relay(host: socket.socket) -> None:
        with host, socket.create_connection(place()) as leader:
            lines = [connection.makefile("rb") for connection in (leader, host)]
            for source, target in ((0, host), (1, leader), (0, host)):
                heard.append(lines[source].readline())
                target.sendall(heard[-1])

    with socket.create_server(place()) as squatter:
        joining = python(_JOINS)
        host, _ = squatter.accept()
    first = listening(python(_FIRST, "3"))
    relay(host)
    assert "did not prove that it is the first rank of this run" in ended(joining)
    assert "connections without the secret of this run: 1" in ended(first)
    assert [len(line) > 1 for line in heard] == [True, True, False]


_INTERFACES = """
from harness.joining import interface_of
print(interface_of("127.0.0.1"))
try:
    interface_of("127.0.0.2")
except RuntimeError as error:
    print(error)
"""


def test_address_that_is_not_the_first_of_a_device_is_refused(
    python: Callable[..., subprocess.Popen[str]],
) -> None:
    """The libraries would take the first one of a device that they pick."""
    device, refused = ended(python(_INTERFACES)).splitlines()
    assert device == "lo"
    assert refused.startswith("no network device of this host has the address 127.0.0.2 as its")


_EARLY = """
from harness import joining
meeting = joining.Meeting(joining.read_secret())
print("listens", flush=True)
meeting.accept(["rank 3"])
store, = meeting.accept(["store 1"])
store.sendall(b"the keys\\n")
meeting.close()
"""
_JOINS_EARLY = """
from harness import joining
names = ("store 1", "host gpu03", "rank 3")
store, unasked, _ = (joining.connect(name, joining.read_secret()) for name in names)
print([connection.makefile().readline() for connection in (store, unasked)])
"""


def test_who_proves_the_secret_before_its_turn_is_no_stranger(
    python: Callable[..., subprocess.Popen[str]],
) -> None:
    """A rank may be faster than another host; one that is not asked for is hung up on at last."""
    first = listening(python(_EARLY))
    assert ended(python(_JOINS_EARLY)) == "['the keys\\n', '']\n"
    assert ended(first) == ""


_PEER = """
import os, sys, torch.distributed as dist
from datetime import timedelta
from harness import joining
joining.JOIN_LIMIT = timedelta(seconds=float(sys.argv[3]))
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("gloo", store=store, rank=int(sys.argv[2]), world_size=2)
try:
    joining.prove_peers(joining.read_secret(), "cpu")
    print("proved", flush=True)
except RuntimeError as error:
    print(error, flush=True)
os._exit(0)  # gloo may still wait in a thread
"""


@pytest.mark.parametrize("secret", ["secret", "other"])
def test_ranks_prove_the_secret_on_the_connections_of_gloo(
    python: Callable[..., subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    secret: str,
) -> None:
    """A process that has got among them without it is found by those that have it."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = str(tmp_path / "store")
    other = python(_PEER, store, "1", "45", secret=secret)
    told = [ended(python(_PEER, store, "0", "45")), ended(other)]
    if secret == "secret":
        assert told == ["proved\n"] * 2
    else:
        assert told[0].startswith("what answers as rank 1 does not know the secret of this run")
        assert told[1].startswith("what answers as rank 0 does not know the secret of this run")


def listening_port(pid: int) -> int:
    """Return the port that a process listens on, once it does."""
    while True:
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        ports = {f"socket:[{row[9]}]": int(row[1][-4:], 16) for row in rows if row[3] == "0A"}
        for file in Path(f"/proc/{pid}/fd").iterdir():
            try:
                name = str(file.readlink())
            except FileNotFoundError:  # closed since
                continue
            if name in ports:
                return ports[name]
        time.sleep(0.05)


def visited(
    python: Callable[..., subprocess.Popen[str]], store: Path
) -> tuple[list[str], list[bool]]:
    """Let strangers be first at the port of a rank; return what two ranks say, and if they fail."""
    rank = python(_PEER, str(store), "1", "5")
    place = ("127.0.0.1", listening_port(rank.pid))
    strangers = [socket.create_connection(place) for _ in range(6)]
    for number, stranger in enumerate(strangers):
        stranger.sendall(number.to_bytes(8, "little"))
    told = [ended(python(_PEER, str(store), "0", "5")), ended(rank)]
    for stranger in strangers:
        stranger.close()
    return told, [text != "proved\n" for text in told]


def test_ranks_find_a_stranger_that_was_first_at_the_port_of_gloo(
    python: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Gloo takes whoever tells it one of few numbers for a rank, and would wait for its data.

    Of two ranks that with the smaller address is connected to: by chance the one with strangers.
    """
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    for number in range(12):
        told, failed = visited(python, tmp_path / f"store-{number}")
        if any(failed):
            break
    assert failed == [True, True], told
    assert all(text.startswith("the ranks could not prove to each other") for text in told), told


_STORES = """
import threading
import torch.distributed as dist
from datetime import timedelta
from harness import joining
secret = joining.read_secret()
meeting, table = joining.Meeting(secret), joining.Table()
threading.Thread(target=lambda: table.serve(*meeting.accept(["store 1"]))).start()
here, there = joining.SharedStore(table.ask), joining.SharedStore.joined(1, secret)

def told(first, second):
    said = []
    first.set("a", "text")
    said.append(second.get("a"))
    second.set("a", b"\\x00\\xff")
    said.append(first.get("a"))
    said += [first.add("n", 2), second.add("n", -5), first.get("n")]
    for expected, desired in (("", "x"), ("y", "z"), ("x", "z")):
        said.append(second.compare_set("c", expected, desired))
    said.append(first.compare_set("never", "expected", "set"))
    said += [second.check(["a", "c"]), first.check(["a", "never"])]
    said += [first.delete_key("c"), second.delete_key("c"), second.check(["c"])]
    try:
        second.wait(["never"], timedelta(milliseconds=50))
    except Exception:
        said.append("waited")
    threading.Timer(0.2, lambda: first.set("late", "come")).start()
    second.wait(["late"], timedelta(seconds=20))
    said.append(dist.PrefixStore("under", second).clone().add("n", 7))
    said.append(bytes(first.get("under/n")))
    return said

expected = dist.HashStore()
print(told(here, there) == told(expected, expected), told(here, there))
there.clone().set("b", "c")
print(here.num_keys() == expected.num_keys() + 1)
"""


def test_shared_store_answers_as_that_of_pytorch(
    python: Callable[..., subprocess.Popen[str]],
) -> None:
    """From the process that holds it and from another, over a connection."""
    first, second = ended(python(_STORES)).splitlines()
    assert first.startswith("True"), first
    assert second == "True"


_AUDIT = """
import os, sys
def hook(event, given):
    if event == "pickle.find_class" and "torch.distributed" in sys.modules:
        import torch.distributed as dist
        if dist.is_initialized():
            os.write(2, f"unpickled {given}\\n".encode())
sys.addaudithook(hook)
os.write(2, b"audited\\n")
"""


@pytest.mark.parametrize("parallel", nightly_except(("ddp",), ("ddp", "fsdp")))
def test_no_rank_unpickles_anything(
    start: Start,
    torch_interpreter: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parallel: str,
) -> None:
    """What ranks send each other is numbers: a pickle could run any code."""
    (tmp_path / "sitecustomize.py").write_text(_AUDIT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker: Conversation = start(torch_interpreter)
    params = {"batch": 2, "ranks": 2, "parallel": parallel}
    assert worker.ask("hello", workload="ddp", params=params, threads=1)["ok"]
    assert worker.ask("gen", seed=1, pad=0)["ok"]
    assert worker.ask("run", k=2)["ok"]
    assert worker.ask("end")["ok"]
    told = (tmp_path / "stderr-0").read_text()
    assert told.count("audited") == 2
    assert "unpickled" not in told
