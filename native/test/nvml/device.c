/* Who a GPU is: handles, addresses, identity, size. */
#include "control.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define GPU_OR_FAIL(gpu, handle)              \
    struct gpu *gpu = machine_gpu(handle);    \
    FAIL_AS_TOLD(gpu);                        \
    if (!gpu)                                 \
        return NVML_ERROR_INVALID_ARGUMENT

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    struct machine *machine = machine_now();
    struct gpu *gpu = machine && index < machine->gpu_count ? &machine->gpus[index] : NULL;
    FAIL_AS_TOLD(gpu);
    *device = gpu;
    return gpu ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device)
{
    struct machine *machine = machine_now();
    struct gpu *gpu = NULL;
    unsigned domain, bus, slot, function = 0;
    if (machine && sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) >= 3)
        for (unsigned index = 0; index < machine->gpu_count; index++) {
            struct gpu *each = &machine->gpus[index];
            if (each->domain == domain && each->bus == bus && each->device == slot)
                gpu = each;
        }
    FAIL_AS_TOLD(gpu);
    *device = gpu;
    return gpu ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    struct machine *machine = machine_now();
    struct gpu *gpu = NULL;
    void *found = NULL;
    for (unsigned index = 0; machine && index < machine->gpu_count; index++) {
        struct gpu *each = &machine->gpus[index];
        if (!strcasecmp(each->uuid, uuid))
            found = gpu = each;
        for (unsigned number = 0; number < INSTANCES_MAX; number++)
            if (each->instances[number].gpu && !strcasecmp(each->instances[number].uuid, uuid)) {
                gpu = each;
                found = &each->instances[number];
            }
    }
    FAIL_AS_TOLD(gpu);
    *device = found;
    return found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(void *device, nvmlPciInfo_t *pci)
{
    GPU_OR_FAIL(gpu, device);
    *pci = (nvmlPciInfo_t){.domain = gpu->domain, .bus = gpu->bus, .device = gpu->device, .pci_device_id = 0x10de};
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", gpu->bus_id);
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04X:%02X:%02X.%X", gpu->domain & 0xffff,
             gpu->bus & 0xff, gpu->device & 0xff, gpu->function & 0xf);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(void *device, char *uuid, unsigned length)
{
    const struct instance *instance = machine_instance(device);
    struct gpu *gpu = instance ? instance->gpu : machine_gpu(device);
    FAIL_AS_TOLD(gpu);
    if (!gpu)
        return NVML_ERROR_INVALID_ARGUMENT;
    const char *text = instance ? instance->uuid : gpu->uuid;
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    snprintf(uuid, length, "%s", text);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(void *device, unsigned *minor)
{
    GPU_OR_FAIL(gpu, device);
    *minor = gpu->minor;
    return gpu->has_minor ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetName(void *device, char *name, unsigned length)
{
    GPU_OR_FAIL(gpu, device);
    if (strlen(gpu->name) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    snprintf(name, length, "%s", gpu->name);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(void *device, nvmlMemory_t *memory)
{
    GPU_OR_FAIL(gpu, device);
    struct state state = {0};
    control_state(gpu, &state);
    *memory = (nvmlMemory_t){.total = gpu->memory, .free = gpu->memory - state.bytes, .used = state.bytes};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(void *device, nvmlUtilization_t *rates)
{
    GPU_OR_FAIL(gpu, device);
    struct state state = {0};
    bool known = control_state(gpu, &state);
    *rates = (nvmlUtilization_t){.gpu = state.percent};
    return known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    GPU_OR_FAIL(gpu, device);
    struct state state = {0};
    bool known = control_state(gpu, &state);
    *milliwatts = state.milliwatts;
    return known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons)
{
    GPU_OR_FAIL(gpu, device);
    struct state state = {0};
    bool known = control_state(gpu, &state);
    *reasons = state.reasons;
    return known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(void *device, nvmlMemory_v2_t *memory)
{
    GPU_OR_FAIL(gpu, device);
    if (memory->version != (sizeof *memory | 2U << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *memory = (nvmlMemory_v2_t){.version = memory->version, .total = gpu->memory, .reserved = gpu->reserved,
                                .free = gpu->memory - gpu->reserved};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetArchitecture(void *device, unsigned *architecture)
{
    GPU_OR_FAIL(gpu, device);
    *architecture = gpu->architecture;
    return gpu->architecture ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    GPU_OR_FAIL(gpu, device);
    *major = (int)gpu->major_capability;
    *minor = (int)gpu->minor_capability;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(void *device, int count, nvmlFieldValue_t *values)
{
    GPU_OR_FAIL(gpu, device);
    for (int index = 0; index < count; index++) {
        values[index].result = NVML_ERROR_NOT_SUPPORTED;
        values[index].value_type = FIELD_UNSIGNED_LONG_LONG;
        for (unsigned number = 0; number < gpu->field_count; number++)
            if (gpu->fields[number].number == values[index].field) {
                values[index].result = NVML_SUCCESS;
                values[index].value.ull = gpu->fields[number].value;
            }
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNumGpuCores(void *device, unsigned *cores)
{
    GPU_OR_FAIL(gpu, device);
    *cores = gpu->cores;
    return gpu->cores ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
