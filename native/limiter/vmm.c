/* Virtual memory management: physical memory lives as long as a handle or a mapping of it does, and is charged as long.
 *
 * cuMemCreate makes an object with one handle, on the card that the properties name, whatever context is current; memory on
 * the host is not ours to count. Retaining adds a handle, mapping a mapping; releasing and unmapping take them away; the bytes
 * go back with the last. What another process has exported is charged, to us too, when it is mapped and its size is known:
 * its owner may let go of it any time. Calls that change what an object is referred by keep one lock over the driver's call,
 * because the driver gives a handle out again as soon as it is released. */
#include <sys/mman.h>

#include "charge.h"
#include "defect.h"

static struct objects *objects_locked(void)
{
    struct objects *objects = &process_self()->objects;
    pthread_mutex_lock(&objects->lock);
    return objects;
}

static void objects_unlock(struct objects *objects)
{
    pthread_mutex_unlock(&objects->lock);
}

/* Number of a fresh object; OBJECTS_MAX where there is none. */
static uint32_t object_new(struct objects *objects)
{
    if (!objects->all) {
        void *all = mmap(NULL, sizeof(struct object) * OBJECTS_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (all == MAP_FAILED)
            return OBJECTS_MAX;
        objects->all = all;
    }
    uint32_t number = objects->free ? objects->free - 1 : objects->used;
    if (number == OBJECTS_MAX)
        return OBJECTS_MAX;
    if (objects->free)
        objects->free = objects->all[number].next;
    else
        objects->used++;
    objects->all[number] = (struct object){0};
    return number;
}

static void object_dropped(struct objects *objects, uint32_t number)
{
    struct object *object = &objects->all[number];
    if (object->handles || (object->mappings && !DEFECT(vmm_first_release)))
        return;
    charge_release(&process_self()->cards[object->card], object->bytes, object->imported ? KIND_IMPORT : KIND_VMM);
    object->bytes = 0;
    if (object->mappings)
        return;
    object->next = objects->free;
    objects->free = number + 1;
}

static bool put(enum space space, uint64_t key, uint64_t bytes, uint32_t object, uint32_t count)
{
    struct record record = {.key = key, .bytes = bytes, .space = (uint8_t)space, .kind = KIND_VMM, .more = object, .count = count}, replaced;
    return table_put(&process_self()->table, &record, &replaced);
}

/* One more handle to the object: the same number counts up. */
static bool add_handle(struct objects *objects, uint64_t handle, uint32_t number)
{
    struct record record;
    bool known = table_get(&process_self()->table, SPACE_HANDLE, handle, &record) && record.more == number;
    if (!put(SPACE_HANDLE, handle, 0, number, known ? record.count + 1 : 1))
        return false;
    objects->all[number].handles++;
    return true;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties, unsigned long long flags)
{
#define CALL DRIVER(cuMemCreate, CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long)(handle, bytes, properties, flags)
    enum process_state state = process_ready();
    if (state != PROCESS_READY || !handle || !properties)
        return state == PROCESS_REFUSED ? CUDA_ERROR_NOT_PERMITTED : CALL;
    struct card *card = card_of_location(&properties->location);
    if (DEFECT(vmm_host_crashes) && properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        card = &process_self()->cards[properties->location.id + CARDS_MAX * 4096];
    if (!card)
        return CALL;
    if (!charge_reserve(card, bytes, KIND_VMM))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CALL;
#undef CALL
    if (result != CUDA_SUCCESS) {
        charge_release(card, bytes, KIND_VMM);
        return result;
    }
    struct objects *objects = objects_locked();
    uint32_t number = object_new(objects);
    if (number != OBJECTS_MAX) { /* without a record the charge stays until the process ends */
        objects->all[number] = (struct object){.bytes = bytes, .card = (uint16_t)card_number(card)};
        add_handle(objects, *handle, number);
    }
    objects_unlock(objects);
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct record record;
    if (process_ready() != PROCESS_READY)
        return DRIVER(cuMemRelease, CUmemGenericAllocationHandle)(handle);
    struct objects *objects = objects_locked();
    CUresult result = DRIVER(cuMemRelease, CUmemGenericAllocationHandle)(handle);
    if (result == CUDA_SUCCESS && table_get(&process_self()->table, SPACE_HANDLE, handle, &record)) {
        if (record.count > 1)
            put(SPACE_HANDLE, handle, 0, (uint32_t)record.more, record.count - 1);
        else
            table_take(&process_self()->table, SPACE_HANDLE, handle, &record);
        uint32_t number = (uint32_t)record.more;
        objects->all[number].handles -= DEFECT(vmm_first_release) ? objects->all[number].handles : 1;
        object_dropped(objects, number);
    }
    objects_unlock(objects);
    return result;
}

/* An imported object is as large as what is mapped of it. Not refused for lack of room: the memory is there already. */
static void charge_import(struct object *object, uint64_t end)
{
    if (!object->imported || end <= object->bytes)
        return;
    ledger_charge(&process_self()->cards[object->card].allowance, end - object->bytes, KIND_IMPORT);
    object->bytes = end;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
#define CALL DRIVER(cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)(pointer, bytes, offset, handle, flags)
    struct record record;
    if (process_ready() != PROCESS_READY)
        return CALL;
    struct objects *objects = objects_locked();
    CUresult result = CALL;
#undef CALL
    if (result == CUDA_SUCCESS && table_get(&process_self()->table, SPACE_HANDLE, handle, &record)) {
        struct object *object = &objects->all[record.more];
        if (put(SPACE_MAPPING, pointer, bytes, (uint32_t)record.more, 1)) {
            object->mappings++;
            charge_import(object, offset + bytes);
        } else {
            object->handles++; /* not to be forgotten, so never given back */
        }
    }
    objects_unlock(objects);
    return result;
}

struct range {
    uint64_t start, end;
    struct objects *objects;
    uint32_t found;
};

static bool in_range(const struct record *record, void *context)
{
    struct range *range = context;
    if (record->space != SPACE_MAPPING || record->key < range->start || record->key >= range->end)
        return false;
    range->objects->all[record->more].mappings--;
    object_dropped(range->objects, (uint32_t)record->more);
    return true;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    struct record record;
    if (process_ready() != PROCESS_READY)
        return DRIVER(cuMemUnmap, CUdeviceptr, size_t)(pointer, bytes);
    struct objects *objects = objects_locked();
    CUresult result = DRIVER(cuMemUnmap, CUdeviceptr, size_t)(pointer, bytes);
    /* Usually mappings are undone one by one; a range may hold several, side by side or with holes between. */
    uint64_t at = pointer, end = pointer + bytes;
    while (result == CUDA_SUCCESS && at < end && table_take(&process_self()->table, SPACE_MAPPING, at, &record)) {
        objects->all[record.more].mappings--;
        object_dropped(objects, (uint32_t)record.more);
        at += record.bytes;
    }
    if (result == CUDA_SUCCESS && at < end) {
        struct range range = {at, end, objects, OBJECTS_MAX};
        table_sweep(&process_self()->table, in_range, &range);
    }
    objects_unlock(objects);
    return result;
}

static bool holds_address(const struct record *record, void *context)
{
    struct range *range = context;
    if (record->space == SPACE_MAPPING && record->key <= range->start && range->start - record->key < record->bytes)
        range->found = (uint32_t)record->more;
    return false;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    if (process_ready() != PROCESS_READY)
        return DRIVER(cuMemRetainAllocationHandle, CUmemGenericAllocationHandle *, void *)(handle, address);
    struct objects *objects = objects_locked();
    CUresult result = DRIVER(cuMemRetainAllocationHandle, CUmemGenericAllocationHandle *, void *)(handle, address);
    if (result == CUDA_SUCCESS) {
        struct range range = {(uint64_t)(uintptr_t)address, 0, objects, OBJECTS_MAX};
        table_sweep(&process_self()->table, holds_address, &range);
        if (range.found != OBJECTS_MAX && !add_handle(objects, *handle, range.found))
            objects->all[range.found].handles++;
    }
    objects_unlock(objects);
    return result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared, int type)
{
    struct process *process = process_self();
    CUmemAllocationProp properties = {0};
    if (process_ready() != PROCESS_READY || process->trust_imports || DEFECT(imports_uncounted))
        return DRIVER(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle *, void *, int)(handle, shared, type);
    struct objects *objects = objects_locked();
    CUresult result = DRIVER(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle *, void *, int)(handle, shared, type);
    struct record record;
    struct card *card = NULL;
    if (result == CUDA_SUCCESS && table_get(&process->table, SPACE_HANDLE, *handle, &record)) {
        add_handle(objects, *handle, (uint32_t)record.more); /* our own, come back */
    } else if (result == CUDA_SUCCESS &&
               DRIVER(cuMemGetAllocationPropertiesFromHandle, CUmemAllocationProp *, CUmemGenericAllocationHandle)(&properties, *handle) == CUDA_SUCCESS) {
        card = card_of_location(&properties.location);
        uint32_t number = card ? object_new(objects) : OBJECTS_MAX;
        if (number != OBJECTS_MAX) {
            objects->all[number] = (struct object){.card = (uint16_t)card_number(card), .imported = true};
            add_handle(objects, *handle, number);
        }
    }
    objects_unlock(objects);
    return result;
}
