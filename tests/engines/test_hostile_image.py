"""An image that attacks the host it runs on: what it gets, and what the run says of it.

It changes what the worker answers to the profile pass, and leaves in its scratch folder what no
profiler leaves. The same image is several arms, each with an attack of its own. Its programs try to
become root, to start processes without end, and to write where they may not.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from images import build_image
from lab import Lab
from runs import BASE, LIGHT, Done, envcompare

from envcompare.environments import Isolation
from envcompare.environments.docker import Docker
from envcompare.environments.oci import image_store
from envcompare.errors import WorkloadError
from envcompare.profilers import ProfilerRun, Quarantine, Tool
from envcompare.profilers.ncu import MEMORY, Ncu
from envcompare.stack import Mount, Progress, image
from envcompare.text import Command, CommandResult
from envcompare.transport import LOCAL, Transport, make_new_folder, run, shell

pytestmark = [pytest.mark.engine("ssh"), pytest.mark.engine("docker"), pytest.mark.timeout(420)]
ROOT = "/home/bench/hostile"
SECRET_FILE = f"{ROOT}/id_ed25519"
SECRET = f"a secret of this host {uuid.uuid4().hex}"
# A line of a .pth file that begins with `import` is run whenever Python starts.
HOSTILE = f"""
import json, os, pathlib

honest = json.dumps


def foreign(file):
    return "{SECRET_FILE}"


def link(file):
    file.symlink_to("{SECRET_FILE}")
    return str(file)


def pipe(file):
    os.mkfifo(file)
    return str(file)


def folder(file):
    (file / "deep").mkdir(parents=True)
    return str(file)


def large(file):
    with file.open("wb") as opened:
        opened.truncate(1 << 42)
    return str(file)


def attack(message, **options):
    if message.get("op") == "profile" and message.get("kind") == "torch":
        file = pathlib.Path(os.environ["HOME"], "torch.json.gz")
        named = globals()[os.environ["ENVCOMPARE_ARM"]](file)
        message = {{**message, "file": named, "reason": "", "hint": "",
                   "values": {{"operators": [], "version": "2.0", "steps_before": 3}}}}
    return honest(message, **options)


if os.environ.get("ENVCOMPARE_ARM") in ("foreign", "link", "pipe", "folder", "large"):
    json.dumps = attack
"""
DOCKERFILE = f"""FROM {BASE}
COPY hostile.py hostile.pth /usr/local/lib/python3.11/dist-packages/
RUN cp "$(readlink -f "$(command -v python3)")" /usr/bin/setuid-python \\
 && chmod 4755 /usr/bin/setuid-python && install -d -m 1777 /open \\
 && install -d -m 700 -o 1000 /shut
"""
BECOME_ROOT = "import os; os.setuid(0); print(os.getuid())"
STATUS = "/proc/self/status"
# Each process waits for the end of a pipe, which comes when the first has counted them.
BOMB = """
import os
reading, writing = os.pipe()
count = 1
try:
    while count < 5000:
        if os.fork() == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        count += 1
except OSError as error:
    print(count, error.strerror)
"""
# What root of a container may do with the capability that is named.
ROOT_ATTACKS = {
    "CHOWN": "import os; open('/tmp/x', 'w'); os.chown('/tmp/x', 1, 1)",
    "MKNOD": "import os, stat; os.mknod('/tmp/disk', stat.S_IFCHR | 0o600, 0x103)",
    "NET_RAW": "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "SETUID": "import os; os.setuid(1000)",
}
REASONS = {
    "foreign": "named a file that envcompare had not asked for",
    "link": "torch.json.gz is a symbolic link",
    "pipe": "torch.json.gz is a named pipe",
    "folder": "torch.json.gz is a folder",
    "large": "the file torch.json.gz is too large to be read",
}
BREAK_THE_PROTOCOL = ("foreign", "link", "pipe", "folder")


@pytest.fixture(scope="module")
def hostile() -> Iterator[str]:
    """Give the name of an image whose Python attacks, made by the engine here."""
    content = {
        "Dockerfile": DOCKERFILE.encode(),
        "hostile.py": HOSTILE.encode(),
        "hostile.pth": b"import hostile\n",
    }
    name = build_image(LOCAL, f"hostile:{uuid.uuid4().hex[:8]}", content)
    yield name
    run(LOCAL, Command(argv=("docker", "image", "rm", "--force", name)))


@pytest.fixture(scope="module")
def secret(host: Transport) -> Iterator[str]:
    """Plant a secret on the lab host; give its path."""
    plant = 'mkdir -p -m 700 -- "$1" && printf %s "$3" >"$2" && chmod 600 -- "$2"'
    assert shell(host, plant, ROOT, SECRET_FILE, SECRET).succeeded
    yield SECRET_FILE
    shell(host, 'rm -rf -- "$1"', ROOT)


@pytest.fixture(scope="module")
def attacked(
    lab: Lab, host: Transport, hostile: str, secret: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Done]:
    """Return a run in which every arm but the reference attacks."""
    assert secret
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "light.py").write_text(LIGHT)
    arms = ",".join(f"{name}=docker:{hostile}" for name in REASONS)
    yield envcompare(
        folder / "runs",
        *("--hosts", lab.alias, "--envs", f"vm@host,{arms}"),
        *("--workload", f"{folder / 'light.py'}:Light", "--budget", "6", "--seed", "5"),
        *("--no-startup", "--no-quiet-gate"),
    )
    shell(host, 'docker image rm --force "$1"', hostile)


def record(done: Done, arm: str, kind: str) -> Any:
    """Return a profile of an arm."""
    (path,) = (done.folder or Path()).glob(f"profiles/*/{arm}/{kind}.json")
    return json.loads(path.read_text())


def test_the_secret_is_nowhere_in_the_run_folder(attacked: Done) -> None:
    """No byte of it came here, by whichever way."""
    assert attacked.folder is not None, attacked.stderr
    files = [path for path in attacked.folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert [path for path in attacked.folder.rglob("*") if path.is_symlink()] == []
    assert SECRET not in attacked.stdout + attacked.stderr
    assert sum(path.stat().st_size for path in files) < 50e6


def test_the_secret_is_as_it_was(attacked: Done, host: Transport, secret: str) -> None:
    """Neither its content nor its mode was changed, and nothing of the run is left beside it."""
    asked = 'cat -- "$1"; stat -c " %a %h" -- "$1"; ls -A -- "$2"'
    assert shell(host, asked, secret, ROOT).stdout == f"{SECRET} 600 1\nid_ed25519\n"
    assert attacked.folder is not None
    left = 'ls -d ~/.cache/envcompare/runs/"$1"'
    assert not shell(host, left, attacked.folder.name).succeeded


@pytest.mark.parametrize("arm", REASONS)
def test_the_profile_fails_with_its_reason(attacked: Done, arm: str) -> None:
    """Only the profile that was tampered with; the others of the arm stay."""
    torch = record(attacked, arm, "torch")
    assert (torch["state"], torch["lacks"]["why"]) == ("missing", "failed")
    assert REASONS[arm] in ": ".join(torch["lacks"]["problem"].values())
    assert torch["lacks"]["problem"]["hint"]
    assert record(attacked, arm, "host")["state"] == "ok"


def test_the_run_goes_on_and_says_what_happened(attacked: Done) -> None:
    """The times are compared, the exit code is that of an arm that failed, and words name it."""
    assert attacked.exit_code == 4, attacked.stderr
    assert set(attacked.outcomes()) >= {("light-Light", arm) for arm in REASONS}
    failed = {one["arm"]: one for one in attacked.read("comparison.json")["course"]["failures"]}
    assert set(failed) == set(BREAK_THE_PROTOCOL)
    page = (attacked.folder / "report.html").read_text() if attacked.folder else ""
    for arm in BREAK_THE_PROTOCOL:
        assert failed[arm]["phase"] == "protocol"
        assert REASONS[arm] in failed[arm]["brief"]
        assert failed[arm]["details"]
        assert failed[arm]["hint"]
        assert f"{arm}: " in attacked.stderr
        assert REASONS[arm] in attacked.stderr
        assert REASONS[arm] in page
    assert REASONS["large"] in attacked.stderr


def test_what_an_export_writes_does_not_go_where_a_container_leads_it(
    host: Transport, secret: str
) -> None:
    """A link under the name of the export, and one in place of the whole folder."""
    base = image.find(image_store(LOCAL), BASE)
    assert base is not None
    image.deliver(image_store(host), base, local=image_store(LOCAL), progress=Progress(print))
    script = "#!/bin/sh\necho exported\n"
    assert shell(host, 'printf %s "$2" >"$1/ncu" && chmod 755 "$1/ncu"', ROOT, script).succeeded
    scratch = f"{ROOT}/scratch"
    tool = Tool(name="ncu", program=f"{ROOT}/ncu", folder=ROOT, version="1.0")
    folder = f"{scratch}/ncu-memory"
    profiler = ProfilerRun(kind=MEMORY, tool=tool, arguments=(), folder=folder)
    attacks = (
        'cd "$1" && echo report >counters.ncu-rep && ln -s "$2" counters.csv',
        'rmdir "$1" && ln -s "${2%/*}" "$1"',
    )
    for number, attack in enumerate(attacks):
        make_new_folder(host, scratch)
        make_new_folder(host, profiler.folder)
        inside = Command(argv=("sh", "-c", attack, "sh", profiler.folder, secret))
        isolation = Isolation(
            run_id="hostile-test", arm="evil", reference=base.id, uid=1000, gid=1000,
            scratch=scratch, mounts=(Mount(path=ROOT),) * number,
        )  # fmt: skip
        done = run(host, Docker().wrap(inside, isolation))
        assert done.succeeded, done.stderr
        with Quarantine.empty(host, "evil", f"{ROOT}/taken") as own:
            if number:
                with pytest.raises(WorkloadError, match="is a symbolic link"):
                    Ncu().export(own, profiler, log="")
            else:
                found = Ncu().export(own, profiler, log="")
                assert shell(host, 'cat -- "$1"', found.export.path).stdout == "exported\n"
        assert shell(host, 'cat -- "$1"', secret).stdout == SECRET
    shell(host, 'rm -rf -- "$1" "$2"', scratch, f"{ROOT}/ncu")


def attack(image: str, *argv: str, **changes: Any) -> CommandResult:
    """Run a program of the hostile image as envcompare starts one, on this machine."""
    isolation = Isolation(
        **{"run_id": "hostile-rights", "arm": "a", "uid": 1000, "gid": 1000, **changes},
        reference=image,
    )
    return run(LOCAL, Docker().wrap(Command(argv=argv), isolation), timeout_s=120)


@pytest.mark.parametrize("is_timed", [True, False])
def test_a_setuid_program_makes_nobody_root(hostile: str, *, is_timed: bool) -> None:
    """The same program does where the user asks for what the engine does by itself."""
    words = ("setuid-python", "-c", BECOME_ROOT)
    refused = attack(hostile, *words, is_timed=is_timed)
    assert refused.exit_code == 1
    assert "Operation not permitted" in refused.stderr
    undone = ("--security-opt", "no-new-privileges=false", "--cap-add", "SETUID")
    allowed = attack(hostile, *words, is_timed=is_timed, options=undone)
    assert allowed.stdout == "0\n", allowed.stderr


@pytest.mark.parametrize("capability", ROOT_ATTACKS)
def test_root_inside_can_do_nothing_that_its_user_cannot(hostile: str, capability: str) -> None:
    """Who runs envcompare as root is root in the container, and has no capability there."""
    words = ("python3", "-c", ROOT_ATTACKS[capability])
    done = attack(hostile, *words, uid=0, gid=0, is_timed=True)
    assert done.exit_code == 1, done.stdout
    assert "PermissionError" in done.stderr
    given = attack(hostile, *words, uid=0, gid=0, is_timed=True, options=("--cap-add", capability))
    assert given.succeeded, given.stderr


def test_root_inside_reads_what_it_is_shown_as_root_outside_does(hostile: str) -> None:
    """The one capability that it keeps is for data of others; nobody else has it."""
    assert attack(hostile, "ls", "/shut", uid=0, gid=0).succeeded
    assert attack(hostile, "ls", "/shut", uid=1001).exit_code == 2


def test_a_fork_bomb_ends_at_the_limit_and_takes_its_container_along(hostile: str) -> None:
    """The limit of the user is the lower one here; that of envcompare is set as well."""
    done = attack(hostile, "python3", "-c", BOMB, options=("--pids-limit", "100"))
    assert done.stdout == "100 Resource temporarily unavailable\n", done.stderr
    limit = "cat /sys/fs/cgroup/pids.max || cat /sys/fs/cgroup/pids/pids.max"
    assert attack(hostile, "sh", "-c", f"{{ {limit}; }} 2>/dev/null").stdout == "8192\n"
    assert Docker().sweep(LOCAL, "hostile-rights") == 0


@pytest.mark.parametrize("uid", [0, 1000])
def test_what_is_not_timed_cannot_write_to_its_image(hostile: str, uid: int) -> None:
    """Neither where all may write, nor as root; temporary files can be written and run."""
    for folder in ("/", "/open", "/usr/bin"):
        done = attack(hostile, "touch", f"{folder}/planted", uid=uid, gid=uid)
        assert done.exit_code == 1
        assert "Read-only file system" in done.stderr
    script = "for f in /tmp /var/tmp; do cp /bin/true $f/x && $f/x && echo $f; done"
    assert attack(hostile, "sh", "-c", script, uid=uid, gid=uid).stdout == "/tmp\n/var/tmp\n"


def test_what_is_timed_writes_where_a_plain_start_does(hostile: str) -> None:
    """Its files lie in the layer of the container, and are gone with it."""
    script = "touch /open/planted && echo written; touch /usr/bin/planted"
    done = attack(hostile, "sh", "-c", script, is_timed=True)
    assert done.stdout == "written\n"
    assert "Permission denied" in done.stderr
    assert attack(hostile, "ls", "/open", is_timed=True).stdout == ""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), {"CapBnd": "0000000000000000", "NoNewPrivs": "1"}),
        (("--cap-add", "NET_RAW"), {"CapBnd": "0000000000002000", "NoNewPrivs": "1"}),
        (("--cap-drop=MKNOD",), {"CapBnd": "0000000000000000", "NoNewPrivs": "1"}),
        (("--privileged",), {"NoNewPrivs": "0"}),
        (("--security-opt", "no-new-privileges=false"), {"NoNewPrivs": "0"}),
        (("--user", "7:7"), {"Uid": "7\t7\t7\t7", "NoNewPrivs": "1"}),
    ],
)
def test_the_options_of_the_user_win(
    hostile: str, options: tuple[str, ...], expected: dict[str, str]
) -> None:
    """As the kernel says of the process inside."""
    done = attack(hostile, "cat", STATUS, options=options)
    lines = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert {name: lines[name] for name in expected} == expected, done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--read-only=false",),
        ("--privileged",),
        ("--network", "host", "--read-only=false"),
        ("--tmpfs", "/open", "--mount", "type=tmpfs,dst=/tmp", "-v", "/var/tmp"),
    ],
)
def test_the_options_of_the_user_are_no_contradiction_of_ours(
    hostile: str, options: tuple[str, ...]
) -> None:
    """The engine refuses two networks, and two mounts at one path."""
    done = attack(hostile, "touch", "/open/x", "/tmp/x", "/var/tmp/x", options=options)
    assert done.succeeded, done.stderr


def test_a_counter_pass_has_one_right_of_root_and_two_for_its_files(
    hostile: str, tmp_path: Path
) -> None:
    """CAP_SYS_ADMIN, CHOWN and DAC_OVERRIDE alone; what it writes belongs to the caller."""
    tmp_path.chmod(0o700)
    script = f"grep CapEff {STATUS}; touch {tmp_path}/made"
    done = attack(
        hostile, "sh", "-c", script, scratch=str(tmp_path), capabilities=("SYS_ADMIN",),
        uid=tmp_path.stat().st_uid, gid=tmp_path.stat().st_gid,
    )  # fmt: skip
    assert done.stdout == "CapEff:\t0000000000200003\n", done.stderr
    assert (tmp_path / "made").stat().st_uid == tmp_path.stat().st_uid
