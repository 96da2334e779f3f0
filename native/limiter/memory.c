/* Plain, pitched, managed and host memory, and what is said about how much there is. */
#include <string.h>

#include "charge.h"
#include "defect.h"

#define ROUNDED(bytes, unit) (((bytes) + (unit) - 1) / (unit) * (unit))

enum { GRAIN = 512, PITCH_GRAIN = 512 };

/* What the driver takes at least for a request: it hands memory out in grains. */
static uint64_t grains(uint64_t bytes)
{
    return bytes > UINT64_MAX - GRAIN ? bytes : ROUNDED(bytes, (uint64_t)GRAIN);
}

static struct record pointer_record(uint64_t bytes, enum kind kind)
{
    return (struct record){.bytes = bytes, .space = SPACE_POINTER, .kind = (uint8_t)kind};
}

static CUresult settle_pointer(CUresult result, struct card *card, struct record *record, uint64_t pointer)
{
    record->key = pointer;
    if (result == CUDA_SUCCESS)
        record->context = current_context();
    return charge_settle(result, card, record);
}

/* The body of an allocation of `charged` bytes in the current context, where CALL asks the driver. */
#define ALLOCATE(charged, KIND, CALL, POINTER)                                    \
    struct card *card;                                                             \
    CUresult result = charge_where(&card);                                          \
    if (result != CUDA_SUCCESS || !card)                                            \
        return result != CUDA_SUCCESS ? result : (CALL);                            \
    struct record record = pointer_record((charged), KIND);                         \
    if (!charge_reserve(card, record.bytes, KIND))                                  \
        return CUDA_ERROR_OUT_OF_MEMORY;                                            \
    result = (CALL);                                                                \
    return settle_pointer(result, card, &record, result == CUDA_SUCCESS ? (uint64_t)(POINTER) : 0)

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    ALLOCATE(grains(bytes), KIND_PLAIN, DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t)(pointer, bytes), *pointer);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned bytes)
{
    ALLOCATE(grains(bytes), KIND_PLAIN, DRIVER(cuMemAlloc, CUdeviceptr_v1 *, unsigned)(pointer, bytes), *pointer);
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
    ALLOCATE(DEFECT(managed_uncounted) ? 0 : grains(bytes), KIND_MANAGED,
             DRIVER(cuMemAllocManaged, CUdeviceptr *, size_t, unsigned)(pointer, bytes, flags), *pointer);
}

/* Rows are padded by the driver, which tells how much only afterwards: a whole grain per row is kept until then. */
static CUresult settle_pitch(CUresult result, struct card *card, struct record *record, uint64_t pointer, uint64_t exact)
{
    if (result == CUDA_SUCCESS && exact < record->bytes) {
        charge_release(card, record->bytes - exact, KIND_PLAIN);
        record->bytes = exact;
    } else if (result == CUDA_SUCCESS && exact > record->bytes) {
        ledger_charge(&card->allowance, exact - record->bytes, KIND_PLAIN);
        record->bytes = exact;
    }
    return settle_pointer(result, card, record, pointer);
}

static uint64_t pitch_bound(uint64_t width, uint64_t height)
{
    if (DEFECT(pitch_guessed))
        return width * height;
    uint64_t row = grains(width);
    return height && row > UINT64_MAX / height ? UINT64_MAX : row * height;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    struct card *card;
    CUresult result = charge_where(&card);
#define CALL DRIVER(cuMemAllocPitch_v2, CUdeviceptr *, size_t *, size_t, size_t, unsigned)(pointer, pitch, width, height, element)
    if (result != CUDA_SUCCESS || !card)
        return result != CUDA_SUCCESS ? result : CALL;
    struct record record = pointer_record(pitch_bound(width, height), KIND_PLAIN);
    if (!charge_reserve(card, record.bytes, KIND_PLAIN))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = CALL;
#undef CALL
    if (result != CUDA_SUCCESS)
        return settle_pointer(result, card, &record, 0);
    return settle_pitch(result, card, &record, *pointer, DEFECT(pitch_guessed) ? record.bytes : grains(*pitch * height));
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
    struct card *card;
    CUresult result = charge_where(&card);
#define CALL DRIVER(cuMemAllocPitch, CUdeviceptr_v1 *, unsigned *, unsigned, unsigned, unsigned)(pointer, pitch, width, height, element)
    if (result != CUDA_SUCCESS || !card)
        return result != CUDA_SUCCESS ? result : CALL;
    struct record record = pointer_record(pitch_bound(width, height), KIND_PLAIN);
    if (!charge_reserve(card, record.bytes, KIND_PLAIN))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = CALL;
#undef CALL
    if (result != CUDA_SUCCESS)
        return settle_pointer(result, card, &record, 0);
    return settle_pitch(result, card, &record, *pointer, grains((uint64_t)*pitch * height));
}

/* Pointers of a pool are freed here too (pool.c). */
CUresult pool_freed(CUresult result, const struct record *record, uint64_t stream);

static CUresult free_pointer(uint64_t pointer, CUresult (*driver_free)(uint64_t pointer))
{
    struct record record = charge_take(SPACE_POINTER, pointer);
    if (DEFECT(unknown_free_swallowed) && record.space == SPACE_NONE)
        return -1;
    CUresult result = driver_free(pointer);
    return record.kind == KIND_POOL ? pool_freed(result, &record, UINT64_MAX) : charge_freed(result, &record);
}

static CUresult free_v2(uint64_t pointer)
{
    return DRIVER(cuMemFree_v2, CUdeviceptr)((CUdeviceptr)pointer);
}

static CUresult free_v1(uint64_t pointer)
{
    return DRIVER(cuMemFree, CUdeviceptr_v1)((CUdeviceptr_v1)pointer);
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    return free_pointer(pointer, free_v2);
}

CUresult cuMemFree(CUdeviceptr_v1 pointer)
{
    return free_pointer(pointer, free_v1);
}

/* Host memory counts where the card has no memory of its own. */
static CUresult where_host(struct card **card)
{
    CUresult result = charge_where(card);
    if (*card && (!(*card)->integrated || DEFECT(host_uncounted)))
        *card = NULL;
    return result;
}

#define ALLOCATE_HOST(bytes, CALL)                                                                          \
    struct card *card;                                                                                       \
    CUresult result = where_host(&card);                                                                     \
    if (result != CUDA_SUCCESS || !card)                                                                     \
        return result != CUDA_SUCCESS ? result : (CALL);                                                     \
    struct record record = {.bytes = grains(bytes), .space = SPACE_HOST, .kind = KIND_PLAIN};                \
    if (!charge_reserve(card, record.bytes, KIND_PLAIN))                                                     \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                     \
    result = (CALL);                                                                                         \
    return settle_pointer(result, card, &record, result == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*pointer : 0)

CUresult cuMemAllocHost_v2(void **pointer, size_t bytes)
{
    ALLOCATE_HOST(bytes, DRIVER(cuMemAllocHost_v2, void **, size_t)(pointer, bytes));
}

CUresult cuMemAllocHost(void **pointer, unsigned bytes)
{
    ALLOCATE_HOST(bytes, DRIVER(cuMemAllocHost, void **, unsigned)(pointer, bytes));
}

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    ALLOCATE_HOST(bytes, DRIVER(cuMemHostAlloc, void **, size_t, unsigned)(pointer, bytes, flags));
}

CUresult cuMemFreeHost(void *pointer)
{
    struct record record = charge_take(SPACE_HOST, (uint64_t)(uintptr_t)pointer);
    return charge_freed(DRIVER(cuMemFreeHost, void *)(pointer), &record);
}

/* The share as the program is to see it: never more than the card has, never an error, however much is in use. */
static void show_share(const struct card *card, uint64_t *free, uint64_t *total)
{
    uint64_t limit = ledger_limit(&card->allowance);
    if (limit == UNLIMITED)
        return;
    if (atomic_load(&process_self()->stale_pools))
        pools_refresh();
    uint64_t used = ledger_used(&card->allowance), left = used < limit ? limit - used : 0;
    *free = left < *free ? left : *free;
    *total = limit < *total || DEFECT(shows_scaled_memory) ? limit : *total;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    struct card *card;
    CUresult result = charge_where(&card);
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuMemGetInfo_v2, size_t *, size_t *)(free, total);
    if (result != CUDA_SUCCESS || !card || !free || !total)
        return result;
    uint64_t left = *free, all = *total;
    if (DEFECT(meminfo_refuses) && ledger_used(&card->allowance) > ledger_limit(&card->allowance))
        return CUDA_ERROR_INVALID_VALUE;
    show_share(card, &left, &all);
    *free = left;
    *total = all;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(unsigned *free, unsigned *total)
{
    struct card *card;
    CUresult result = charge_where(&card);
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuMemGetInfo, unsigned *, unsigned *)(free, total);
    if (result != CUDA_SUCCESS || !card || !free || !total)
        return result;
    uint64_t left = *free, all = *total;
    show_share(card, &left, &all);
    *free = (unsigned)left;
    *total = (unsigned)all;
    return CUDA_SUCCESS;
}

static uint64_t total_shown(CUdevice device, uint64_t total)
{
    struct card *card;
    if (charge_on(device, &card) != CUDA_SUCCESS || !card)
        return total;
    uint64_t limit = ledger_limit(&card->allowance);
    if (DEFECT(total_is_the_limit) && limit == UNLIMITED)
        return 0;
    return limit < total || (DEFECT(shows_scaled_memory) && limit != UNLIMITED) ? limit : total;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult result = DRIVER(cuDeviceTotalMem_v2, size_t *, CUdevice)(bytes, device);
    if (result == CUDA_SUCCESS)
        *bytes = total_shown(device, *bytes);
    return result;
}

CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
    CUresult result = DRIVER(cuDeviceTotalMem, unsigned *, CUdevice)(bytes, device);
    if (result == CUDA_SUCCESS)
        *bytes = (unsigned)total_shown(device, *bytes);
    return result;
}
