"""The stack `host`: which arms it gives, what a container shows, and the empty root it shows it in.

Real engines prove in tests/engines/test_host_stack.py that only the isolation differs.
"""

from __future__ import annotations

import io
import shlex
import sys
import tarfile
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from experiments import known
from hypothesis import given
from hypothesis import strategies as st
from software import prepared_by

from envcompare.config import expand_stacks
from envcompare.config.experiment import resolve
from envcompare.config.settings import Settings, parse_settings
from envcompare.environments import Isolation
from envcompare.environments.registry import environment
from envcompare.errors import ConfigError, UnusableError
from envcompare.stack import Mount, Options
from envcompare.stack.venv import HostPython, Layout, archive, find_python, layout, left_out
from envcompare.text import Command
from envcompare.transport import LOCAL

KNOWN = known(cnn={}, rnn={})
DEBIAN = HostPython(
    path="/home/ann/venv/bin/python",
    version="3.11.2",
    system=(
        ("/usr", "folder", ""),
        ("/bin", "link", "usr/bin"),
        ("/lib", "link", "usr/lib"),
        ("/etc/ssl/certs", "folder", ""),
        ("/etc/ld.so.cache", "file", ""),
        ("/etc/localtime", "link", "/usr/share/zoneinfo/Etc/UTC"),
    ),
    own=("/bin", "/home/ann/venv", "/home/ann/venv/lib/python3.11", "/tmp", "/usr/lib/python3.11"),
)
SHOWN = Layout(
    links=(
        ("/bin", "usr/bin"),
        ("/lib", "usr/lib"),
        ("/etc/localtime", "/usr/share/zoneinfo/Etc/UTC"),
    ),
    folders=("/usr", "/etc/ssl/certs", "/home/ann/venv"),
    files=("/etc/ld.so.cache",),
)
WORKER = Command(argv=("/home/ann/venv/bin/python", "/w/worker.py"))
ISOLATION = Isolation(
    run_id="r",
    arm="docker-host",
    worker="0f",
    reference="sha256:0123",
    uid=1000,
    gid=1001,
    mounts=(*SHOWN.mounts, Mount(path="/w")),
    scratch="/home/ann/scratch",
    is_timed=True,
)
BINDS = """
    --mount type=bind,source=/usr,destination=/usr,ro
    --mount type=bind,source=/etc/ssl/certs,destination=/etc/ssl/certs,ro
    --mount type=bind,source=/home/ann/venv,destination=/home/ann/venv,ro
    --mount type=bind,source=/etc/ld.so.cache,destination=/etc/ld.so.cache,ro
    --mount type=bind,source=/w,destination=/w,ro
    --mount type=bind,source=/home/ann/scratch,destination=/home/ann/scratch
"""


def test_a_container_shows_the_hosts_folders_once_and_its_links_as_links() -> None:
    """What lies in a folder that is shown is not bound again, and /tmp stays the container's."""
    assert layout(DEBIAN) == SHOWN


def test_docker_binds_the_hosts_files_read_only_at_their_own_paths() -> None:
    """The skeleton stands where an image would, and nothing else changes."""
    expected = shlex.split(f"""
        docker run --interactive --rm --pull never --network none --log-driver none
        --cap-drop ALL --security-opt no-new-privileges --pids-limit 8192
        --user 1000:1001 --workdir /home/ann/scratch {BINDS}
        --env USER=envcompare --env ENVCOMPARE_RUN=r --env ENVCOMPARE_ARM=docker-host
        --env ENVCOMPARE_ENVIRONMENT=docker --env ENVCOMPARE_WORKER=0f --env HOME=/home/ann/scratch
        --label envcompare.run=r --label envcompare.arm=docker-host --label envcompare.worker=0f
        --entrypoint '' sha256:0123 /home/ann/venv/bin/python /w/worker.py
    """)
    assert environment("docker").wrap(WORKER, ISOLATION) == Command(argv=tuple(expected))


def test_singularity_binds_the_hosts_files_read_only_at_their_own_paths() -> None:
    """The skeleton is a folder, and the binds are those of Docker."""
    there = replace(ISOLATION, reference="/home/ann/.cache/envcompare/skeleton-01")
    expected = shlex.split(f"""
        apptainer -q exec --containall --no-home --cleanenv --pwd /home/ann/scratch
        --mount type=bind,source=/home/ann/scratch,destination=/tmp {BINDS}
        /home/ann/.cache/envcompare/skeleton-01 env
        ENVCOMPARE_RUN=r ENVCOMPARE_ARM=docker-host ENVCOMPARE_ENVIRONMENT=singularity
        ENVCOMPARE_WORKER=0f
        HOME=/home/ann/scratch /home/ann/venv/bin/python /w/worker.py
    """)
    assert environment("singularity").wrap(WORKER, there).argv == tuple(expected)


def test_the_skeleton_has_mount_points_links_and_names_of_users_alone() -> None:
    """No program, no library: all that can run is the host's own."""
    with tarfile.open(fileobj=io.BytesIO(archive(SHOWN))) as tar:
        members = {member.name: member for member in tar.getmembers()}
    assert {name: member.linkname for name, member in members.items() if member.issym()} == {
        path.lstrip("/"): target for path, target in SHOWN.links
    }
    assert {name for name, member in members.items() if member.isfile()} == {
        "etc/group", "etc/hosts", "etc/ld.so.cache", "etc/passwd", "etc/resolv.conf",
    }  # fmt: skip
    assert all(member.isdir() or member.size < 100 for member in members.values())
    assert members["home/ann/venv"].isdir()
    assert members["tmp"].mode == 0o1777


def test_the_same_layout_gives_the_same_skeleton() -> None:
    """Its content names it, so that a second run finds it."""
    assert archive(SHOWN) == archive(replace(SHOWN))
    assert archive(SHOWN) != archive(replace(SHOWN, folders=("/usr",)))


PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(lambda w: "/" + "/".join(w))


@given(st.lists(PATHS, unique=True))
def test_every_folder_of_python_is_shown_and_none_inside_another(own: list[str]) -> None:
    """A folder is bound, or one above it is."""
    found = layout(HostPython(path="/a/python", version="3.11.2", own=tuple(own)))
    for path in own:
        assert any(f"{path}/".startswith(f"{folder}/") for folder in found.folders)
    for one in found.folders:
        assert not any(one.startswith(f"{other}/") for other in found.folders)


def test_this_interpreter_says_where_it_lives() -> None:
    """Prefix and packages are among the folders, the system's own among the entries."""
    found = find_python(LOCAL, python=sys.executable, imports=("msgspec",))
    assert found.path == sys.executable
    assert {sys.prefix, sys.base_prefix} <= {*found.own}
    assert found.imported["msgspec"]
    assert "/usr" in {path for path, kind, _ in found.system if kind == "folder"}
    bound = layout(found)
    assert any(f"{sys.prefix}/".startswith(f"{folder}/") for folder in bound.folders)


def test_the_gpu_drivers_libraries_are_shown_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders that the loader's cache names, and those that the links there lead to."""
    home, driver, real = (tmp_path / name for name in ("home", "driver", "real"))
    for folder in (home, driver, real):
        folder.mkdir()
    (real / "libcuda.so.550").touch()
    (driver / "libcuda.so.1").symlink_to(real / "libcuda.so.550")
    line = f"libcuda.so.1 (libc6,x86-64) => {driver}/libcuda.so.1"
    (home / "ldconfig").write_text(f"#!/bin/sh\nprintf '\\t%s\\n' '{line}'\n")
    (home / "ldconfig").chmod(0o755)
    (home / ".profile").write_text(f'PATH="{home}:$PATH"\n')
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SHELL", "/bin/sh")
    found = find_python(LOCAL, python=sys.executable, imports=())
    assert {str(driver), str(real)} <= {*layout(found).folders}


def test_no_private_key_of_the_host_is_shown() -> None:
    """Certificates are bound, not the folders where keys lie beside them."""
    found = find_python(LOCAL, python=sys.executable, imports=())
    paths = {path for path, _, _ in found.system}
    assert "/etc/ssl/certs" in paths
    for keys in (PurePosixPath("/etc/ssl/private"), PurePosixPath("/etc/pki/tls/private")):
        assert paths.isdisjoint(str(folder) for folder in (keys, *keys.parents))


@pytest.mark.parametrize(
    "folder", ["/", "/home", "/home/ann", "/home/bob", "/root", "/data", "/data/homes/ann"]
)
def test_a_whole_home_is_never_shown(folder: str) -> None:
    """What Python needs within is bound by itself, and the rest is said to be left out."""
    inner = f"{folder.rstrip('/')}/lib/python3.11"
    homes = ("/home/ann", "/data/homes/ann")
    found = HostPython(path="/usr/bin/python3", version="3.11.2", own=(folder, inner), homes=homes)
    assert layout(found).folders == (inner,)
    assert left_out(found) == (folder,)


def test_a_home_in_the_path_of_python_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter of the login itself tells which folder is the home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = find_python(LOCAL, python=sys.executable, imports=())
    assert str(tmp_path) in left_out(found)
    assert str(tmp_path) not in layout(found).folders


def test_every_link_on_the_way_to_the_interpreter_is_shown(tmp_path: Path) -> None:
    """A container that lacked one of the folders could not start it."""
    first, second = tmp_path / "first" / "python", tmp_path / "second" / "python"
    for path, target in ((first, Path("../second/python")), (second, Path(sys.executable))):
        path.parent.mkdir()
        path.symlink_to(target)
    found = find_python(LOCAL, python=str(first), imports=())
    assert {str(first.parent), str(second.parent), str(Path(sys.executable).parent)} <= {*found.own}


@pytest.mark.parametrize(("name", "is_asked"), [("fish", False), ("tcsh", False), ("ksh", True)])
def test_a_login_shell_that_is_no_posix_shell_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, is_asked: bool
) -> None:
    """The interpreter is found by sh there, instead of an error about its words."""
    login = tmp_path / name
    login.write_text(f'#!/bin/sh\n: > "{tmp_path}/asked"\nexec sh "$@"\n')
    login.chmod(0o755)
    monkeypatch.setenv("SHELL", str(login))
    assert find_python(LOCAL, python=sys.executable, imports=()).path == sys.executable
    assert (tmp_path / "asked").exists() == is_asked


def test_the_plain_process_has_no_skeleton() -> None:
    """vm@host needs nothing made: it is the login's interpreter itself."""
    options = Options(host_python=sys.executable, host_imports=())
    prepared = prepared_by("vm", LOCAL, options=options, is_host_stack=True)
    assert (prepared.interpreter, prepared.reference, prepared.mounts) == (sys.executable, "", ())


def test_what_a_login_sets_for_its_libraries_is_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that shows the host's files loads what the host's own Python loads."""
    login = {"LD_LIBRARY_PATH": "/opt/none", "CUDA_HOME": "/usr/local/cuda", "CUDA_PATH": "/c"}
    for name, value in login.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    carried = find_python(LOCAL, python=sys.executable, imports=("msgspec",)).variables
    assert {name: carried.get(name) for name in (*login, "LD_PRELOAD")} == {
        **login,
        "LD_PRELOAD": None,
    }


def test_an_interpreter_without_what_is_needed_is_named() -> None:
    """The hint is the flag that names another."""
    with pytest.raises(UnusableError) as caught:
        find_python(LOCAL, python=sys.executable, imports=("nosuchmodule",))
    assert "No module named 'nosuchmodule'" in caught.value.details
    assert "imports nosuchmodule with --host-python" in (caught.value.hint or "")


def arms(**flags: object) -> list[str]:
    """Return the ids of the arms that these settings give."""
    settings = parse_settings(flags, source="test")
    return [arm.id for arm in resolve(settings, Settings(), known=KNOWN).arms]


def test_both_stacks_give_each_environment_twice() -> None:
    """The stacks follow each other, so that the reference stays the first environment's image."""
    assert arms(stacks="image,host") == [
        "vm", "docker", "singularity", "vm-host", "docker-host", "singularity-host",
    ]  # fmt: skip
    assert arms(envs=["vm", "docker"], stacks=["host"]) == ["vm-host", "docker-host"]
    assert arms(envs="vm") == ["vm"]


def test_an_arm_that_names_its_software_stays_as_it_is() -> None:
    """Only a plain environment is multiplied."""
    items = ("vm", "old=docker:app:1", "docker@host")
    assert expand_stacks(items, ("image", "host")) == (*items, "vm@host")
    assert expand_stacks(items, ("host",)) == ("vm@host", *items[1:])


@pytest.mark.parametrize(
    ("stacks", "message"), [("imgae", "unknown stack `imgae`"), ("", "names no stack")]
)
def test_a_stack_that_is_none_is_named(stacks: str, message: str) -> None:
    """The hint lists the two."""
    with pytest.raises(ConfigError, match=message) as caught:
        arms(stacks=stacks)
    assert "image" in (caught.value.hint or "")
