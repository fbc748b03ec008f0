"""Bubblewrap: only namespaces around a process, on a folder of files, without root.

Its rungs are the ladder between namespaces and Docker. A rung adds one layer to those below it that
the host supports: its own control group, the system call filter of container engines, an overlay as
the root. Each is tried on the host before use, and its effect is verified in /proc.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from envcompare.config import Place, Placing, Rung, Traits
from envcompare.environments import (
    Check,
    Isolation,
    ask,
    judge_start,
    kill_marked,
    marks,
    unusable,
    variables_inside,
)
from envcompare.environments.rootfs import PATH, files_of_workloads, of_given_files
from envcompare.environments.software import show_host, with_proof
from envcompare.errors import Problem, StackError, UnusableError
from envcompare.stack import (
    USER_NAMESPACES,
    Mount,
    Prepared,
    Request,
    Symptom,
    last_line,
    missing_folder,
    missing_image,
    missing_source,
    recognise,
)
from envcompare.stack.storage import host_cache
from envcompare.stack.venv import Layout, make_root
from envcompare.text import Command, CommandResult, spoken
from envcompare.transport import Transport, make_folder, not_understood, shell

_HOST = "/"  # as the folder of an image: only the mounts, which show the host's files
_START = (
    "bwrap",
    *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
    *("--die-with-parent", "--clearenv", "--cap-drop", "ALL"),
)
# The top folders of an image; missing ones are left out. Mount points are made next to them.
_TOPS = ("bin", "etc", "lib", "lib32", "lib64", "libx32", "opt", "sbin", "srv", "usr", "var")
_LIBRARIES = "/nvidia/lib"
_PROBE = r"""
command -v bwrap >/dev/null || exit 127
bwrap --version || exit 4
"$@" --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp /envcompare-probe
exit 0
"""
# Prints the entries of a folder that are links to outside of it.
_OPEN = r"""
folder=$(readlink -f -- "$1") && shift || exit 0
for name in "$@"; do
  [ -e "$folder/$name" ] || [ -L "$folder/$name" ] || continue
  case $(readlink -f -- "$folder/$name") in "$folder"/*) ;; *) echo "/$name" ;; esac
done
"""
_STARTED = re.compile(r"execvp /envcompare-probe: No such file")
_VERSION = re.compile(r"bubblewrap (\d+\.\d+\S*)")
_SYMPTOMS = (
    Symptom(
        pattern=r"No permissions to creat\S* (?:a )?new namespace|user namespace|uid map"
        # AppArmor restricts them like this (Ubuntu 24.04).
        r"|RTM_NEWADDR: Operation not permitted",
        brief="no unprivileged user namespaces",
        hint=USER_NAMESPACES,
    ),
    Symptom(
        pattern=r"Can't mount proc|Can't mount devpts",
        brief="this container or VM does not allow mounting /proc in a namespace",
        hint="run on the host itself",
    ),
    missing_image(pattern=r"Can't find source path ([^\n]+?)/(?:usr|\.): No such file"),
    missing_source(pattern=r"Can't find source path ([^\n]+?): No such file"),
    Symptom(
        pattern=r"Can't (?:mkdir|create file at) ([^\n]+?): Read-only",
        brief="{match} cannot be shown, since the image has a folder above it and not that one",
        hint="use a folder below /home, /data, /mnt or /tmp",
    ),
    missing_folder(pattern=r"Can't chdir to ([^\n]+?): No such file"),
)


_CGROUP, _SECCOMP, _OVERLAY = "cgroup", "seccomp", "overlay"
Layers = tuple[tuple[str, str], ...]
"""Layers around the namespaces from the lowest on: name, and the file or folder it needs."""

# As Docker gives a container one, with all controllers that an ordinary user gets.
_SCOPE = (
    *("systemd-run", "--user", "--scope", "--quiet", "--collect"),
    *("-p", "CPUWeight=100", "-p", "MemoryAccounting=yes", "-p", "TasksAccounting=yes", "--"),
)
# The address of the user's systemd bus, which a session without a login lacks.
_WITH_BUS = 'export XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-/run/user/$(id -u)}"; exec "$@"'
_SCOPE_FAILED = re.compile(r"Failed to (?:start transient scope|connect to (?:user scope )?bus)")
_CGROUP_PROBE = r"""
[ -e /sys/fs/cgroup/cgroup.controllers ] || exit 3
command -v systemd-run >/dev/null || exit 4
cat /proc/self/cgroup
with_bus=$1
shift
sh -c "$with_bus" sh "$@" cat /proc/self/cgroup
"""

_PROFILE = "/usr/share/containers/seccomp.json"
# Compiles the profile for a process without capabilities by libseccomp, with the functions and
# numbers of seccomp.h 2.5. It follows runc (libcontainer/seccomp, `matchCall`): several conditions
# on one argument become one rule each. A call unknown to the library is not in the kernel's table
# of this architecture.
_COMPILE = r"""
import ctypes, hashlib, json, os, platform, sys

class Condition(ctypes.Structure):
    _fields_ = [("index", ctypes.c_uint), ("op", ctypes.c_int),
                ("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]

COMPARE = ("", "NE", "LT", "LE", "EQ", "GE", "GT", "MASKED_EQ")
GO = {"x86_64": "amd64", "aarch64": "arm64", "i686": "x86", "armv7l": "arm"}
profile = json.load(open(sys.argv[1]))
library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
library.seccomp_init.restype = ctypes.c_void_p

def call(name, *arguments):
    code = getattr(library, name)(*arguments)
    if code < 0:
        sys.exit("%s: %s" % (name, os.strerror(-code)))
    return code

def action(name, number):
    values = {"ALLOW": 0x7FFF0000, "ERRNO": 0x00050000 | (1 if number is None else number),
              "LOG": 0x7FFC0000, "KILL": 0, "KILL_THREAD": 0, "KILL_PROCESS": 0x80000000}
    return ctypes.c_uint32(values[name[len("SCMP_ACT_"):]])

def condition(given):
    op = COMPARE.index(given["op"][len("SCMP_CMP_"):])
    return Condition(given["index"], op, given["value"], given.get("valueTwo", 0))

usual = action(profile["defaultAction"], profile.get("defaultErrnoRet"))
context = ctypes.c_void_p(library.seccomp_init(usual))
machine = GO.get(platform.machine(), platform.machine())
for entry in profile.get("archMap", ()):
    if entry["architecture"] == "SCMP_ARCH_" + platform.machine().upper():
        for name in entry["subArchitectures"]:
            token = library.seccomp_arch_resolve_name(name[len("SCMP_ARCH_"):].lower().encode())
            call("seccomp_arch_add", context, ctypes.c_uint32(token))
rules = 0
for rule in profile["syscalls"]:
    wanted = rule.get("includes") or {}
    arches = wanted.get("arches") or [machine]
    if wanted.get("caps") or machine not in arches:
        continue
    done = action(rule["action"], rule.get("errnoRet"))
    if done.value == usual.value:
        continue
    given = rule.get("args") or []
    alone = len({one["index"] for one in given}) < len(given)
    for name in rule["names"]:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number == -1:
            continue
        for one in [[each] for each in given] if alone else [given]:
            conditions = (Condition * len(one))(*map(condition, one))
            call("seccomp_rule_add_array", context, done, number, len(one), conditions)
            rules += 1
partial = "%s/seccomp-%012x.partial" % (sys.argv[2], os.getpid())
with open(partial, "wb") as file:
    call("seccomp_export_bpf", context, file.fileno())
path = "%s/seccomp-%s" % (sys.argv[2], hashlib.sha256(open(partial, "rb").read()).hexdigest())
os.replace(partial, path)
print(path, rules)
"""
_COMPILED = re.compile(r"(/.+/seccomp-([0-9a-f]{64})) (\d+)")
# $1: the compiler of the profile $2; then the start in namespaces.
_SECCOMP_PROBE = r"""
compile=$1 profile=$2
shift 2
[ -e "$profile" ] || exit 3
folder=$(mktemp -d) || exit 5
trap 'rm -rf "$folder"' EXIT
made=$(python3 -I -c "$compile" "$profile" "$folder") || exit 6
exec 9<"${made%% *}"
"$@" --seccomp 9 --ro-bind / / --dev /dev --proc /proc grep -E '^Seccomp:' /proc/self/status
"""
_WITH_FILTER = 'exec 9<"$1" && shift && exec "$@"'
_OVERLAY_PROBE = r"""
folder=$(mktemp -d) || exit 5
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/dev" "$folder/proc"
"$@" --overlay-src "$folder" --tmp-overlay / --dev /dev --proc /proc /envcompare-probe
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubblewrap:
    """Runs the command in its own namespaces: users, mounts, processes, IPC, network, host name.

    It has no cgroup, no seccomp filter and no overlay, so it shows the cost of namespaces alone.
    """

    name: ClassVar[str] = "bubblewrap"
    traits: ClassVar[Traits] = Traits(
        aliases=("bwrap",),
        reference="file",
        software="files",
        has_network=False,
        counters="root",
        rung=Rung(2, "namespaces", "namespaces"),
        places={
            "image": Placing(refusal="its image is a folder of the disk, as the place `bind` is"),
            "overlay": Placing(refusal="it lays no overlay over the files"),
            "tmpfs": Placing(folder="/dev/shm/envcompare-data"),  # noqa: S108 — inside
            "sif": Placing(refusal="it runs no SIF"),
        },
    )
    engine: ClassVar[None] = None

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return a `bwrap` that shows the mounts and the files of the image, and takes no variable.

        The root is a tmpfs that holds the mount points. `env` sets the variables inside, so a
        missing program ends with 127.
        """
        return _start(self.name, command, isolation)

    def engine_options(self, isolation: Isolation) -> tuple[str, ...]:  # noqa: ARG002 — all alike
        """Return the namespaces."""
        return _START[1:]

    def check(self, transport: Transport) -> Check:
        """Check whether this user can start a program in namespaces."""
        result = _probe(transport, _PROBE, *_START)
        if isinstance(result, Check):
            return result
        if result.exit_code == 127:
            return unusable("bwrap is not installed", "install the package bubblewrap")
        match = _VERSION.match(result.stdout)
        if match is None:
            return unusable(
                f"cannot read the version of bubblewrap; it printed: {spoken(result.stdout)}",
                "bwrap --version there should print only a version",
            )
        return judge_start(result.stderr, match[1], begun=_STARTED, complaint=_complaint)

    def check_gpu(self, transport: Transport, driver: Check) -> Check:  # noqa: ARG002 — the host was asked
        """Check the driver; its devices and libraries are shown unchanged."""
        return driver

    def prepare(self, request: Request) -> Prepared:
        """Return the files of the workload image, a user's folder, or the host's own files."""
        if request.is_host_stack:
            return _of_host(request)
        if request.reference:
            _require_closed(request.transport, request.reference)
            return of_given_files(self, request)
        prepared = files_of_workloads(request)
        _require_closed(request.transport, prepared.reference)
        return with_proof(self, request, prepared)

    def explain(self, exit_code: int, stderr: str) -> Problem | None:
        """Return the complaint of `bwrap`, which ends with 1."""
        return _complaint(stderr) if exit_code == 1 and stderr.startswith("bwrap: ") else None

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Kill the leftovers of a run or a worker; its namespaces and mounts end with it."""
        return kill_marked(transport, self.name, run_id=run_id, worker=worker)


def _start(
    name: str,
    command: Command,
    isolation: Isolation,
    *,
    options: tuple[str, ...] = (),
    is_overlay: bool = False,
) -> Command:
    """Return the `bwrap` of an environment of that name, with further options.

    With an overlay, the image's files are the root and writes go to a tmpfs.
    """
    variables = (PATH, ("USER", "envcompare"), *variables_inside(name, command, isolation))
    if isolation.gpu.libraries:  # the driver's come first
        others = dict(variables).get("LD_LIBRARY_PATH", "")
        folders = ":".join(filter(None, (_LIBRARIES, others)))
        variables = (*variables, ("LD_LIBRARY_PATH", folders))
    argv = (
        *_START,
        *options,
        *_root(isolation.reference, is_overlay=is_overlay),
        *(("--bind", isolation.scratch, "/tmp") if isolation.scratch else ()),  # noqa: S108 — inside
        *(
            word
            for mount in isolation.mounts
            for word in ("--ro-bind" if mount.is_read_only else "--bind", mount.path, mount.path)
        ),
        *(("--bind", isolation.scratch, isolation.scratch) if isolation.scratch else ()),
        *(word for path in isolation.gpu.devices for word in ("--dev-bind", path, path)),
        *(
            word
            for library, path in isolation.gpu.libraries
            for word in ("--ro-bind", path, f"{_LIBRARIES}/{library}")
        ),
        *("--chdir", command.cwd or isolation.scratch or "/", "env"),
        *(f"{name}={value}" for name, value in variables),
        *command.argv,
    )
    return Command(argv=argv, env=marks(name, isolation))


def _of_host(request: Request) -> Prepared:
    """Return the host's interpreter; links such as /bin are shown as folders."""
    links: list[str] = []

    def take_links(layout: Layout) -> str:
        links.extend(path for path, _ in layout.links)
        return _HOST

    prepared = show_host(request, take_links)
    return replace(prepared, mounts=(*prepared.mounts, *(Mount(path=path) for path in links)))


def _complaint(stderr: str) -> Problem:
    unknown = Problem(brief=f"bwrap could not start the process: {last_line(stderr)}")
    return recognise(_SYMPTOMS, stderr) or unknown


def _root(folder: str, *, is_overlay: bool) -> tuple[str, ...]:
    kernel = ("--dev", "/dev", "--proc", "/proc", "--ro-bind", "/sys", "/sys")
    if is_overlay:
        # its end distinguishes complaints about an image from those about mounts
        return ("--overlay-src", f"{folder}/.", "--tmp-overlay", "/", *kernel)
    empty = ("--tmpfs", "/root", "--tmpfs", "/tmp")  # noqa: S108 - inside
    if folder == _HOST:
        return (*kernel, *empty)
    # Other folders may be missing in an image, while a missing /usr means that the image is.
    tops = (
        word
        for top in _TOPS
        if top != "usr"
        for word in ("--ro-bind-try", f"{folder}/{top}", f"/{top}")
    )
    return ("--ro-bind", f"{folder}/usr", "/usr", *tops, *kernel, *empty)


def _require_closed(transport: Transport, folder: str) -> None:
    """Raise StackError if a link at the top of an image leads out of it.

    bwrap follows it on the host, and would show its target.
    """
    links = shell(transport, _OPEN, folder, *_TOPS).stdout.strip()
    if links:
        raise StackError(
            f"bubblewrap cannot show the image on {transport.name}",
            details=f"{links} leads out of it",
            hint="make the link a relative one in the image",
        )


_BUBBLEWRAP = Bubblewrap()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayeredBubblewrap:
    """Runs the command as `bubblewrap` does, with its own layer and those of the rungs below.

    A lower layer that the host does not support is missing in this rung and all above it.
    """

    layer: str
    rung: Rung
    engine: ClassVar[None] = None

    @property
    def name(self) -> str:
        """Return the name of the wrapped environment, with the name of the layer."""
        return f"{_BUBBLEWRAP.name}-{self.layer}"

    @property
    def traits(self) -> Traits:
        """Return the traits of `bubblewrap`, on another rung."""
        plain = _BUBBLEWRAP.traits
        places: dict[Place, Placing] = {**plain.places}
        if self.layer == _OVERLAY:
            places["overlay"] = Placing(folder="/var/tmp/envcompare-data")  # noqa: S108 — inside
        return replace(plain, aliases=(), rung=self.rung, places=places)

    def wrap(self, command: Command, isolation: Isolation) -> Command:
        """Return the `bwrap` of `bubblewrap` with the layers around it."""
        layers = dict(isolation.layers)
        filtered = ("--seccomp", "9") if _SECCOMP in layers else ()
        inner = _start(
            self.name, command, isolation, options=filtered, is_overlay=_OVERLAY in layers
        )
        argv = inner.argv
        if _SECCOMP in layers:
            argv = ("sh", "-c", _WITH_FILTER, "sh", layers[_SECCOMP], *argv)
        if _CGROUP in layers:
            argv = ("sh", "-c", _WITH_BUS, "sh", *_SCOPE, *argv)
        return replace(inner, argv=argv)

    def engine_options(self, isolation: Isolation) -> tuple[str, ...]:
        """Return the namespaces, and the options that make the layers."""
        words = {_CGROUP: _SCOPE, _SECCOMP: ("--seccomp",), _OVERLAY: ("--tmp-overlay", "/")}
        made = (word for layer, _ in isolation.layers for word in words[layer])
        return (*_BUBBLEWRAP.engine_options(isolation), *made)

    def check(self, transport: Transport) -> Check:
        """Check whether this user can start a program in namespaces and in the layer."""
        below = _BUBBLEWRAP.check(transport)
        return below if below.problem else _PROBES[self.layer](transport, below)

    def check_gpu(self, transport: Transport, driver: Check) -> Check:
        """Return the check of `bubblewrap`."""
        return _BUBBLEWRAP.check_gpu(transport, driver)

    def prepare(self, request: Request) -> Prepared:
        """Return the software of `bubblewrap`; the host's own is shown in an empty root.

        Raises as `bubblewrap` does.
        """
        layers, identity = self.find_layers(request.transport)
        if request.is_host_stack and self.layer == _OVERLAY:
            prepared = show_host(request, lambda layout: make_root(request.transport, layout))
        else:
            prepared = _BUBBLEWRAP.prepare(request)
        rungs = ("layers", ", ".join(("namespaces", *(name for name, _ in layers))))
        identity = (*prepared.identity, rungs, *identity)
        return replace(prepared, layers=layers, identity=identity)

    def find_layers(self, transport: Transport) -> tuple[Layers, tuple[tuple[str, str], ...]]:
        """Return the layers up to its own that the host supports, and a description of the filter.

        Raises UnusableError if its own is not supported, or its filter cannot be compiled.
        """
        below = _BUBBLEWRAP.check(transport)
        order = tuple(_PROBES)
        wanted = order[: order.index(self.layer) + 1]
        checks = {layer: _PROBES[layer](transport, below) for layer in wanted}
        own = checks[self.layer]
        if not own.is_usable:
            brief = f"{self.name} is not usable on {transport.name}"
            raise UnusableError(brief, details=own.reason, hint=own.hint)
        usable = [layer for layer, check in checks.items() if check.is_usable]
        if _SECCOMP not in usable:
            return tuple((layer, "") for layer in usable), ()
        cache = host_cache(transport)
        make_folder(transport, cache)
        output = shell(transport, 'python3 -I -c "$@"', _COMPILE, _PROFILE, cache).stdout
        match = _COMPILED.match(output)
        if match is None:
            hint = f"envcompare doctor tries to compile {_PROFILE} there"
            raise not_understood(transport, "the seccomp filter", output, hint=hint)
        identity = (
            ("seccomp.profile", _PROFILE),
            ("seccomp.sha256", match[2]),
            ("seccomp.rules", match[3]),
        )
        return tuple((layer, match[1] if layer == _SECCOMP else "") for layer in usable), identity

    def explain(self, exit_code: int, stderr: str) -> Problem | None:
        """Return the complaint of `bwrap`, or of the user's systemd, which also ends with 1."""
        if exit_code == 1 and _SCOPE_FAILED.match(stderr):
            return Problem(brief=f"no control group was made: {last_line(stderr)}")
        return _BUBBLEWRAP.explain(exit_code, stderr)

    def sweep(self, transport: Transport, run_id: str, *, worker: str = "") -> int:
        """Kill leftovers of a run or a worker, with namespaces, mounts and control group."""
        return kill_marked(transport, self.name, run_id=run_id, worker=worker)


def _check_cgroup(transport: Transport, below: Check) -> Check:
    """Check whether the user's systemd puts a process into its own control group."""
    result = _probe(transport, _CGROUP_PROBE, _WITH_BUS, *_SCOPE)
    if isinstance(result, Check):
        return result
    if result.exit_code == 3:
        return unusable(
            "this host has control groups of version 1, in which an ordinary user makes none",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )
    if result.exit_code == 4:
        return unusable("systemd-run is not installed", "install systemd")
    # The hierarchy of version 2 is the line that begins with `0::` (cgroups(7)).
    groups = [line for line in result.stdout.splitlines() if line.startswith("0::")]
    if result.succeeded and len(groups) == 2 and groups[0] != groups[1]:
        return below
    return unusable(
        f"systemd-run --user --scope made no control group: {last_line(result.stderr)}",
        'log in with a session of systemd, or: sudo loginctl enable-linger "$USER"',
    )


def _check_seccomp(transport: Transport, below: Check) -> Check:
    """Check whether the profile compiles on the host, and filters a process."""
    result = _probe(transport, _SECCOMP_PROBE, _COMPILE, _PROFILE, *_START)
    if isinstance(result, Check):
        return result
    if result.exit_code == 3:
        return unusable(
            f"the profile {_PROFILE} is not on the host",
            "install golang-github-containers-common (Debian, Ubuntu) or containers-common",
        )
    if result.exit_code == 6:
        return unusable(
            f"the profile {_PROFILE} cannot be compiled there: {last_line(result.stderr)}",
            "it needs python3 and libseccomp.so.2 (Debian, Ubuntu: libseccomp2)",
        )
    # 2 is the mode of a filter (proc_pid_status(5)).
    if result.stdout.split() == ["Seccomp:", "2"]:
        return below
    return unusable(f"bwrap did not load the filter: {last_line(result.stderr)}")


def _check_overlay(transport: Transport, below: Check) -> Check:
    result = _probe(transport, _OVERLAY_PROBE, *_START)
    if isinstance(result, Check):
        return result
    if _STARTED.search(result.stderr):
        return below
    if "Unknown option --overlay-src" in result.stderr:
        return unusable(
            f"bubblewrap {below.version} mounts no overlay", "install bubblewrap 0.11 or later"
        )
    return unusable(
        f"bwrap could not mount an overlay: {last_line(result.stderr)}",
        "it needs Linux 5.11 or later, and a bwrap that is not setuid",
    )


def _probe(transport: Transport, script: str, *words: str) -> CommandResult | Check:
    hint = "start any program by hand there with bwrap, and see where it waits"
    command = Command(argv=("sh", "-c", script, "sh", *words))
    return ask(transport, command, what="bwrap", hint=hint)


_PROBES: dict[str, Callable[[Transport, Check], Check]] = {
    _CGROUP: _check_cgroup,
    _SECCOMP: _check_seccomp,
    _OVERLAY: _check_overlay,
}
RUNGS = (
    LayeredBubblewrap(layer=_CGROUP, rung=Rung(3, "+ cgroup", "cgroup")),
    LayeredBubblewrap(layer=_SECCOMP, rung=Rung(4, "+ seccomp", "seccomp")),
    LayeredBubblewrap(layer=_OVERLAY, rung=Rung(5, "+ overlay root", "overlay")),
)
"""From the lowest on; below them are a plain process and namespaces, above them Docker."""
