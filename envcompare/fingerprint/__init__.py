"""Compare what two workers found around themselves: what differs, who feels it, what it means.

This file has the table of facts: what is known of a fact from its key alone. *Identity*
distinguishes arms, *host* cannot differ on one host, *varied* is what an environment does on
purpose, a *confounder* is software or a setting that can change the speed by itself, and a
*possible influence* is everything else.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from functools import cache
from typing import Any, Final, Literal

from envcompare.run_folder.records import FactClass

CLASS_ORDER: Final[tuple[FactClass, ...]] = (
    "confounder", "possible-influence", "host", "varied", "identity",
)  # fmt: skip

EXPLAINING: Final[tuple[FactClass, ...]] = CLASS_ORDER[:2]
"""What may explain a difference in speed, apart from what an environment does on purpose."""

MEANINGS: Final[dict[FactClass, str]] = {
    "identity": "Identifies the arm; it cannot change the speed.",
    "host": "Cannot differ on one host: this arm sees something else.",
    "varied": "The environment does this on purpose; it is part of what is compared.",
    "confounder": "A difference in speed is then real, but its cause cannot be determined.",
    "possible-influence": "It may change the speed; whether it does here is unknown.",
}
READ: Final = "uid"
"""A fact of every process that was read."""
NOT_SET: Final = "not set"
INSTALLED_PARTS: Final = "site_packages.parts"
"""Packages, and files of no package, each with its digest."""
CHANGED_FILES: Final = "site_packages.changed"
"""The files in which arms differ, each after its package; reported with the packages."""
PACKAGE_FOLDERS: Final = "packages.folders"
"""Where the Python of a line finds them, the first first; reported with the packages."""
INTERPOSED: Final = "preload.replaces"
"""Libraries loaded before the C library, each with the functions that it replaces."""
MODULES: Final = "python.modules"
"""The imported modules of the standard library, each with its digest."""
THROTTLED: Final = "cgroup.throttled_ns"
"""How long a quota stopped an inspected command; reported with the quota."""
START_FILES: Final = "python.start_files"
"""The .pth and sitecustomize files that Python runs as it starts, each with its digest."""
SCRIPT_START: Final = "script.start_ms"
"""How long a script took from its start to its first measured step, one start."""
CONTAINER_START: Final = "container.start_ms"
"""From the start of a line to that of the first process in its container."""
GIVEN_IMAGE: Final = "given.image"
GIVEN_OPTIONS: Final = "given.options"
OVERWRITTEN: Final[dict[str, str]] = {
    "env.MKL_NUM_THREADS": "threads.mkl",
    "env.OMP_NUM_THREADS": "threads.omp",
    "env.OPENBLAS_NUM_THREADS": "threads.openblas",
    "env.PYTHONDONTWRITEBYTECODE": "",
}
"""Variables that envcompare overwrites, each with the fact of the value in effect."""
OWN_PACKAGES: Final = frozenset({"torch", "torchvision", "numpy"})
"""Packages that have their own facts."""
LOADED: Final = ("loaded_libraries", "loaded_packages")

Sign = Literal[
    "allocator", "byte code", "compiler", "cpu set", "every program", "installed", "interposed",
    "library path", "lock", "memory", "outside", "package", "preload", "priority", "python",
    "quota",
]  # fmt: skip
"""What shows whether a difference affects a workload, other than a library that it loads."""
Way = Literal[
    "threads", "thread variable", "variable", "gpu", "limit", "code", "start", "options",
    "preload file",
]  # fmt: skip
"""How to make a fact equal in every arm; None: by other software."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library that reads a setting, or is the fact itself: its name and file prefixes."""

    name: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Purpose:
    """What an environment does on purpose, what it affects, and how to separate its effect.

    `option` is the option of `docker run` that changes it.
    """

    what: str
    felt_by: str
    remedy: str = ""
    option: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known of a fact; most fields also hold for the facts below its key."""

    key: str
    fact_class: FactClass | None = None
    name: str = ""
    _: KW_ONLY
    below: str = ""  # the name of a fact below the key, with {} for the rest of its key
    is_plural: bool | None = None  # of the name
    is_whole: bool | None = None  # its values are never cut in a sentence
    is_absent: bool | None = None  # None says that it is not there, and not that it is not known
    missing: str = ""  # why there is no value
    group: tuple[str, ...] = ()  # facts with one cause; only the first that differs is reported
    seen_by: Library | Sign | None = None
    is_limit: bool = False  # a possible influence; a confounder once an effect was observed
    of_python: bool | None = None  # matters only to the interpreter of an arm
    way: Way | None = None
    with_what: str = ""  # what limits or starts it
    purpose: Purpose | None = None
    restore: str = ""  # how to undo a change since the run began; {before} is the original value


_OPENMP: Final = ("libgomp", "libiomp", "libomp")
_OPENBLAS: Final = Library("OpenBLAS", ("libopenblas", "libscipy_openblas"))
# The wheels of PyTorch hold MKL and oneDNN inside libtorch_cpu.
_MKL: Final = Library("MKL", ("libmkl", "libtorch_cpu"))
_ONEDNN: Final = Library("oneDNN", ("libdnnl", "libtorch_cpu"))
_RUNTIME: Final = Library("an OpenMP runtime", _OPENMP)
THREADED: Final = (*_OPENMP, *_OPENBLAS.files, *_MKL.files)
"""File prefixes of libraries that run their own threads."""
_CUDNN: Final = Library("cuDNN", ("libcudnn",))
_CUBLAS: Final = Library("cuBLAS", ("libcublas",))
_NCCL: Final = Library("NCCL", ("libnccl",))
_TORCH_FILES: Final = Library("PyTorch", ("libtorch", "libc10"))

_PYTHON: Final = (
    "python.version", "python.implementation", "python.sha256", "python.libpython_sha256",
    "python.flags", "python.compiler", "python.is_debug", MODULES,
)  # fmt: skip
_LIBC: Final = ("libc.version", "libc.sha256")
_TORCH: Final = ("torch.version", "torch.git", "torch.build_sha256", "torch.cuda")
_ALLOCATOR: Final = (
    "env.LD_PRELOAD", "allocator.ld_preload", "preload.file", INTERPOSED, "allocator.name",
)  # fmt: skip
_TUNABLES: Final = ("env.GLIBC_TUNABLES", "allocator.tunables")
_CAPABILITY: Final = ("env.ATEN_CPU_CAPABILITY", "torch.cpu_capability")
_OMP_THREADS: Final = ("env.OMP_NUM_THREADS", "threads.omp")
_MKL_THREADS: Final = ("env.MKL_NUM_THREADS", "threads.mkl")
_BLAS_THREADS: Final = ("env.OPENBLAS_NUM_THREADS", "threads.openblas")
_COMPILER: Final = ("compiler.version", "compiler.name")
_CPUS: Final = ("cpu.affinity", "cgroup.cpuset")
_GIVEN: Final = (GIVEN_OPTIONS, "engine.options")
_FILES: Final = ("mount.packages", "mount.python")
_SECCOMP: Final = ("seccomp.mode", "seccomp.filters")
INSTALLED: Final = (
    "packages", "torch.version", "numpy.version", "torchvision.version", INSTALLED_PARTS,
    "site_packages.sha256", "site_packages.files", "lock.sha256", "loaded_packages",
)  # fmt: skip
"""What is installed: the last four differ if one of the first does."""

_BUILD: Final = "the build of Python"
_CLOCK: Final = "the kernel shows no clock control, as in many virtual machines"
_NOT_LOADED: Final = "the inspected process loaded no such library"
_NOT_IMPORTED: Final = "the inspected process did not import it"
_NOT_SEEN: Final = "the command could not be inspected while it ran"
_OF_A_COMMAND: Final = "not visible for a plain command"
_ULIMIT: Final = "`--docker-options '--ulimit {}'` gives docker arms the same limit"
_UNFILTERED: Final = (
    "add an arm without a filter: `--envs docker,free=docker --docker-options "
    "'free=--security-opt seccomp=unconfined'`"
)
_COMPARE: Final = "compare the data with the original"

FACTS: Final[tuple[Fact, ...]] = (
    # identifies arms and hosts, or is recorded before the first measurement
    Fact("batch", name="the batch size"),
    Fact("boot.id", name="the boot ID"),
    Fact("code", name="the code of the workload"),
    Fact("command", below="the program {}"),
    Fact("data", name="the data", restore="restore the data"),
    Fact("data.changed", name="the data (newest ctime)", restore=_COMPARE),
    Fact("data.files", name="the data (times of its files)", restore=_COMPARE),
    Fact("data.modified", name="the data", restore="restore the data"),
    Fact("device", name="the device"),
    Fact("hostname", "identity"),
    Fact("image.digest", "identity"),
    Fact("image.id", "identity", "the image",
         restore="restore the original tag: docker tag {before} NAME"),
    Fact("loaded_paths", "identity", missing=_NOT_SEEN),
    Fact("machine.id", name="the machine"),
    Fact("pid", "identity"),
    Fact("program", name="the program"),
    Fact("program.sha256", name="the program"),
    Fact("python.executable", "identity"),
    Fact("sif.sha256", "identity", "the SIF", restore="restore the original SIF"),
    # cannot differ on one host
    Fact("arch", "host", "the architecture"),
    Fact("cgroup.version", "host"),
    Fact("cpu", "host", way="limit", with_what="CPUs"),
    Fact("cpu.boost", name="the setting of CPU boost", missing=_CLOCK),
    Fact("cpu.count", name="the number of CPUs"),
    Fact("cpu.family", name="the family, model and stepping of the processor"),
    Fact("cpu.flags_sha256", name="the features of the processor"),
    Fact("cpu.governor", name="the frequency governor", missing=_CLOCK),
    Fact("cpu.microcode", name="the microcode"),
    Fact("cpu.model", name="the processor"),
    Fact("cpu.no_turbo", name="the setting of Turbo Boost"),
    Fact("cpu.online", name="the list of online CPUs"),
    Fact("hypervisor", "host", "the hypervisor"),
    Fact("kernel", "host"),
    Fact("kernel.clocksource", name="the clock source of the kernel"),
    Fact("kernel.release", name="the kernel", restore="boot the original kernel"),
    Fact("kernel.version", name="the build of the kernel"),
    Fact("memory", "host"),
    Fact("memory.total_bytes", name="the memory"),
    Fact("numa", "host"),
    Fact("smt", "host", "the setting of SMT"),
    Fact("vulnerabilities", "host"),
    # what environments do on purpose
    Fact("capabilities", "varied", is_plural=True, purpose=Purpose(
        "A container has fewer privileges",
        "this affects only privileged calls",
    )),
    Fact("capabilities.effective", name="capabilities"),
    Fact("cgroup", "varied", missing="no such control group is shown", way="limit",
         with_what="CPUs", purpose=Purpose(
        "A container has its own control group",
        "this matters at a limit, or if others want the same CPUs",
    )),
    Fact("cgroup.pids_limit", name="the limit of processes"),
    Fact("container", "varied", missing="no engine starts it", is_whole=True, is_absent=True),
    Fact("container.entrypoint", name="the first program in the container", purpose=Purpose(
        "An image may start another program first, its entrypoint",
        "this affects the start, and whatever the entrypoint does",
        option="--entrypoint PROGRAM",
    )),
    Fact("container.ports", name="the number of published ports", purpose=Purpose(
        "The engine adds rules, and may start a proxy, for each published port",
        "this affects the start and the end of the container",
    )),
    Fact(CONTAINER_START, "identity"),
    Fact(SCRIPT_START, "identity"),
    Fact("container.storage", name="the storage driver", purpose=Purpose(
        "The engine keeps images by a storage driver",
        "`vfs` copies the whole image at each start",
    )),
    Fact("container.volumes", name="the number of volumes", purpose=Purpose(
        "A new volume begins with a copy of the files that the image has there",
        "this affects the start if there are many files",
    )),
    Fact("container.log_driver", name="the log driver", purpose=Purpose(
        "The engine passes what the program prints to a log driver",
        "this affects a program that prints much",
        option="--log-driver none",
    )),
    Fact("container.network", name="the network of the container", purpose=Purpose(
        "By default, a container has its own network",
        "this affects processes that exchange data",
        option="--network host",
    )),
    Fact("container.runtime", name="the runtime of the container", purpose=Purpose(
        "A runtime starts the container, and some also serve its system calls",
        "this affects the start, and with gVisor every system call",
        option="--runtime NAME",
    )),
    Fact("engine", "varied", missing="no engine starts it", is_whole=True, purpose=Purpose(
        "envcompare starts containers with few privileges and the `--docker-options`",
        "no effect of privileges on step time was measured; options may have one",
        "`--docker-options` gives an arm the options of your container",
    )),
    Fact("engine.options", name="the options of the engine", group=_GIVEN),
    Fact("engine.requests", name="how requests reach the worker", missing="directly",
         purpose=Purpose(
        "Requests pass through the engine's client",
        "with few CPUs this can slow steps of a few milliseconds by some percent",
    )),
    Fact("env.HOME", "varied"),
    Fact("env.NVIDIA", "varied"),
    Fact("env.PATH", "varied"),
    Fact("gid", "varied", purpose=Purpose(
        "The worker has another group ID", "this affects no step",
    )),
    Fact("given", "possible-influence", is_absent=True),
    Fact(GIVEN_IMAGE, name="the image"),
    Fact(GIVEN_OPTIONS, name="the options given with `--docker-options`", is_plural=True,
         is_whole=True, group=_GIVEN, way="options"),
    Fact("limits", "varied", below="the limit {}", purpose=Purpose(
        "The engine and the login set different resource limits",
        "this affects a workload that reaches a limit",
        _ULIMIT.format("NAME=VALUE"),
        "--ulimit NAME=VALUE",
    )),
    Fact("limits.nofile", purpose=Purpose(
        "The engine and the login set different limits on open files",
        "a program that closes every possible descriptor takes longer with a higher limit",
        _ULIMIT.format("nofile=VALUE"),
        "--ulimit nofile=VALUE",
    )),
    Fact("lsm", "varied", missing="no security module sets one", purpose=Purpose(
        "A container has its own security label (AppArmor, SELinux)",
        "this affects a workload that opens many files or sockets",
        "`docker run --security-opt apparmor=unconfined` around the same command",
        "--security-opt apparmor=unconfined",
    )),
    Fact("lsm.label", name="the security label"),
    Fact("mount", "varied", purpose=Purpose(
        "A container has its own mounts of the data and scratch folders",
        "this affects a workload that reads or writes many files",
        "`--stacks image,host` shows every arm the same files",
    )),
    Fact("mount.data", name="the file system of the data", missing="no data was given"),
    Fact("mount.folder", name="the file system of the working folder",
         missing="it was not read"),
    Fact("mount.packages", name="the file system of the packages", group=_FILES, purpose=Purpose(
        "A container reads its Python packages from layers or a packed image",
        "this affects start-up, and reading many of their files",
        "`--stacks image,host` shows every arm the same files",
    )),
    Fact("mount.python", name="the file system of the interpreter", group=_FILES, purpose=Purpose(
        "A container reads its interpreter from layers or a packed image",
        "this affects start-up, above all with a cold page cache",
        "`--sif-compression none` or `sandbox` for a SIF, `--cold-start` to see it",
    )),
    Fact("mount.scratch", name="the file system of the scratch folder"),
    Fact("network", "varied", purpose=Purpose(
        "A container has its own network devices: only loopback by default",
        "this affects processes that exchange data, such as the ranks of `ddp`",
        "`--docker-options '--network host'` gives docker arms the host's devices",
        "--network host",
    )),
    Fact("network.resolvers", name="the name servers", is_whole=True, purpose=Purpose(
        "A container may ask other name servers",
        "a program that looks up names waits 5 s for each server that does not answer",
        option="--dns ADDRESS",
    )),
    Fact("network.interfaces", name="the network devices", is_plural=True, is_whole=True),
    Fact("no_new_privs", "varied", purpose=Purpose(
        "Apptainer, and Docker with `no-new-privileges`, let no process gain privileges",
        "this affects no step",
    )),
    Fact("os", "varied", purpose=Purpose(
        "Each arm has its own distribution's files",
        "only its interpreter and libraries matter; they are listed separately",
    )),
    Fact("os.release", name="the distribution"),
    Fact("seccomp", "varied", purpose=Purpose(
        "Docker filters system calls (seccomp); a plain process and Apptainer by default do not",
        "this affects a workload of mostly small system calls",
        f"{_UNFILTERED}, or start the engine with `dockerd --seccomp-profile unconfined`",
        "--security-opt seccomp=unconfined",
    )),
    Fact("seccomp.filters", name="the number of seccomp filters", group=_SECCOMP),
    Fact("seccomp.mode", name="seccomp", group=_SECCOMP),
    Fact("shm", "varied", purpose=Purpose(
        "Docker gives a container 64 MB at /dev/shm by default",
        "when it is full, data loaders fail; others (joblib, Ray) use slower files",
        "set the engine's `default-shm-size` (daemon.json) to the host's size",
        "--shm-size SIZE",
    )),
    Fact("shm.bytes", name="the size of /dev/shm"),
    Fact("speculation", "varied", purpose=Purpose(
        "Before Linux 5.16, a seccomp filter turns on speculative execution controls",
        "this affects code with many indirect branches, such as an interpreter",
        _UNFILTERED,
        "--security-opt seccomp=unconfined",
    )),
    Fact("uid", "varied", purpose=Purpose(
        "The worker has another user ID", "this affects no step",
    )),
    # software
    Fact("compiler", "confounder", seen_by="compiler",
         missing="the inspected process did not use torch.compile"),
    Fact("compiler.name", name="the C++ compiler", group=_COMPILER),
    Fact("compiler.version", name="the C++ compiler", group=_COMPILER),
    Fact("cuda", "confounder", is_absent=True, missing=_NOT_LOADED),
    Fact("cuda.cublas", name="cuBLAS", seen_by=_CUBLAS),
    Fact("cuda.cudnn", name="cuDNN", seen_by=_CUDNN),
    Fact("cuda.nccl", name="NCCL", seen_by=_NCCL),
    Fact("cuda.runtime", name="the CUDA runtime",
         seen_by=Library("the CUDA runtime", ("libcudart",))),
    Fact("kernels", is_whole=True),
    Fact("kernels.architecture", name="the GPU generation in kernel names"),
    Fact("kernels.build", name="the build in kernel names"),
    Fact("kernels.cudnn", name="the generation of cuDNN's kernels"),
    Fact("kernels.cutlass", name="the generation of CUTLASS's kernels"),
    Fact("kernels.nccl", name="the generation of NCCL's kernels"),
    Fact("kernels.precision", name="the precision of the kernels"),
    Fact("libc", "confounder", seen_by="every program"),
    Fact("libc.sha256", name="the build of the C library", group=_LIBC),
    Fact("libc.version", name="the C library", group=_LIBC),
    Fact("loaded_libraries", "possible-influence", "loaded libraries", is_plural=True,
         is_limit=True, missing=_NOT_SEEN),
    Fact("loaded_packages", "possible-influence", missing=_OF_A_COMMAND, group=INSTALLED),
    Fact("lock", "confounder", of_python=True),
    Fact("lock.sha256", name="the lock of the wheels", seen_by="lock", group=INSTALLED),
    Fact("numpy", "confounder", missing=_NOT_IMPORTED, seen_by="package", of_python=True),
    Fact("numpy.version", name="numpy"),
    Fact("packages", "confounder", "packages", is_plural=True, of_python=True),
    Fact(PACKAGE_FOLDERS, name="the folders of the packages", is_plural=True),
    Fact("packages.not_imported", "possible-influence", "packages that are not imported"),
    Fact("packages.outside", name="packages from outside the installed ones",
         missing=_OF_A_COMMAND, seen_by="outside"),
    Fact("preload", "confounder", missing=NOT_SET, way="start",
         with_what="the library that is loaded before all others"),
    Fact("preload.file", name="/etc/ld.so.preload", is_absent=True, group=_ALLOCATOR,
         seen_by="preload", way="preload file"),
    Fact(INTERPOSED, name="libraries before the C library", is_plural=True, group=_ALLOCATOR,
         missing="the interpreter has no ctypes to ask the loader", seen_by="interposed"),
    Fact("programs", "possible-influence", "programs", is_plural=True, is_limit=True,
         missing=_NOT_SEEN),
    Fact("home", "possible-influence", missing="the process has no home"),
    Fact("home.is_writable", name="whether the home folder can be written"),
    Fact("python", "confounder", seen_by="python", of_python=True),
    Fact("python.build", name=_BUILD),
    Fact("python.compiler", name=_BUILD, group=_PYTHON),
    Fact("python.flags", name=_BUILD, group=_PYTHON),
    Fact("python.implementation", group=_PYTHON),
    Fact("python.is_debug", name=_BUILD, group=_PYTHON),
    Fact("python.libpython_sha256", name=_BUILD, group=_PYTHON,
         missing="the interpreter loads none"),
    Fact(MODULES, "possible-influence", "modules of the standard library", is_plural=True,
         is_limit=True, group=_PYTHON),
    Fact("python.path", name="the interpreter"),
    Fact(START_FILES, "possible-influence", "files that Python runs as it starts",
         is_plural=True),
    Fact("python.uncompiled", "possible-influence", "modules of Python without byte code",
         is_plural=True, seen_by="byte code"),
    Fact("python.sha256", name=_BUILD, group=_PYTHON),
    Fact("python.version", name="Python", group=_PYTHON),
    Fact("site_packages", "confounder", missing="what is installed could not be hashed",
         seen_by="installed", of_python=True),
    Fact("site_packages.files", name="the number of installed files", group=INSTALLED),
    Fact(INSTALLED_PARTS, name="the installed files", is_plural=True),
    Fact("site_packages.sha256", name="the installed files", is_plural=True, group=INSTALLED),
    Fact("torch", "confounder", missing=_NOT_IMPORTED, seen_by=_TORCH_FILES, of_python=True),
    Fact("torch.build_sha256", name="the build of torch", group=_TORCH),
    Fact("torch.cpu_capability", group=_CAPABILITY),
    Fact("torch.cuda", name="the CUDA that torch is built for", group=_TORCH,
         missing="torch was built without it, or not imported"),
    Fact("torch.cudnn", seen_by=_CUDNN, way="code"),
    Fact("torch.deterministic", way="code"),
    Fact("torch.float32_precision", way="code"),
    Fact("torch.git", name="the build of torch", group=_TORCH),
    Fact("torch.interop_threads", name="the threads between operations of torch", is_plural=True,
         way="code"),
    Fact("torch.tf32", way="code"),
    Fact("torch.tf32_cudnn", seen_by=_CUDNN),
    Fact("torch.tf32_matmul", seen_by=_CUBLAS),
    Fact("torch.threads", name="the threads of torch", is_plural=True, way="threads"),
    Fact("torch.version", name="torch", group=_TORCH),
    Fact("torchvision", "confounder", missing=_NOT_IMPORTED, seen_by="package", of_python=True),
    Fact("torchvision.version", name="torchvision"),
    # settings and limits
    Fact("allocator", "confounder", is_absent=True, way="variable", with_what="LD_PRELOAD",
         missing="no known C library was seen to be loaded"),
    Fact("allocator.ld_preload", missing=NOT_SET, group=_ALLOCATOR, seen_by="preload"),
    Fact("allocator.name", name="the memory allocator", group=_ALLOCATOR),
    Fact("allocator.tunables", missing=NOT_SET, group=_TUNABLES, seen_by="allocator",
         with_what="GLIBC_TUNABLES"),
    Fact("cgroup.cpu_quota", "possible-influence", "the CPU quota", is_limit=True, seen_by="quota",
         with_what="quota"),
    Fact("cgroup.cpu_weight", "possible-influence", "the CPU weight"),
    Fact("cgroup.cpuset", "possible-influence", "the CPU set", is_limit=True, seen_by="cpu set",
         group=_CPUS),
    Fact("cgroup.io_weight", name="the I/O weight",
         missing="no control group shows an I/O weight"),
    Fact("cgroup.memory_limit_bytes", "possible-influence", "the memory limit", is_limit=True,
         seen_by="memory", with_what="memory limit"),
    Fact("cgroup.memory_limit_hits", "identity"),
    Fact("cpu.affinity", "possible-influence", "the CPU set", is_limit=True, seen_by="cpu set",
         group=_CPUS),
    Fact("env", below="{}", is_absent=True, missing=NOT_SET, way="variable"),
    Fact("env.ATEN_CPU_CAPABILITY", "confounder", seen_by=_TORCH_FILES, group=_CAPABILITY),
    Fact("env.CUBLAS", "confounder", seen_by=_CUBLAS),
    Fact("env.CUDNN", seen_by=_CUDNN),
    Fact("env.DNNL", "confounder", seen_by=_ONEDNN),
    Fact("env.GLIBC", "confounder", seen_by="allocator"),
    Fact("env.GLIBC_TUNABLES", group=_TUNABLES),
    Fact("env.GOMP", "confounder", seen_by=_RUNTIME),
    Fact("env.KMP", "confounder", seen_by=_RUNTIME),
    Fact("env.LD_LIBRARY_PATH", seen_by="library path", purpose=Purpose(
        "Apptainer adds a folder for the driver's libraries to the loader's path",
        "no library was loaded from there; each search takes a little longer",
    )),
    Fact("env.LD_PRELOAD", "confounder", seen_by="preload", group=_ALLOCATOR),
    Fact("env.MALLOC", "confounder", seen_by="allocator"),
    Fact("env.MKL", "confounder", seen_by=_MKL),
    Fact("env.MKLDNN", "confounder", seen_by=_ONEDNN),
    Fact("env.MKL_NUM_THREADS", group=_MKL_THREADS, way="thread variable"),
    Fact("env.NCCL", seen_by=_NCCL),
    Fact("env.OMP", "confounder", seen_by=Library("a library that reads it", THREADED)),
    Fact("env.OMP_NUM_THREADS", group=_OMP_THREADS, way="thread variable"),
    Fact("env.ONEDNN", "confounder", seen_by=_ONEDNN),
    Fact("env.OPENBLAS", "confounder", seen_by=_OPENBLAS),
    Fact("env.OPENBLAS_NUM_THREADS", group=_BLAS_THREADS, way="thread variable"),
    Fact("env.PYTHONMALLOC", "confounder"),
    Fact("env.PYTORCH", seen_by=_TORCH_FILES),
    Fact("env.TORCH", seen_by=_TORCH_FILES),
    Fact("gpu", "confounder", is_absent=True, way="gpu",
         missing="the inspected process uses no GPU",
         seen_by=Library("the library of the GPU driver", ("libcuda.",))),
    Fact("gpu.clock_sm_mhz", name="the clock of the GPU while it was measured (MHz)"),
    Fact("gpu.count", "possible-influence"),
    Fact("gpu.driver", name="the GPU driver"),
    Fact("gpu.name", name="the GPU", is_whole=True),
    Fact("gpu.visible", "possible-influence", missing=NOT_SET),
    Fact("process", "confounder"),
    Fact("process.major_faults", "identity"),
    Fact("process.nice", name="the priority (nice)", seen_by="priority", way="start",
         with_what="`nice` or `renice`"),
    Fact("process.scheduler", name="the scheduling policy", seen_by="priority", way="start",
         with_what="`chrt`"),
    Fact("thp", "possible-influence", "transparent huge pages", is_plural=True),
    Fact("thp.is_disabled", "confounder", "the process's ban on transparent huge pages",
         is_plural=False, missing="the kernel does not report it (before Linux 5.0)", way="start",
         with_what="prctl(PR_SET_THP_DISABLE)"),
    Fact("threads", "confounder", way="threads"),
    Fact("threads.alive", "possible-influence", "the number of threads", missing=_OF_A_COMMAND),
    Fact("threads.mkl", missing=NOT_SET, seen_by=_MKL, group=_MKL_THREADS),
    Fact("threads.omp", missing=NOT_SET, group=_OMP_THREADS,
         seen_by=Library("an OpenMP runtime", THREADED)),
    Fact("threads.openblas", missing=NOT_SET, seen_by=_OPENBLAS, group=_BLAS_THREADS),
)  # fmt: skip
"""A row per fact, or for all facts below a key: `env.OMP` holds for `env.OMP_NUM_THREADS`."""

_OF_ONE_KEY: Final = frozenset({"name", "group", "is_limit", "restore"})
_BELOW: Final = {row.key: row.below for row in FACTS if row.below}

_FACTS_BY_FILE: Final[tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = (
    (_LIBC, ("libc.", "libm.", "ld-linux", "libpthread.", "libdl.", "librt.", "libutil.")),
    (_PYTHON, ("libpython",)),
    (_TORCH, (*_TORCH_FILES.files, "libshm")),
    (("numpy.version",), ("_multiarray_umath", "libscipy_openblas")),
    (("allocator.name",), ("libjemalloc", "libtcmalloc", "libmimalloc")),
    *(
        ((row.key,), row.seen_by.files)
        for row in FACTS
        if row.key.startswith("cuda.") and isinstance(row.seen_by, Library)
    ),
)


def holds_for(rule: str, key: str) -> bool:
    """Return whether a rule holds for a key: `env.OMP` for itself and for `env.OMP_NUM_THREADS`."""
    return key == rule or key.startswith((f"{rule}.", f"{rule}_"))


@cache
def fact(key: str) -> Fact:
    """Return a fact, merged from its row and the nearest rows above it.

    Its name is the key where no row gives one, and `X.version` is the version of X.
    """
    known: dict[str, Any] = {}
    # Rows are merged from the most general to the key's own, which overrides the others.
    for row in sorted((row for row in FACTS if holds_for(row.key, key)), key=lambda row: row.key):
        values = {field.name: getattr(row, field.name) for field in fields(row) if field.init}
        is_own = row.key == key
        known |= {
            name: value
            for name, value in values.items()
            if value not in (None, "") and (is_own or name not in _OF_ONE_KEY)
        }
    whole, _, rest = key.partition(".")
    below = "the version of " + whole if rest == "version" else _BELOW.get(whole, "").format(rest)
    name = known.get("name") or below or key
    return Fact(**{"with_what": name, **known, "key": key, "name": name})


def classify(key: str) -> FactClass:
    """Return the class of a fact by its key alone; an unknown key is a possible influence."""
    return fact(key).fact_class or "possible-influence"


def is_first(key: str) -> bool:
    """Return whether a fact concerns a library loaded before the C library."""
    return key in _ALLOCATOR


def is_without_effect(key: str) -> bool:
    """Return whether a fact varied on purpose only names software or privileges."""
    return key.partition(".")[0] in {"engine", "env", "gid", "no_new_privs", "os", "uid"}


def facts_of_library(name: str, package: str, *, is_of_python: bool) -> tuple[str, ...]:
    """Return the facts that reveal another build of a library, by its package or else its name."""
    if package:
        version = f"{package}.version"
        return (fact(version).group or (version,)) if package in OWN_PACKAGES else ("packages",)
    if is_of_python:
        return _PYTHON
    return next((facts for facts, names in _FACTS_BY_FILE if name.startswith(names)), ())
