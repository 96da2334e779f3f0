/* In front of libnvidia-ml.so.1: memory of a card is shown as the claim's share of it, processes are those of the claim
 * (nvml_processes.c), everything else is passed on. It only reads the region, takes no slot, and shows the card as it is where there is no region. */
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "nvml.h"
#include "real_library.h"
#include "region.h"

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

enum { REGIONS_MAX = 16 };

static const char *const names[] = {
#define HOOK(symbol, name, version, per_thread) #symbol,
#define FORWARD(symbol) #symbol,
#include "nvml_names.h"
#undef HOOK
#undef FORWARD
};

static nvmlReturn_t no_library(void)
{
    return NVML_ERROR_LIBRARY_NOT_FOUND;
}

static nvmlReturn_t no_function(void)
{
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

void *nvml_real(const char *name)
{
    void *found = real_symbol("libnvidia-ml.so.1", name);
    if (found)
        return found;
    nvmlReturn_t (*missing)(void) = real_symbol("libnvidia-ml.so.1", "nvmlInit_v2") ? no_function : no_library;
    memcpy(&found, &missing, sizeof found);
    return found;
}

/* For stubs.S. */
void *nvml_stub(unsigned number)
{
    return nvml_real(names[number]);
}

static struct region regions[REGIONS_MAX];
static unsigned region_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool looked;

/* Regions come with the container, so one look is enough once there are any. */
static void find_regions(void)
{
    pthread_mutex_lock(&lock);
    const char *root = folder_of("KOORDRA_LIMITER_FOLDER", REGIONS_FOLDER);
    DIR *folder = looked ? NULL : opendir(root);
    for (struct dirent *entry; folder && region_count < REGIONS_MAX && (entry = readdir(folder));) {
        char path[512];
        if (entry->d_name[0] != '.' && snprintf(path, sizeof path, "%.120s/%.120s", root, entry->d_name) < (int)sizeof path &&
            region_open(&regions[region_count], path) == REGION_OK)
            region_count++;
    }
    if (folder)
        closedir(folder);
    looked = region_count > 0;
    pthread_mutex_unlock(&lock);
}

/* "GPU-" or "MIG-", then 16 bytes in hexadecimal digits and dashes. */
static bool parse_uuid(const char *text, uint8_t uuid[16])
{
    unsigned digits = 0;
    for (text += strlen(text) > 4 ? 4 : 0; *text && digits < 32; text++) {
        if (*text == '-')
            continue;
        const char *hexadecimal = "0123456789abcdef0123456789ABCDEF", *at = strchr(hexadecimal, *text);
        if (!at)
            return false;
        unsigned value = (unsigned)(at - hexadecimal) % 16;
        uuid[digits / 2] = (uint8_t)(digits % 2 ? uuid[digits / 2] | value : value << 4);
        digits++;
    }
    return digits == 32;
}

struct allowance nvml_shares(nvmlDevice_t device)
{
    char text[96] = "";
    uint8_t uuid[16];
    struct allowance allowance = {0};
    nvmlReturn_t (*get_uuid)(nvmlDevice_t, char *, unsigned) = (nvmlReturn_t(*)(nvmlDevice_t, char *, unsigned))nvml_real("nvmlDeviceGetUUID");
    if (get_uuid(device, text, sizeof text) != NVML_SUCCESS || !parse_uuid(text, uuid))
        return allowance;
    find_regions();
    for (unsigned number = 0; number < region_count; number++)
        for (unsigned index = 0; index < atomic_load(&regions[number].policy->device_count); index++)
            if (memcmp(regions[number].policy->devices[index].uuid, uuid, sizeof uuid) == 0 && allowance.share_count < SHARES_MAX)
                allowance.shares[allowance.share_count++] = (struct share){&regions[number], index};
    return allowance;
}

/* What the container may use of the device; false: it is shown as it is. */
static bool share_of(nvmlDevice_t device, uint64_t *limit, uint64_t *used)
{
    struct allowance allowance = nvml_shares(device);
    *limit = ledger_limit(&allowance);
    *used = ledger_used(&allowance);
    return *limit != UNLIMITED;
}

static void show(uint64_t limit, uint64_t used, unsigned long long *total, unsigned long long *free, unsigned long long *taken)
{
    *total = limit < *total ? limit : *total;
    uint64_t left = used < *total ? *total - used : 0;
    *free = left < *free ? left : *free;
    *taken = *total - *free;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    uint64_t limit, used;
    nvmlReturn_t result = ((nvmlReturn_t(*)(nvmlDevice_t, nvmlMemory_t *))nvml_real("nvmlDeviceGetMemoryInfo"))(device, memory);
    if (result == NVML_SUCCESS && share_of(device, &limit, &used))
        show(limit, used, &memory->total, &memory->free, &memory->used);
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    uint64_t limit, used;
    nvmlReturn_t result = ((nvmlReturn_t(*)(nvmlDevice_t, nvmlMemory_v2_t *))nvml_real("nvmlDeviceGetMemoryInfo_v2"))(device, memory);
    if (result == NVML_SUCCESS && share_of(device, &limit, &used)) {
        show(limit, used, &memory->total, &memory->free, &memory->used);
        memory->reserved = 0; /* the driver's own part is the card's, not the share's */
    }
    return result;
}
