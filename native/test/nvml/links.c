/* What joins the GPUs: NVLinks, peer access, the common ancestor in the PCI tree, the fabric. */
#include "control.h"

#include <stdio.h>
#include <string.h>

enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2, P2P_OK = 0, P2P_NOT_SUPPORTED = 5, LEVEL_HOSTBRIDGE = 30, LEVEL_SYSTEM = 50 };

static nvmlReturn_t find_link(void *device, unsigned number, const char *call, struct link **found)
{
    struct gpu *gpu = machine_gpu(device);
    nvmlReturn_t told = control_error(call, gpu);
    if (told != NVML_SUCCESS)
        return told;
    if (!gpu || number >= NVLINK_MAX)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!gpu->has_links)
        return NVML_ERROR_NOT_SUPPORTED;
    *found = &gpu->links[number];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(void *device, unsigned number, unsigned *active)
{
    struct link *link;
    nvmlReturn_t result = find_link(device, number, __func__, &link);
    if (result == NVML_SUCCESS)
        *active = link->active;
    return result;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned number, unsigned *type)
{
    struct link *link;
    nvmlReturn_t result = find_link(device, number, __func__, &link);
    if (result == NVML_SUCCESS)
        *type = link->to_switch ? REMOTE_SWITCH : REMOTE_GPU;
    return result;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned number, nvmlPciInfo_t *pci)
{
    struct link *link;
    nvmlReturn_t result = find_link(device, number, __func__, &link);
    if (result != NVML_SUCCESS)
        return result;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", link->peer);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(void *one, void *other, unsigned index, unsigned *status)
{
    struct gpu *here = machine_gpu(one), *there = machine_gpu(other);
    (void)index;
    FAIL_AS_TOLD(here);
    FAIL_AS_TOLD(there);
    if (!here || !there)
        return NVML_ERROR_INVALID_ARGUMENT;
    *status = P2P_NOT_SUPPORTED;
    for (unsigned number = 0; number < here->peer_count; number++)
        if (!strcmp(here->peers[number], there->bus_id))
            *status = P2P_OK;
    return NVML_SUCCESS;
}

/* The description has no bridges: GPUs of one PCI domain meet at the host bridge, others nowhere. */
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, unsigned *level)
{
    struct gpu *here = machine_gpu(one), *there = machine_gpu(other);
    FAIL_AS_TOLD(here);
    if (!here || !there)
        return NVML_ERROR_INVALID_ARGUMENT;
    *level = here->domain == there->domain ? LEVEL_HOSTBRIDGE : LEVEL_SYSTEM;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(void *device, nvmlGpuFabricInfo_v2_t *info)
{
    struct gpu *gpu = machine_gpu(device);
    FAIL_AS_TOLD(gpu);
    if (!gpu)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != (sizeof *info | 2U << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!gpu->has_fabric)
        return NVML_ERROR_NOT_SUPPORTED;
    memcpy(info->cluster, gpu->cluster, sizeof info->cluster);
    info->clique = gpu->clique;
    info->state = gpu->fabric_state;
    info->health_mask = gpu->fabric_health;
    info->status = NVML_SUCCESS;
    return NVML_SUCCESS;
}
