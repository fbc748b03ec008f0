/* A stub of NVIDIA's libcuda.so.1: devices can be counted and described, never computed on.
   Every context is refused, so that no measurement can be made on what is only imitated. */
#include "host.h"

enum {
    SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    NOT_SUPPORTED = 801, SYSTEM_DRIVER_MISMATCH = 803, UNKNOWN = 999
};
enum {
    CLOCK_RATE = 13, MULTIPROCESSOR_COUNT = 16, COMPUTE_MODE = 20, PCI_BUS_ID = 33,
    PCI_DEVICE_ID = 34, MEMORY_CLOCK_RATE = 36, PCI_DOMAIN_ID = 50, CAPABILITY_MAJOR = 75,
    CAPABILITY_MINOR = 76
};
static const struct { int code; const char *name, *text; } errors[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};
static int is_started;

int cuInit(unsigned flags) {
    wait_if_hanging();
    if (flags) return INVALID_VALUE;
    if (CU_INIT != SUCCESS) return CU_INIT;
    if (!is_node("/dev/nvidiactl") || !reached_count()) return NO_DEVICE;
    if (!is_node("/dev/nvidia-uvm")) return UNKNOWN;
    is_started = 1;
    return SUCCESS;
}

int cuDriverGetVersion(int *version) {
    *version = CUDA_VERSION;
    return SUCCESS;
}

int cuDeviceGetCount(int *count) {
    *count = is_started ? (int)reached_count() : 0;
    return is_started ? SUCCESS : NOT_INITIALIZED;
}

int cuDeviceGet(int *device, int ordinal) {
    if (!is_started) return NOT_INITIALIZED;
    *device = ordinal;
    return ordinal >= 0 && reached(ordinal) ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetName(char *name, int length, int device) {
    const struct gpu *gpu = is_started ? reached(device) : 0;
    if (gpu) snprintf(name, length, "%s", gpu->name);
    return gpu ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    const struct gpu *gpu = is_started ? reached(device) : 0;
    if (gpu) *bytes = (size_t)gpu->memory_mib << 20;
    return gpu ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    const struct gpu *gpu = is_started ? reached(device) : 0;
    if (!gpu) return INVALID_DEVICE;
    switch (attribute) {
    case CLOCK_RATE: *value = gpu->sm_mhz_max * 1000; break;
    case MULTIPROCESSOR_COUNT: *value = gpu->sm_count; break;
    case COMPUTE_MODE: *value = gpu->compute_mode; break;
    case PCI_BUS_ID: *value = gpu->bus; break;
    case PCI_DEVICE_ID:
    case PCI_DOMAIN_ID: *value = 0; break;
    case MEMORY_CLOCK_RATE: *value = gpu->memory_mhz * 1000; break;
    case CAPABILITY_MAJOR: *value = gpu->major; break;
    case CAPABILITY_MINOR: *value = gpu->minor; break;
    default: return INVALID_VALUE;
    }
    return SUCCESS;
}

int cuCtxCreate_v2(void **context, unsigned flags, int device) { return NOT_SUPPORTED; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return NOT_SUPPORTED; }

int cuGetErrorString(int code, const char **text) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) return *text = errors[i].text, SUCCESS;
    return *text = 0, INVALID_VALUE;
}

int cuGetErrorName(int code, const char **name) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) return *name = errors[i].name, SUCCESS;
    return *name = 0, INVALID_VALUE;
}
