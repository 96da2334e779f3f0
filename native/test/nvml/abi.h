/* The part of NVML's binary interface that koordra's discovery calls.
 *
 * Written from the structures of nvidia-ml-py, which are what the caller passes; sizes are asserted below. */
#ifndef KOORDRA_NVML_ABI_H
#define KOORDRA_NVML_ABI_H

#include <stdint.h>

typedef int nvmlReturn_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_RESET_REQUIRED = 16,
    NVML_ERROR_IN_USE = 19,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999
};

enum { EVENT_XID_CRITICAL_ERROR = 8, FIELD_UNSIGNED_LONG_LONG = 3, NVLINK_MAX = 36 };

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_v2_t;

typedef struct {
    unsigned start, size;
} nvmlGpuInstancePlacement_t;

typedef struct {
    unsigned version, id, p2p, slices, instances, multiprocessors;
    unsigned copy_engines, decoders, encoders, jpeg_engines, ofa_engines;
    unsigned long long memory_mib;
    char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;

typedef struct {
    void *device;
    unsigned id, profile_id;
    nvmlGpuInstancePlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
    unsigned version, id, slices, instances, multiprocessors;
    unsigned copy_engines, decoders, encoders, jpeg_engines, ofa_engines;
    char name[96];
} nvmlComputeInstanceProfileInfo_v2_t;

typedef struct {
    void *device, *gpu_instance;
    unsigned id, profile_id, start, size;
} nvmlComputeInstanceInfo_t;

typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpeg_engines, ofa_engines;
    unsigned gpu_instance_slices, compute_instance_slices;
    unsigned long long memory_mib;
} nvmlDeviceAttributes_t;

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    nvmlReturn_t status;
    uint32_t clique;
    uint32_t state;
    uint32_t health_mask;
} nvmlGpuFabricInfo_v2_t;

typedef union {
    double d;
    unsigned ui;
    unsigned long ul;
    unsigned long long ull;
    long long sll;
} nvmlValue_t;

typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    unsigned value_type;
    nvmlReturn_t result;
    nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} nvmlEventData_t;

_Static_assert(sizeof(nvmlProcessInfo_v2_t) == 24, "nvmlProcessInfo_v2_t");
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(nvmlMemory_v2_t) == 0x28, "nvmlMemory_v2_t");
_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_v2_t) == 0x98, "nvmlGpuInstanceProfileInfo_v2_t");
_Static_assert(sizeof(nvmlComputeInstanceProfileInfo_v2_t) == 0x88, "nvmlComputeInstanceProfileInfo_v2_t");
_Static_assert(sizeof(nvmlGpuFabricInfo_v2_t) == 0x24, "nvmlGpuFabricInfo_v2_t");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(nvmlEventData_t) == 32, "nvmlEventData_t");

#endif
