"""The fingerprints of a run folder that was made and not measured: about 120 facts an arm.

As many as a worker finds around itself, since the size of a report depends on them.
"""

from __future__ import annotations

import hashlib

from envcompare.run_folder.records import FingerprintRecord, FingerprintValue

Facts = dict[str, FingerprintValue]

_COUNTED = ("cpu", "limits", "vulnerabilities", "env.OMP", "torch", "cgroup", "gpu")
_LIBRARIES = tuple(f"libwork{number:02}.so.1" for number in range(70))
_PACKAGES = ("numpy==2.4.0", "torch==2.9.0+cpu", *(f"made{n}==1.{n}.0" for n in range(12)))
_BLAS = "libopenblas.so.0"
_COMMON: Facts = {
    "arch": "x86_64",
    "allocator.name": "glibc",
    "cgroup.version": 2,
    "cpu.count": 8,
    "cpu.model": "made up",
    "kernel.release": "6.1.0",
    "libc.version": "glibc 2.36",
    "memory.total_bytes": 64 * 2**30,
    "numpy.version": "2.4.0",
    "python.executable": "/usr/bin/python3.11",
    "python.implementation": "cpython",
    "python.version": "3.11.2",
    "threads.mkl": 1,
    "threads.omp": 1,
    "torch.threads": 1,
    "torch.version": "2.9.0+cpu",
    "packages": _PACKAGES,
    "loaded_packages": _PACKAGES,
}
_PLAIN: Facts = {
    "os.release": "Debian GNU/Linux 12 (bookworm)",
    "mount.python": "ext4 relatime,rw",
    "seccomp.mode": 0,
    "capabilities.effective": "000001ffffffffff",
    "shm.bytes": 32 * 2**30,
    "no_new_privs": False,
}
_CONTAINER: Facts = {
    **_PLAIN,
    "os.release": "Debian GNU/Linux 13 (trixie)",
    "mount.python": "overlay relatime,rw",
    "seccomp.mode": 2,
    "capabilities.effective": "0000000000000000",
    "shm.bytes": 64 * 2**20,
}


def fingerprint(
    host: str, arm: str, cell: str, *, environment: str, has_other_blas: bool = False
) -> FingerprintRecord:
    """Return what a worker would have found, with another build of OpenBLAS where asked for."""
    blas = f"{_BLAS} {_digest('other' if has_other_blas else 'same')}"
    libraries = (blas, *(f"{name} {_digest(name)}" for name in _LIBRARIES))
    own = _PLAIN if environment == "vm" else _CONTAINER
    facts = {
        **{f"{_COUNTED[n % len(_COUNTED)]}.made_{n:02}": f"value {n}" for n in range(90)},
        **_COMMON,
        **own,
        "hostname": host if environment == "vm" else _digest(f"{host} {arm}")[:12],
        "loaded_libraries": libraries,
        "loaded_paths": tuple(f"{one.split()[0]} /usr/lib/{one.split()[0]}" for one in libraries),
    }
    return FingerprintRecord(
        host=host,
        arm=arm,
        cell=cell,
        facts=facts,
        identity={"stack": "image", "lock": _digest("lock")},
        taken="step",
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
