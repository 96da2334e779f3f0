/* MIG: mode, profiles, placements, and the instances that the description lists. */
#include "control.h"

#include <string.h>

const struct profile *profile_of(const struct gpu *gpu, unsigned id)
{
    for (unsigned number = 0; number < gpu->profile_count; number++)
        if (gpu->profiles[number].info.id == id)
            return &gpu->profiles[number];
    return NULL;
}

nvmlReturn_t nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
    struct gpu *gpu = machine_gpu(device);
    FAIL_AS_TOLD(gpu);
    if (!gpu)
        return NVML_ERROR_INVALID_ARGUMENT;
    instances_mode(gpu);
    *current = gpu->mig_current;
    *pending = gpu->mig_pending;
    return gpu->has_mig ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(void *device, unsigned number, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    struct gpu *gpu = machine_gpu(device);
    FAIL_AS_TOLD(gpu);
    if (!gpu)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != (sizeof *info | 2U << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    for (unsigned index = 0; index < gpu->profile_count; index++)
        if (gpu->profiles[index].info.version == number) {
            unsigned version = info->version;
            *info = gpu->profiles[index].info;
            info->version = version;
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *device, unsigned id,
                                                           nvmlGpuInstancePlacement_t *placements, unsigned *count)
{
    struct gpu *gpu = machine_gpu(device);
    FAIL_AS_TOLD(gpu);
    const struct profile *profile = gpu ? profile_of(gpu, id) : NULL;
    if (!profile)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (placements && *count < profile->placement_count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    if (placements)
        memcpy(placements, profile->placements, profile->placement_count * sizeof *placements);
    *count = profile->placement_count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count)
{
    struct gpu *gpu = machine_gpu(device);
    FAIL_AS_TOLD(gpu);
    if (!gpu)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = gpu->has_mig ? INSTANCES_MAX : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **found)
{
    struct gpu *gpu = machine_gpu(device);
    FAIL_AS_TOLD(gpu);
    if (!gpu)
        return NVML_ERROR_INVALID_ARGUMENT;
    *found = NULL;
    for (unsigned number = 0; number < INSTANCES_MAX && !*found; number++)
        if (gpu->instances[number].gpu && index-- == 0)
            *found = &gpu->instances[number];
    return *found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

#define INSTANCE_OR_FAIL(instance, handle)                           \
    struct instance *instance = machine_instance(handle);            \
    FAIL_AS_TOLD(instance ? instance->gpu : machine_gpu(handle));    \
    if (!instance)                                                   \
        return NVML_ERROR_INVALID_ARGUMENT

nvmlReturn_t nvmlDeviceGetGpuInstanceId(void *device, unsigned *id)
{
    INSTANCE_OR_FAIL(instance, device);
    *id = instance->gpu_instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(void *device, unsigned *id)
{
    INSTANCE_OR_FAIL(instance, device);
    *id = instance->compute_instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *device, void **found)
{
    INSTANCE_OR_FAIL(instance, device);
    *found = instance->gpu;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(void *device, nvmlDeviceAttributes_t *attributes)
{
    INSTANCE_OR_FAIL(instance, device);
    const struct profile *profile = profile_of(instance->gpu, instance->profile_id);
    *attributes = (nvmlDeviceAttributes_t){
        .gpu_instance_slices = profile ? profile->info.slices : instance->compute_slices,
        .compute_instance_slices = instance->compute_slices,
        .memory_mib = profile ? profile->info.memory_mib : 0,
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(void *device, unsigned id, void **found)
{
    struct gpu *gpu = machine_gpu(device);
    FAIL_AS_TOLD(gpu);
    if (!gpu)
        return NVML_ERROR_INVALID_ARGUMENT;
    *found = gpu_instance_of(gpu, id);
    return *found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(void *handle, nvmlGpuInstanceInfo_t *info)
{
    struct gpu_instance *instance = machine_gpu_instance(handle);
    FAIL_AS_TOLD(instance ? instance->gpu : NULL);
    if (!instance)
        return NVML_ERROR_INVALID_ARGUMENT;
    *info = (nvmlGpuInstanceInfo_t){
        .device = instance->gpu,
        .id = instance->id,
        .profile_id = instance->profile_id,
        .placement = {instance->start, instance->size},
    };
    return NVML_SUCCESS;
}
