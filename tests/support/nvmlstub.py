"""A small library with the calls of NVIDIA's management library, for tests of how they are made.

Its answers are scripted: it shows that each call gets the arguments nvml.h asks for, and no more.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NEEDS_GCC = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="gcc is not there to build the scripted library"
)
# Power rises by 1 W a call and the energy by 5 J; the second GPU refuses both, and its load.
SOURCE = """
#include <stdio.h>
#include <string.h>
static int gpus[2];
static unsigned power = 100000;
static unsigned long long energy = 1ULL << 33;
static int second(void *d) { return d == &gpus[1]; }
int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = COUNT; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **d) { *d = &gpus[index]; return index > 1; }
int nvmlDeviceGetUUID(void *d, char *text, unsigned length) {
    return snprintf(text, length, "GPU-%d", second(d) ? 2 : 1) < 0; }
int nvmlDeviceGetPowerUsage(void *d, unsigned *mw) { *mw = power += 1000; return second(d) * 3; }
int nvmlDeviceGetTotalEnergyConsumption(void *d, unsigned long long *mj) {
    *mj = energy += 5000; return second(d) * 3; }
int nvmlDeviceGetClockInfo(void *d, int type, unsigned *mhz) { *mhz = 1000 + type; return 0; }
int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *c) { *c = 40; return sensor; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *mask) {
    *mask = 1ULL << 40 | 4; return 0; }
struct field { unsigned id, scope; long long at, latency; int type, status;
    union { double d; unsigned u; unsigned long long l; } value; };
int nvmlDeviceGetFieldValues(void *d, int count, struct field *f) {
    f->type = 1; f->value.l = ~0ULL; f->value.u = 500000 + (power += 1000);
    f->status = f->id == 186 && count == 1 && INSTANT && !second(d) ? 0 : 3; return 0; }
struct shares { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *d, struct shares *s) {
    s->gpu = 97; s->memory = 30; return second(d) * 3; }
"""


def build_nvml(folder: Path, *, count: int = 2, init: int = 0, instant: int = 1) -> str:
    """Compile the library for so many GPUs and return its path."""
    path = folder / "libnvidia-ml.so.1"
    scripted = (f"-DCOUNT={count}", f"-DINIT={init}", f"-DINSTANT={instant}")
    argv = ["gcc", "-shared", "-fPIC", "-w", *scripted]
    subprocess.run([*argv, "-x", "c", "-", "-o", path], input=SOURCE, text=True, check=True)
    return str(path)
