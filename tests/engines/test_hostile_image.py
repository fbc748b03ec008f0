"""An image that attacks the host it runs on: what it gets, and what the run says of it.

It changes what the worker answers to the profile pass, and leaves in its scratch folder what no
profiler leaves. The same image is several arms, each with an attack of its own.
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

from envcompare.command import Command
from envcompare.environments import Isolation
from envcompare.environments.docker import Docker, image_store
from envcompare.errors import WorkloadError
from envcompare.profilers import ProfilerRun, Tool
from envcompare.profilers.ncu import MEMORY, Ncu
from envcompare.profilers.quarantine import quarantine
from envcompare.stack import Mount, Progress, image
from envcompare.transport import Transport, make_new_folder, run, shell
from envcompare.transport.local import LOCAL

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
"""
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
    failed = {one["arm"]: one for one in attacked.read("comparison.json")["failures"]}
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
        with quarantine(host, "evil", f"{ROOT}/taken") as own:
            if number:
                with pytest.raises(WorkloadError, match="is a symbolic link"):
                    Ncu().export(own, profiler, said="")
            else:
                found = Ncu().export(own, profiler, said="")
                assert shell(host, 'cat -- "$1"', found.export.path).stdout == "exported\n"
        assert shell(host, 'cat -- "$1"', secret).stdout == SECRET
    shell(host, 'rm -rf -- "$1" "$2"', scratch, f"{ROOT}/ncu")
