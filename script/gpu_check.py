"""One run with everything on a machine with a GPU, judged, and packed without the machine's names.

`script/gpu-check` calls it. The rows of the table come from `gpu_claims`; what each program said
is in `logs/` of the output folder.
"""

from __future__ import annotations

import argparse
import getpass
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from envcompare.errors import RunFolderError
from gpu_claims import WORKLOADS, GpuRun, Row, State, has_reached_gpu, judge, unjudged

ROOT: Final = Path(__file__).resolve().parents[1]
ENVIRONMENTS: Final = ("vm", "docker", "singularity")
FAILED, NO_GPU = 1, 3
_LIMIT_S: Final = 3 * 3600
_TIMED_OUT: Final = 124  # as timeout(1) ends
_ASK_LIMIT_S: Final = 60
_TORCH: Final = "import torch"
_TORCH_ON_GPU: Final = "import torch; raise SystemExit(not torch.cuda.is_available())"
_OF_GPU: Final = re.compile(r"wheels for |gpu in |gpu counters in |nsys$|ncu$")
_BUILT: Final = re.compile(r"^local vm: ([^,\n]+)", re.MULTILINE)
_STATE: Final[dict[str, tuple[str, ...]]] = {
    "nvidia-smi-q.txt": ("nvidia-smi", "-q"),
    "nvidia-smi-topology.txt": ("nvidia-smi", "topo", "-m"),
    "driver.txt": ("cat", "/proc/driver/nvidia/version", "/proc/driver/nvidia/params"),
    "devices.txt": ("sh", "-c", "ls -l /dev/nvidia* /dev/nvidia-caps /dev/dri"),
    "docker-version.txt": ("docker", "version"),
    "docker-info.txt": ("docker", "info"),
    "docker-daemon.txt": ("cat", "/etc/docker/daemon.json"),
    "apptainer.txt": ("sh", "-c", "apptainer version; singularity version; apptainer buildcfg"),
    "toolkit.txt": ("nvidia-ctk", "--version"),
    "cdi-list.txt": ("nvidia-ctk", "cdi", "list"),
    "cdi-files.txt": ("sh", "-c", "tail -n +1 /etc/cdi/* /var/run/cdi/*"),
    "nsys.txt": ("nsys", "--version"),
    "ncu.txt": ("ncu", "--version"),
    "os.txt": ("sh", "-c", "uname -srvm; cat /etc/os-release; python3 --version"),
    "disk.txt": ("df", "-h"),
    "cpu.txt": ("lscpu",),
    "commit.txt": ("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
}
"""What is asked of the machine, each into a file of its own; what is missing says so there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a program wrote, and how it ended."""

    exit_code: int
    text: str


def ask(*argv: str, limit_s: float = _ASK_LIMIT_S) -> Said:
    """Run a program to its end; one that is missing or hangs says so instead."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", check=False, timeout=limit_s
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Said(exit_code=127, text=f"{error}\n")
    return Said(exit_code=done.returncode, text=done.stdout + done.stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One call of the script: what was asked for, and the folder that it writes."""

    options: argparse.Namespace
    folder: Path

    def envcompare(self, name: str, *words: str) -> Said:
        """Run a subcommand, with its output on the terminal's error stream and in logs/."""
        log = self.folder / "logs" / f"{name}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        sys.stderr.write(f"  … envcompare {name}\n")
        started = time.monotonic()
        argv = [sys.executable, "-m", "envcompare", name, *words]
        with log.open("wb") as stream:
            try:
                exit_code = subprocess.run(
                    argv, stdout=stream, stderr=subprocess.STDOUT, check=False, timeout=_LIMIT_S
                ).returncode
            except subprocess.TimeoutExpired:  # what it said until then is evidence too
                exit_code = _TIMED_OUT
                stream.write(f"\nended after {_LIMIT_S} s\n".encode())
        sign = "✕" if exit_code else "✓"
        took = time.monotonic() - started
        sys.stderr.write(f"  {sign} envcompare {name} (exit {exit_code}, {took:.0f} s)\n")
        return Said(exit_code=exit_code, text=log.read_text("utf-8", errors="replace"))

    def write(self, name: str, text: str) -> None:
        """Write a file of the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What doctor says of this machine: the environments that work, and why there is no GPU."""

    environments: tuple[str, ...]
    rows: tuple[Row, ...]
    no_gpu: str


def survey(doctor: str, names: Sequence[str] = ENVIRONMENTS) -> Survey:
    """Read the JSON of doctor, which stands behind what it says in words."""
    start = doctor.find("{\n")
    try:
        findings = json.loads(doctor[start : doctor.rfind("}") + 1])["hosts"][0]["findings"]
    except (ValueError, LookupError):
        row = Row(check="doctor", state="failed", detail=_last_line(doctor) or "it said nothing")
        return Survey(environments=(), rows=(row,), no_gpu="doctor did not end well")
    by_subject = {finding["subject"]: finding for finding in findings}
    usable = [name for name in names if by_subject.get(name, {}).get("is_usable")]
    rows = [_row(f"environment {name}", by_subject.get(name, {})) for name in names]
    rows += [
        _row(subject, finding) for subject, finding in by_subject.items() if _OF_GPU.match(subject)
    ]
    gpus = [by_subject[subject] for subject in ("gpu driver", "gpu") if subject in by_subject]
    faults = [_brief(finding) or "it is not usable" for finding in gpus if not finding["is_usable"]]
    no_gpu = faults[0] if faults else "" if gpus else "doctor says nothing of a GPU"
    return Survey(environments=tuple(usable), rows=tuple(rows), no_gpu=no_gpu)


def _row(check: str, finding: dict[str, Any]) -> Row:
    """Return a finding as a row; only an environment that cannot reach the GPU is a failure."""
    state: State = "not possible here"
    if finding.get("is_usable"):
        state = "passed"
    elif check.startswith("gpu in "):
        state = "failed"
    detail = finding.get("version") or _brief(finding) or "doctor did not look at it"
    return Row(check=check, state=state, detail=detail)


def _brief(finding: dict[str, Any]) -> str:
    return str((finding.get("problem") or {}).get("brief", ""))


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def measure(session: Session, environments: Sequence[str]) -> tuple[Row, ...]:
    """Build the stacks and run both workloads in all arms; return a row for each step."""
    options, arms = session.options, ("--envs", ",".join(environments))
    made, stacks = tuple(options.pass_on), options.stacks.split(",")
    rows: list[Row] = []
    text = ""
    if "image" in stacks:
        built = session.envcompare("build", *arms, *made)
        rows.append(_step("the stacks are built", built))
        text = built.text
    wanted = _TORCH if options.rehearse else _TORCH_ON_GPU
    python = host_python(options.host_python, text, wanted) if "host" in stacks else ""
    session.write("logs/host-python.txt", f"{python or 'none'}\n")
    if "host" in stacks and not python:
        has = "torch" if options.rehearse else "torch with CUDA"
        detail = f"no Python that was tried has {has}; name one with --host-python"
        rows.append(Row(check="stack of the host", state="not possible here", detail=detail))
        stacks.remove("host")
    if not stacks:
        return tuple(rows)
    device = "cpu" if options.rehearse else "cuda"
    words = [
        *("--workloads", ",".join(WORKLOADS), "--device", device, "--profile", "auto"),
        *("--quick", "--budget", str(options.budget), "--no-startup"),
        *("--out", str(session.folder / "runs"), "--title", "gpu-check"),
        *("--stacks", ",".join(stacks), *(("--host-python", python) if python else ())),
    ]
    rows.append(_step("the run ends", session.envcompare("run", *arms, *made, *words)))
    return tuple(rows)


def host_python(named: str, built: str, wanted: str = _TORCH_ON_GPU) -> str:
    """Return the Python of the host's own stack: one that runs what is wanted, else that of vm."""
    if named:
        return named
    system = shutil.which("python3", path=os.defpath) or ""
    for python in dict.fromkeys((shutil.which("python3") or "", system, "/opt/conda/bin/python")):
        if python and not ask(python, "-c", wanted).exit_code:
            return python
    of_vm = _BUILT.search(built)
    return of_vm[1].strip() if of_vm else ""


def _step(check: str, said: Said) -> Row:
    state: State = "failed" if said.exit_code else "passed"
    return Row(check=check, state=state, detail=f"exit {said.exit_code}: {_last_line(said.text)}")


def judged(folder: Path) -> tuple[tuple[Row, ...], bool]:
    """Return the rows of the only run below a folder, and whether its software reached the GPU."""
    runs = sorted(path.parent for path in folder.glob("*/run.json"))
    if not runs:
        return unjudged("the run left no folder"), False
    try:
        run = GpuRun.read(runs[-1])
    except RunFolderError as error:
        row = Row(check="the run folder can be read", state="failed", detail=error.brief)
        return (row, *unjudged("the run folder cannot be read")), False
    return judge(run), has_reached_gpu(run)


def collect(session: Session) -> None:
    """Ask the machine for the state of driver, engines and tools."""
    for name, argv in _STATE.items():
        said = ask(*argv)
        session.write(f"state/{name}", f"$ {' '.join(argv)}\n{said.text}[exit {said.exit_code}]\n")


def table(rows: Sequence[Row]) -> str:
    """Return the rows as lines of text, states first; and how many rows have each."""
    wide, lines, before = max(len(row.state) for row in rows), [], ""
    for row in rows:
        lines.append(f"{row.state:{wide}}  {row.check}")
        if row.detail != before:  # the same reason is said once
            lines.append(f"{'':{wide}}    {row.detail}")
        before = row.detail
    states: tuple[State, ...] = ("passed", "failed", "not possible here")
    counts = (f"{sum(row.state == state for row in rows)} {state}" for state in states)
    return "\n".join((*lines, "", ", ".join(counts)))


_DULL: Final = frozenset(
    ("root", "localhost", "local", "host", "gpu", "docker", "user", "cuda", "nvidia", "python")
)
"""Names of hosts and users that any text has, and that tell nothing."""
_ADDRESS: Final = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d*\.\d)(?!\w)"
    r"|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){2,7}(?::?[0-9a-fA-F]{1,4})+(?![\w:])"
    r"|(?<![\w:])fe80::[0-9a-fA-F:]+"
)
_HARDWARE: Final = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)
_SERIAL: Final = re.compile(r"((?:Serial Number|Username)\s*: ).*")
_SECRET: Final = re.compile(r"(?<=://)[^/\s:@\"]+:[^/\s@\"]+(?=@)")
_CLOUD: Final = re.compile(r"[\w-]+(?:\.[\w-]+)*\.internal\b")
_OF_VERSION: Final = re.compile(r"(?:nvidia|cu\d\d|version|torch|==|-)[^\n]{0,40}$", re.IGNORECASE)
_TIME: Final = re.compile(r"\d{1,2}:\d{2}:\d{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrubber:
    """Takes out of a text what tells whose machine it was."""

    names: tuple[tuple[str, str], ...]

    @classmethod
    def of_this_machine(cls) -> Scrubber:
        """Return one that knows this host, this user, their folders and their addresses."""
        home, host = str(Path.home()), socket.gethostname()
        names = [(str(ROOT), "CLONE"), (home, "HOME"), (f"/home/{getpass.getuser()}", "HOME")]
        names += [(address, "ADDRESS") for address in ask("hostname", "-I").text.split()]
        names += [(word, "ADDRESS") for word in os.environ.get("SSH_CONNECTION", "").split()[::2]]
        names += [(socket.getfqdn(), "HOST"), (host, "HOST"), (host.partition(".")[0], "HOST")]
        names += [(getpass.getuser(), "USER"), (os.environ.get("SUDO_USER", ""), "USER")]
        return cls(names=tuple((name, word) for name, word in names if is_telling(name)))

    def text(self, text: str) -> str:
        """Return the text without names, addresses, serial numbers and passwords."""
        for name, word in self.names:
            text = re.sub(rf"(?<![\w]){re.escape(name)}(?!\w)", word, text)
        text = _SERIAL.sub(r"\1REMOVED", _SECRET.sub("SECRET", _CLOUD.sub("HOST", text)))
        return _ADDRESS.sub(_without_address, _HARDWARE.sub("ADDRESS", text))

    def binary(self, content: bytes) -> bytes:
        """Return a binary file with each name overwritten at its length, so that it stays whole."""
        for name, _ in self.names:
            content = content.replace(name.encode(), b"x" * len(name.encode()))
        return content

    def content(self, content: bytes) -> bytes:
        """Return what a file holds without names; what is packed by gzip is packed again."""
        if content.startswith(b"\x1f\x8b"):
            try:
                plain = zlib.decompress(content, wbits=31)
            except zlib.error:
                return self.binary(content)
            packer = zlib.compressobj(wbits=31)
            return packer.compress(self.content(plain)) + packer.flush()
        try:
            return self.text(content.decode("utf-8")).encode()
        except UnicodeDecodeError:
            return self.binary(content)


def is_telling(name: str) -> bool:
    """Say whether a name tells anything, and is no word that any text has."""
    return len(name) >= 3 and name.lower() not in _DULL and name not in {"/root", "/home/root"}


def _without_address(match: re.Match[str]) -> str:
    """Take an address out; numbers of four parts behind a package's name are versions."""
    text = match[0]
    if ":" not in text:
        before = match.string[max(0, match.start() - 60) : match.start()]
        is_address = all(int(part) < 256 for part in text.split("."))
        is_kept = not is_address or bool(_OF_VERSION.search(before)) or text == "127.0.0.1"
        return text if is_kept else "ADDRESS"
    is_kept = bool(_TIME.fullmatch(text)) or ("::" not in text and text.count(":") < 7)
    return text if is_kept else "ADDRESS"


def pack(folder: Path, archive: Path, scrubber: Scrubber) -> None:
    """Write the archive of a folder, every file and name scrubbed; links are left out."""
    with tarfile.open(archive, "w:gz") as packed:
        for path in _files(folder):
            content = scrubber.content(path.read_bytes())
            name = scrubber.text(str(path.relative_to(folder)))
            entry = tarfile.TarInfo(f"gpu-check/{name}")
            entry.size, entry.mtime = len(content), int(path.stat().st_mtime)
            packed.addfile(entry, io.BytesIO(content))


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path


def exit_code(rows: Sequence[Row], *, has_reached: bool) -> int:
    """Return 3 where the software never reached a GPU, 1 where a check failed, else 0."""
    if not has_reached:
        return NO_GPU
    return FAILED if any(row.state == "failed" for row in rows) else 0


def options_of(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="script/gpu-check",
        description="Prove on this machine's GPU what envcompare says of one; pack the evidence.",
    )
    parser.add_argument("--out", default=".", metavar="DIR", help="where folder and archive go")
    parser.add_argument("--envs", default=",".join(ENVIRONMENTS), metavar="ENV,…", help="to try")
    parser.add_argument("--budget", type=int, default=60, metavar="SECONDS", help="for a cell")
    parser.add_argument("--host-python", default="", metavar="PATH", help="of the host's own stack")
    stacks = ("image,host", "image", "host")
    parser.add_argument("--stacks", default=stacks[0], choices=stacks, help="software to measure")
    parser.add_argument("--rehearse", action="store_true", help="go through all of it on the CPU")
    names = ("--base-image", "--variant", "--python", "--vm-python", "--sif-compression")
    for name in names:
        parser.add_argument(name, default="", help="as in envcompare build")
    options = parser.parse_args(words)
    given = {name: getattr(options, name[2:].replace("-", "_")) for name in names}
    options.pass_on = [word for name, value in given.items() if value for word in (name, value)]
    return options


def main(words: Sequence[str]) -> int:
    """Look, measure, judge, pack; return the exit code."""
    options = options_of(words)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    out = Path(options.out).resolve()
    session = Session(options=options, folder=out / f"gpu-check-{stamp}")
    said = session.envcompare(
        "doctor", "--envs", options.envs, "--format", "json", *options.pass_on
    )
    known = survey(said.text, options.envs.split(","))
    rows, has_reached = [*known.rows], False
    if known.no_gpu:
        rows.append(Row(check="a GPU can be used", state="failed", detail=known.no_gpu))
    unable = "" if known.environments else "no environment is usable"
    unable = unable if options.rehearse else known.no_gpu or unable
    if unable:
        rows += unjudged(unable)
    else:
        rows += measure(session, known.environments)
        checks, has_reached = judged(session.folder / "runs")
        rows += checks
    collect(session)
    session.write("table.txt", table(rows) + "\n")
    session.write("rows.json", msgspec.json.format(msgspec.json.encode(rows)).decode() + "\n")
    archive = out / f"gpu-check-{socket.gethostname()}.tar.gz"
    pack(session.folder, archive, Scrubber.of_this_machine())
    print(table(rows))
    return _farewell(rows, session.folder, archive, has_reached=has_reached)


def _farewell(rows: Sequence[Row], folder: Path, archive: Path, *, has_reached: bool) -> int:
    """Say what the table means, and where the archive goes."""
    code = exit_code(rows, has_reached=has_reached)
    if not any(folder.glob("runs/*/run.json")):
        print(f"\nNothing was measured: the rows above say why (exit {code}).")
    elif not has_reached:
        print(f"\nNo GPU: the software that was measured never computed on one (exit {code}).")
    print(
        f"\n{archive} ({archive.stat().st_size / 1e6:.1f} MB) holds all of it without host name, "
        "user name, IP addresses and home paths. Raw reports of nsys and ncu are compressed by "
        "NVIDIA's tools and may still name paths.\nPlease attach it to a new issue of the project, "
        "whatever the table says, if this machine has an NVIDIA GPU."
    )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
