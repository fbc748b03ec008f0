"""The faults that trials inflict, by name; each hurts a run, and lets it come to an end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from faulttrials import LIMIT_S, PRECIOUS, Broken, Trial, kill
from lab import KILL_LOGINS, START_ENGINE, STOP_ENGINE, docker_client

CALM_LINES = 95  # events and samples of a calm run, about
FIRST, LAST = slice(0, 1), slice(-1, None)
_STARVE = r"""
if [ -d /sys/fs/cgroup/memory ]; then group=/sys/fs/cgroup/memory/envcompare-fault
else group=/sys/fs/cgroup/envcompare-fault; fi
mkdir -p $group
for file in memory.limit_in_bytes memory.max; do
  [ ! -e $group/$file ] || echo 16384 >$group/$file
done
for pid in "$@"; do echo $pid >$group/cgroup.procs; done
:
"""
_FEED = (
    "rmdir /sys/fs/cgroup/memory/envcompare-fault /sys/fs/cgroup/envcompare-fault 2>/dev/null; :"
)
_RUNS = "/home/bench/.cache/envcompare/runs"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_CHANGE_BOOT = (
    f'cat /proc/sys/kernel/random/uuid >/tmp/boot_id; mount --bind /tmp/boot_id "{_BOOT_ID}"'
)

Hurt = Callable[[Trial], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is done to a run."""

    hurt: Hurt
    says: str  # in the table
    count: int = 1  # how often in the long run
    hosts: int = 1
    needs_sif: bool = False


def kill_client(trial: Trial) -> None:
    """Kill the client at a random point, from its start to its end."""
    process = trial.start()
    trial.reach(trial.draw.randrange(CALM_LINES), process)
    time.sleep(trial.draw.random())
    kill(process)
    trial.mark()


def kill_logins(trial: Trial) -> None:
    """Kill all connections of the login while steps run."""
    with _hurting(trial):
        trial.host.as_root("sh", "-c", KILL_LOGINS)
        trial.mark()
    trial.require("host-lost")


def cut_network(trial: Trial, *, seconds: float = 12.0) -> None:
    """Let no packet of SSH through for a while."""
    with _hurting(trial):
        with trial.host.cut():
            time.sleep(seconds)
        trial.mark()


def cut_behind_jump(trial: Trial) -> None:
    """Cut a host that is reached through another one."""
    config = trial.folder / "ssh_config"
    host, jump = trial.hosts
    text = host.ssh_config.read_text()
    aliased = text.replace(f"Host {host.alias}\n", f"Host {host.alias}\n  ProxyJump {jump.alias}\n")
    config.write_text(aliased)
    trial.hosts = (host,)
    trial.variables["ENVCOMPARE_SSH_CONFIG"] = str(config)
    cut_network(trial, seconds=30.0)


def kill_engine(trial: Trial) -> None:
    """Kill the Docker Engine of the host, and start it again."""
    _expect_failure(trial)
    trial.exit_codes = (0, 3, 4)
    with _hurting(trial):
        trial.host.as_root("sh", "-c", STOP_ENGINE + START_ENGINE)
        trial.mark("mine")


def kill_apptainer(trial: Trial) -> None:
    """Kill the process of Apptainer that holds a container."""
    _expect_failure(trial)
    with _hurting(trial):
        trial.host.as_root("sh", "-c", "pkill -KILL -u bench -f '^Apptainer|starter' || :")
        trial.mark("sif")
    trial.require("arm-failed")


def stop_worker(trial: Trial, *, arm: str) -> None:
    """Stop a worker with SIGSTOP: it is given up after its limit, and must not stay."""
    _expect_failure(trial)
    with _hurting(trial):
        trial.hurt(arm, 'kill -STOP "$@"')
        trial.mark(arm)
    trial.require("arm-failed")


def starve_worker(trial: Trial, *, arm: str) -> None:
    """Let a worker be killed by the kernel at a limit of its memory."""
    _expect_failure(trial)
    with _hurting(trial):
        trial.hurt(arm, _STARVE, which=LAST)
        trial.mark(arm)
    trial.host.as_root("sh", "-c", _FEED)
    trial.require("arm-failed")


def misbehave(trial: Trial, *, deed: str, which: slice = FIRST, arm: str = "mine") -> None:
    """Let a worker do its deed once."""
    _expect_failure(trial)
    trial.deed = deed
    with _hurting(trial):
        trial.hurt(arm, 'kill -USR1 "$@"', which=which)
        trial.mark(arm)
    if deed != "links":
        trial.require("arm-failed")


def plant_links(trial: Trial, *, arm: str) -> None:
    """Let a worker leave links in its scratch folder; what they lead to must stay."""
    trial.host.as_root(
        "sh", "-c", f"mkdir -p {PRECIOUS} && touch {PRECIOUS}/file; chmod -R 777 {PRECIOUS}"
    )
    misbehave(trial, deed="links", which=LAST, arm=arm)
    if trial.host.as_root("ls", PRECIOUS).split() != ["file"]:
        raise Broken("what a link led to was removed")


def fill_shm(trial: Trial) -> None:
    """Fill /dev/shm of the host and of a container."""
    _expect_failure(trial)
    fill = (
        'for pid in "$@"; do dd if=/dev/zero of=/proc/$pid/root/dev/shm/fill 2>/dev/null; done; :'
    )
    try:
        with _hurting(trial):
            trial.hurt(
                "mine", f"{fill}; dd if=/dev/zero of=/dev/shm/fill 2>/dev/null; :", which=LAST
            )
            trial.mark("mine")
    finally:
        trial.host.as_root("rm", "-f", "/dev/shm/fill")


def fill_host(trial: Trial) -> None:
    """Fill the disk on which the host keeps runs."""
    _expect_failure(trial)
    mount = f"mkdir -p {_RUNS}; mount -t tmpfs -o size=16m,uid=1000,gid=1000,mode=700 tmpfs {_RUNS}"
    trial.host.as_root("sh", "-c", mount)
    try:
        with _hurting(trial):
            trial.host.as_root("sh", "-c", f"dd if=/dev/zero of={_RUNS}/fill 2>/dev/null; :")
        trial.host.as_root("rm", "-f", f"{_RUNS}/fill")
        trial.mark()
        trial.resume()
    finally:
        trial.end()
        trial.host.as_root("sh", "-c", f"umount -l {_RUNS}")


def fill_client(trial: Trial) -> None:
    """Fill the disk of the run folder."""
    trial.out.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(trial.out)], check=True)
    trial.mounts.append(trial.out)
    with _hurting(trial):
        fill = trial.out / ".fill"
        subprocess.run(
            ["dd", "if=/dev/zero", f"of={fill}", "bs=512"], check=False, capture_output=True
        )
    fill.unlink()
    trial.mark()


def resume_at_another_time(trial: Trial, *, hours: int) -> None:
    """Kill the client, and resume the run where the wall clock of the client is another."""
    process = trial.start()
    trial.reach_block(process)
    kill(process)
    _set_clock(trial, str(3600 * hours))
    trial.mark()


def step_clock(trial: Trial, *, hours: int) -> None:
    """Let the wall clock of the client alone jump while steps run."""
    _set_clock(trial, "0")
    with _hurting(trial):
        _set_clock(trial, str(3600 * hours))
        trial.mark()


def _set_clock(trial: Trial, seconds: str) -> None:
    """Let the wall clock of the client be off, in Python itself.

    Under libfaketime 0.9.10 `time.sleep` of Python 3.11 raises EINVAL.
    """
    clock = trial.folder / "clock"
    clock.write_text(seconds)
    trial.prelude = (
        "import time, pathlib; now = time.time; "
        f"time.time = lambda: now() + int(pathlib.Path({str(clock)!r}).read_text() or 0); "
    )


def reboot(trial: Trial, *, is_new_boot: bool) -> None:
    """Restart the host: its connections, its engine and all its processes end."""
    with _hurting(trial):
        subprocess.run(
            [docker_client(), "restart", "-t", "1", trial.host.alias],
            check=True,
            capture_output=True,
        )
        if is_new_boot:
            trial.host.as_root("sh", "-c", _CHANGE_BOOT)
            # what covers a part of /proc keeps Apptainer from mounting a /proc of its own
            trial.mounts_there.append(_BOOT_ID)
        trial.mark()
    trial.require("host-lost")


def two_clients(trial: Trial) -> None:
    """Start a second run on the host while the first one measures."""
    other = Trial(
        hosts=trial.hosts, folder=trial.folder / "other", draw=trial.draw, arms=trial.arms
    )
    other.folder.mkdir()
    try:
        with _hurting(trial):
            second = other.start()
            trial.mark()
        other.finish(second)
        other.check()
    finally:
        other.end()


def resume_twice(trial: Trial) -> None:
    """Resume a run that was killed with two clients at once."""
    process = trial.start()
    trial.reach_block(process)
    kill(process)
    time.sleep(2)
    trial.mark()
    words = ("run", "--resume", str(trial.run))
    clients = [trial.start(*words), trial.start(*words)]
    for client in clients:
        trial.finish(client)


def clean_meanwhile(trial: Trial) -> None:
    """Ask for a clean-up of the run and of the host while it measures: both are refused.

    A run that has left its host by then is none that measures.
    """
    with _hurting(trial):
        words = ("clean", "--run", str(trial.run)), ("clean", "--hosts", trial.host.alias)
        trial.mark()
        codes = [trial.finish(client) for client in [trial.start(*each) for each in words]]
        has_left = '"run-ended"' in (trial.run / "events.jsonl").read_text()
        if codes != [3, 3] and not has_left:
            raise Broken(f"clean ended with {codes} while the run was live")


def _expect_failure(trial: Trial) -> None:
    """Let a worker fail soon; that it did stays in the run, and in the exit code."""
    trial.exit_codes, trial.block_limit_s = (0, 4), 8.0


@contextmanager
def _hurting(trial: Trial) -> Iterator[subprocess.Popen[str]]:
    """Hurt a run in a block, and let its client come to its end."""
    process = trial.start()
    trial.reach_block(process)
    if process.poll() is not None:
        raise Broken(f"the run ended before it was hurt: {trial.said()}")
    yield process
    trial.finish(process, limit_s=LIMIT_S)


def _in_each(hurt: Callable[..., None], says: str, **parts: object) -> dict[str, Fault]:
    """Return a fault for each environment."""
    arms = {"vm": "vm-host", "docker": "mine", "singularity": "sif"}
    return {
        environment: Fault(
            hurt=partial(hurt, arm=arm, **parts),
            says=f"{says} ({environment})",
            needs_sif=arm == "sif",
            count=3,
        )
        for environment, arm in arms.items()
    }


def _named(prefix: str, faults: dict[str, Fault]) -> dict[str, Fault]:
    return {f"{prefix}-{name}": fault for name, fault in faults.items()}


FAULTS: dict[str, Fault] = {
    "client-killed": Fault(
        hurt=kill_client, says="`kill -9` of the client at a random point", count=50
    ),
    "sshd-killed": Fault(hurt=kill_logins, says="sshd killed in a block", count=5),
    "network-cut": Fault(hurt=cut_network, says="network cut for 12 s", count=3),
    "network-cut-behind-jump": Fault(
        hurt=cut_behind_jump, says="network cut for 30 s behind a jump host", count=3, hosts=2
    ),
    "engine-killed": Fault(hurt=kill_engine, says="dockerd killed and started again", count=3),
    "apptainer-killed": Fault(
        hurt=kill_apptainer, says="Apptainer's process killed", count=3, needs_sif=True
    ),
    **_named("worker-stopped", _in_each(stop_worker, "worker stopped with SIGSTOP")),
    **_named("worker-starved", _in_each(starve_worker, "worker killed at a limit of its memory")),
    **_named("worker-stuck", _in_each(misbehave, "worker stuck in C", deed="stuck", which=LAST)),
    "shm-full": Fault(
        hurt=fill_shm, says="`/dev/shm` full on the host and in a container", count=3
    ),
    "host-disk-full": Fault(hurt=fill_host, says="disk full on the host", count=3),
    "client-disk-full": Fault(hurt=fill_client, says="disk full on the client", count=3),
    "clock-forward": Fault(
        hurt=partial(step_clock, hours=1), says="clock of the client jumps an hour ahead", count=3
    ),
    "clock-back": Fault(
        hurt=partial(step_clock, hours=-1), says="clock of the client jumps an hour back", count=3
    ),
    "resumed-later": Fault(
        hurt=partial(resume_at_another_time, hours=1),
        says="resumed by a client whose clock is an hour ahead",
        count=3,
    ),
    "resumed-earlier": Fault(
        hurt=partial(resume_at_another_time, hours=-1),
        says="resumed by a client whose clock is an hour back",
        count=3,
    ),
    "host-restarted": Fault(
        hurt=partial(reboot, is_new_boot=False), says="host restarted", count=3
    ),
    "host-rebooted": Fault(
        hurt=partial(reboot, is_new_boot=True), says="host restarted, with another boot ID", count=3
    ),
    "two-clients": Fault(hurt=two_clients, says="two clients on one host", count=3),
    "resumed-twice": Fault(hurt=resume_twice, says="two `--resume` of one run", count=3),
    "cleaned-meanwhile": Fault(hurt=clean_meanwhile, says="`clean` during a run", count=3),
    "answers-endless-line": Fault(
        hurt=partial(misbehave, deed="endless"), says="worker answers with an endless line", count=3
    ),
    "answers-million-lines": Fault(
        hurt=partial(misbehave, deed="million"), says="worker answers with 10^6 lines", count=3
    ),
    "answers-nan": Fault(
        hurt=partial(misbehave, deed="nan"), says="worker answers with NaN", count=3
    ),
    "answers-other-operation": Fault(
        hurt=partial(misbehave, deed="operation"), says="worker answers another operation", count=3
    ),
    "answers-paths": Fault(
        hurt=partial(misbehave, deed="paths"),
        says="worker answers with a path in every text",
        count=3,
    ),
    **_named("links-planted", _in_each(plant_links, "worker leaves links in its scratch folder")),
}
SHORT = ("sshd-killed", "worker-starved-vm", "answers-endless-line", "resumed-twice")
