/* Processes on a GPU or MIG device, as the control file has them at this moment:
 *
 *   process GPU-... compute 4711 419430400        of the GPU or MIG device with this UUID: list, pid, bytes
 *   process MIG-... graphics 4712 -               the driver does not tell its bytes
 *
 * A GPU in MIG mode lists the processes of all its instances. */
#include "control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool on_device(const struct gpu *gpu, const struct instance *instance, const char *uuid, const struct instance **where)
{
    *where = NULL;
    for (unsigned number = 0; number < INSTANCES_MAX; number++)
        if (gpu->instances[number].gpu && !strcasecmp(gpu->instances[number].uuid, uuid))
            *where = &gpu->instances[number];
    return instance ? *where == instance : *where || !strcasecmp(gpu->uuid, uuid);
}

static nvmlReturn_t list(const struct gpu *gpu, const struct instance *instance, const char *kind, unsigned *count, nvmlProcessInfo_v2_t *found)
{
    const char *path = getenv("KOORDRA_FAKE_NVML_CONTROL");
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[256], uuid[96], word[16], bytes[32];
    unsigned pid, number = 0;
    while (file && fgets(line, sizeof line, file)) {
        const struct instance *where;
        if (sscanf(line, "process %95s %15s %u %31s", uuid, word, &pid, bytes) != 4 || strcmp(word, kind) || !on_device(gpu, instance, uuid, &where))
            continue;
        if (found && number < *count)
            found[number] = (nvmlProcessInfo_v2_t){
                .pid = pid,
                .used = bytes[0] == '-' ? ~0ull : strtoull(bytes, NULL, 10),
                .gpu_instance = where ? where->gpu_instance : ~0u,
                .compute_instance = where ? where->compute_instance : ~0u,
            };
        number++;
    }
    if (file)
        fclose(file);
    bool enough = number == 0 || (found && number <= *count);
    *count = number;
    return enough ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

#define LIST(name, kind)                                                                    \
    nvmlReturn_t name(void *device, unsigned *count, nvmlProcessInfo_v2_t *found)           \
    {                                                                                       \
        const struct instance *instance = machine_instance(device);                         \
        struct gpu *gpu = instance ? instance->gpu : machine_gpu(device);                   \
        FAIL_AS_TOLD(gpu);                                                                  \
        return gpu ? list(gpu, instance, kind, count, found) : NVML_ERROR_INVALID_ARGUMENT; \
    }

LIST(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")
