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
# This runs in another process with the same loader, variables and interpreter, since ctypes would
# load libraries here. Callers get a function from the first library in the order of the loader
# (link_map of link.h) that defines it (dlsym(3), dladdr(3)); one before the C library interposes.
# The interpreter is skipped: it may have an address for a function that it only calls.
_ASK = """
import ctypes, json, os, re, sys
class Map(ctypes.Structure):
    pass
Map._fields_ = [("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("dynamic", ctypes.c_void_p), ("next", ctypes.POINTER(Map))]
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]
every, found = ctypes.CDLL(None), []
every.dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Info)]
def has(library, path, function):
    info = Info()
    if not hasattr(library, function):
        return False
    address = ctypes.cast(getattr(library, function), ctypes.c_void_p)
    return every.dladdr(address, ctypes.byref(info)) and info.file == path
at = ctypes.cast(every._handle, ctypes.POINTER(Map)).contents.next
while at and not re.match(rb"(libc|ld-musl.*)[.-]", os.path.basename(at.contents.name)):
    path, at = at.contents.name, at.contents.next
    try:
        library = ctypes.CDLL(os.fsdecode(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        continue
    names = [name for name in sys.argv[1:] if has(library, path, name)]
    found.append((os.fsdecode(path), names))
print(json.dumps(found))
"""


def interposing() -> Dict[str, Any]:
    """Return the preloaded libraries, and the functions that they replace."""
    preload = read_text(PRELOAD_FILE)
    return {
        "preload.file": masked(preload) if preload else None,
        "preload.replaces": attempt(_replaced),
    }


@cache
def _replaced() -> List[str]:
    """Return `library function …` of each library that replaces functions of the C library."""
    argv = (sys.executable, "-I", "-S", "-c", _ASK, *_FUNCTIONS)
    said = subprocess.run(argv, capture_output=True, check=True, timeout=_LIMIT_S).stdout
    known = [(os.path.basename(path), functions) for path, functions in json.loads(said)]
    return sorted(
        " ".join((file, *functions))
        for file, functions in known
        if functions and not _C_LIBRARY.fullmatch(file)
    )
