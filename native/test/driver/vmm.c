/* Physical memory with references, and address ranges to map it into. A released number is given out again at once. An exported
 * object belongs to all who have it, and lives until the last lets go. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

enum { GRANULARITY = 2 << 20, MAPPINGS_MAX = 1 << 16 };

struct physical {
    uint64_t bytes;
    uint32_t card, handles, mappings;
    int shared; /* number + 1 in the world; 0: ours alone */
    bool host;
};

static struct physical objects[OBJECTS_MAX];
static uint32_t number_of[OBJECTS_MAX]; /* handle -> object + 1 */

struct mapping {
    uint64_t address, bytes;
    uint32_t object;
    bool used;
};

static struct mapping mappings[MAPPINGS_MAX];
static uint32_t mappings_top, objects_top = 1, handles_top = 1;

static uint32_t handle_new(uint32_t object)
{
    for (uint32_t handle = 1; handle < OBJECTS_MAX; handle++)
        if (!number_of[handle]) {
            number_of[handle] = object + 1;
            handles_top = handle >= handles_top ? handle + 1 : handles_top;
            return handle;
        }
    return 0;
}

static void dropped(struct physical *object)
{
    if (object->handles || object->mappings || !object->bytes)
        return;
    if (object->shared)
        shared_drop(object->shared - 1);
    else if (!object->host)
        give(object->card, object->bytes);
    memset(object, 0, sizeof *object);
}

static uint32_t object_new(const struct physical *made)
{
    for (uint32_t at = 0; at < OBJECTS_MAX; at++)
        if (!objects[at].bytes) {
            objects[at] = *made;
            objects_top = at >= objects_top ? at + 1 : objects_top;
            return at;
        }
    return OBJECTS_MAX;
}

static struct physical *object_of(CUmemGenericAllocationHandle handle)
{
    return handle && handle < OBJECTS_MAX && number_of[handle] ? &objects[number_of[handle] - 1] : NULL;
}

static unsigned card_of(int device)
{
    CUuuid uuid;
    extern CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
    cuDeviceGetUuid_v2(&uuid, device);
    for (unsigned card = 0; card < fake.world->card_count; card++)
        if (memcmp(uuid.bytes, fake.world->cards[card].uuid, 16) == 0)
            return card;
    return 0;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties, unsigned long long flags)
{
    ENTER();
    (void)flags;
    if (!bytes || bytes % GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    bool domain = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;
    bool host = properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE && !domain;
    unsigned card = host ? 0 : card_of(domain ? properties->location.id & 0xff : properties->location.id);
    CUresult result = host ? CUDA_SUCCESS : take(card, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&fake.lock);
    *handle = handle_new(object_new(&(struct physical){.bytes = bytes, .card = card, .handles = 1, .host = host}));
    pthread_mutex_unlock(&fake.lock);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    ENTER();
    pthread_mutex_lock(&fake.lock);
    struct physical *object = object_of(handle);
    if (object && object->handles) {
        object->handles--;
        if (!object->handles)
            number_of[handle] = 0;
        dropped(object);
    }
    pthread_mutex_unlock(&fake.lock);
    LEAVE(object ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags)
{
    ENTER();
    (void)alignment;
    (void)wanted;
    (void)flags;
    *pointer = address_new(&(struct allocation){.bytes = bytes, .kind = RESERVED_ADDRESS});
    return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes)
{
    ENTER();
    (void)bytes;
    if (!allocation_at(pointer))
        return CUDA_ERROR_INVALID_VALUE;
    address_free(pointer);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    ENTER();
    (void)flags;
    pthread_mutex_lock(&fake.lock);
    struct physical *object = object_of(handle);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    for (uint32_t at = 0; object && offset + bytes <= object->bytes && at < MAPPINGS_MAX; at++)
        if (!mappings[at].used) {
            mappings[at] = (struct mapping){pointer, bytes, (uint32_t)(object - objects), true};
            mappings_top = at >= mappings_top ? at + 1 : mappings_top;
            object->mappings++;
            result = CUDA_SUCCESS;
            break;
        }
    pthread_mutex_unlock(&fake.lock);
    LEAVE(result);
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    ENTER();
    bool any = false;
    pthread_mutex_lock(&fake.lock);
    for (uint32_t at = 0; at < mappings_top; at++)
        if (mappings[at].used && mappings[at].address >= pointer && mappings[at].address < pointer + bytes) {
            mappings[at].used = false;
            objects[mappings[at].object].mappings--;
            dropped(&objects[mappings[at].object]);
            any = true;
        }
    pthread_mutex_unlock(&fake.lock);
    LEAVE(any ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const void *access, size_t count)
{
    ENTER();
    (void)pointer;
    (void)bytes;
    (void)access;
    (void)count;
    return CUDA_SUCCESS;
}

/* The handle that the memory was made with, or another number if that has been released. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    ENTER();
    uint64_t pointer = (uint64_t)(uintptr_t)address;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake.lock);
    for (uint32_t at = 0; at < mappings_top && result != CUDA_SUCCESS; at++) {
        if (!mappings[at].used || pointer < mappings[at].address || pointer - mappings[at].address >= mappings[at].bytes)
            continue;
        uint32_t object = mappings[at].object, known = 0;
        for (uint32_t number = 1; number < handles_top && !known; number++)
            known = number_of[number] == object + 1 ? number : 0;
        *handle = known ? known : handle_new(object);
        objects[object].handles++;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake.lock);
    return result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
    ENTER();
    struct physical *object = object_of(handle);
    if (!object)
        return CUDA_ERROR_INVALID_VALUE;
    *properties = (CUmemAllocationProp){.type = 1, .location = {object->host ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, (int)object->card}};
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, int option)
{
    ENTER();
    (void)properties;
    (void)option;
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

int shared_new(unsigned card, uint64_t bytes)
{
    int found = -1;
    world_lock(fake.world);
    for (int at = 0; at < WORLD_SHARED && found < 0; at++)
        if (!fake.world->shared[at].used) {
            fake.world->shared[at] = (struct world_shared){.used = 1, .card = card, .bytes = bytes};
            fake.world->shared[at].holders[fake.me / 64] |= UINT64_C(1) << (fake.me % 64);
            fake.world->processes[fake.me].bytes[card] -= bytes;
            found = at;
        }
    world_unlock(fake.world);
    return found;
}

void shared_hold(int number)
{
    world_lock(fake.world);
    fake.world->shared[number].holders[fake.me / 64] |= UINT64_C(1) << (fake.me % 64);
    world_unlock(fake.world);
}

void shared_drop(int number)
{
    uint64_t left = 0;
    world_lock(fake.world);
    struct world_shared *shared = &fake.world->shared[number];
    shared->holders[fake.me / 64] &= ~(UINT64_C(1) << (fake.me % 64));
    for (unsigned word = 0; word < WORLD_PROCESSES / 64; word++)
        left |= shared->holders[word];
    if (!left)
        memset(shared, 0, sizeof *shared);
    world_unlock(fake.world);
}

/* The shareable "descriptor" is the number of the object in the world. */
CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
    ENTER();
    (void)type;
    (void)flags;
    struct physical *object = object_of(handle);
    if (!object || object->host)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object->shared)
        object->shared = shared_new(object->card, object->bytes) + 1;
    *(int *)shareable = object->shared - 1;
    return object->shared ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle, int type)
{
    ENTER();
    (void)type;
    int number = (int)(intptr_t)os_handle;
    if (number < 0 || number >= WORLD_SHARED || !fake.world->shared[number].used)
        return CUDA_ERROR_INVALID_VALUE;
    shared_hold(number);
    pthread_mutex_lock(&fake.lock);
    *handle = handle_new(object_new(&(struct physical){.bytes = fake.world->shared[number].bytes, .card = fake.world->shared[number].card, .handles = 1, .shared = number + 1}));
    pthread_mutex_unlock(&fake.lock);
    return CUDA_SUCCESS;
}
