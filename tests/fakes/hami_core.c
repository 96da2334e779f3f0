/* A double of HAMi's libvgpu.so, written for these tests and of nothing of HAMi's: it limits nothing. It knows the variables that
 * HAMi-core reads by name, and writes what it finds of them into the file that its processes would count in, a line a process:
 *
 *     getconf memory=2048m memory_0=2048m cores=30 policy=force lock=held
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

static const char *value(const char *name)
{
    const char *found = getenv(name);
    return found ? found : "-";
}

__attribute__((constructor)) static void loaded(void)
{
    const char *file = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    int cache = file ? open(file, O_RDWR | O_CREAT | O_APPEND, 0666) : -1;
    if (cache < 0)
        return;
    int lock = open("/tmp/vgpulock/lock", O_CREAT | O_RDWR, 0666);
    dprintf(cache, "%s memory=%s memory_0=%s cores=%s policy=%s lock=%s\n", program_invocation_short_name,
            value("CUDA_DEVICE_MEMORY_LIMIT"), value("CUDA_DEVICE_MEMORY_LIMIT_0"), value("CUDA_DEVICE_SM_LIMIT"),
            value("GPU_CORE_UTILIZATION_POLICY"), lock >= 0 && flock(lock, LOCK_EX) == 0 ? "held" : "-");
    close(lock);
    close(cache);
}
