/* Event sets: a set delivers each Xid of the control file once, for the GPUs that are registered with it. */
#include "control.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct event_set {
    const struct gpu *gpus[GPUS_MAX];
    unsigned gpu_count, delivered;
};

static void rest_for(unsigned milliseconds)
{
    struct timespec rest = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000L};
    nanosleep(&rest, NULL);
}

nvmlReturn_t nvmlEventSetCreate(void **set)
{
    FAIL_AS_TOLD(NULL);
    struct event_set *made = calloc(1, sizeof *made);
    if (!made)
        return NVML_ERROR_MEMORY;
    /* What happened before the set was made is not delivered to it. */
    char bus_id[32];
    unsigned long long xid;
    while (control_xid(made->delivered, bus_id, &xid))
        made->delivered++;
    *set = made;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(void *set)
{
    FAIL_AS_TOLD(NULL);
    free(set);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *types)
{
    struct gpu *gpu = machine_gpu(device);
    FAIL_AS_TOLD(gpu);
    *types = EVENT_XID_CRITICAL_ERROR;
    return gpu ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *handle)
{
    struct gpu *gpu = machine_gpu(device);
    struct event_set *set = handle;
    FAIL_AS_TOLD(gpu);
    if (!gpu || !set || set->gpu_count == GPUS_MAX)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (types & ~(unsigned long long)EVENT_XID_CRITICAL_ERROR)
        return NVML_ERROR_NOT_SUPPORTED;
    set->gpus[set->gpu_count++] = gpu;
    return NVML_SUCCESS;
}

static const struct gpu *registered(const struct event_set *set, const char *bus_id)
{
    for (unsigned index = 0; index < set->gpu_count; index++)
        if (!strcmp(set->gpus[index]->bus_id, bus_id))
            return set->gpus[index];
    return NULL;
}

nvmlReturn_t nvmlEventSetWait_v2(void *handle, nvmlEventData_t *data, unsigned timeout)
{
    struct event_set *set = handle;
    char bus_id[32];
    unsigned long long xid;
    enum { LOOK_MS = 20 };
    for (unsigned waited = 0;; waited += LOOK_MS) {
        FAIL_AS_TOLD(NULL);
        while (control_xid(set->delivered, bus_id, &xid)) {
            set->delivered++;
            const struct gpu *gpu = registered(set, bus_id);
            if (gpu) {
                *data = (nvmlEventData_t){.device = (void *)gpu, .type = EVENT_XID_CRITICAL_ERROR, .data = xid,
                                          .gpu_instance = 0xffffffff, .compute_instance = 0xffffffff};
                return NVML_SUCCESS;
            }
        }
        if (waited >= timeout)
            return NVML_ERROR_TIMEOUT;
        rest_for(LOOK_MS);
    }
}
