"""Which host is meant, which key is trusted, and what a host that cannot be reached gets told."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import run_record
from hypothesis import given
from hypothesis import strategies as st
from lab import Lab

from envcompare.cli.planning import places_of, planned
from envcompare.config.settings import Settings
from envcompare.errors import ConfigError, TransportError
from envcompare.run_folder.results import RunFolder
from envcompare.text import Command
from envcompare.transport import Transport, run, ssh
from envcompare.transport.hosts import HostSpec, Inventory, KnownHost, connect, parse_hosts
from envcompare.transport.openssh import (
    Destination,
    HostKey,
    SshOptions,
    _judge,
    _known_name,
    _not_forwarded,
    _remember,
    _Trust,
    known_types,
    read_known_hosts,
    resolve,
    ssh_arguments,
)

KEY = HostKey(type="ssh-ed25519", content=base64.b64encode(b"one key").decode())
OTHER = HostKey(type="ssh-ed25519", content=base64.b64encode(b"other").decode())
# a key that OpenSSH takes for one: its type and 32 bytes, each behind its length
_PARTS = (b"ssh-ed25519", bytes(range(32)))
_BLOB = b"".join(len(part).to_bytes(4, "big") + part for part in _PARTS)
OTHER_REAL = f"ssh-ed25519 {base64.b64encode(_BLOB).decode()}"


# Hosts as the user writes them


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu01", ("gpu01", None, None, "gpu01")),
        ("me@gpu01", ("gpu01", "me", None, "gpu01")),
        ("me@gpu01:2222", ("gpu01", "me", 2222, "gpu01")),
        ("gpu01.example.org:22", ("gpu01.example.org", None, 22, "gpu01.example.org")),
        ("me@corp.org@GPU_01", ("GPU_01", "me@corp.org", None, "gpu_01")),
        ("[2001:db8::1]:2222", ("2001:db8::1", None, 2222, "2001-db8-1")),
        ("me@[fe80::1%eth0]", ("fe80::1%eth0", "me", None, "fe80-1-eth0")),
        ("2001:db8::1", ("2001:db8::1", None, None, "2001-db8-1")),
        ("local", ("local", None, None, "local")),
    ],
)
def test_host_is_read_in_each_of_its_forms(text: str, expected: tuple[object, ...]) -> None:
    """User, host and port are told apart; the label fits into a file name."""
    (host,) = parse_hosts([text])
    written = host.destination
    assert (written.alias, written.user, written.port, host.label) == expected


@pytest.mark.parametrize(
    "text",
    [
        "-oProxyCommand=id", "me@-oX", "me@", "me@@host", "host:", "host:0", "host:65536",
        "host:22x", "host:-1", "host: 22", "a b", "$(id)", "`id`", "h;id", "h\nid", "h\0", "é",
        "[::1", "::1]", "[host]:22", "[::1]x", "1:2:3", "-", ".", "%h", "me:pass@host", "a" * 300,
        "host:٢٢",
    ],
)  # fmt: skip
def test_hostile_host_is_refused_with_the_forms(text: str) -> None:
    """Nothing that ssh could take for an option, or a shell for a command, is ever a host."""
    with pytest.raises(ConfigError) as caught:
        parse_hosts([text])
    assert caught.value.exit_code == 2
    assert "user@host" in caught.value.hint


@given(st.text(max_size=40))
def test_any_text_is_hosts_or_a_configuration_error(text: str) -> None:
    """Whatever is written, the answer is a list of hosts with safe labels, or exit code 2."""
    try:
        hosts = parse_hosts([text])
    except ConfigError:
        return
    assert all(re.fullmatch(r"[a-z0-9._-]+", host.label) for host in hosts)
    assert len({host.label for host in hosts}) == len(hosts)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (["a, b", "c"], ["a", "b", "c"]),
        (["me@gpu,you@gpu,gpu:2222,GPU"], ["me-gpu", "you-gpu", "gpu-2222", "gpu"]),
    ],
)
def test_values_and_commas_make_one_list_with_unique_labels(
    values: list[str], labels: list[str]
) -> None:
    """The order is the user's, spaces do not count, and each account or port is a host."""
    assert [host.label for host in parse_hosts(values)] == labels


def test_file_of_hosts_may_have_comments_and_blank_lines(tmp_path: Path) -> None:
    """A file holds one host a line."""
    path = tmp_path / "my hosts.txt"
    path.write_text("\ufeff# all\n\n gpu01  # the new one\r\nme@gpu02:2222\n")
    assert [str(host) for host in parse_hosts([str(path)])] == ["gpu01", "me@gpu02:2222"]


def test_file_in_the_current_folder_takes_no_hosts_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither this machine's, nor that of a host with a name in the configuration file or a run."""
    monkeypatch.chdir(tmp_path)
    for name in ("local", "gpu01", "slurm-1"):
        Path(name).write_text("elsewhere\n")
    inventory = Inventory(hosts={"gpu01": KnownHost(address="10.0.0.1")})
    hosts = parse_hosts(["local,gpu01"], inventory)
    assert [str(host) for host in hosts] == ["local", "10.0.0.1"]
    assert [str(host) for host in parse_hosts(["a=local,b=gpu02"])] == ["local", "gpu02"]
    assert [str(host) for host in parse_hosts(["gpu01"])] == ["elsewhere"]
    assert [str(host) for host in parse_hosts(["gpu01"], reads_files=False)] == ["gpu01"]
    with pytest.raises(ConfigError, match=r"'\./gpu01' is not a host"):
        parse_hosts(["./gpu01"], reads_files=False)
    text = 'envs = ["vm"]\nhosts = ["gpu01"]\n'
    run = RunFolder.create(tmp_path, msgspec.structs.replace(run_record(), configuration=text))
    assert [str(host) for host in places_of(run, Settings())[1]] == ["gpu01"]
    asked = Settings(envs="vm", allocation="slurm:time=10:00:00")
    nodes = planned(asked, Settings(), accept_many=True)[2]
    assert [str(host) for host in nodes] == ["slurm-1"]


def test_host_named_twice_in_a_file_is_refused_with_both_lines(tmp_path: Path) -> None:
    """The error names where the host stands first and again."""
    path = tmp_path / "hosts"
    path.write_text("gpu01\n\ngpu02\ngpu01\n")
    with pytest.raises(ConfigError, match="'gpu01' is named twice") as caught:
        parse_hosts([str(path)])
    assert caught.value.details == f"in {path}:1 and again in {path}:4"


@pytest.mark.parametrize(
    ("content", "brief"),
    [
        ("gpu01\ngpu 02\n", "{path}:2: 'gpu 02' is not a host"),
        ("", "no host is named"),
        ("# nothing\n", "no host is named"),
    ],
)
def test_file_with_a_wrong_line_or_none_is_refused(
    tmp_path: Path, content: str, brief: str
) -> None:
    """An error names file and line, and an empty list is a mistake, not this machine."""
    path = tmp_path / "hosts"
    path.write_text(content)
    with pytest.raises(ConfigError, match=re.escape(brief.format(path=path))):
        parse_hosts([str(path)])


def test_file_that_is_no_text_or_no_file_is_refused(tmp_path: Path) -> None:
    """A binary file, a folder, a device and a missing path are configuration errors."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "binary", tmp_path, Path("/dev/zero"), tmp_path / "missing"):
        with pytest.raises(ConfigError, match="cannot be read"):
            parse_hosts([str(path)])


# Keys that are trusted


def known_hosts(tmp_path: Path, *lines: str) -> Path:
    """Write a known_hosts file."""
    path = tmp_path / "known_hosts"
    path.write_text("\n".join(lines) + "\n")
    return path


def hashed(name: str) -> str:
    """Hash a host name as `ssh-keygen -H` does."""
    salt = b"0123456789abcdefghij"
    digest = hmac.digest(salt, name.encode(), hashlib.sha1)
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize(
    ("names", "name", "expected"),
    [
        ("gpu01", "gpu01", _Trust.KNOWN),
        ("x,gpu01,192.0.2.1", "192.0.2.1", _Trust.KNOWN),
        ("GPU01", "gpu01", _Trust.KNOWN),
        ("gpu01", "GPU01", _Trust.KNOWN),
        ("gpu*,!gpu01", "GPU01", _Trust.UNKNOWN),
        ("*.example.org", "a.example.org", _Trust.KNOWN),
        ("gpu0?", "gpu01", _Trust.KNOWN),
        ("gpu*,!gpu01", "gpu01", _Trust.UNKNOWN),
        ("gpu[01]", "gpu0", _Trust.UNKNOWN),
        ("[gpu01]:2222", "[gpu01]:2222", _Trust.KNOWN),
        ("gpu01", "[gpu01]:2222", _Trust.UNKNOWN),
        (hashed("gpu01"), "gpu01", _Trust.KNOWN),
        (hashed("gpu01"), "GPU01", _Trust.KNOWN),
        (hashed("[gpu01]:2222"), "[gpu01]:2222", _Trust.KNOWN),
        (hashed("gpu01"), "gpu02", _Trust.UNKNOWN),
        ("|1|broken", "gpu01", _Trust.UNKNOWN),
    ],
)
def test_known_host_is_found_as_openssh_finds_it(
    tmp_path: Path, names: str, name: str, expected: _Trust
) -> None:
    """Lists, patterns, ports and hashed names mean what they mean to OpenSSH."""
    path = known_hosts(tmp_path, "# a comment", "", f"{names} {KEY.type} {KEY.content} me@here")
    assert _judge(read_known_hosts([path]), name, KEY)[0] is expected


def test_dev_null_is_an_empty_list_of_hosts() -> None:
    """Many set UserKnownHostsFile to it."""
    assert read_known_hosts([Path("/dev/null")]) == ()


def test_other_key_of_a_known_host_is_a_changed_key(tmp_path: Path) -> None:
    """The place of the key that was expected is named; another type is no excuse."""
    path = known_hosts(tmp_path, f"gpu01 {OTHER.type} {OTHER.content}")
    known = read_known_hosts([path])
    assert _judge(known, "gpu01", KEY) == (_Trust.CHANGED, f"{path}:1")
    rsa = HostKey(type="ssh-rsa", content=KEY.content)
    assert _judge(known, "gpu01", rsa)[0] is _Trust.CHANGED


@pytest.mark.parametrize(
    ("names", "name", "expected"),
    [
        ("gpu01", "GPU01", _Trust.REVOKED),
        ("[gpu01]:2222", "[gpu01]:2222", _Trust.REVOKED),
        (hashed("gpu01"), "gpu01", _Trust.REVOKED),
        ("*", "[gpu01]:2222", _Trust.REVOKED),
        ("*,!gpu01", "gpu01", _Trust.KNOWN),
        ("gpu02", "gpu01", _Trust.KNOWN),
    ],
)
def test_revocation_is_for_the_names_of_its_line(
    tmp_path: Path, names: str, name: str, expected: _Trust
) -> None:
    """They mean the same as on any other line, and count even where another line trusts the key."""
    line = f"{KEY.type} {KEY.content}"
    path = known_hosts(tmp_path, f"gpu01,[gpu01]:2222 {line}", f"@revoked {names} {line}")
    place = f"{path}:{2 if expected is _Trust.REVOKED else 1}"
    assert _judge(read_known_hosts([path]), name, KEY) == (expected, place)


def test_a_comment_is_one_line_whatever_it_holds(tmp_path: Path) -> None:
    """OpenSSH ends a line at a line feed alone, and not where Unicode would."""
    line = f"gpu01 {KEY.type} {KEY.content}"
    path = known_hosts(tmp_path, f"# of old\u2028{line}", f"# older\x0b{line}")
    assert _judge(read_known_hosts([path]), "gpu01", KEY)[0] is _Trust.UNKNOWN


def test_lines_that_name_no_host_key_are_passed_over(tmp_path: Path) -> None:
    """A certificate authority and a damaged line cost neither the file nor a false trust."""
    line = f"{KEY.type} {KEY.content}"
    path = known_hosts(
        tmp_path, f"@cert-authority * {line}", "gpu01 ssh-ed25519 !!!", "gpu01", f"gpu02 {line}"
    )
    known = read_known_hosts([path, tmp_path / "missing"])
    assert _judge(known, "gpu01", KEY)[0] is _Trust.UNKNOWN
    assert _judge(known, "gpu02", KEY)[0] is _Trust.KNOWN
    assert known_types(known, "gpu02") == ("ssh-ed25519",)


def test_a_key_is_remembered_on_a_line_of_its_own(tmp_path: Path) -> None:
    """A file whose last line lacks its end keeps that line, and gains another."""
    path = tmp_path / "folder" / "known_hosts"
    _remember(path, "gpu01", KEY)
    path.write_text(path.read_text().rstrip("\n"))
    _remember(path, "gpu02", OTHER)
    _remember(path, "gpu03", KEY)
    known = read_known_hosts([path])
    assert [line.patterns for line in known] == [("gpu01",), ("gpu02",), ("gpu03",)]
    assert [line.key for line in known] == [KEY, OTHER, KEY]
    assert path.stat().st_mode & 0o777 == 0o600


def test_known_name_has_a_port_only_where_it_is_not_22() -> None:
    """Names are written as OpenSSH writes them."""
    assert (_known_name("GPU", 22), _known_name("gpu", 2222)) == ("gpu", "[gpu]:2222")


# What the user's own configuration says


def settings_of(text: str, tmp_path: Path, destination: Destination) -> object:
    """Resolve a destination by a configuration file."""
    config = tmp_path / "a config"
    config.write_text(text)
    return resolve(destination, SshOptions(config=config), without_ssh=lambda *_: {})


@pytest.mark.skipif("not __import__('shutil').which('ssh')", reason="no ssh here")
def test_configuration_means_what_openssh_makes_of_it(tmp_path: Path) -> None:
    """Include, tokens, jumps and quoted file names come out as OpenSSH reads them."""
    known = tmp_path / "known hosts"
    known.touch()
    (tmp_path / "more").write_text("Host gpu\n HostName %h.example.org\n ProxyJump me@j1:2,j2\n")
    text = (
        f'Include "{tmp_path}/more"\nHost gpu\n Port 2222\n User bench\n IdentitiesOnly yes\n'
        f' IdentityFile "{tmp_path}/key of %r"\n UserKnownHostsFile "{known}"\n'
        " HostKeyAlias the-gpu\n IdentityAgent none\n StrictHostKeyChecking accept-new\n"
    )
    found = settings_of(text, tmp_path, Destination(alias="gpu"))
    assert (found.hostname, found.port, found.user) == ("gpu.example.org", 2222, "bench")
    assert found.jumps == (
        Destination(alias="j1", user="me", port=2),
        Destination(alias="j2"),
    )
    assert found.identity_files == (tmp_path / "key of bench",)
    assert found.known_hosts[0] == known
    assert (found.key_alias, found.identities_only, found.agent) == ("the-gpu", True, None)
    assert found.accepts_new_keys


@pytest.mark.skipif("not __import__('shutil').which('ssh')", reason="no ssh here")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "/run/from-shell"),
        ("IdentityAgent SSH_AUTH_SOCK", "/run/from-shell"),
        ("IdentityAgent none", None),
        ("IdentityAgent /run/%r-at-%n", "/run/bench-at-gpu"),
        ("IdentityAgent ${OWN_FOLDER}/agent", "/run/own/agent"),
        ("IdentityAgent $OWN_FOLDER", "/run/own"),
        ("IdentityAgent $NOT_SET", None),
        ("IdentityAgent ~/agent", str(Path("~/agent").expanduser())),
    ],
)
def test_agent_is_the_one_openssh_would_ask(
    text: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables and tokens stand in the path of its socket; a variable alone may name it."""
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/from-shell")
    monkeypatch.setenv("OWN_FOLDER", "/run/own")
    monkeypatch.delenv("NOT_SET", raising=False)
    config = f"Host gpu\n User bench\n {text}\n"
    found = settings_of(config, tmp_path, Destination(alias="gpu"))
    assert found.agent == (Path(expected) if expected else None)


def test_alias_of_the_host_key_has_no_capitals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSH writes and hashes it so, which matters where no ssh is installed to say so."""
    monkeypatch.setenv("PATH", str(tmp_path))
    values = {"hostkeyalias": ("GPU01",)}
    found = resolve(
        Destination(alias="gpu"),
        SshOptions(config=tmp_path / "config"),
        without_ssh=lambda *_: values,
    )
    assert found.key_alias == "gpu01"


@pytest.mark.skipif("not __import__('shutil').which('ssh')", reason="no ssh here")
def test_user_and_port_as_written_beat_the_configuration(tmp_path: Path) -> None:
    """`me@host:port` says more than the file."""
    text = "Host *\n Port 1\n User other\n"
    found = settings_of(text, tmp_path, Destination(alias="gpu", user="me", port=2))
    assert (found.user, found.port) == ("me", 2)


@pytest.mark.skipif("not __import__('shutil').which('ssh')", reason="no ssh here")
def test_configuration_that_openssh_refuses_is_an_error(tmp_path: Path) -> None:
    """OpenSSH's own words name the line."""
    with pytest.raises(TransportError, match="configuration for gpu cannot be read") as caught:
        settings_of("Host *\n NoSuchWord yes\n", tmp_path, Destination(alias="gpu"))
    assert "line 2" in caught.value.details
    assert f"`ssh -G -F '{tmp_path}/a config' gpu` shows the same" in caught.value.hint


def test_a_command_to_copy_names_a_host_as_ssh_takes_it() -> None:
    """The ssh of OpenSSH takes no host:port."""
    destination = Destination(alias="gpu02", user="me", port=2222)
    assert ssh_arguments(destination) == "-p 2222 me@gpu02"
    error = _not_forwarded(destination, "/run/docker.sock", "")
    assert "`ssh -p 2222 me@gpu02 true`" in error.hint


# Hosts that cannot be reached


def port_of(listener: socket.socket) -> int:
    """Return the port of a listening socket."""
    return int(listener.getsockname()[1])


@pytest.fixture
def options(tmp_path: Path) -> SshOptions:
    """Give options with an empty configuration and little patience."""
    config = tmp_path / "ssh_config"
    config.write_text(f"UserKnownHostsFile {tmp_path}/known_hosts\n")
    return SshOptions(config=config, connect_timeout_s=2)


def failure(host: str, options: SshOptions) -> TransportError:
    """Return the error that a host gets which cannot be connected to."""
    with pytest.raises(TransportError) as caught:
        connect(parse_hosts([host])[0], options=options)
    assert caught.value.exit_code == 3
    return caught.value


def test_refusing_host_is_told_with_address_and_remedy(options: SshOptions) -> None:
    """Nothing listens: the error names host, port and how to give another port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = port_of(listener)
    error = failure(f"127.0.0.1:{port}", options)
    assert error.lines() == (
        f"error: host '127.0.0.1:{port}' refused the connection",
        f"  why: nothing listens on 127.0.0.1 port {port}",
        "  try: start sshd there, or give its port: user@host:port",
    )


@pytest.mark.parametrize("has_openssh", [True, False])
@pytest.mark.parametrize(
    ("lines", "host"),
    [
        ("Host gpu\n RevokedHostKeys {path}\n", "gpu"),
        ("Host *\n RevokedHostKeys {path}\n", "me@gpu"),
        ("Host gpu\n ProxyJump way\nHost way\n RevokedHostKeys {path}\n", "way"),
    ],
)
def test_host_whose_keys_a_list_revokes_is_not_connected_to(
    options: SshOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_openssh: bool,
    lines: str,
    host: str,
) -> None:
    """No list is read, so that a key it revokes would be accepted; a jump host is a host too."""
    if not has_openssh:
        monkeypatch.setenv("PATH", str(tmp_path))
    elif shutil.which("ssh") is None:
        pytest.skip("no ssh here")
    path = tmp_path / "revoked"
    assert options.config is not None
    options.config.write_text(lines.format(path=path) + "HostName 127.0.0.1\nPort 9\n")
    error = failure(host.replace("way", "gpu"), options)
    assert error.brief == f"the SSH configuration for {host} names a list of revoked host keys"
    assert error.details == f"RevokedHostKeys is {path}; envcompare does not read such lists"
    assert "set `RevokedHostKeys none` for this host" in error.hint


def test_host_without_a_list_of_revoked_keys_is_connected_to(options: SshOptions) -> None:
    """`none` above another value is what the error tells to set."""
    assert options.config is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = port_of(listener)
    options.config.write_text(
        f"Host gpu\n RevokedHostKeys none\nHost *\n HostName 127.0.0.1\n Port {port}\n"
        " RevokedHostKeys /etc/ssh/revoked\n"
    )
    assert failure("gpu", options).brief == "host 'gpu' refused the connection"


def test_unknown_name_is_told_as_such(options: SshOptions) -> None:
    """A name that no service knows is most often a slip of the finger."""
    error = failure("no-such-host.invalid", options)
    assert error.brief == "cannot find host 'no-such-host.invalid'"
    assert "check the spelling" in error.hint
    assert "there is no file" not in error.hint
    assert "Errno" not in error.details


def test_unknown_name_that_looks_like_a_file_is_told_as_a_missing_file(options: SshOptions) -> None:
    """A file of hosts that is not there is taken for a host."""
    assert "there is no file nohosts.txt here" in failure("nohosts.txt", options).hint


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_port_without_an_ssh_server_is_told_as_such(options: SshOptions, greeting: bytes) -> None:
    """A server that is silent or speaks another language ends in an error, not in a wait."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted: list[socket.socket] = []

        def answer() -> None:
            accepted.append(listener.accept()[0])
            accepted[0].sendall(greeting)
            if greeting:
                accepted[0].close()

        thread = threading.Thread(target=answer)
        thread.start()
        error = failure(f"127.0.0.1:{port_of(listener)}", options)
        thread.join()
        accepted[0].close()
    assert "no SSH session" in error.brief
    assert "ssh -v" in error.hint


@pytest.fixture
def config(lab: Lab, tmp_path: Path) -> Path:
    """Give a configuration for the lab host that a test may add to."""
    path = tmp_path / "ssh_config"
    blocks = re.split(r"(?m)^(?=Host )", lab.ssh_config.read_text())  # of every lab host that is up
    path.write_text(next(block for block in blocks if block.startswith(f"Host {lab.alias}\n")))
    return path


def changed(config: Path, **values: str) -> SshOptions:
    """Return options for a configuration in which keywords have other values."""
    text = config.read_text()
    for keyword, value in values.items():
        text = re.sub(rf"(?m)^  {keyword} .*\n", "", text) + f"  {keyword} {value}\n"
    config.write_text(text)
    return SshOptions(config=config, connect_timeout_s=10)


def says_hello(transport: Transport) -> bool:
    """Tell whether commands run over the transport; close it."""
    answer = run(transport, Command(argv=("echo", "hello"))).stdout
    transport.close()
    return answer == "hello\n"


def lets_in(host: str, options: SshOptions) -> bool:
    """Tell whether commands run on a host."""
    return says_hello(connect(parse_hosts([host])[0], options=options))


@pytest.mark.engine("ssh")
def test_unknown_key_is_refused_with_fingerprint_and_the_command(lab: Lab, config: Path) -> None:
    """The error shows what to compare, and a command that accepts exactly this key."""
    error = failure(lab.alias, changed(config, UserKnownHostsFile=f"{config}.known"))
    fingerprint = lab.as_root("ssh-keygen", "-lf", "/etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    assert "is not known" in error.brief
    assert fingerprint in error.details
    assert "--accept-new-host-keys" in error.hint
    command = re.search(r"run `(echo .*?)`", error.hint)
    assert command is not None
    subprocess.run(["sh", "-c", command[1]], check=True)
    assert lets_in(lab.alias, SshOptions(config=config))


@pytest.mark.engine("ssh")
def test_unknown_key_is_accepted_on_first_use_where_asked_for(lab: Lab, config: Path) -> None:
    """With --accept-new-host-keys the key is kept, so that the next connection checks it."""
    changed(config, UserKnownHostsFile=f"{config}.d/known")
    assert lets_in(lab.alias, SshOptions(config=config, accept_new_host_keys=True))
    assert Path(f"{config}.d/known").read_text() == f"{lab.address} {lab.host_key}\n"
    assert lets_in(lab.alias, SshOptions(config=config))


@pytest.mark.engine("ssh")
@pytest.mark.parametrize("accepts", [{}, {"accept_new_host_keys": True}])
def test_changed_key_is_never_accepted(lab: Lab, config: Path, accepts: dict[str, bool]) -> None:
    """Another key than the known one is an error, whatever else the user allowed."""
    known = Path(f"{config}.known")
    known.write_text(f"{lab.address} {OTHER.type} {OTHER.content}\n")
    changed(config, UserKnownHostsFile=str(known))
    options = SshOptions(config=config, **accepts)
    error = failure(lab.alias, options)
    assert error.brief == f"the host key of '{lab.alias}' has changed"
    assert f"{known}:1" in error.details
    assert "ssh-keygen -R" in error.hint
    assert len(known.read_text().splitlines()) == 1


@pytest.mark.engine("ssh")
def test_revoked_key_is_refused(lab: Lab, config: Path) -> None:
    """A key that is known and revoked is revoked."""
    known = Path(f"{config}.known")
    known.write_text(f"{lab.address} {lab.host_key}\n@revoked * {lab.host_key}\n")
    assert "is revoked" in failure(lab.alias, changed(config, UserKnownHostsFile=str(known))).brief


@pytest.fixture(scope="module")
def patient(lab: Lab) -> Iterator[str]:
    """Give the port of another sshd of the lab host: one that is left too often is left alone.

    The first one takes no connections for a while from where too many ended before a login.
    """
    pid = "/run/sshd-patient.pid"
    lab.as_root(
        *("/usr/sbin/sshd", "-p", "2222", "-o", f"PidFile={pid}"),
        *("-o", "PerSourcePenalties=no", "-o", "MaxStartups=100"),
    )
    # It returns as a daemon before it listens, and writes the file once it does.
    lab.as_root("timeout", "60", "sh", "-c", f"until [ -s {pid} ]; do sleep 0.1; done")
    yield "2222"
    lab.as_root("sh", "-c", f"kill $(cat {pid})")


@pytest.fixture
def checked(config: Path, patient: str) -> Path:
    """Give a configuration for that sshd, whose key has a name of its own."""
    changed(config, Port=patient, HostKeyAlias="lab-h1")
    return config


def says_openssh(lab: Lab, config: Path) -> str:
    """Return what OpenSSH itself says of the lab host's key; nothing where it trusts it."""
    argv = ["ssh", "-F", str(config), "-oBatchMode=yes", lab.alias, "true"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stderr


@pytest.mark.engine("ssh")
@pytest.mark.parametrize("has_openssh", [True, False])
@pytest.mark.parametrize("is_hashed", [False, True])
def test_alias_with_capitals_does_not_switch_the_check_off(
    lab: Lab,
    checked: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_openssh: bool,
    is_hashed: bool,
) -> None:
    """A changed key is refused under an alias in any case, and where new keys are accepted."""
    known = Path(f"{checked}.known")
    name = hashed("gpu01") if is_hashed else "gpu01"
    known.write_text(f"{name} {OTHER_REAL}\n")
    changed(checked, HostKeyAlias="GPU01", UserKnownHostsFile=str(known))
    assert "IDENTIFICATION HAS CHANGED" in says_openssh(lab, checked)
    if not has_openssh:
        monkeypatch.setenv("PATH", str(tmp_path))
    options = SshOptions(config=checked, accept_new_host_keys=True)
    assert "has changed" in failure(lab.alias, options).brief
    known.write_text(f"{name} {lab.host_key}\n")
    assert lets_in(lab.alias, options)
    assert known.read_text() == f"{name} {lab.host_key}\n"


@pytest.mark.engine("ssh")
@pytest.mark.parametrize(
    ("lines", "is_trusted"),
    [
        ("lab-host {key}", True),
        ("[lab-host]:22 {key}", False),  # an alias has no port
        ("lab-*,!lab-h* {key}", False),
        ("lab-*,!lab-x* {key}", True),
        ("lab-hos? {key}", True),
        ("@cert-authority * {key}", False),
        ("@cert-authority * {other}\nLAB-HOST {key}", True),
        ("lab-host {key}\n@revoked lab-* {key}", False),
        ("lab-host {key}\n@revoked lab-*,!lab-host {key}", True),
        ("lab-host {other}\nlab-host {key}", True),
    ],
)
def test_known_hosts_means_what_it_means_to_openssh(
    lab: Lab, checked: Path, lines: str, *, is_trusted: bool
) -> None:
    """The real ssh and envcompare read the same file and decide alike."""
    known = Path(f"{checked}.known")
    known.write_text(lines.format(key=lab.host_key, other=OTHER_REAL) + "\n")
    options = changed(checked, HostKeyAlias="Lab-Host", UserKnownHostsFile=str(known))
    assert (says_openssh(lab, checked) == "") is is_trusted
    if is_trusted:
        assert lets_in(lab.alias, options)
    else:
        assert "host key" in failure(lab.alias, options).brief


@pytest.mark.engine("ssh")
def test_revoked_key_of_a_jump_host_is_refused(lab: Lab, checked: Path, tmp_path: Path) -> None:
    """Each host on the way is checked by its own part of the configuration."""
    path = tmp_path / "known"
    path.write_text(f"* {lab.host_key}\n@revoked * {lab.host_key}\n")
    through_itself(checked, lab, "ProxyJump lab-h1,middle")
    text = checked.read_text()
    own = f"Host middle\n  UserKnownHostsFile {path}\n"  # the first value counts
    checked.write_text(text.replace("Host middle\n", own))
    assert failure("inner", SshOptions(config=checked)).brief == (
        "the host key of 'middle' is revoked"
    )


@pytest.mark.engine("ssh")
def test_denied_user_is_told_which_keys_were_tried(lab: Lab, config: Path, tmp_path: Path) -> None:
    """Keys that the host does not take, and files that are no keys, are named."""
    make_key(tmp_path / "wrong")
    (tmp_path / "garbage").write_text("no key")
    options = changed(config, IdentityFile=f"{tmp_path}/wrong")
    options.config.write_text(options.config.read_text() + f"  IdentityFile {tmp_path}/garbage\n")
    error = failure(lab.alias, options)
    assert error.brief == f"host '{lab.alias}' does not let user 'bench' in"
    assert (
        f"tried: {tmp_path}/wrong, {tmp_path}/garbage (not a supported private key" in error.details
    )
    assert "ssh-copy-id" in error.hint


@pytest.mark.engine("ssh")
def test_encrypted_key_without_an_agent_is_told_with_ssh_add(
    lab: Lab, config: Path, tmp_path: Path
) -> None:
    """A key behind a passphrase needs the agent, and the error says how."""
    make_key(tmp_path / "locked", passphrase="secret")
    error = failure(lab.alias, changed(config, IdentityFile=str(tmp_path / "locked")))
    assert "encrypted, and no agent holds it" in error.details
    assert error.hint == f"unlock the key with `ssh-add {tmp_path}/locked`"


@pytest.fixture
def agent(lab: Lab, tmp_path: Path) -> Iterator[Path]:
    """Give the socket of a real agent that holds the user's key."""
    path = tmp_path / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL) as program:
        try:
            while not path.exists():
                assert program.poll() is None
            variables = {**os.environ, "SSH_AUTH_SOCK": str(path)}
            subprocess.run(["ssh-add", "-q", lab.identity], check=True, env=variables)
            yield path
        finally:
            program.kill()


@pytest.fixture
def public_half(lab: Lab, config: Path, tmp_path: Path) -> SshOptions:
    """Give options that name a key of which only the public half is a file."""
    (tmp_path / "only.pub").write_text(Path(f"{lab.identity}.pub").read_text())
    return changed(config, IdentityFile=str(tmp_path / "only"))


@pytest.mark.engine("ssh")
def test_agent_lets_the_user_in(
    lab: Lab, agent: Path, public_half: SshOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that only the agent holds is used, also where IdentitiesOnly names its public half."""
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    assert lets_in(lab.alias, public_half)


@pytest.mark.engine("ssh")
def test_agent_of_the_configuration_lets_the_user_in(
    lab: Lab, agent: Path, public_half: SshOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IdentityAgent names a socket that no variable of the shell knows."""
    monkeypatch.setenv("SSH_AUTH_SOCK", "/not/there")
    monkeypatch.setenv("AGENT_FOLDER", str(agent.parent))
    changed(public_half.config, IdentityAgent="${AGENT_FOLDER}/agent")
    assert lets_in(lab.alias, public_half)


@pytest.mark.engine("ssh")
def test_agent_that_is_gone_is_no_obstacle(
    lab: Lab, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key file lets the user in all the same."""
    options = changed(config, IdentityAgent="/not/there")
    assert lets_in(lab.alias, options)


@pytest.mark.engine("ssh")
def test_jump_hosts_are_passed_through_with_their_keys_checked(lab: Lab, config: Path) -> None:
    """ProxyJump leads through the lab host to itself, twice."""
    through_itself(config, lab, "ProxyJump lab-h1,middle")
    options = SshOptions(config=config)
    transport = connect(parse_hosts(["inner"])[0], options=options)
    assert run(transport, Command(argv=("sh", "-c", "echo $SSH_CLIENT"))).stdout.startswith("127.")
    with transport.forward_unix("/var/run/docker.sock") as path:
        assert path.exists()
    assert says_hello(transport)


@pytest.mark.engine("ssh")
def test_later_connection_goes_where_the_first_one_went(lab: Lab, config: Path) -> None:
    """A configuration that changes during a run leads to no other host."""
    transport: Any = connect(parse_hosts([lab.alias])[0], options=SshOptions(config=config))
    config.write_text("Host *\n  Port 9\n" + config.read_text())
    transport._connections[0].close()
    assert says_hello(transport)


@pytest.mark.engine("ssh")
def test_jump_host_that_cannot_go_on_is_named(lab: Lab, config: Path) -> None:
    """The error tells the host that failed from the host it leads through."""
    through_itself(config, lab, "ProxyJump lab-h1\n  Port 9")
    error = failure("inner", SshOptions(config=config))
    assert error.brief == "jump host 'lab-h1' cannot reach host 'inner'"


@pytest.mark.engine("ssh")
def test_proxy_command_carries_the_connection(lab: Lab, config: Path) -> None:
    """A program between is started with its tokens filled in."""
    through_itself(config, lab, f'ProxyCommand ssh -F "{lab.ssh_config}" -W %h:%p lab-h1')
    assert lets_in("inner", SshOptions(config=config))


@pytest.mark.engine("ssh")
def test_jump_host_through_itself_ends(lab: Lab, config: Path) -> None:
    """A configuration that jumps for ever is an error."""
    config.write_text("Host *\n  ProxyJump lab-h1\n" + config.read_text())
    assert "more than 8 jump hosts" in failure(lab.alias, SshOptions(config=config)).details


@pytest.mark.engine("ssh")
def test_configuration_is_read_without_openssh(
    lab: Lab, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no ssh is installed, the simple keywords still work; a socket says what is missing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    transport = connect(parse_hosts([lab.alias])[0], options=SshOptions(config=config))
    with (
        pytest.raises(TransportError, match="cannot be reached from here") as caught,
        transport.forward_unix("/var/run/docker.sock"),
    ):
        pass
    assert "ssh is not installed" in caught.value.details
    assert says_hello(transport)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("Match localnetwork 10.0.0.0/8\n  User other", "only OpenSSH reads"),
        ("Match Host other\n  User other", "only OpenSSH reads"),
        ("Match host=other user=h\n  User other", "only OpenSSH reads"),
        ("Match rdomain x\n  User other", "only OpenSSH reads"),
        ("Match host 'open", "quotation"),
        ("CanonicalizeHostname yes", "canonicaldomains"),
        ("CanonicalizeHostname yes\nCanonicalDomains x.invalid\nCanonicalizeFallbackLocal no", "h"),
    ],
)
def test_configuration_that_needs_openssh_is_refused_without_it(
    lines: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A criterion that is not understood must not choose another user."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "config").write_text(f"{lines}\n")
    with pytest.raises(TransportError, match="cannot be read") as caught:
        connect(parse_hosts(["h"])[0], options=SshOptions(config=tmp_path / "config"))
    assert why in caught.value.details


def test_no_proxy_is_none_without_openssh_too(tmp_path: Path) -> None:
    """`ProxyCommand none` turns one off that a later line sets, and a jump host too."""
    text = "Host h\n  ProxyCommand none\n  User bench\nHost *\n  ProxyJump bastion\n"
    (tmp_path / "config").write_text(f"{text}Match host version exec 'command -v true'\n")
    values = ssh._read_config(tmp_path / "config", "h")
    assert set(values) == {"hostname", "user"}
    assert values["user"] == ("bench",)


@pytest.mark.engine("ssh")
def test_socket_that_cannot_be_forwarded_says_why(lab: Lab, config: Path) -> None:
    """What OpenSSH says on its way out becomes the reason."""
    transport = connect(parse_hosts([lab.alias])[0], options=SshOptions(config=config))
    config.write_text(config.read_text().replace(lab.address, "127.0.0.1\n  Port 9"))
    with (
        pytest.raises(TransportError) as caught,
        transport.forward_unix("/var/run/docker.sock"),
    ):
        pass
    assert "refused" in caught.value.details
    transport.close()


def test_no_host_is_this_machine() -> None:
    """For the name local nothing is connected to."""
    assert connect(HostSpec(label="local", destination=Destination(alias="local"))).name == "local"


def make_key(path: Path, *, passphrase: str = "") -> None:
    """Make a key pair."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)]
    subprocess.run(argv, check=True)


def through_itself(config: Path, lab: Lab, how: str) -> None:
    """Add hosts `middle` and `inner`: the lab host as it sees itself."""
    text = config.read_text()
    for name, extra in (("middle", ""), ("inner", f"  {how}\n")):
        text += f"Host {name}\n  HostName 127.0.0.1\n  HostKeyAlias lab-h1\n  User bench\n{extra}"
        text += "".join(f"  {line}\n" for line in own_lines(lab))
    config.write_text(text)


def own_lines(lab: Lab) -> tuple[str, ...]:
    """Return the lines of the configuration that let the user in."""
    return (f'IdentityFile "{lab.identity}"', f'UserKnownHostsFile "{lab.known_hosts}"')
