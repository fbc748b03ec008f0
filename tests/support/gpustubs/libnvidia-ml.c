/* A stub of NVIDIA's libnvidia-ml.so.1: identity and settings of imitated GPUs, and no reading.
   Power, energy, temperature and load are "not supported": none of these is ever made up.
   With -DNVML_HEADER the real nvml.h takes the place of the declarations, and the compiler then
   compares every prototype; the sizes are asserted in both builds. */
#include <errno.h>

#include "host.h"

#ifdef NVML_HEADER
#include <nvml.h>
#else
typedef enum {
    NVML_SUCCESS = 0, NVML_ERROR_UNINITIALIZED = 1, NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3, NVML_ERROR_NO_PERMISSION = 4, NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7, NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18, NVML_ERROR_UNKNOWN = 999
} nvmlReturn_t;
typedef struct { struct nvmlDevice_st *handle; } nvmlDevice_t;
typedef enum { NVML_FEATURE_DISABLED, NVML_FEATURE_ENABLED } nvmlEnableState_t;
typedef enum { NVML_COMPUTEMODE_DEFAULT } nvmlComputeMode_t;
typedef enum { NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM } nvmlClockType_t;
typedef enum { NVML_TEMPERATURE_GPU } nvmlTemperatureSensors_t;
typedef enum { NVML_VALUE_TYPE_DOUBLE } nvmlValueType_t;
typedef union { double dVal; unsigned long long ullVal; } nvmlValue_t;
typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    nvmlValueType_t valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
#endif

_Static_assert(sizeof(nvmlDevice_t) == sizeof(void *), "nvmlDevice_t");
_Static_assert(sizeof(nvmlReturn_t) == 4 && sizeof(nvmlEnableState_t) == 4, "enumerations");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(nvmlUtilization_t) == 8, "nvmlUtilization_t");
_Static_assert(sizeof(nvmlMemory_t) == 24, "nvmlMemory_t");
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "nvmlProcessInfo_t");
_Static_assert(NVML_ERROR_NOT_SUPPORTED == 3 && NVML_ERROR_NO_PERMISSION == 4, "nvmlReturn_t");
_Static_assert(NVML_ERROR_NOT_FOUND == 6 && NVML_ERROR_DRIVER_NOT_LOADED == 9, "nvmlReturn_t");
_Static_assert(NVML_ERROR_LIB_RM_VERSION_MISMATCH == 18, "nvmlReturn_t");
_Static_assert(NVML_CLOCK_SM == 1 && NVML_CLOCK_MEM == 2, "nvmlClockType_t");

static int is_started;

/* A handle is a pointer into the table, whatever the header calls it. */
static nvmlDevice_t handle_of(const struct gpu *gpu) {
    nvmlDevice_t device;
    memcpy(&device, &gpu, sizeof device);
    return device;
}

static const struct gpu *gpu_of(nvmlDevice_t device) {
    const struct gpu *gpu;
    memcpy(&gpu, &device, sizeof gpu);
    return is_started && gpu >= gpus && gpu < gpus + GPU_COUNT ? gpu : 0;
}

static nvmlReturn_t write_text(char *out, unsigned int length, const char *text) {
    if (!is_started) return NVML_ERROR_UNINITIALIZED;
    if (strlen(text) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

#define NUMBER(device, out, field)                                  \
    const struct gpu *gpu = gpu_of(device);                         \
    if (!gpu) return NVML_ERROR_INVALID_ARGUMENT;                   \
    *(out) = gpu->field;                                            \
    return NVML_SUCCESS

nvmlReturn_t nvmlInit_v2(void) {
    wait_if_hanging();
    if (NVML_INIT != NVML_SUCCESS) return NVML_INIT;
    if (!is_node("/dev/nvidiactl"))
        return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
    is_started = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void) {
    is_started = 0;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t code) {
    switch ((int)code) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    return write_text(version, length, LIBRARY_VERSION);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    return write_text(version, length, LIBRARY_VERSION " (envcompare imitation)");
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = CUDA_VERSION;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = is_started ? reached_count() : 0;
    return is_started ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    const struct gpu *gpu = is_started ? reached(index) : 0;
    *device = handle_of(gpu);
    return gpu ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    const struct gpu *gpu;
    for (unsigned index = 0; is_started && (gpu = reached(index)); index++)
        if (!strcmp(gpu->uuid, uuid)) return *device = handle_of(gpu), NVML_SUCCESS;
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device) {
    return NVML_ERROR_INVALID_ARGUMENT; /* MIG instances have no handles here */
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    const struct gpu *gpu = gpu_of(device);
    return gpu ? write_text(name, length, gpu->name) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    const struct gpu *gpu = gpu_of(device);
    return gpu ? write_text(uuid, length, gpu->uuid) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
    const struct gpu *gpu = gpu_of(device);
    return gpu ? write_text(serial, length, gpu->serial) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length) {
    return write_text(version, length, "envcompare imitation");
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    const struct gpu *gpu = gpu_of(device);
    if (!gpu) return NVML_ERROR_INVALID_ARGUMENT;
    *major = gpu->major, *minor = gpu->minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    const struct gpu *gpu = gpu_of(device);
    if (!gpu) return NVML_ERROR_INVALID_ARGUMENT;
    memory->total = memory->free = (unsigned long long)gpu->memory_mib << 20;
    memory->used = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    const struct gpu *gpu = gpu_of(device);
    if (!gpu) return NVML_ERROR_INVALID_ARGUMENT;
    memset(pci, 0, sizeof *pci);
    pci->bus = gpu->bus;
    pci->pciDeviceId = gpu->device_id << 16 | 0x10de;
    snprintf(pci->busId, sizeof pci->busId, "0000%s", gpu->bus_id);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%s", gpu->bus_id);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode) {
    NUMBER(device, mode, compute_mode);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *limit) {
    NUMBER(device, limit, power_mw);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *now, unsigned int *pending) {
    const struct gpu *gpu = gpu_of(device);
    if (!gpu) return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->mig < 0) return NVML_ERROR_NOT_SUPPORTED;
    *now = *pending = gpu->mig;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(
    nvmlDevice_t device, nvmlEnableState_t *now, nvmlEnableState_t *pending) {
    *now = *pending = NVML_FEATURE_ENABLED;
    return gpu_of(device) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
    *mode = NVML_FEATURE_DISABLED;
    return gpu_of(device) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetClockInfo(
    nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock) {
    NUMBER(device, clock, sm_mhz * (type != NVML_CLOCK_MEM) + gpu->memory_mhz * (type == NVML_CLOCK_MEM));
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(
    nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock) {
    NUMBER(device, clock, sm_mhz_max * (type != NVML_CLOCK_MEM) + gpu->memory_mhz * (type == NVML_CLOCK_MEM));
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(
    nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock) {
    return nvmlDeviceGetMaxClockInfo(device, type, clock);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(
    nvmlDevice_t device, unsigned long long *reasons) {
    NUMBER(device, reasons, throttling);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(
    nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *processes) {
    *count = 0;
    return gpu_of(device) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    for (int i = 0; i < count; i++) values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    return gpu_of(device) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power) {
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy) {
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetTemperature(
    nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *temperature) {
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    return NVML_ERROR_NOT_SUPPORTED;
}
