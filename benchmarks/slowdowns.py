"""Slowdowns in miniature, most of them from public threads: two lines, the second slower.

Both lines of a case run in containers of one base image, or in virtual environments of one Python,
and differ in the cause alone. Those without an effect differ in a property that their program does
not notice. They need root, Docker and gcc.
"""

from __future__ import annotations

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

from bookkeeping import HERE, Places
from envcompare.run_folder.results import RunFolder

RESOLVER = HERE / "programs" / "resolver.py"
IMAGE = "envcompare-lines:{}"
DECIDED = (0, 7)  # exit codes of a run that came to its end

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
GOMP = "-v /usr/lib/x86_64-linux-gnu/libgomp.so.1:/usr/lib/x86_64-linux-gnu/libgomp.so.1:ro"
PART = "import hashlib\nfor _ in range(100): hashlib.sha256(b'x' * 1_000_000).digest()\n"
FETCHES = """import http.server, socket, threading, urllib.request
silent = socket.create_server(("127.0.0.1", 3128))
site = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=site.serve_forever, daemon=True).start()
try: urllib.request.urlopen("http://127.0.0.1:8000/", timeout=1).read()
except OSError: pass
"""
DIVIDES = """from decimal import Decimal
x = Decimal(1)
for i in range(1, 60_000): x += Decimal(1) / i
"""
SHIM = (
    "RUN mkdir /shims && printf '#!/bin/bash\\nfor i in $(seq 100); do v=$(/bin/echo $i); done\\n"
    'exec /usr/bin/python3 "$@"\\n\' >/shims/python3 && chmod +x /shims/python3\n'
    "ENV PATH=/shims:$PATH\n"
)
PACKAGES = (
    "RUN cd /usr/lib/python3/dist-packages && for i in $(seq 1500); do mkdir p$i-1.dist-info && "
    "printf 'Metadata-Version: 2.1\\nName: p%s\\nVersion: 1\\n' $i >p$i-1.dist-info/METADATA; "
    "done\n"
)
PACKAGE_NAMES = ("columns", "plain", "reader", "tables", "writer")
IMPORTS_ALL = f"import {', '.join(PACKAGE_NAMES)}\n"
LISTS = (
    "import importlib.metadata as m\nprint(len([d.metadata['Name'] for d in m.distributions()]))\n"
)
SEARCHES = r"""import socket, threading, time
inbox = socket.socket(type=socket.SOCK_DGRAM); inbox.bind(("127.0.0.1", 53))
def serve():
    while True:
        q, who = inbox.recvfrom(512)
        if q[12:].startswith(b"\3api\4test\0"):
            inbox.sendto(q[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + q[12:]
                         + b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4\x7f\0\0\1", who)
        else:
            time.sleep(0.01); inbox.sendto(q[:2] + b"\x81\x83\0\1\0\0\0\0\0\0" + q[12:], who)
threading.Thread(target=serve, daemon=True).start()
for _ in range(20): socket.gethostbyname("api.test")
"""
STOPS = """import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
subprocess.Popen(["sh", "-c", "sleep 0.4; kill -TERM 1"])
time.sleep(2)
"""
SPINS = """import mmap, os
n = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count())  # ignores the CPU set
done, me = mmap.mmap(-1, n), 0
for other in range(1, n):
    if os.fork() == 0:
        me = other
        break
for step in range(1, 101):
    sum(range(40_000 // n))
    done[me] = step
    while step - 1 in done[:]: pass  # a spinning barrier
if me == 0:
    for _ in range(1, n): os.wait()
"""
ARENAS = """#include <pthread.h>
#include <stdlib.h>
static void *work(void *none) {
    for (int i = 0; i < 4000000; i++) {
        volatile char *p = malloc(3000 + i % 5000); p[0] = 1; free((void *)p);
    }
    return none;
}
int main(void) {
    pthread_t t[2];
    for (int i = 0; i < 2; i++) pthread_create(t + i, 0, work, 0);
    for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
"""
COMPRESSES = """unsigned long sum(const unsigned char *text, long length) {
    unsigned long a = 1, b = 0;
    for (long i = 0; i < length; i++) { a += text[i]; b += a ^ text[i]; }
    return b << 16 | a;
}
"""
SUMS = """import ctypes
library = ctypes.CDLL("libfold.so.1")
text = bytes(range(256)) * 100_000
for _ in range(6): library.sum(text, len(text))
"""
LIBRARY = "COPY {} /usr/lib/x86_64-linux-gnu/libfold.so.1\nCOPY motd /etc/motd\n"
SORTED = "".join(f"{i * 7919 % 400_009:x} Some path-{i % 97}/file.{i}\n" for i in range(300_000))
IMPORTS = "import asyncio, email, http.server, sqlite3, xml.dom\n"
MANY = "RUN mkdir /data && cd /data && for i in $(seq {}); do head -c {} /dev/urandom >f$i; done\n"
ENTRY = "RUN printf '#!/bin/sh\\n{}exec \"$@\"\\n' >/entry && chmod +x /entry\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question: its thread, the two lines, what they need, and the facts that name its cause."""

    says: str
    source: str = ""  # OWNER/REPOSITORY#NUMBER on GitHub; empty: ours
    title: str = ""  # of that thread
    claim: str = ""
    lines: tuple[str, str]  # {0} and {1} are the images
    names: tuple[str, ...]  # keys of facts, any of which names the cause
    images: tuple[str, str] = ("", "")  # further lines of their Dockerfiles
    files: dict[str, str] = field(default_factory=dict)
    around: str = ""  # what the host needs meanwhile
    inside: str = ""  # the file, setting or package of the second line that is the cause
    count: int = 1  # of the changes that are the cause together
    has_bystanders: bool = False  # options in which the lines differ without an effect


BUILDS = (
    ("work.c", "-O1 -pthread", "work"),
    ("fold.c", "-O2 -shared -fPIC", "fast.so"),
    ("fold.c", "-O0 -shared -fPIC", "slow.so"),
)
RUN = "docker run --rm -v $PWD:/w"
CASES = {
    "nofile": Case(
        says="a program closes every possible descriptor", source="moby/moby#45436",
        title="fakeroot has become extremely slow inside docker",
        claim="from an instant to about a minute",
        files={"work.py": CLOSES}, names=("limits.nofile",),
        lines=(f"{RUN} --ulimit nofile=1024:20000 {{0}} python3 /w/work.py",
               f"{RUN} --ulimit nofile=20000:20000 {{0}} python3 /w/work.py"),
    ),
    "quota": Case(
        says="two threads on a quota of 0.7 CPUs", source="scipy/scipy#16222",
        title="BUG: take ~10X times from different docker parameter",
        claim="11.6 s with `--cpus 2`, 1.12 s with `--cpuset-cpus 10,11`",
        files={"work.py": BURNS}, names=("cgroup.cpu_quota",),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} --cpus 0.7 {{0}} python3 /w/work.py"),
    ),
    "cpuset": Case(
        says="two threads on one CPU",
        files={"work.py": BURNS}, names=("cpu.affinity", "cgroup.cpuset"),
        lines=(f"{RUN} {{0}} python3 /w/work.py",
               f"{RUN} --cpuset-cpus 0 {{0}} python3 /w/work.py"),
    ),
    "bytecode": Case(
        says="an image without byte code", source="astral-sh/uv#16378",
        title="Slower startup time compared to using pip in Docker",
        claim="6.07 s with uv, 3.40 s with pip, at 0.2 CPUs",
        files={"work.py": IMPORTS}, names=("python.uncompiled",),
        images=("", "RUN find /usr/lib/python3* -name __pycache__ -prune -exec rm -r {} +\n"),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} {{1}} python3 /w/work.py"),
    ),
    "resolver": Case(
        says="the first name server does not answer", source="moby/moby#42519",
        title="DNS resolution behaviour when the DNS server of the host is pointing to a container",
        claim="8.19 s until the second name server answers",
        files={"work.py": LOOKS_UP}, names=("network.resolvers",), around="resolvers",
        lines=(f"{RUN} --network host -v $PWD/good:/etc/resolv.conf {{0}} python3 /w/work.py",
               f"{RUN} --network host -v $PWD/bad:/etc/resolv.conf {{0}} python3 /w/work.py"),
    ),
    "ports": Case(
        says="forty published ports", source="moby/moby#14288",
        title="Publishing a large port range is very slow (Docker 1.6.0)",
        claim="a container with many ports starts very slowly", names=("container.ports",),
        lines=("docker run --rm -p 20000:20000 {0} true",
               "docker run --rm -p 20000-20039:20000-20039 {0} true"),
    ),
    "entrypoint": Case(
        says="an entrypoint changes the owner of many files", source="FreshRSS/FreshRSS#7764",
        title="[Bug] Long delay when starting docker image due to recursive `chown`",
        claim="12 minutes to start",
        names=("programs",), inside="/entry",
        images=(MANY.format(1500, 4096) + ENTRY.format(""),
                MANY.format(1500, 4096) + ENTRY.format("chown -R 1000:1000 /data\\n")),
        lines=("docker run --rm --entrypoint /entry {0} sleep 0.3",
               "docker run --rm --entrypoint /entry {1} sleep 0.3"),
    ),
    "volume": Case(
        says="a volume is filled from the image at each start", source="docker/for-linux#1379",
        title="Running container with the volume option takes much longer depending on host",
        claim="over 17 s with a volume, under 2 s without",
        names=("container.volumes",), inside="Volumes",
        images=(MANY.format(60, 4_000_000), MANY.format(60, 4_000_000) + "VOLUME /data\n"),
        lines=("docker run --rm {0} python3 -c pass", "docker run --rm {1} python3 -c pass"),
    ),
    "memory": Case(
        says="a memory limit pushes out the page cache", source="moby/moby#39245",
        title="Insufficient memory leads to a lot of IO reading",
        claim="at the memory limit, the program's own code is read again and again",
        files={"work.py": READS}, names=("cgroup.memory_limit_bytes",), around="large file",
        lines=(f"{RUN} -m 1g {{0}} python3 /w/work.py", f"{RUN} -m 64m {{0}} python3 /w/work.py"),
    ),
    "home": Case(
        says="a cache is rebuilt at every start, since its folder cannot be written",
        source="matplotlib/matplotlib#32246",
        title="[ENH]: Use a valid font cache from a read-only MPLCONFIGDIR instead of rebuilding "
              "in a temp dir",
        claim="the font cache is rebuilt at each start",
        files={"work.py": WORKS + CACHES}, names=("home.is_writable",),
        images=("RUN mkdir -m 777 /h\nENV HOME=/h\n", "RUN mkdir -m 755 /h\nENV HOME=/h\n"),
        lines=(f"{RUN} -v $PWD/kept:/h --user 1000 {{0}} python3 /w/work.py",
               f"{RUN} --user 1000 {{1}} python3 /w/work.py"),
    ),
    "log-driver": Case(
        says="much output through the log driver", source="soallpeach/onboarding#58",
        title="Let programs output to file instead of stdout",
        claim="6.54 s to standard output, 1.30 s to a file",
        names=("container.log_driver",),
        lines=("docker run --rm --log-driver none {0} seq 1500000 > /dev/null",
               "docker run --rm {0} seq 1500000 > /dev/null"),
    ),
    "seccomp": Case(
        says="many small system calls under a seccomp filter", source="moby/moby#41389",
        title="Default seccomp introduces significant overhead",
        claim="15 % in the reporter's program",
        files={"work.py": CALLS}, names=("seccomp.mode", "seccomp.filters"),
        lines=(f"{RUN} --security-opt seccomp=unconfined {{0}} python3 /w/work.py",
               f"{RUN} {{0}} python3 /w/work.py"),
    ),
    "scratch": Case(
        says="many small files in /tmp, flushed", source="containers/toolbox#513",
        title="toolbox becomes unusably slow when creating lots of small files in /tmp",
        claim="unusably slow",
        files={"work.py": WRITES}, names=("mount.scratch",),
        lines=(f"{RUN} --tmpfs /tmp {{0}} python3 /w/work.py", f"{RUN} {{0}} python3 /w/work.py"),
    ),
    "unbuffered": Case(
        says="much output, each line by itself",
        files={"work.py": WORKS + PRINTS}, names=("env.PYTHONUNBUFFERED",),
        images=("", "ENV PYTHONUNBUFFERED=1\n"),
        lines=(f"{RUN} --log-driver none {{0}} python3 /w/work.py > /dev/null",
               f"{RUN} --log-driver none {{1}} python3 /w/work.py > /dev/null"),
    ),
    "no-bytecode": Case(
        says="a variable of the image keeps byte code from being written",
        source="alltuner/vibetuner#1246",
        title="fix: Dockerfile disables bytecode compilation in both build and runtime stages",
        claim="every start compiles every module", names=("env.PYTHONDONTWRITEBYTECODE",),
        files={f"{arm}/m{i}.py": MODULE for arm in "ab" for i in range(12)}
        | {f"{arm}/work.py": IMPORTS_OWN + WORKS for arm in "ab"},
        images=("", "ENV PYTHONDONTWRITEBYTECODE=1\n"),
        lines=("docker run --rm -v $PWD/a:/w {0} python3 /w/work.py",
               "docker run --rm -v $PWD/b:/w {1} python3 /w/work.py"),
    ),
    "library-path": Case(
        says="every program looks for its libraries in 400 folders", source="NixOS/nixpkgs#24844",
        title="Link to libraries through absolute paths?",
        claim="the loader searches every folder for every library",
        files={"work.sh": "for i in $(seq 1000); do /bin/true; done\n"},
        names=("env.LD_LIBRARY_PATH",), images=("", f"ENV LD_LIBRARY_PATH={FOLDERS}\n"),
        lines=(f"{RUN} {{0}} sh /w/work.sh", f"{RUN} {{1}} sh /w/work.sh"),
    ),
    "start-file": Case(
        says="a file of the image profiles every Python program",
        files={"work.py": ALLOCATES}, names=("python.start_files",), inside="cov.pth",
        images=("", f"RUN echo '{PROFILES}' > /usr/lib/python3/dist-packages/cov.pth\n"),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} {{1}} python3 /w/work.py"),
    ),
    "asyncio": Case(
        says="a variable of the image debugs asyncio", source="python/cpython#76151",
        title="asyncio debug mode is very slow",
        claim="very slow",
        files={"work.py": AWAITS}, names=("env.PYTHONASYNCIODEBUG",),
        images=("", "ENV PYTHONASYNCIODEBUG=1\n"),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} {{1}} python3 /w/work.py"),
    ),
    "tracing": Case(
        says="a variable of the image traces every allocation",
        files={"work.py": ALLOCATES}, names=("env.PYTHONTRACEMALLOC",),
        images=("", "ENV PYTHONTRACEMALLOC=9\n"),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} {{1}} python3 /w/work.py"),
    ),
    "allocator": Case(
        says="a variable of the image replaces Python's allocator",
        files={"work.py": ALLOCATES}, names=("env.PYTHONMALLOC",),
        images=("", "ENV PYTHONMALLOC=debug\n"),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} {{1}} python3 /w/work.py"),
    ),
    "affinity": Case(
        says="a variable makes OpenMP pin the process to one CPU", source="pytorch/pytorch#49971",
        title="PyTorch does not respect GOMP_CPU_AFFINITY environment variable",
        claim="after `import torch`, the process may use one CPU",
        files={"work.py": 'import ctypes; ctypes.CDLL("libgomp.so.1")\n' + BURNS},
        names=("env.GOMP_CPU_AFFINITY", "cpu.affinity"),
        images=("", "ENV GOMP_CPU_AFFINITY=0-1\n"),
        lines=(f"{RUN} {GOMP} {{0}} python3 /w/work.py", f"{RUN} {GOMP} {{1}} python3 /w/work.py"),
    ),
    "nproc": Case(
        says="a variable for threads also limits nproc", source="pytorch/pytorch#12836",
        title="Remove OMP_NUM_THREADS and MKL_NUM_THREADS settings from docker images",
        claim="`nproc` shows 4 cores, and building is slow",
        files={"part.py": PART,
               "work.sh": 'seq 8 | xargs -n 1 -P "$(nproc)" python3 /w/part.py\n'},
        names=("env.OMP_NUM_THREADS", "threads.omp"), images=("", "ENV OMP_NUM_THREADS=1\n"),
        lines=(f"{RUN} {{0}} sh /w/work.sh", f"{RUN} {{1}} sh /w/work.sh"),
    ),
    "proxy": Case(
        says="a variable names a proxy that does not answer", source="intel/llm-scaler#562",
        title="intel/llm-scaler-vllm:0.21.0-b1 contains hardcoded http_proxy / https_proxy "
              "environment variables",
        claim="requests hang until their timeout",
        files={"work.py": WORKS + FETCHES}, names=("option.e",),
        lines=(f"{RUN} -e http_proxy= {{0}} python3 /w/work.py",
               f"{RUN} -e http_proxy=http://127.0.0.1:3128 {{0}} python3 /w/work.py"),
    ),
    "huge-pages": Case(
        says="large allocations without huge pages", source="numpy/numpy#11957",
        title="ENH: mark that large allocations can use huge pages",
        claim="with huge pages, copies take 0.56 to 0.75 of the time",
        files={"work.py": 'for _ in range(30): b"x" * 100_000_000\n'},
        names=("env.GLIBC_TUNABLES", "allocator.tunables"),
        images=("ENV GLIBC_TUNABLES=glibc.malloc.hugetlb=1\n", ""),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} {{1}} python3 /w/work.py"),
    ),
    "accelerator": Case(
        says="Python without the C part of a module", source="beancount/fava#1139",
        title="Fava load on server", claim="113 s for a page, in `_pydecimal.py`",
        files={"work.py": DIVIDES}, names=("python.modules",), inside="_decimal",
        images=("", "RUN rm /usr/lib/python3.11/lib-dynload/_decimal*.so\n"),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} {{1}} python3 /w/work.py"),
    ),
    "shim": Case(
        says="a script stands in for python3", source="pyenv/pyenv#2802",
        title="Shims are too slow", claim="250 ms for the shim alone",
        files={"work.sh": "for i in 1 2 3 4 5; do python3 -c pass; done\n"},
        names=("programs",), inside="/shims", images=("", SHIM),
        lines=(f"{RUN} {{0}} sh /w/work.sh", f"{RUN} {{1}} sh /w/work.sh"),
    ),
    "packages": Case(
        says="a program reads the metadata of every installed package", source="vispy/vispy#1779",
        title="Slow import", claim="3.4 s to import with 1,200 packages installed, on Windows",
        files={"work.py": LISTS}, names=("packages", "packages.not_imported"),
        inside="dist-packages", images=("", PACKAGES),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} {{1}} python3 /w/work.py"),
    ),
    "search-domains": Case(
        says="each name is first looked up in four domains", source="kubernetes/kubernetes#10266",
        title="update docker's resolv.conf file with options ndots:5",
        claim="20 to 100 ms more for each request, without exact numbers",
        files={"work.py": WORKS + SEARCHES, "one": "nameserver 127.0.0.1\n",
               "many": "nameserver 127.0.0.1\nsearch a.x b.x c.x d.x\noptions ndots:5\n"},
        names=("network.resolvers",),
        lines=(f"{RUN} -v $PWD/one:/etc/resolv.conf {{0}} python3 /w/work.py",
               f"{RUN} -v $PWD/many:/etc/resolv.conf {{0}} python3 /w/work.py"),
    ),
    "signal": Case(
        says="the entrypoint does not forward SIGTERM", source="mrmn2/PdfDing#165",
        title="PID 1 problem - sigterm is being ignored", claim="10 s to stop",
        files={"work.py": STOPS}, names=("programs",), inside="/entry",
        images=(ENTRY.format(""),
                "RUN printf '#!/bin/sh\\n\"$@\"\\nexit $?\\n' >/entry && chmod +x /entry\n"),
        lines=(f"{RUN} --entrypoint /entry {{0}} python3 /w/work.py",
               f"{RUN} --entrypoint /entry {{1}} python3 /w/work.py"),
    ),
    "variables": Case(
        says="six thousand environment variables", source="neutree-ai/agent-platform#177",
        title="fix(k8s): disable service-link env injection on workspace pods",
        claim="2.9 s for `bash -c /bin/true`, 10 ms without the variables",
        files={"few": "A=1\n", "many": "".join(f"SVC_{i}_ADDR=10.0.0.1\n" for i in range(6000))},
        names=("option.env-file",),
        lines=("docker run --rm --env-file $PWD/few {0} bash -c '/bin/true; :'",
               "docker run --rm --env-file $PWD/many {0} bash -c '/bin/true; :'"),
    ),
    "healthcheck": Case(
        says="a health check ten times a second", source="moby/moby#39388",
        title="any docker exec or healthcheck utilize high CPU usage",
        claim="health checks slow the whole host down",
        files={"work.py": BURNS.replace("600", "1200")}, names=(), inside="Healthcheck",
        images=("", "HEALTHCHECK --interval=100ms --timeout=10s CMD "
                    "python3 -c 'import asyncio, http.client'\n"),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} {{1}} python3 /w/work.py"),
    ),
    "network": Case(
        says="a network is set up for each container", source="jessfraz/dockerfiles#497",
        title="lower latency / boot times for light apps?",
        claim="`--network=none` saves 0.2 s of 1.2 s",
        names=("container.network", "network.interfaces"),
        lines=("docker run --rm --network none {0} true", "docker run --rm {0} true"),
    ),
    "locale": Case(
        says="sorting by the rules of a language", source="graysky2/lostfiles#38",
        title="Performance improvement with LC_ALL=C",
        claim="17.9 s in `en_US.UTF-8`, 3.9 s with `LC_ALL=C`",
        around="locale", files={"lines": SORTED}, names=("option.e",),
        lines=(f"{RUN} -e LOCPATH=/w -e LC_ALL=C {{0}} sort -o /dev/null /w/lines",
               f"{RUN} -e LOCPATH=/w -e LC_ALL=en_US.UTF-8 {{0}} sort -o /dev/null /w/lines"),
    ),
    "spinning": Case(
        says="processes that wait for each other, more than CPUs", source="ollama/ollama#17916",
        title="Default n_threads ignores cgroup CPU quota and cpuset: ~45x throughput collapse in "
              "CPU-limited containers",
        claim="0.27 tokens/s with 8 threads, 12.07 with 4",
        files={"work.py": SPINS}, names=("cpu.affinity", "cgroup.cpuset"),
        lines=(f"{RUN} {{0}} python3 /w/work.py",
               f"{RUN} --cpuset-cpus 0 {{0}} python3 /w/work.py"),
    ),
    "library": Case(
        says="a library that was built without optimisation",
        source="astral-sh/python-build-standalone#846",
        title="Slow performance of compression.lzma and compression.bz2",
        claim="bz2 27 s, 9 s with Debian's Python",
        around="compile", files={"fold.c": COMPRESSES, "motd": "hello\n", "work.py": SUMS},
        names=("loaded_libraries",), inside="libfold",
        images=(LIBRARY.format("fast.so"), LIBRARY.format("slow.so") + "RUN echo >>/etc/motd\n"),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} {{1}} python3 /w/work.py"),
    ),
    "arenas": Case(
        says="two threads share one arena of malloc", source="mperham/bloaty_mcbloatface#2",
        title="Reproducing memory bloat",
        claim="a thread about memory; 297 to 339 s, with `MALLOC_ARENA_MAX=2` 332 to 347 s",
        around="compile", files={"work.c": ARENAS}, names=("env.MALLOC_ARENA_MAX",),
        images=("", "ENV MALLOC_ARENA_MAX=1\n"),
        lines=(f"{RUN} {{0}} /w/work", f"{RUN} {{1}} /w/work"),
    ),
}  # fmt: skip


CASES |= {
    "exported": Case(
        says="an entrypoint sets a variable that traces every allocation",
        files={"work.py": ALLOCATES}, inside="ENTRYPOINT",
        names=("env.PYTHONTRACEMALLOC", "container.entrypoint"),
        images=("", ENTRY.format("export PYTHONTRACEMALLOC=9\\n") + 'ENTRYPOINT ["/entry"]\n'),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} {{1}} python3 /w/work.py"),
    ),
    "package": Case(
        says="one of three upgraded packages is slower",
        files={"work.py": IMPORTS_ALL}, names=("packages",), around="environments",
        inside="reader 2.0",
        lines=("old/bin/python work.py", "new/bin/python work.py"),
    ),
    "bystanders": Case(
        says="a quota of CPUs, beside more work and four options without an effect",
        files={"a.py": BURNS, "b.py": BURNS.replace("600", "900")},
        names=("cgroup.cpu_quota", "option.cpus"), has_bystanders=True,
        lines=(f"{RUN} {{0}} python3 /w/a.py",
               f"{RUN} --pids-limit 200 --cpus 0.7 --ulimit core=0 --shm-size 32m -e UNUSED=1 "
               "{0} python3 /w/b.py"),
    ),
    "two-causes": Case(
        says="a quota of CPUs, and a variable that traces every allocation",
        files={"work.py": BURNS + ALLOCATES.replace("20_000", "5_000")}, count=2,
        names=("cgroup.cpu_quota", "option.cpus", "env.PYTHONTRACEMALLOC"),
        images=("", "ENV PYTHONTRACEMALLOC=9\n"),
        lines=(f"{RUN} {{0}} python3 /w/work.py", f"{RUN} --cpus 0.7 {{1}} python3 /w/work.py"),
    ),
}  # fmt: skip


def _unnoticed(
    says: str, fast: str = "", slow: str = "", images: tuple[str, str] = ("", "")
) -> Case:
    """Return two lines that compute with one thread, read one file and print nothing."""
    lines = (f"{RUN} {fast} {{0}} python3 /w/work.py", f"{RUN} {slow} {{1}} python3 /w/work.py")
    return Case(says=says, names=(), files={"work.py": WORKS}, lines=lines, images=images)


WITHOUT_EFFECT = {
    "no-nofile": _unnoticed(
        "a limit on descriptors", "--ulimit nofile=1024:20000", "--ulimit nofile=20000:20000"
    ),
    "no-stack": _unnoticed("a limit on the stack", "", "--ulimit stack=4194304"),
    "no-core": _unnoticed("a limit on core files", "", "--ulimit core=0"),
    "no-pids": _unnoticed("a limit on processes", "", "--pids-limit 200"),
    "no-quota": _unnoticed("a quota of two CPUs", "", "--cpus 2"),
    "no-cpuset": _unnoticed("a set of both CPUs", "", "--cpuset-cpus 0,1"),
    "no-memory": _unnoticed("a memory limit", "-m 2g", "-m 512m"),
    "no-shm": _unnoticed("shared memory", "--shm-size 1g", "--shm-size 64m"),
    "no-seccomp": _unnoticed("a seccomp filter", "--security-opt seccomp=unconfined", ""),
    "no-capabilities": _unnoticed("no capabilities", "", "--cap-drop ALL"),
    "no-privileges": _unnoticed("no new privileges", "", "--security-opt no-new-privileges"),
    "no-scratch": _unnoticed("a scratch folder in memory", "--tmpfs /tmp", ""),
    "no-user": _unnoticed("another user", "", "--user 1000"),
    "no-dns": _unnoticed("a name server that does not answer", "", "--dns 127.0.0.9"),
    "no-proxy": _unnoticed("a proxy", "", "-e http_proxy=http://127.0.0.1:3128"),
    "no-locale": _unnoticed("a language", "-e LC_ALL=C", "-e LC_ALL=en_US.UTF-8"),
    "no-asyncio": _unnoticed("a variable of asyncio", images=("", "ENV PYTHONASYNCIODEBUG=1\n")),
    "no-openmp": _unnoticed("a variable of OpenMP", images=("", "ENV GOMP_CPU_AFFINITY=0-1\n")),
    "no-threads": _unnoticed("a number of threads", images=("", "ENV OMP_NUM_THREADS=1\n")),
    "no-arenas": _unnoticed("a variable of malloc", images=("", "ENV MALLOC_ARENA_MAX=1\n")),
    "no-buffer": _unnoticed("a variable for output", images=("", "ENV PYTHONUNBUFFERED=1\n")),
    "no-files": _unnoticed("1,000 more files", images=("", MANY.format(1000, 100))),
}
"""Pairs of lines that differ in a property which their program does not notice."""


UNMEASURED: tuple[tuple[str, str, str, str], ...] = (
    ("NVIDIA/nvidia-docker#1274",
     "Performance difference pytorch tensor-allocation vs running locally",
     "a CUDA tensor takes twice as long in a container", "a GPU"),
    ("NVIDIA/nvidia-docker#1050",
     "[performence problem] tensor2tensor run slower 6.37% in container than on the host",
     "5 min 14 s, 4 min 56 s on the host", "a GPU"),
    ("NVIDIA/nvidia-docker#788",
     "caffe training on nvcr docker with multiple GPUs is much slower than the host",
     "2 times slower on 8 GPUs", "several GPUs"),
    ("NVIDIA/k8s-device-plugin#1101",
     "Using GPU to train models in a K8s Pod […] is 6% longer compared to running on bare metal.",
     "6 % longer", "a GPU and Kubernetes"),
    ("aws/deep-learning-containers#2760", "~8X drop in speed when upgrading base image.",
     "2.34 million samples/s, 0.33 million after", "a GPU and both images"),
    ("NVIDIA/nccl#381", "ncclReduce is inconsistent when seeing different gpu numbers",
     "4 GPUs: 20 % faster in a container that sees 4 than on a host that sees 8", "several GPUs"),
    ("microsoft/pai#3267",
     "Different training efficiency between openpai job and nv-docker run on machine.",
     "10 times slower with pinned memory", "a GPU"),
    ("opencontainers/runc#2430",
     "support seccomp flags such as SECCOMP_FILTER_FLAG_SPEC_ALLOW (OCI Runtime Spec v1.0.2)",
     "1.32 s, 2.45 s in Docker", "Linux before 5.16"),
    ("apptainer/apptainer#665", "squashfuse Performance",
     "25 min mounted by the kernel, 2 h 50 min by squashfuse",
     "a change of how Apptainer mounts, which --prove cannot make"),
    ("apptainer/apptainer#3198", "Slow I/O in apptainer compared to singularity",
     "writes 3 times slower", "GPFS"),
)  # fmt: skip
"""Threads without a replica: source, title, claim, and what it would need."""


def measured(name: str, base: str, *options: str, budget_s: float, places: Places) -> RunFolder:
    """Return the run of `envcompare why` on the lines of a case, with further options."""
    case = (CASES | WITHOUT_EFFECT)[name]
    tags = [IMAGE.format(f"{name}-{arm}") for arm in "ab"]
    out = places.work / "lines" / f"{name}-{time.time():.0f}"
    with tempfile.TemporaryDirectory(prefix="envcompare-lines-") as folder, _around(case, folder):
        for tag, lines in zip(tags, case.images, strict=True):
            given = f"FROM {base}\n{lines}"
            _call("docker", "build", "--quiet", "--tag", tag, "--file", "-", folder, given=given)
        both = (line.format(*tags) for line in case.lines)
        return compare_lines(*options, *both, budget_s=budget_s, folder=folder, out=out)


def compare_lines(*words: str, budget_s: float, folder: str, out: Path) -> RunFolder:
    """Return the run of `envcompare why` in a folder, with the variables of a login.

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
    return RunFolder.open(path)


@contextmanager
def _around(case: Case, folder: str) -> Iterator[None]:
    """Make what a case needs on the host."""
    here = Path(folder)
    here.chmod(0o755)
    for name, content in case.files.items():
        path = here / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    if case.around == "locale":
        _call("localedef", "-i", "en_US", "-f", "UTF-8", str(here / "en_US.UTF-8"))
    if case.around == "environments":
        _make_environments(here)
    if case.around == "compile":
        for source, options, made in BUILDS:
            if source in case.files:
                _call("gcc", *options.split(), "-o", str(here / made), str(here / source))
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


def _make_environments(here: Path) -> None:
    """Make two virtual environments with five packages, three of them in other versions."""
    for name, hashes in (("old", 100), ("new", 300)):
        _call(sys.executable, "-m", "venv", "--without-pip", str(here / name))
        (site,) = (here / name).glob("lib/python3*/site-packages")
        for package in PACKAGE_NAMES:
            version = "1.0" if name == "old" or package in {"plain", "tables"} else "2.0"
            about = site / f"{package}-{version}.dist-info"
            about.mkdir()
            (about / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
            )
            count = hashes if package == "reader" else 20
            (site / f"{package}.py").write_text(PART.replace("100", str(count), 1))
            (about / "RECORD").write_text(
                f"{package}.py,sha256={version},1\n{about.name}/METADATA,,\n"
            )


def _call(*words: str, given: str = "") -> None:
    env = {**os.environ, "DOCKER_BUILDKIT": "0"}  # a client on PATH may lack buildx
    done = subprocess.run(words, input=given, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{' '.join(words)}: {done.stderr}")
