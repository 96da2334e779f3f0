/* Init, shutdown, versions, error texts, and what a handle is. */
#include "control.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct machine *current;
static unsigned opened;
static int node = -1;

struct machine *machine_now(void)
{
    return opened ? current : NULL;
}

struct gpu *machine_gpu(const void *handle)
{
    for (unsigned index = 0; opened && index < current->gpu_count; index++)
        if (handle == &current->gpus[index])
            return &current->gpus[index];
    return NULL;
}

struct instance *machine_instance(const void *handle)
{
    for (unsigned index = 0; opened && index < current->gpu_count; index++)
        for (unsigned number = 0; number < INSTANCES_MAX; number++) {
            struct instance *found = &current->gpus[index].instances[number];
            if (handle == found)
                return found->gpu ? found : NULL;
        }
    return NULL;
}

struct gpu_instance *machine_gpu_instance(const void *handle)
{
    for (unsigned index = 0; opened && index < current->gpu_count; index++)
        for (unsigned number = 0; number < INSTANCES_MAX; number++) {
            struct gpu_instance *found = &current->gpus[index].gpu_instances[number];
            if (handle == found)
                return found->gpu ? found : NULL;
        }
    return NULL;
}

/* The driver's control node, open from the first init to the last shutdown: who holds it shows in /proc/PID/fd, as with
 * /dev/nvidiactl, and a process that dies lets go of it. */
static void node_open(void)
{
    const char *path = getenv("KOORDRA_FAKE_NVML_NODE");
    if (path)
        node = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
}

static void node_close(void)
{
    if (node >= 0)
        close(node);
    node = -1;
}

/* The description is read by the first init only: like a driver, it is loaded once for all who use it. */
nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    FAIL_AS_TOLD(NULL);
    if (!opened) {
        if (!current)
            current = calloc(1, sizeof *current);
        if (!current)
            return NVML_ERROR_MEMORY;
        if (machine_load(current) != 0)
            return NVML_ERROR_DRIVER_NOT_LOADED;
        instances_load(current);
        node_open();
    }
    opened++;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void)
{
    FAIL_AS_TOLD(NULL);
    if (!--opened)
        node_close();
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    static char text[32];
    snprintf(text, sizeof text, "error %d", result);
    return text;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    FAIL_AS_TOLD(NULL);
    snprintf(version, length, "%s", current->driver);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    FAIL_AS_TOLD(NULL);
    *version = current->cuda;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    FAIL_AS_TOLD(NULL);
    *count = current->gpu_count;
    return NVML_SUCCESS;
}
