"""How each environment wraps a command, reads complaints, and is found by its name."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from envcompare import environments
from envcompare.environments import Gpu, Isolation, gpu
from envcompare.environments.bubblewrap import _TOPS
from envcompare.environments.docker import Docker
from envcompare.environments.oci import ENGINE, image_store
from envcompare.environments.registry import ENVIRONMENTS, environment
from envcompare.environments.singularity import find_engine
from envcompare.environments.vm import without_login
from envcompare.errors import ConfigError, Problem, UnusableError
from envcompare.stack import Mount, Prepared, Progress, Request, storage, venv
from envcompare.stack.image import look_up
from envcompare.stack.storage import bind
from envcompare.stack.venv import LOADING
from envcompare.text import Command
from envcompare.transport import LOCAL, run, shell

WORKER = Command(argv=("/venv/bin/python", "/w/worker.py"), env=(("OMP_NUM_THREADS", "1"),))
ISOLATION = Isolation(
    run_id="20260101-000000-abcd",
    arm="new",
    worker="0f",
    reference="sha256:0123",
    uid=1000,
    gid=1001,
    mounts=(Mount(path="/w"), Mount(path="/out", is_read_only=False)),
    scratch="/home/ann/scratch",
    temporary="/scratch/envcompare-20260101-000000-abcd/new",
)


def marks(name: str) -> tuple[tuple[str, str], ...]:
    """Return the variables by which a sweep finds what an environment has started."""
    return (
        ("ENVCOMPARE_RUN", "20260101-000000-abcd"),
        ("ENVCOMPARE_ARM", "new"),
        ("ENVCOMPARE_ENVIRONMENT", name),
        ("ENVCOMPARE_WORKER", "0f"),
    )


def test_vm_runs_the_command_with_the_marks_and_without_what_leads_python_elsewhere() -> None:
    """On the VM nothing stands around the command but the variables that are set and taken away."""
    wrapped = environment("vm").wrap(WORKER, ISOLATION)
    dropped = wrapped.argv[1:-2]
    assert wrapped.argv == ("env", *dropped, *WORKER.argv)
    assert set(dropped[::2]) == {"-u"}
    assert {"PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONSTARTUP"} <= set(dropped[1::2])
    assert wrapped.env == (
        *marks("vm"),
        ("TMPDIR", "/scratch/envcompare-20260101-000000-abcd/new"),
        ("OMP_NUM_THREADS", "1"),
    )


LOGIN = {
    "PYTHONPATH": "/evil", "PYTHONHOME": "/nonexistent", "PYTHONSAFEPATH": "1",
    "LD_LIBRARY_PATH": "/usr/local/cuda/lib64", "LD_PRELOAD": "/nonexistent/lib.so",
    "CUDA_HOME": "/usr/local/cuda", "CUDA_PATH": "/usr/local/cuda",
}  # fmt: skip
MADE = Prepared(interpreter="/venv/bin/python", identity=(("lock", "0a"),))


def test_a_login_cannot_lead_the_python_of_vm_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of the login's in front of the locked one would be taken for it."""
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)
    script = "import os, sys; print('/evil' in sys.path, *(set(os.environ) & set(sys.argv)))"
    command = Command(argv=(sys.executable, "-c", script, *LOGIN))
    done = run(LOCAL, environment("vm").wrap(command, ISOLATION))
    assert (done.exit_code, done.stdout.split()) == (0, ["False"]), done.stderr


def test_what_a_stack_gives_its_python_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack `host` carries the variables of the login on purpose."""
    monkeypatch.setenv("PYTHONPATH", "/evil")
    script = "import sys; print('/carried' in sys.path, '/evil' in sys.path)"
    command = Command(argv=(sys.executable, "-c", script), env=(("PYTHONPATH", "/carried"),))
    done = run(LOCAL, environment("vm").wrap(command, ISOLATION))
    assert done.stdout.split() == ["True", "False"], done.stderr


def _of_login(monkeypatch: pytest.MonkeyPatch, **login: str) -> tuple[Prepared, list[str]]:
    """Return what vm makes of its software where a login sets these alone, and what it says."""
    for name in LOADING:
        monkeypatch.delenv(name, raising=False)
    for name, value in login.items():
        monkeypatch.setenv(name, value)
    said: list[str] = []
    request = Request(transport=LOCAL, progress=Progress(said.append), builder=ENGINE)
    return without_login(request, MADE), said


def test_a_login_without_such_variables_is_not_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one is as none: the loader ignores it."""
    assert _of_login(monkeypatch, LD_PRELOAD="") == (MADE, [])


def test_what_vm_drops_of_a_login_is_said_and_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's Deep Learning VM is measured without them, which nobody could guess."""
    login = {"LD_LIBRARY_PATH": "/opt/none:/opt/*", "CUDA_HOME": "/usr/local/cuda"}
    prepared, said = _of_login(monkeypatch, **login)
    assert " ".join(said) == (
        "local vm: drops LD_LIBRARY_PATH, CUDA_HOME of the login, which no container sees; "
        "--stacks host keeps what the login sets"
    )
    dropped = ("login.dropped", "LD_LIBRARY_PATH, CUDA_HOME")
    assert prepared == replace(MADE, identity=(*MADE.identity, dropped))


def test_the_folder_of_the_driver_stays_where_nothing_else_leads_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Container-Optimized OS has libcuda.so.1 in no folder that its loader knows by itself."""
    (tmp_path / "libcuda.so.1").touch()
    prepared, said = _of_login(monkeypatch, LD_LIBRARY_PATH=f"/opt/none::{tmp_path}:relative")
    assert said[1:] == [f"local vm: keeps LD_LIBRARY_PATH={tmp_path}: only there is libcuda.so.1"]
    assert prepared.variables == (("LD_LIBRARY_PATH", str(tmp_path)),)
    assert prepared.identity[-1] == ("login.libcuda", str(tmp_path))


def test_a_login_that_leads_python_astray_makes_no_venv_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter of a venv that is done starts whatever PYTHONHOME says."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / ".complete").write_text("made")
    monkeypatch.setenv("PYTHONHOME", "/nonexistent")
    assert shell(LOCAL, venv._IS_DONE, str(tmp_path), "made").succeeded
    assert not shell(LOCAL, venv._IS_DONE, str(tmp_path), "another").succeeded


@pytest.mark.parametrize(
    ("name", "stopping", "limit", "ids", "env"),
    [
        ("docker", "", "--pids-limit 8192", "", ()),
        ("podman", "--stop-timeout 0", "", "--userns keep-id",
         (("PODMAN_IGNORE_CGROUPSV1_WARNING", "1"),)),
    ],
)  # fmt: skip
def test_an_engine_runs_a_labelled_container_under_the_callers_ids(
    name: str, stopping: str, limit: str, ids: str, env: tuple[tuple[str, str], ...]
) -> None:
    """Every flag of its `run` is there, and nothing else; Podman's warnings are kept off stderr."""
    expected = shlex.split(f"""
        {name} run --interactive --rm --pull never {stopping} --network none --log-driver none
        --cap-drop ALL --security-opt no-new-privileges {limit}
        --read-only --tmpfs /tmp:exec --tmpfs /var/tmp:exec {ids}
        --user 1000:1001 --workdir /home/ann/scratch
        --mount type=bind,source=/w,destination=/w,ro
        --mount type=bind,source=/out,destination=/out
        --mount type=bind,source=/home/ann/scratch,destination=/home/ann/scratch
        --env USER=envcompare --env OMP_NUM_THREADS=1
        --env ENVCOMPARE_RUN=20260101-000000-abcd --env ENVCOMPARE_ARM=new
        --env ENVCOMPARE_ENVIRONMENT={name} --env ENVCOMPARE_WORKER=0f
        --env HOME=/home/ann/scratch
        --label envcompare.run=20260101-000000-abcd --label envcompare.arm=new
        --label envcompare.worker=0f
        --entrypoint '' sha256:0123 /venv/bin/python /w/worker.py
    """)
    assert Command(argv=tuple(expected), env=env) == environment(name).wrap(WORKER, ISOLATION)


def test_charliecloud_takes_no_variable_of_the_login() -> None:
    """They are set by `env` inside, after a PATH for images that set none."""
    expected = shlex.split("""
        ch-run --write-fake --private-tmp --unset-env=* --cd /home/ann/scratch
        --bind /w --bind /out --bind /home/ann/scratch sha256:0123 -- env
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
        OMP_NUM_THREADS=1 ENVCOMPARE_RUN=20260101-000000-abcd ENVCOMPARE_ARM=new
        ENVCOMPARE_ENVIRONMENT=charliecloud ENVCOMPARE_WORKER=0f HOME=/home/ann/scratch
        /venv/bin/python /w/worker.py
    """)
    wrapped = environment("charliecloud").wrap(WORKER, ISOLATION)
    assert (tuple(expected), marks("charliecloud")) == (wrapped.argv, wrapped.env)
    with pytest.raises(ConfigError, match="charliecloud cannot show /a:b"):
        environment("charliecloud").wrap(WORKER, replace(ISOLATION, scratch="/a:b"))


def test_gvisor_is_a_container_of_docker_under_another_runtime() -> None:
    """The runtime is an option that the report shows, and the user's come after it."""
    isolation = replace(ISOLATION, options=("--shm-size", "1g"))
    argv = environment("gvisor").wrap(WORKER, isolation).argv
    labels = argv.index("--label")
    assert argv[labels - 4 : labels] == ("--runtime", "runsc", "--shm-size", "1g")
    plain = environment("docker").wrap(WORKER, isolation).argv
    same = [word.replace("ENVIRONMENT=gvisor", "ENVIRONMENT=docker") for word in argv]
    assert [word for word in same if word not in {"--runtime", "runsc"}] == list(plain)
    told = environment("gvisor").engine_options(isolation)
    assert told[-4:] == ("--runtime", "runsc", "--shm-size", "1g")


def test_bubblewrap_makes_namespaces_and_nothing_else() -> None:
    """The root is a tmpfs, on which the tops of the image are shown read-only."""
    tops = " ".join(f"--ro-bind-try /files/{top} /{top}" for top in _TOPS if top != "usr")
    namespaces = """
        bwrap --unshare-user --unshare-ipc --unshare-pid --unshare-net --unshare-uts
        --die-with-parent --clearenv --cap-drop ALL
    """
    end = """
        --dev /dev --proc /proc --ro-bind /sys /sys --tmpfs /root --tmpfs /tmp
        --bind /home/ann/scratch /tmp --ro-bind /w /w --bind /out /out
        --bind /home/ann/scratch /home/ann/scratch --chdir /home/ann/scratch env
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin USER=envcompare
        OMP_NUM_THREADS=1 ENVCOMPARE_RUN=20260101-000000-abcd ENVCOMPARE_ARM=new
        ENVCOMPARE_ENVIRONMENT=bubblewrap ENVCOMPARE_WORKER=0f HOME=/home/ann/scratch
        /venv/bin/python /w/worker.py
    """
    image = f"{namespaces} --ro-bind /files/usr /usr {tops} {end}"
    for folder, expected in (("/files", image), ("/", f"{namespaces} {end}")):
        wrapped = environment("bubblewrap").wrap(WORKER, replace(ISOLATION, reference=folder))
        assert tuple(shlex.split(expected)) == wrapped.argv


def test_the_drivers_libraries_come_before_those_of_an_image() -> None:
    """An image for CUDA sets a search path of its own."""
    gpu = Gpu(way="devices", libraries=(("libcuda.so.1", "/d/libcuda.so.1"),))
    command = replace(WORKER, env=(("LD_LIBRARY_PATH", "/cuda"),))
    argv = environment("bubblewrap").wrap(command, replace(ISOLATION, gpu=gpu)).argv
    found = [word for word in argv if word.startswith("LD_LIBRARY_PATH=")]
    assert found[-1] == "LD_LIBRARY_PATH=/nvidia/lib:/cuda"


def test_a_rung_is_bubblewrap_with_the_layers_that_its_host_gives() -> None:
    """The control group is outermost; the filter is opened for bwrap, which hands it to nobody."""
    layers = (("cgroup", ""), ("seccomp", "/cache/filter"), ("overlay", ""))
    isolation = replace(ISOLATION, reference="/root", layers=layers)
    argv = environment("bubblewrap-overlay").wrap(WORKER, isolation).argv
    plain = environment("bubblewrap").wrap(WORKER, isolation).argv
    start = argv.index("bwrap")
    assert [word for word in argv[:start] if word in {"systemd-run", "/cache/filter"}] == [
        "systemd-run",
        "/cache/filter",
    ]
    named = [word.replace("bubblewrap-overlay", "bubblewrap") for word in argv[start:]]
    made = ["--seccomp", "9", "--overlay-src", "/root/.", "--tmp-overlay", "/"]
    first, last = plain.index("ALL") + 1, plain.index("--dev")
    assert named[: first + len(made)] == [*plain[:first], *made]
    end = [word for word in plain[last:] if word not in {"--tmpfs", "/root"}]
    end.remove("/tmp")  # of the tmpfs
    assert named[first + len(made) :] == end
    lower = replace(isolation, layers=layers[1:2])
    without = environment("bubblewrap-seccomp").wrap(WORKER, lower).argv
    assert without[:3] == ("sh", "-c", 'exec 9<"$1" && shift && exec "$@"')
    assert not {"systemd-run", "--tmp-overlay"} & set(without)


def test_the_options_of_a_rung_name_its_layers_and_no_file() -> None:
    """What tells two rungs apart in a report is what was added."""
    where = environment("bubblewrap-overlay")
    layers = (("seccomp", "/cache/filter"), ("overlay", ""))
    options = where.engine_options(replace(ISOLATION, layers=layers))
    below = environment("bubblewrap").engine_options(ISOLATION)
    assert options == (*below, "--seccomp", "--tmp-overlay", "/")


@pytest.mark.parametrize("name", [name for name in ENVIRONMENTS if name != "vm"])
def test_a_variable_of_an_image_hides_nothing_from_a_sweep(name: str) -> None:
    """Nor does it move the home: of two with one name the last counts."""
    command = replace(WORKER, env=(("ENVCOMPARE_WORKER", "other"), ("HOME", "/root")))
    argv = environment(name).wrap(command, ISOLATION).argv
    for word in ("ENVCOMPARE_WORKER=0f", "HOME=/home/ann/scratch"):
        start = word.partition("=")[0] + "="
        assert [one for one in argv if one.startswith(start)][-1] == word


def test_singularity_shows_the_mounts_alone_and_sets_variables_inside() -> None:
    """The engine's own processes carry the marks too, so that a sweep finds them."""
    expected = shlex.split("""
        apptainer -q exec --containall --no-home --cleanenv --pwd /home/ann/scratch
        --mount type=bind,source=/home/ann/scratch,destination=/tmp
        --mount type=bind,source=/w,destination=/w,ro
        --mount type=bind,source=/out,destination=/out
        --mount type=bind,source=/home/ann/scratch,destination=/home/ann/scratch
        sha256:0123 env
        OMP_NUM_THREADS=1 ENVCOMPARE_RUN=20260101-000000-abcd ENVCOMPARE_ARM=new
        ENVCOMPARE_ENVIRONMENT=singularity ENVCOMPARE_WORKER=0f HOME=/home/ann/scratch
        /venv/bin/python /w/worker.py
    """)
    wrapped = environment("singularity").wrap(WORKER, ISOLATION)
    assert (tuple(expected), marks("singularity")) == (wrapped.argv, wrapped.env)


def test_root_in_singularity_has_no_capability_but_to_read_what_it_is_shown() -> None:
    """Of any other user the engine drops all by itself."""
    argv = environment("singularity").wrap(WORKER, replace(ISOLATION, uid=0)).argv
    at = argv.index("--no-privs")
    assert argv[at : at + 3] == ("--no-privs", "--add-caps", "CAP_DAC_OVERRIDE")


def test_what_is_timed_and_what_the_toolkit_writes_to_is_not_read_only() -> None:
    """NVIDIA's hooks write the loader cache of the image; a timed worker as a plain start does."""
    for changes in ({"is_timed": True}, {"gpu": Gpu(way="cdi")}, {"gpu": Gpu(way="engine")}):
        argv = environment("docker").wrap(WORKER, replace(ISOLATION, **changes)).argv
        assert not {"--read-only", "--tmpfs"} & set(argv)
        assert "no-new-privileges" in argv


@pytest.mark.parametrize(
    ("options", "is_ours"),
    [
        (("--env", "TMPDIR=/tmp"), True),
        (("-v", "/tmp:/data"), True),
        (("--mount", "type=bind,src=/tmp,dst=/data"), True),
        (("-v", "/x:/tmp/:ro"), False),
        (("-v/x:/tmp",), False),
        (("--volume=/x:/tmp",), False),
        (("-v", "/tmp"), False),
        (("--tmpfs=/tmp:size=1g",), False),
        (("--mount", "type=tmpfs,target=/tmp"), False),
    ],
)
def test_a_mount_of_the_user_replaces_the_one_at_its_path_alone(
    options: tuple[str, ...], *, is_ours: bool
) -> None:
    """The engine refuses two at one path; without any, nothing could be written there."""
    argv = environment("docker").wrap(WORKER, replace(ISOLATION, options=options)).argv
    assert ("/tmp:exec" in argv) == is_ours
    assert "/var/tmp:exec" in argv


def test_the_users_options_come_last_but_for_the_labels() -> None:
    """Of most options the engine takes the last one, and by the labels a container is removed."""
    options = ("--shm-size", "1g", "--network", "host")
    argv = environment("docker").wrap(WORKER, replace(ISOLATION, options=options)).argv
    labels = argv.index("--label")
    assert argv[labels - 4 : labels] == options
    assert argv.count("--network") == 1
    told = environment("docker").engine_options(replace(ISOLATION, options=options))
    assert told[-4:] == options


@pytest.mark.parametrize("name", ["docker", "singularity"])
def test_the_working_directory_is_the_commands_own_when_it_names_one(name: str) -> None:
    """A command's `cwd` is handed to the engine, since the engine starts the process."""
    argv = environment(name).wrap(replace(WORKER, cwd="/out"), ISOLATION).argv
    assert argv[argv.index({"docker": "--workdir"}.get(name, "--pwd")) + 1] == "/out"


def test_singularity_uses_the_program_the_check_found() -> None:
    """A host with SingularityCE has no `apptainer`."""
    argv = environment("singularity").wrap(WORKER, replace(ISOLATION, engine="singularity")).argv
    assert argv[0] == "singularity"


@pytest.mark.parametrize("name", ["docker", "singularity"])
def test_without_scratch_the_process_starts_at_the_root_and_has_no_home(name: str) -> None:
    """Nothing of the host is mounted that was not asked for."""
    bare = Isolation(run_id="r", arm="a", reference="x")
    argv = environment(name).wrap(Command(argv=("true",)), bare).argv
    assert "--mount" not in argv
    assert not [word for word in argv if word.startswith("HOME=")]
    assert argv[argv.index({"docker": "--workdir"}.get(name, "--pwd")) + 1] == "/"


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/plain path", "source=/plain path"),
        ("/with:colon", "source=/with:colon"),
        ("/with,comma", '"source=/with,comma"'),
        ('/with"quote', '"source=/with""quote"'),
    ],
)
def test_a_path_with_separators_stays_one_field_of_the_mount(path: str, field: str) -> None:
    """Both engines read `--mount` as one line of CSV."""
    assert bind(path) == f"type=bind,{field},{field.replace('source', 'destination')},ro"


def test_apptainer_is_another_spelling_of_singularity() -> None:
    """The two names mean one environment."""
    assert environment("apptainer") is ENVIRONMENTS["singularity"]


def test_an_unknown_environment_is_an_error_that_lists_the_names() -> None:
    """A typing error gets the closest name as its remedy."""
    with pytest.raises(ConfigError) as caught:
        environment("dokcer")
    assert caught.value.lines() == (
        "error: there is no environment 'dokcer'",
        f"  why: the environments are {', '.join(ENVIRONMENTS)}",
        "  try: did you mean 'docker'?",
    )


COMPLAINTS = {
    ("docker", 125): {
        "docker: Error response from daemon: No such image: app:2\n":
            "the image app:2 is not on the host",
        "Unable to find image 'app:2' locally\n": "the image app:2 is not on the host",
        'invalid mount config for type "bind": bind source path does not exist: /a b.\n':
            "/a b does not exist on the host",
        'could not select device driver "" with capabilities: [[gpu]].':
            "the engine has no NVIDIA runtime",
        "write /var/lib/docker/x: no space left on device": "no space is left on the engine's disk",
        "write /var/lib/docker/x: disk quota exceeded": "no space is left on the engine's disk",
        "invalid argument for --ulimit\n\nUsage:  docker run [OPTIONS]\n\nRun 'docker run --help'":
            "docker could not start the container: invalid argument for --ulimit",
    },
    ("docker", 126): {
        "docker: Got permission denied while trying to connect to the Docker daemon socket":
            "permission denied on the engine's socket",
        "docker: something new\n\nRun 'docker run --help' for more information":
            "docker could not start the program: docker: something new",
    },
    ("podman", 125): {
        "Error: app:2: image not known": "the image app:2 is not on the host",
        "Error: statfs /a b: no such file or directory": "/a b does not exist on the host",
        "Error: something new": "podman could not start the container: Error: something new",
    },
    ("podman", 126): {
        "Error: OCI runtime error: crun: cgroups in hybrid mode not supported, drop all "
        "controllers":
            "its runtime crun does not run on a kernel with cgroups of both versions",
        "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all":
            "Podman has no CDI description of the GPU",
    },
    ("gvisor", 125): {
        "docker: Error response from daemon: unknown or invalid runtime name: runsc.":
            "the Docker daemon has no runtime runsc",
        "docker: No such image: app:3": "the image app:3 is not on the host",
    },
    ("bubblewrap", 1): {
        "bwrap: Can't find source path /x y/usr: No such file or directory":
            "the image /x y is not on the host",
        "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted":
            "no unprivileged user namespaces",
        "bwrap: Can't find source path /a b: No such file or directory":
            "/a b does not exist on the host",
        "bwrap: Can't chdir to /nowhere: No such file or directory":
            "the working directory /nowhere is not in the container",
    },
    ("bubblewrap-cgroup", 1): {
        "Failed to start transient scope unit: Access denied":
            "no control group was made: Failed to start transient scope unit: Access denied",
    },
    ("bubblewrap-overlay", 1): {
        "bwrap: Can't find source path /x z/.: No such file or directory":
            "the image /x z is not on the host",
    },
    ("charliecloud", 1): {
        "ch-run[9]: error: can't bind: source not found: /a b (ch_core.c:231)":
            "/a b does not exist on the host",
        "ch-run[9]: error: can't stat: /x y: No such file or directory (ch_core.c:401 2)":
            "the image /x y is not on the host",
        "ch-run[9]: error: can't cd to /nowhere: No such file or directory (ch_core.c:560 2)":
            "the working directory /nowhere is not in the container",
    },
    ("charliecloud", 31): {
        "ch-run[9]: error: something new (ch_core.c:1)":
            "ch-run could not start the container: ch-run[9]: error: something new (ch_core.c:1)",
    },
    ("docker", 127): {
        'exec: "pythn": executable file not found in $PATH: unknown.': "pythn is not in the image",
    },
    ("singularity", 255): {
        "FATAL:   While checking container encryption: could not open image /x.sif: failed to "
        "retrieve path for /x.sif: lstat /x.sif: no such file or directory":
            "the image /x.sif is not on the host",
        "FATAL:   container creation failed: image driver mount failure: squashfuse_ll exited: "
        "Something went wrong trying to read the squashfs image.":
            "the image is damaged or truncated",
        "FATAL:   while mounting /nonexist: mount source /nonexist doesn't exist":
            "/nonexist does not exist on the host",
        "FATAL:   write /tmp/x: no space left on device": "no space is left on the disk",
        "FATAL:   write /tmp/x: disk quota exceeded": "no space is left on the disk",
    },
    ("singularity", 1): {
        "ERROR  : Requesting capability set 0x1ff while permitted capability set is 0x1c\n":
            "it cannot mount images as this user",
    },
    ("vm", 127): {
        "env: 'python3.19': No such file or directory\n":
            "the program cannot be started on the host",
    },
}  # fmt: skip


def test_what_root_has_written_in_a_container_is_given_back_with_the_exit_code(
    tmp_path: Path,
) -> None:
    """A folder of the user's would else hold files that the user cannot remove."""
    isolation = Isolation(
        run_id="r", arm="docker", reference="image", scratch=str(tmp_path),
        uid=os.getuid(), gid=os.getgid(), capabilities=("SYS_ADMIN",),
    )  # fmt: skip
    command = Command(argv=("sh", "-c", "echo from the worker; exit 3"))
    argv = Docker().wrap(command, isolation).argv
    inside = argv[argv.index("image") + 1 :]
    done = subprocess.run(inside, capture_output=True, text=True, check=False, timeout=20)
    assert (done.stdout, done.returncode) == ("from the worker\n", 3)
    assert inside[-3:] == command.argv
    assert 'chown -R "$owner" "$folder"' in inside[2]
    assert inside[4:6] == (f"{os.getuid()}:{os.getgid()}", str(tmp_path))


@pytest.mark.parametrize(
    ("stderr", "name", "exit_code", "sentence"),
    [(stderr, *of, said) for of, rows in COMPLAINTS.items() for stderr, said in rows.items()],
)
def test_a_failed_start_is_explained(stderr: str, name: str, exit_code: int, sentence: str) -> None:
    """The engine's complaint becomes a sentence a person can act on."""
    explanation = environment(name).explain(exit_code, stderr)
    assert explanation is not None
    assert explanation.brief.startswith(sentence)


def test_a_known_complaint_has_a_remedy_of_its_own() -> None:
    """Reason and remedy are two sentences of an error; of a stranger no remedy is known."""
    known, stranger = (
        environment("docker").explain(125, said)
        for said in ("Cannot connect to the Docker daemon", "something new")
    )
    assert known is not None
    assert (known.brief, known.hint) == (
        "the Docker daemon is not running",
        "sudo systemctl start docker",
    )
    assert stranger is not None
    assert stranger.hint == ""


@pytest.mark.parametrize(
    "said",
    [
        "Cannot connect to the Docker daemon at {}. Is the docker daemon running?",
        "failed to connect to the docker API at {}; check if the path is correct and if the daemon",
    ],
)
@pytest.mark.parametrize("address", ["unix:///not/there.sock", "tcp://127.0.0.1:1"])
def test_an_engine_at_a_given_address_is_not_mended_by_starting_the_usual_one(
    said: str, address: str
) -> None:
    """Nothing starts at an address that is wrong; the usual address is nobody's choice."""
    named, usual = (
        environment("docker").explain(125, said.format(one))
        for one in (address, "unix:///var/run/docker.sock")
    )
    assert named is not None
    assert named.brief == f"no Docker daemon answers at {address}"
    assert "DOCKER_HOST" in named.hint
    assert usual is not None
    assert usual.hint == "sudo systemctl start docker"


@pytest.mark.parametrize(
    ("name", "exit_code", "stderr"),
    [
        ("vm", 1, "Traceback"),
        ("docker", 1, "No such image: as the workload's own words"),
        ("docker", 137, ""),
        ("singularity", 255, "the workload ended with 255 by itself"),
        ("singularity", 42, "FATAL: as the workload's own words"),
        ("podman", 1, "Error: x: image not known"),
        ("charliecloud", 1, "Traceback"),
        ("bubblewrap", 1, "Traceback"),
        ("bubblewrap", 42, "bwrap: as the workload's own words"),
        ("charliecloud", 42, "ch-run[1]: error: as the workload's own words"),
    ],
)
def test_a_failure_of_the_workload_is_not_explained_away(
    name: str, exit_code: int, stderr: str
) -> None:
    """Only what the environment itself did wrong is its failure."""
    assert environment(name).explain(exit_code, stderr) is None


@pytest.mark.parametrize(
    ("name", "program", "reason"),
    [
        ("vm", "uname", "the host did not answer within 0.5 s"),
        ("docker", "docker", "the Docker daemon did not answer within 0.5 s"),
        ("singularity", "apptainer", "Apptainer did not answer within 1 s"),
        ("podman", "podman", "Podman did not answer within 0.5 s"),
        ("charliecloud", "ch-run", "ch-run did not answer within 0.5 s"),
        ("bubblewrap", "bwrap", "bwrap did not answer within 0.5 s"),
    ],
)
def test_a_check_without_an_answer_is_a_finding_and_no_lost_host(
    name: str, program: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that hangs makes one environment unusable, and the others are still compared."""
    monkeypatch.setattr(environments, "PATIENCE_S", 0.5)
    _path_with_a_program_that_hangs(program, tmp_path, monkeypatch)
    check = environment(name).check(LOCAL)
    assert (check.is_usable, check.reason) == (False, reason)
    assert check.hint


OLD_BWRAP = """#!/bin/sh
case " $* " in
  *" --version "*) echo "bubblewrap 0.8.0"; exit ;;
  *" --overlay-src "*) echo "bwrap: Unknown option --overlay-src" >&2; exit 1 ;;
esac
echo "bwrap: execvp /envcompare-probe: No such file or directory" >&2
exit 1
"""


def test_a_bubblewrap_without_overlays_makes_that_rung_alone_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words are those of 0.8, which Debian 12 has; the rungs below are not asked for one."""
    (tmp_path / "bwrap").write_text(OLD_BWRAP)
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert environment("bubblewrap").check(LOCAL).is_usable
    check = environment("bubblewrap-overlay").check(LOCAL)
    assert check.reason == "bubblewrap 0.8.0 mounts no overlay"
    assert check.hint == "install bubblewrap 0.11 or later"


def test_an_engine_that_missed_the_probe_could_start_it() -> None:
    """What it is refused for comes first, and its version is told in any case."""
    begun, said = re.compile("probe: not found"), "exec: probe: not found"

    def judged(stderr: str, refused: Problem | None = None) -> tuple[str, str | None]:
        def complaint(text: str) -> Problem:
            return Problem(brief=f"it said: {text}")

        check = environments.judge_start(
            stderr, "1.2", begun=begun, complaint=complaint, refused=refused
        )
        return check.reason, check.version

    assert judged(said) == ("", "1.2")
    assert judged("no namespaces") == ("it said: no namespaces", "1.2")
    assert judged(said, Problem(brief="too old")) == ("too old", "1.2")


def test_a_client_without_an_answer_is_not_waited_for_when_images_are_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon may hang after it was checked; other hosts are still served."""
    monkeypatch.setattr(storage, "ANSWER_S", 0.5)
    _path_with_a_program_that_hangs("docker", tmp_path, monkeypatch)
    with pytest.raises(UnusableError, match="docker on local cannot be used") as told:
        look_up(image_store(LOCAL), "envcompare-workload:abc")
    assert told.value.details == "the Docker daemon did not answer within 0.5 s"


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_driver_without_an_answer_is_a_finding_and_no_lost_host(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that fell off its bus may keep whoever asks for it waiting."""
    monkeypatch.setattr(environments, "PATIENCE_S", 0.5)
    _path_with_a_program_that_hangs("cat", tmp_path, monkeypatch)
    driver = gpu.find(LOCAL, gpu.check_driver(LOCAL))
    check = environment(name).check_gpu(LOCAL, driver)
    assert check.reason == "the NVIDIA driver did not answer within 0.5 s"
    assert check.hint


def test_a_host_without_an_engine_is_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the host lacks is told from software that could not be made."""
    (tmp_path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnusableError) as caught:
        find_engine(LOCAL)
    assert type(caught.value) is UnusableError
    assert caught.value.details == "neither apptainer nor singularity is installed"


def _path_with_a_program_that_hangs(
    program: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sh").symlink_to("/bin/sh")
    (folder / program).write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
