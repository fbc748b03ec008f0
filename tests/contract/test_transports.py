"""One contract for every transport: what a command is given, what it leaves, how it ends."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, served_by

from envcompare.errors import CommandTimeoutError, TransportError
from envcompare.text import Command
from envcompare.transport import Transport, file_sha256, put_tree, run
from envcompare.transport.copies import get_file, put_file
from envcompare.transport.hosts import connect, parse_hosts
from envcompare.transport.ssh import SshTransport

CHANNEL_EOF = 96  # RFC 4254

HOSTILE = (
    "",
    " two  words ",
    "$HOME `id` $(id)",
    'it\'s "quoted" \\ back',
    "line\nbreak\tand tab",
    "é ☃ 日本",
    "-n",
    "*?[a-z]~;&|<>!#",
    "a" * 5000,
)
SOME_MB = 5_000_000


def shell(script: str, *arguments: str) -> Command:
    """Return a command that runs a POSIX shell script."""
    return Command(argv=("sh", "-c", script, "sh", *arguments))


def unique_sleep() -> tuple[Command, str]:
    """Return a silent command, and the words by which the process table shows it."""
    words = f"sleep 300.{random.randrange(10**9):09d}"
    return Command(argv=tuple(words.split())), words


def is_running(transport: Transport, words: str) -> bool:
    """Tell whether the process table of the host shows these words."""
    lines = run(transport, Command(argv=("ps", "-eo", "args"))).stdout.splitlines()
    return words in lines


def eventually(claim: Callable[[], bool], seconds: float = 10) -> bool:
    """Tell whether the claim comes true within the time."""
    end = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_arguments_arrive_intact(transport: Transport) -> None:
    """No shell on the way touches spaces, quotes, dollars, line breaks or empty arguments."""
    result = run(transport, Command(argv=("printf", r"%s\0", *HOSTILE)))
    assert tuple(result.stdout.split("\0")[:-1]) == HOSTILE


def test_environment_and_directory_arrive_intact(transport: Transport, folder: str) -> None:
    """A command sees the variables and the directory it was given."""
    command = Command(
        argv=("sh", "-c", 'printf "%s|%s|" "$ONE" "$TWO"; pwd'),
        env=(("ONE", "it's $HOME\n"), ("TWO", "")),
        cwd=folder,
    )
    assert run(transport, command).stdout == f"it's $HOME\n||{folder}\n"


def test_directory_that_is_missing_fails_the_command(transport: Transport) -> None:
    """A command is never run in another directory than the one asked for."""
    result = run(transport, Command(argv=("pwd",), cwd="/no/such/folder"))
    assert (result.succeeded, result.stdout) == (False, "")


def test_exit_code_is_passed_on(transport: Transport) -> None:
    """The command's own exit code arrives."""
    assert run(transport, shell("exit 42")).exit_code == 42


@pytest.mark.parametrize(("signal", "code"), [("KILL", 137), ("TERM", 143), ("SEGV", 139)])
def test_death_by_signal_is_128_and_the_signal(
    transport: Transport, signal: str, code: int
) -> None:
    """A command that dies of a signal ends as it would in a shell."""
    assert run(transport, shell(f"kill -s {signal} $$")).exit_code == code


def test_missing_program_is_127(transport: Transport) -> None:
    """A program that is not there is an exit code and a line on stderr, not an exception."""
    result = run(transport, Command(argv=("no-such-program-anywhere", "x")))
    assert result.exit_code == 127
    assert "no-such-program-anywhere" in result.stderr
    assert result.stdout == ""


def test_streams_stay_apart(transport: Transport) -> None:
    """Stdout and stderr arrive on streams of their own, undecodable bytes replaced."""
    result = run(transport, shell(r"printf 'out\377'; printf err >&2"))
    assert (result.stdout, result.stderr) == ("out\N{REPLACEMENT CHARACTER}", "err")


def test_much_output_on_both_streams_does_not_block(transport: Transport) -> None:
    """More than any buffer on stderr before the first byte on stdout is no deadlock."""
    script = f"head -c {SOME_MB} /dev/zero >&2; head -c {SOME_MB} /dev/zero"
    result = run(transport, shell(script), timeout_s=60)
    assert (len(result.stdout), len(result.stderr)) == (SOME_MB, SOME_MB)


def test_input_comes_back_through_cat(transport: Transport) -> None:
    """What is written to stdin arrives whole, and its end is seen."""
    data = random.Random(1).randbytes(SOME_MB // 2).hex().encode()
    assert run(transport, Command(argv=("cat",)), stdin=data, timeout_s=60).stdout.encode() == data


def test_command_may_end_without_reading_its_input(transport: Transport) -> None:
    """Input that nobody reads does not hide the exit code."""
    assert run(transport, shell("exit 3"), stdin=b"x" * SOME_MB, timeout_s=60).exit_code == 3


def test_conversation_goes_line_by_line(transport: Transport) -> None:
    """Each line is answered before the next is written: nothing waits in a buffer."""
    process = transport.spawn(Command(argv=("cat",)))
    for number in range(50):
        line = f"line {number}\n".encode()
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline() == line
    process.stdin.close()
    assert process.stdout.read() == b""
    assert process.wait(10) == 0
    process.kill()


def test_read_gives_what_is_there(transport: Transport) -> None:
    """A read for many bytes returns the few that have come."""
    process = transport.spawn(Command(argv=("cat",)))
    process.stdin.write(b"abc")
    process.stdin.flush()
    assert process.stdout.read(1000) == b"abc"
    process.kill()
    process.wait(10)


def test_timeout_leaves_nothing_running(transport: Transport) -> None:
    """A silent command that takes too long is killed with its children."""
    command, words = unique_sleep()
    script = shell('"$@" & "$@"', *command.argv)
    with pytest.raises(CommandTimeoutError, match="did not end within 1 s") as caught:
        run(transport, script, timeout_s=1)
    assert not isinstance(caught.value, TransportError), "the host is well"
    assert eventually(lambda: not is_running(transport, words))


def test_wait_that_times_out_lets_the_command_go_on(transport: Transport) -> None:
    """Looking whether a command has ended does not end it."""
    process = transport.spawn(Command(argv=("cat",)))
    with pytest.raises(CommandTimeoutError):
        process.wait(0.1)
    process.stdin.close()
    assert process.wait(10) == 0


def test_kill_leaves_nothing_running_and_may_be_repeated(transport: Transport) -> None:
    """Kill reaches all children, of a command that reads and writes nothing."""
    command, words = unique_sleep()
    process = transport.spawn(shell('"$@" & "$@" & wait', *command.argv))
    assert eventually(lambda: is_running(transport, words))
    process.kill()
    process.kill()
    assert process.wait(10) == 137
    assert eventually(lambda: not is_running(transport, words))


def test_child_in_the_background_does_not_hold_up_the_result(transport: Transport) -> None:
    """A command has ended when it has ended, even if a child keeps its streams open."""
    command, words = unique_sleep()
    result = run(transport, shell('"$@" & echo done', *command.argv), timeout_s=60)
    assert result.stdout == "done\n"
    run(transport, shell('pkill -x -f "$1"', words))


def test_many_commands_run_at_once(transport: Transport) -> None:
    """More commands than one SSH connection grants sessions (ten) run side by side."""
    processes = [transport.spawn(Command(argv=("cat",))) for _ in range(15)]
    for number, process in enumerate(processes):
        process.stdin.write(b"%d\n" % number)
        process.stdin.flush()
    assert [int(process.stdout.readline()) for process in processes] == list(range(15))
    for process in processes:
        process.stdin.close()
    assert [process.wait(10) for process in processes] == [0] * 15


def test_file_goes_there_and_comes_back(transport: Transport, folder: str, tmp_path: Path) -> None:
    """A file of some megabytes keeps its content and mode under a name with spaces."""
    source = tmp_path / "a file"
    source.write_bytes(os.urandom(SOME_MB))
    source.chmod(0o750)
    target = f"{folder}/new folder/it's here"
    put_file(transport, source, target)
    digest = file_sha256(source)
    get_file(transport, target, tmp_path / "back" / "again it is", sha256=digest)
    assert (tmp_path / "back" / "again it is").read_bytes() == source.read_bytes()
    assert run(transport, Command(argv=("stat", "-c", "%a", target))).stdout == "750\n"
    assert run(transport, Command(argv=("ls", f"{folder}/new folder"))).stdout == "it's here\n"


def test_put_replaces_a_file(transport: Transport, folder: str, tmp_path: Path) -> None:
    """A second put leaves the new content alone."""
    source = tmp_path / "file"
    for text in ("a longer text", "short"):
        source.write_text(text)
        put_file(transport, source, f"{folder}/file")
    assert run(transport, Command(argv=("cat", f"{folder}/file"))).stdout == "short"


def test_put_into_a_folder_that_refuses_says_why(transport: Transport, tmp_path: Path) -> None:
    """A target that cannot be written is an error with the host's own reason."""
    source = tmp_path / "file"
    source.write_text("x")
    with pytest.raises(TransportError) as caught:
        put_file(transport, source, "/proc/no/file")
    assert f"to {transport.name}:/proc/no/file" in caught.value.brief
    assert caught.value.details


def test_get_of_a_missing_file_leaves_nothing(
    transport: Transport, folder: str, tmp_path: Path
) -> None:
    """A file that is not there is an error, and no half file stands here afterwards."""
    with pytest.raises(TransportError, match="cannot copy"):
        get_file(transport, f"{folder}/nothing", tmp_path / "nothing", sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_tree_arrives_without_byte_code(transport: Transport, folder: str, tmp_path: Path) -> None:
    """A folder arrives with its subfolders, links and modes, and without __pycache__."""
    (tmp_path / "sub dir" / "__pycache__").mkdir(parents=True)
    (tmp_path / "sub dir" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (tmp_path / "sub dir" / "it's.py").write_text("pass\n")
    (tmp_path / "link").symlink_to("sub dir/it's.py")
    put_tree(transport, tmp_path, f"{folder}/tree of files")
    listing = run(transport, shell('cd "$1" && find . | sort', f"{folder}/tree of files")).stdout
    assert listing.split("\n")[:-1] == [".", "./link", "./sub dir", "./sub dir/it's.py"]
    assert run(transport, Command(argv=("cat", f"{folder}/tree of files/link"))).stdout == "pass\n"


def test_tree_that_cannot_be_written_says_why(transport: Transport, tmp_path: Path) -> None:
    """A refusal of the host is told in its own words."""
    with pytest.raises(TransportError) as caught:
        put_tree(transport, tmp_path, "/proc/no")
    assert caught.value.details


@pytest.mark.engine("docker")
def test_unix_socket_of_the_engine_answers_here(transport: Transport) -> None:
    """The engine of the host is reached through a socket on this machine."""
    with (
        transport.forward_unix("/var/run/docker.sock") as path,
        socket.socket(socket.AF_UNIX) as client,
    ):
        client.settimeout(20)
        client.connect(str(path))
        client.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.endswith(b"OK")


def test_run_from_many_threads(transport: Transport) -> None:
    """One transport serves several threads, and nobody gets another's answer."""
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        answers[number] = run(transport, Command(argv=("echo", str(number)))).stdout

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: f"{number}\n" for number in range(20)}


# The rest is about connections, which the local transport does not have.


@pytest.mark.engine("ssh")
def test_end_of_input_after_the_end_of_a_command_does_not_end_the_connection(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where anything follows the CLOSE of a command, sshd ends the connection of all others."""
    transport = connect(parse_hosts([lab.alias])[0])
    assert isinstance(transport, SshTransport)
    connection: Any = transport._connections[0].transport
    send = connection._send_user_message
    is_sent = threading.Event()

    def send_end_of_input_late(message: Any) -> None:
        if message.asbytes()[0] == CHANNEL_EOF:
            time.sleep(0.3)
            is_sent.set()
        send(message)

    monkeypatch.setattr(connection, "_send_user_message", send_end_of_input_late)
    assert run(transport, Command(argv=("sleep", "0.1"))).succeeded
    assert is_sent.wait(10)
    other = transport.spawn(Command(argv=("cat",)))
    time.sleep(0.3)  # as long as sshd needs to look at what came
    other.stdin.close()
    assert other.wait(10) == 0
    assert connection.is_active()
    transport.close()


def cut(transport: Transport, lab: Lab) -> None:
    """End the connection of a transport by killing the process that serves it on the host."""
    lab.as_root("kill", "-KILL", served_by(transport))


@pytest.mark.engine("ssh")
def test_cut_connection_is_told_from_an_exit(lab: Lab) -> None:
    """A connection that breaks in the middle is an error, at once and in words."""
    transport = connect(parse_hosts([lab.alias])[0])
    process = transport.spawn(Command(argv=("cat",)))
    cut(transport, lab)
    with pytest.raises(TransportError, match="was lost") as caught:
        process.wait(10)
    assert not isinstance(caught.value, CommandTimeoutError)
    assert process.stdout.read() == b""
    with pytest.raises(BrokenPipeError):
        process.stdin.write(b"x")
    transport.close()


@pytest.mark.engine("ssh")
def test_kill_after_a_cut_reaches_what_still_runs(lab: Lab) -> None:
    """A silent command survives its connection; kill connects anew and ends it."""
    transport = connect(parse_hosts([lab.alias])[0])
    command, words = unique_sleep()
    process = transport.spawn(command)
    cut(transport, lab)
    assert is_running(transport, words)
    process.kill()
    assert eventually(lambda: not is_running(transport, words))
    transport.close()


@pytest.mark.engine("ssh")
def test_silent_loss_of_all_packets_is_noticed(lab: Lab) -> None:
    """A host that is gone without a word is an error within half a minute, not a wait for ever."""
    transport = connect(parse_hosts([lab.alias])[0])
    process = transport.spawn(Command(argv=("cat",)))
    port = run(transport, shell("echo ${SSH_CLIENT}")).stdout.split()[1]
    rules = (("INPUT", "--sport"), ("OUTPUT", "--dport"))
    for chain, side in rules:
        lab.as_root("iptables", "-I", chain, "-p", "tcp", side, port, "-j", "DROP")
    try:
        with pytest.raises(TransportError, match="was lost"):
            process.wait(40)
    finally:
        for chain, side in rules:
            lab.as_root("iptables", "-D", chain, "-p", "tcp", side, port, "-j", "DROP")
        transport.close()


@pytest.mark.engine("ssh")
def test_login_shell_that_prints_does_not_disturb(lab: Lab) -> None:
    """A greeting in .bashrc, without a line end, becomes part of no stream of a command."""
    user = f"noisy{uuid.uuid4().hex[:8]}"
    script = (
        f"useradd -m -s /bin/bash {user} && cd /home/{user} && printf 'printf Welcome' >.bashrc && "
        f"cp -r ~bench/.ssh . && chown -R {user} .ssh .bashrc"
    )
    lab.as_root("sh", "-c", script)
    try:
        transport = connect(parse_hosts([f"{user}@{lab.alias}"])[0])
        assert run(transport, Command(argv=("echo", "hello"))).stdout == "hello\n"
        transport.close()
    finally:
        lab.as_root("userdel", "-rf", user)


@pytest.mark.engine("ssh")
def test_account_without_a_shell_is_an_error(lab: Lab) -> None:
    """The error for a login shell that starts no command quotes its output."""
    user = f"shut{uuid.uuid4().hex[:8]}"
    lab.as_root(
        "sh", "-c", f"useradd -m -s /usr/sbin/nologin {user} && cp -r ~bench/.ssh /home/{user}/ "
        f"&& chown -R {user} /home/{user}/.ssh",
    )  # fmt: skip
    try:
        transport = connect(parse_hosts([f"{user}@{lab.alias}"])[0])
        with pytest.raises(TransportError, match="cannot start commands") as caught:
            run(transport, Command(argv=("true",)))
        assert "not available" in caught.value.details
        assert f"`ssh {user}@{lab.alias} true`" in caught.value.hint
        transport.close()
    finally:
        lab.as_root("userdel", "-rf", user)
