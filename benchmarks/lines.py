"""Print whether `envcompare why` names the known cause of slow command lines.

Each case is a small form of a slowdown, most of them from public threads: two command lines, the
second slower. A case counts as named if the second line is found slower and its cause is the first
or second candidate on the first screen. A run that was stopped goes on with the case it was at.
Needs root and Docker.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
from faults_page import keep_record, kept_records

from bookkeeping import HERE, Conditions, Places, Watch, benchmark
from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.report.wording.linewords import line_candidates
from envcompare.run_folder.results import RunFolder

DATA, PAGE = "lines.jsonl", "lines.md"
RESOLVER = HERE / "programs" / "resolver.py"
IMAGE = "envcompare-lines:{}"
DECIDED = (0, 7)  # exit codes of a run that came to its end
NAMED = 2  # places on the first screen that count

BURNS = """import hashlib, threading
def work():
    for _ in range(600): hashlib.sha256(b"x" * 1_000_000).digest()
threads = [threading.Thread(target=work) for _ in range(2)]
[each.start() for each in threads]; [each.join() for each in threads]
"""
CLOSES = """import os, resource
for _ in range(100):
    for fd in range(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        try: os.close(fd)
        except OSError: pass
"""
READS = """import mmap, os, random
fd = os.open("/w/big", os.O_RDONLY); size = os.fstat(fd).st_size
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
while os.read(fd, 1 << 20): pass
data = mmap.mmap(fd, size, prot=mmap.PROT_READ); data.madvise(mmap.MADV_RANDOM)
random.seed(0)
print(sum(data[random.randrange(size)] for _ in range(30000)))
"""
CACHES = """import hashlib, os, pathlib
path = pathlib.Path(os.environ["HOME"]) / "fonts"
if not path.exists():
    for _ in range(500): hashlib.sha256(b"x" * 1_000_000).digest()
    try: path.write_text("kept")
    except OSError: pass
"""
WORKS = 'import hashlib\nfor _ in range(400): hashlib.sha256(b"x" * 1_000_000).digest()\n'
CALLS = "import os\nfor _ in range(6_000_000): os.getppid()\n"
LOOKS_UP = WORKS + 'import socket; print(socket.gethostbyname("db.test"))\n'
ALLOCATES = "x = [[str(i) for i in range(100)] for _ in range(20_000)]\n"
WRITES = """import os
for i in range(1500):
    with open(f"/tmp/{i}", "wb") as file:
        file.write(b"x" * 4096); file.flush(); os.fsync(file.fileno())
"""
PRINTS = "for i in range(150_000): print(i)\n"
AWAITS = """import asyncio
async def one(): await asyncio.sleep(0)
async def main():
    for _ in range(20): await asyncio.gather(*(one() for _ in range(500)))
asyncio.run(main())
"""
MODULE = "".join(
    f"def f{i}(a, b=1):\n    return [a + b + x for x in range({i})]\n" for i in range(400)
)
IMPORTS_OWN = "".join(f"import m{i}\n" for i in range(12))
PROFILES = "import sys; sys.setprofile(lambda *_: None)"
FOLDERS = ":".join(f"/opt/package-{i}/lib" for i in range(400))
IMPORTS = "import asyncio, email, http.server, sqlite3, xml.dom\n"
MANY = "RUN mkdir /data && cd /data && for i in $(seq {}); do head -c {} /dev/urandom >f$i; done\n"
ENTRY = "RUN printf '#!/bin/sh\\n{}exec \"$@\"\\n' >/entry && chmod +x /entry\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question: its source, the two lines, what they need, and the facts that name its cause."""

    says: str
    source: str
    lines: tuple[str, str]  # {0} and {1} are the images
    names: tuple[str, ...]  # keys of facts, any of which names the cause
    images: tuple[str, str] = ("", "")  # further lines of their Dockerfiles
    files: dict[str, str] = field(default_factory=dict)
    around: str = ""  # what the host needs meanwhile
    inside: str = ""  # the file or setting of the second image that is the cause


RUN = "docker run --rm -v $PWD:/w"
CASES = {
    "nofile": Case(
        says="a program closes every possible descriptor", source="moby/moby#45436",
        files={"work.py": CLOSES}, names=("limits.nofile",),
        lines=(f"{RUN} --ulimit nofile=1024:20000 {{0}} python3 /w/work.py",
               f"{RUN} --ulimit nofile=20000:20000 {{0}} python3 /w/work.py"),
    ),
    "quota": Case(
        says="two threads on a quota of 0.7 CPUs", source="scipy/scipy#16222",
        files={"work.py": BURNS}, names=("cgroup.cpu_quota",),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} --cpus 0.7 {{0}} python3 /w/work.py"),
    ),
    "cpuset": Case(
        says="two threads on one CPU", source="orcahello#368",
        files={"work.py": BURNS}, names=("cpu.affinity", "cgroup.cpuset"),
        lines=(f"{RUN} {{0}} python3 /w/work.py",
               f"{RUN} --cpuset-cpus 0 {{0}} python3 /w/work.py"),
    ),
    "bytecode": Case(
        says="an image without byte code", source="astral-sh/uv#16378",
        files={"work.py": IMPORTS}, names=("python.uncompiled",),
        images=("", "RUN find /usr/lib/python3* -name __pycache__ -prune -exec rm -r {} +\n"),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} {{1}} python3 /w/work.py"),
    ),
    "resolver": Case(
        says="the first name server does not answer", source="moby/moby#20661",
        files={"work.py": LOOKS_UP}, names=("network.resolvers",), around="resolvers",
        lines=(f"{RUN} --network host -v $PWD/good:/etc/resolv.conf {{0}} python3 /w/work.py",
               f"{RUN} --network host -v $PWD/bad:/etc/resolv.conf {{0}} python3 /w/work.py"),
    ),
    "ports": Case(
        says="forty published ports", source="moby/moby#14288", names=("container.ports",),
        lines=("docker run --rm -p 20000:20000 {0} true",
               "docker run --rm -p 20000-20039:20000-20039 {0} true"),
    ),
    "entrypoint": Case(
        says="an entrypoint changes the owner of many files", source="FreshRSS/FreshRSS#7764",
        names=("programs",), inside="/entry",
        images=(MANY.format(1500, 4096) + ENTRY.format(""),
                MANY.format(1500, 4096) + ENTRY.format("chown -R 1000:1000 /data\\n")),
        lines=("docker run --rm --entrypoint /entry {0} sleep 0.3",
               "docker run --rm --entrypoint /entry {1} sleep 0.3"),
    ),
    "volume": Case(
        says="a volume is filled from the image at each start", source="docker/for-linux#1379",
        names=("container.volumes",), inside="Volumes",
        images=(MANY.format(60, 4_000_000), MANY.format(60, 4_000_000) + "VOLUME /data\n"),
        lines=("docker run --rm {0} python3 -c pass", "docker run --rm {1} python3 -c pass"),
    ),
    "memory": Case(
        says="a memory limit pushes out the page cache", source="moby/moby#39245",
        files={"work.py": READS}, names=("cgroup.memory_limit_bytes",), around="large file",
        lines=(f"{RUN} -m 1g {{0}} python3 /w/work.py", f"{RUN} -m 64m {{0}} python3 /w/work.py"),
    ),
    "home": Case(
        says="a cache that cannot be kept is made at each start",
        source="matplotlib/matplotlib#32246",
        files={"work.py": WORKS + CACHES}, names=("home.is_writable",),
        images=("RUN mkdir -m 777 /h\nENV HOME=/h\n", "RUN mkdir -m 755 /h\nENV HOME=/h\n"),
        lines=(f"{RUN} -v $PWD/kept:/h --user 1000 {{0}} python3 /w/work.py",
               f"{RUN} --user 1000 {{1}} python3 /w/work.py"),
    ),
    "log-driver": Case(
        says="much output through the log driver", source="moby/moby#19209",
        names=("container.log_driver",),
        lines=("docker run --rm --log-driver none {0} seq 1500000 > /dev/null",
               "docker run --rm {0} seq 1500000 > /dev/null"),
    ),
    "seccomp": Case(
        says="many small system calls under a seccomp filter", source="docker/for-linux#738",
        files={"work.py": CALLS}, names=("seccomp.mode", "seccomp.filters"),
        lines=(f"{RUN} --security-opt seccomp=unconfined {{0}} python3 /w/work.py",
               f"{RUN} {{0}} python3 /w/work.py"),
    ),
    "scratch": Case(
        says="many small files in /tmp, flushed", source="containers/toolbox#513",
        files={"work.py": WRITES}, names=("mount.scratch",),
        lines=(f"{RUN} --tmpfs /tmp {{0}} python3 /w/work.py", f"{RUN} {{0}} python3 /w/work.py"),
    ),
    "unbuffered": Case(
        says="much output, each line by itself", source="own",
        files={"work.py": WORKS + PRINTS}, names=("env.PYTHONUNBUFFERED",),
        images=("", "ENV PYTHONUNBUFFERED=1\n"),
        lines=(f"{RUN} --log-driver none {{0}} python3 /w/work.py > /dev/null",
               f"{RUN} --log-driver none {{1}} python3 /w/work.py > /dev/null"),
    ),
    "no-bytecode": Case(
        says="a variable of the image keeps byte code from being written",
        source="alltuner/vibetuner#1246", names=("env.PYTHONDONTWRITEBYTECODE",),
        files={f"{arm}/m{i}.py": MODULE for arm in "ab" for i in range(12)}
        | {f"{arm}/work.py": IMPORTS_OWN + WORKS for arm in "ab"},
        images=("", "ENV PYTHONDONTWRITEBYTECODE=1\n"),
        lines=("docker run --rm -v $PWD/a:/w {0} python3 /w/work.py",
               "docker run --rm -v $PWD/b:/w {1} python3 /w/work.py"),
    ),
    "library-path": Case(
        says="every program looks for its libraries in 400 folders", source="NixOS/nixpkgs#24844",
        files={"work.sh": "for i in $(seq 1000); do /bin/true; done\n"},
        names=("env.LD_LIBRARY_PATH",), images=("", f"ENV LD_LIBRARY_PATH={FOLDERS}\n"),
        lines=(f"{RUN} {{0}} sh /w/work.sh", f"{RUN} {{1}} sh /w/work.sh"),
    ),
    "start-file": Case(
        says="a file of the image profiles every Python program", source="twisted/twisted#12786",
        files={"work.py": ALLOCATES}, names=("python.start_files",), inside="cov.pth",
        images=("", f"RUN echo '{PROFILES}' > /usr/lib/python3/dist-packages/cov.pth\n"),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} {{1}} python3 /w/work.py"),
    ),
    "asyncio": Case(
        says="a variable of the image debugs asyncio", source="python/cpython#76151",
        files={"work.py": AWAITS}, names=("env.PYTHONASYNCIODEBUG",),
        images=("", "ENV PYTHONASYNCIODEBUG=1\n"),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} {{1}} python3 /w/work.py"),
    ),
    "tracing": Case(
        says="a variable of the image traces every allocation", source="own",
        files={"work.py": ALLOCATES}, names=("env.PYTHONTRACEMALLOC",),
        images=("", "ENV PYTHONTRACEMALLOC=9\n"),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} {{1}} python3 /w/work.py"),
    ),
    "allocator": Case(
        says="a variable of the image replaces Python's allocator", source="own",
        files={"work.py": ALLOCATES}, names=("env.PYTHONMALLOC",),
        images=("", "ENV PYTHONMALLOC=debug\n"),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} {{1}} python3 /w/work.py"),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was printed of a case: the change, and the candidates in their order."""

    case: str
    outcome: str
    change: float | None  # a ratio less 1
    candidates: tuple[str, ...]
    denied: tuple[str, ...]  # facts that differ and were said to have no effect
    conditions: Conditions

    @property
    def place(self) -> int | None:
        """Return the place of the cause among the candidates, from 1; None if it is none."""
        names = CASES[self.case].names
        return next((n for n, key in enumerate(self.candidates, 1) if key in names), None)

    @property
    def is_denied(self) -> bool:
        """Tell whether the cause was said to have no effect."""
        return self.place is None and not set(CASES[self.case].names).isdisjoint(self.denied)


@benchmark(__doc__, smoke=("--cases", "nofile", "--budget", "25"))
@click.option("--cases", default=",".join(CASES), show_default=True)
@click.option("--budget", default=120.0, help="Seconds a case.", show_default=True)
@click.option("--base-image", default="envcompare-base:python3.11", help="An image with Python.")
def main(places: Places, cases: str, *, budget: float, base_image: str) -> None:
    """Measure what is missing, then write the page."""
    for name in cases.split(","):
        if name not in {record.case for record in _records(places)}:
            record = _measure(name, base_image, budget_s=budget, places=places)
            keep_record(places.results / DATA, record)
            print(_row(record), file=sys.stderr)
    print(write_page(places))


def _records(places: Places) -> tuple[Record, ...]:
    return kept_records(places.results / DATA, Record)


def _measure(name: str, base: str, *, budget_s: float, places: Places) -> Record:
    watch = Watch.begin()
    run = measured(name, base, budget_s=budget_s, places=places)
    (compared,) = run.compared
    shown, _ = line_candidates(run, compared)
    differing = [one for one in run.differences if one.arm == compared.arm]
    ratio = compared.deciding.log_ratio if compared.deciding else None
    return Record(
        case=name,
        outcome=compared.outcome,
        change=None if ratio is None else math.expm1(ratio),
        candidates=tuple(one.key for one in shown),
        denied=tuple(one.key for one in differing if one.is_felt is False),
        conditions=watch.conditions(),
    )


def measured(name: str, base: str, *options: str, budget_s: float, places: Places) -> RunComparison:
    """Return what `envcompare why` finds in the lines of a case, with further options."""
    case = CASES[name]
    tags = [IMAGE.format(f"{name}-{arm}") for arm in "ab"]
    for tag, lines in zip(tags, case.images, strict=True):
        _call("docker", "build", "--quiet", "--tag", tag, "-", given=f"FROM {base}\n{lines}")
    out = places.work / "lines" / f"{name}-{time.time():.0f}"
    with tempfile.TemporaryDirectory(prefix="envcompare-lines-") as folder, _around(case, folder):
        for file, content in case.files.items():
            path = Path(folder) / file
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
        both = (line.format(*tags) for line in case.lines)
        return compare_lines(*options, *both, budget_s=budget_s, folder=folder, out=out)


def compare_lines(*words: str, budget_s: float, folder: str, out: Path) -> RunComparison:
    """Return what `envcompare why` finds in a folder, with the variables of a login.

    Raises click.ClickException if it does not come to its end.
    """
    own = {name for name in os.environ if name.startswith("PYTHON")} - {"PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "envcompare", "-q", "why", "--budget", f"{budget_s:g}",
         "--out", str(out), "--wait", "600", *words],
        cwd=folder, env={name: value for name, value in os.environ.items() if name not in own},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in DECIDED:
        raise click.ClickException(f"{words}: {done.stderr or done.stdout}")
    (path,) = out.iterdir()
    return compare_run(RunFolder.open(path))


@contextmanager
def _around(case: Case, folder: str) -> Iterator[None]:
    """Make what a case needs on the host."""
    here = Path(folder)
    here.chmod(0o755)
    (here / "kept").mkdir()
    (here / "kept").chmod(0o777)
    if case.around == "large file":
        with (here / "big").open("wb") as file:
            file.writelines(os.urandom(1 << 20) for _ in range(300))
    if case.around != "resolvers":
        yield
        return
    (here / "good").write_text("nameserver 127.0.0.8\nnameserver 127.0.0.9\n")
    (here / "bad").write_text("nameserver 127.0.0.9\nnameserver 127.0.0.8\noptions timeout:1\n")
    servers = [
        subprocess.Popen([sys.executable, str(RESOLVER), *words])
        for words in (("127.0.0.8",), ("127.0.0.9", "silent"))
    ]
    try:
        yield
    finally:
        for server in servers:
            server.kill()
            server.wait()


def _call(*words: str, given: str = "") -> None:
    env = {**os.environ, "DOCKER_BUILDKIT": "0"}  # a client on PATH may lack buildx
    done = subprocess.run(words, input=given, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{' '.join(words)}: {done.stderr}")


def write_page(places: Places) -> str:
    """Write the page; return it."""
    records = sorted(_records(places), key=lambda record: list(CASES).index(record.case))
    named = [
        one
        for one in records
        if one.outcome == "slower" and one.place is not None and one.place <= NAMED
    ]
    denied = [one for one in records if one.is_denied]
    page = "\n".join((
        "# Known causes of slow lines",
        "",
        f"`python benchmarks/lines.py`, as root: {len(records)} slowdowns in miniature, most of "
        "them modelled on public threads, each measured once as two command lines of which the "
        "second is slower; raw data in "
        f"`benchmarks/results/{DATA}`. The table shows the place of the cause among the "
        "candidates on the first screen. A candidate is not proven. In each case both lines run in "
        "containers of one base image, so little else differs.",
        "",
        "| cause | from | printed | verdict | place of the cause | first candidate |",
        "|---|---|---|---|---|---|",
        *map(_row, records),
        "",
        f"- {len(named)} of {len(records)} second lines were found slower with the cause as first "
        "or second candidate.",
        f"- The cause was ruled out in {len(denied)}.",
    ))  # fmt: skip
    places.write_page(PAGE, page, (one.conditions for one in records))
    return page


def _row(record: Record) -> str:
    case = CASES[record.case]
    change = "none" if record.change is None else f"{record.change:+.1%}"
    place = "denied" if record.is_denied else record.place or "none"
    first = f"`{record.candidates[0]}`" if record.candidates else "none"
    return f"| {case.says} | {case.source} | {change} | {record.outcome} | {place} | {first} |"


if __name__ == "__main__":
    main()
