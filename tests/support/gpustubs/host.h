/* What both stub libraries share: the table of imitated GPUs, and what is needed to reach one. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

struct gpu {
    const char *name, *uuid, *bus_id, *serial;
    unsigned bus, device_id, memory_mib, sm_count, power_mw, sm_mhz, sm_mhz_max, memory_mhz;
    int major, minor, compute_mode, mig; /* mig: 0 off, 1 on, -1 where the GPU has no such mode */
    unsigned long long throttling;
};
#include "table.h"

#define GPU_COUNT (sizeof gpus / sizeof *gpus)

/* A driver that hangs keeps its callers in the kernel. */
static void wait_if_hanging(void) {
    while (HANGS) pause();
}

/* A node that is missing, closed to this user or of another major number reaches no driver. */
static int is_node(const char *path) {
    struct stat node;
    int file = open(path, O_RDWR | O_CLOEXEC);
    int is_driver = file >= 0 && !fstat(file, &node) && node.st_rdev == makedev(NODE_MAJOR, NODE_MINOR);
    if (file >= 0) close(file);
    return is_driver;
}

static int is_reached(unsigned index) {
    char path[32];
    snprintf(path, sizeof path, "/dev/nvidia%u", index);
    return is_node(path);
}

/* GPUs whose node is not there are not counted, as in a container that was given one of two. */
static const struct gpu *reached(unsigned wanted) {
    for (unsigned index = 0; index < GPU_COUNT; index++)
        if (is_reached(index) && wanted-- == 0) return &gpus[index];
    return 0;
}

static unsigned reached_count(void) {
    unsigned count = 0;
    while (reached(count)) count++;
    return count;
}
