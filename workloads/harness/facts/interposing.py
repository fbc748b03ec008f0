"""Which libraries come before the C library and replace its functions, as the loader says.

They are there by LD_PRELOAD, /etc/ld.so.preload, or because the interpreter is linked with them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from typing import Any, Dict, List

from harness.attempts import attempt
from harness.facts.cgroups import read_text
from harness.facts.masking import masked

PRELOAD_FILE = "/etc/ld.so.preload"
_LIMIT_S = 10.0
# Of memory, strings, files, time, threads, processes and numbers: what programs call most.
_FUNCTIONS = (
    "malloc", "calloc", "realloc", "free", "posix_memalign", "aligned_alloc", "mmap", "munmap",
    "memcpy", "memmove", "memset", "memcmp", "memchr", "strlen", "strcmp", "strncmp", "strchr",
    "open", "open64", "openat", "read", "pread64", "write", "close", "lseek64", "stat", "fstat",
    "fopen", "fread", "fwrite", "ioctl", "poll", "select", "epoll_wait", "send", "recv", "connect",
    "clock_gettime", "gettimeofday", "time", "nanosleep", "clock_nanosleep", "usleep", "sleep",
    "pthread_create", "pthread_mutex_lock", "pthread_mutex_unlock", "pthread_cond_wait", "sem_wait",
    "sched_yield", "sched_getaffinity", "sysconf", "getenv", "fork", "execve", "qsort", "random",
    "getrandom", "syscall", "exp", "log", "pow", "sin", "cos",
)  # fmt: skip
_C_LIBRARY = re.compile(r"(lib(c|m|pthread|dl|rt)|ld|linux-(vdso|gate)\d*)([.-].*)?")
# Another process is asked, since ctypes brings libraries along. It has the same loader, the same
# variables and the same interpreter, and dladdr(3) names the file that a function is taken from.
_ASK = """
import ctypes, json, sys
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]
every, found = ctypes.CDLL(None), {}
every.dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Info)]
for name in sys.argv[1:]:
    info = Info()
    if hasattr(every, name):
        address = ctypes.cast(getattr(every, name), ctypes.c_void_p)
        if every.dladdr(address, ctypes.byref(info)) and info.file:
            found[name] = info.file.decode(errors="replace")
print(json.dumps(found))
"""


def interposing() -> Dict[str, Any]:
    """Return what is loaded before all other libraries, and what it replaces."""
    preload = read_text(PRELOAD_FILE)
    return {
        "preload.file": masked(preload) if preload else None,
        "preload.replaces": attempt(_replaced),
    }


@cache
def _replaced() -> List[str]:
    """Return `library function …` of each library that replaces functions of the C library.

    The interpreter itself is left out: one that is not position-independent shows its own address
    of a function that it only calls. Its build is a fact of its own.
    """
    argv = (sys.executable, "-I", "-S", "-c", _ASK, *_FUNCTIONS)
    said = subprocess.run(argv, capture_output=True, check=True, timeout=_LIMIT_S).stdout
    by_file: Dict[str, List[str]] = {}
    own = os.path.realpath(sys.executable)
    for function, path in json.loads(said).items():
        if os.path.realpath(path) != own and not _C_LIBRARY.fullmatch(os.path.basename(path)):
            by_file.setdefault(os.path.basename(os.path.realpath(path)), []).append(function)
    return sorted(" ".join((file, *functions)) for file, functions in by_file.items())
