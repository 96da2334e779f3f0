/* Whose processes a container sees on a card that it has a share of: those of its own claims, as the slots of their regions
 * tell, by the pid that they have here or on the host (drivers differ in which one they give). Other tenants' pids and figures
 * are taken out of every list. The number that is told before there is room for a list may be too high.
 *
 * A process of the container that never called CUDA has no slot, and does not see itself. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "defect.h"
#include "nvml.h"
#include "process_stat.h"

/* Sizes and places of the pid in NVML's structures, asserted in test/coverage and by the tests through nvidia-ml-py. */
enum { LIST_V1 = 16, LIST_V2 = 24, DETAIL = 32, SAMPLE = 32, SAMPLE_INFO = 40 };

struct detail_list {
    unsigned version, mode, count;
    void *entries;
};

struct sample_list {
    unsigned version, count;
    unsigned long long since;
    void *entries;
};

static bool is_ours(const struct allowance *shares, uint64_t here, unsigned pid)
{
    for (unsigned share = 0; share < shares->share_count; share++) {
        const struct usage *usage = shares->shares[share].region->usage;
        for (unsigned number = 0; number < SLOTS_MAX; number++) {
            const struct slot *slot = &usage->slots[number];
            if (!(atomic_load(&usage->bitmap[number / 64]) >> (number % 64) & 1) || !(atomic_load(&slot->generation) & 1))
                continue;
            if (atomic_load(&slot->host_pid) == pid || (atomic_load(&slot->pid) == pid && atomic_load(&slot->pid_namespace) == here))
                return true;
        }
    }
    return false;
}

/* Keeps the entries of our processes, in their order; how many. */
static unsigned ours_of(nvmlDevice_t device, void *entries, unsigned count, size_t size, size_t pid_at)
{
    struct allowance shares = nvml_shares(device);
    if (shares.share_count == 0 || !entries || DEFECT(process_lists_unfiltered))
        return count;
    uint64_t here = own_pid_namespace();
    unsigned kept = 0;
    for (unsigned entry = 0; entry < count; entry++) {
        char *from = (char *)entries + entry * size;
        unsigned pid;
        memcpy(&pid, from + pid_at, sizeof pid);
        if (is_ours(&shares, here, pid))
            memmove((char *)entries + kept++ * size, from, size);
    }
    return kept;
}

#define LIST(name, size)                                                                                                      \
    nvmlReturn_t name(nvmlDevice_t device, unsigned *count, void *entries)                                                    \
    {                                                                                                                         \
        nvmlReturn_t result = ((nvmlReturn_t(*)(nvmlDevice_t, unsigned *, void *))nvml_real(#name))(device, count, entries);  \
        if (result == NVML_SUCCESS && count)                                                                                  \
            *count = ours_of(device, entries, *count, size, 0);                                                               \
        return result;                                                                                                        \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, LIST_V1)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, LIST_V2)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, LIST_V2)
LIST(nvmlDeviceGetGraphicsRunningProcesses, LIST_V1)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, LIST_V2)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, LIST_V2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, LIST_V1)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, LIST_V2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, LIST_V2)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, struct detail_list *list)
{
    nvmlReturn_t result = ((nvmlReturn_t(*)(nvmlDevice_t, struct detail_list *))nvml_real("nvmlDeviceGetRunningProcessDetailList"))(device, list);
    if (result == NVML_SUCCESS)
        list->count = ours_of(device, list->entries, list->count, DETAIL, 0);
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, void *samples, unsigned *count, unsigned long long since)
{
    nvmlReturn_t result = ((nvmlReturn_t(*)(nvmlDevice_t, void *, unsigned *, unsigned long long))nvml_real("nvmlDeviceGetProcessUtilization"))(device, samples, count, since);
    if (result == NVML_SUCCESS && count)
        *count = ours_of(device, samples, *count, SAMPLE, 0);
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, struct sample_list *list)
{
    nvmlReturn_t result = ((nvmlReturn_t(*)(nvmlDevice_t, struct sample_list *))nvml_real("nvmlDeviceGetProcessesUtilizationInfo"))(device, list);
    if (result == NVML_SUCCESS)
        list->count = ours_of(device, list->entries, list->count, SAMPLE_INFO, 8);
    return result;
}
