#include "process.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "defect.h"
#include "driver.h"
#include "real_library.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

static _Atomic(struct process *) self;

static void start_anew(void)
{
    struct process *process = atomic_load(&self);
    if (process)
        memset((void *)process, 0, sizeof *process);
}

struct process *process_self(void)
{
    struct process *process = atomic_load_explicit(&self, memory_order_acquire);
    if (process)
        return process;
    process = mmap(NULL, sizeof *process, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (process == MAP_FAILED)
        return NULL;
    struct process *first = NULL;
    if (!atomic_compare_exchange_strong(&self, &first, process)) {
        munmap(process, sizeof *process);
        return first;
    }
    if (madvise(process, sizeof *process, MADV_WIPEONFORK) != 0)
        pthread_atfork(NULL, NULL, start_anew); /* before Linux 4.14 */
    return process;
}

unsigned card_number(const struct card *card)
{
    return (unsigned)(card - process_self()->cards);
}

/* Takes a slot in the region of every claim of this container; false: one of them cannot be had. */
static bool attach_regions(struct process *process)
{
    const char *root = folder_of("KOORDRA_LIMITER_FOLDER", REGIONS_FOLDER);
    DIR *folder = opendir(root);
    if (!folder)
        return false;
    bool attached = true;
    for (struct dirent *entry; attached && (entry = readdir(folder));) {
        char path[256];
        if (entry->d_name[0] == '.')
            continue;
        if (process->region_count == REGIONS_MAX ||
            snprintf(path, sizeof path, "%.120s/%.120s", root, entry->d_name) >= (int)sizeof path) {
            attached = false;
            break;
        }
        struct region *region = &process->regions[process->region_count];
        attached = region_attach(region, path) == REGION_OK;
        process->region_count += attached;
    }
    closedir(folder);
    return attached && process->region_count > 0;
}

static void find_shares(struct process *process, struct card *card)
{
    for (unsigned number = 0; number < process->region_count; number++) {
        struct region *region = &process->regions[number];
        unsigned count = atomic_load(&region->policy->device_count);
        for (unsigned index = 0; index < count && card->allowance.share_count < SHARES_MAX; index++) {
            bool ours = memcmp(region->policy->devices[index].uuid, card->uuid, sizeof card->uuid) == 0;
            if (DEFECT(keyed_by_ordinal))
                ours = index == card_number(card);
            if (DEFECT(counts_only_limited) && atomic_load(&region->policy->devices[index].limit) == UNLIMITED)
                ours = false;
            if (ours)
                card->allowance.shares[card->allowance.share_count++] = (struct share){region, index};
        }
    }
}

/* The cards that the driver shows; false where it cannot tell who they are. */
static bool find_cards(struct process *process, int count)
{
    for (int ordinal = 0; ordinal < count && ordinal < CARDS_MAX; ordinal++) {
        struct card *card = &process->cards[process->card_count];
        CUuuid uuid;
        if (DRIVER(cuDeviceGet, CUdevice *, int)(&card->handle, ordinal) != CUDA_SUCCESS)
            return false;
        /* The second version names the MIG instance, not its card. */
        if (DRIVER(cuDeviceGetUuid_v2, CUuuid *, CUdevice)(&uuid, card->handle) != CUDA_SUCCESS &&
            DRIVER(cuDeviceGetUuid, CUuuid *, CUdevice)(&uuid, card->handle) != CUDA_SUCCESS)
            return false;
        memcpy(card->uuid, uuid.bytes, sizeof card->uuid);
        int integrated = 0;
        DRIVER(cuDeviceGetAttribute, int *, int, CUdevice)(&integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED, card->handle);
        card->integrated = integrated != 0;
        process->card_count++;
        find_shares(process, card);
    }
    return count <= CARDS_MAX;
}

/* No CUDA for this process, for one claim's sake or for none: each of them can see it. */
static enum process_state refuse(const struct process *process)
{
    for (unsigned number = 0; number < process->region_count; number++)
        region_refused(process->regions[number].usage, process->regions[number].folder);
    return PROCESS_REFUSED;
}

static enum process_state make_ready(struct process *process)
{
    int count = 0, version = 0;
    CUresult result = DRIVER(cuDeviceGetCount, int *)(&count);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NO_DEVICE)
        return PROCESS_NEW;
    if (DEFECT(switched_off_by_environment) && getenv("CUDA_DISABLE_CONTROL"))
        return PROCESS_NEW;
    if (DEFECT(takes_signals))
        signal(SIGUSR1, SIG_IGN);
    if (!attach_regions(process))
        return DEFECT(off_without_region) ? PROCESS_READY : refuse(process);
    for (unsigned number = 0; number < process->region_count; number++) {
        unsigned flags = atomic_load(&process->regions[number].policy->flags);
        process->strict |= (flags & POLICY_STRICT) != 0 && !DEFECT(strict_ignored);
        process->trust_imports |= (flags & POLICY_TRUST_IMPORTS) != 0;
    }
    if (!find_cards(process, count))
        return refuse(process);
    DRIVER(cuDriverGetVersion, int *)(&version);
    for (unsigned number = 0; number < process->region_count; number++) {
        struct slot *slot = &process->regions[number].usage->slots[process->regions[number].slot];
        atomic_store(&slot->driver_version, (unsigned)version);
        atomic_store(&slot->state, SLOT_ENFORCING);
    }
    return PROCESS_READY;
}

enum process_state process_ready(void)
{
    struct process *process = process_self();
    if (!process)
        return PROCESS_REFUSED;
    int state = atomic_load_explicit(&process->state, memory_order_acquire);
    if (__builtin_expect(state != PROCESS_NEW, 1))
        return (enum process_state)state;
    pthread_mutex_lock(&process->lock);
    state = atomic_load(&process->state);
    if (state == PROCESS_NEW) {
        state = (int)make_ready(process);
        atomic_store_explicit(&process->state, state, memory_order_release);
    }
    pthread_mutex_unlock(&process->lock);
    return (enum process_state)state;
}

struct card *card_of(CUdevice device)
{
    struct process *process = process_self();
    if (device >= 0 && device < (int)process->card_count && process->cards[device].handle == device)
        return &process->cards[device];
    for (unsigned number = 0; number < process->card_count; number++)
        if (process->cards[number].handle == device)
            return &process->cards[number];
    return NULL;
}

struct card *current_card(void)
{
    CUdevice device;
    if (DRIVER(cuCtxGetDevice, CUdevice *)(&device) != CUDA_SUCCESS)
        return NULL;
    return card_of(device);
}

struct card *card_of_location(const CUmemLocation *location)
{
    if (DEFECT(vmm_current_card))
        return current_card();
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_NONE:
        return NULL;
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return card_of(location->id);
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
        return DEFECT(locality_uncounted) ? NULL : card_of(location->id & 0xff);
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
    case CU_MEM_LOCATION_TYPE_INVISIBLE:
        return NULL;
    default:
        return current_card(); /* a newer driver's: better counted at the wrong place than not at all */
    }
}

struct card *card_of_pool(const CUmemLocation *location, int type)
{
    if (type != CU_MEM_ALLOCATION_TYPE_MANAGED)
        return card_of_location(location);
    /* Managed memory may go to any card, and counts in full, as cuMemAllocManaged's does. */
    struct card *card = DEFECT(managed_pools_uncounted) ? NULL : card_of_location(location);
    return card || DEFECT(managed_pools_uncounted) ? card : current_card();
}
