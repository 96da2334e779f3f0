/* Memory pools and stream-ordered allocation: charged by what the pool has reserved on its card, not by what is handed out.
 *
 * Before an allocation the growth that it may cause is reserved: what the request lacks beyond the pool's free part, in the
 * steps in which a pool grows. Afterwards the pool is asked what it has reserved, and the charge becomes that. One lock per
 * pool covers asking, reserving, allocating and asking again.
 *
 * A pool shrinks when it is trimmed, and at a synchronisation after frees. So frees only mark it stale; synchronising, asking
 * for free memory, and being short of it look again. During stream capture an allocation becomes a node of a graph (graph.c)
 * and the pool does not grow. A destroyed pool lives until its last pointer is freed and the streams have come to that point; it
 * cannot be asked any more, so its charge stays until then.
 */
#include "charge.h"
#include "defect.h"
#include "old_glibc.h"

#define POOL_STEP (UINT64_C(32) << 20)

/* `unknown` where the driver does not say: after a fault on the card no call works any more, and the memory stays. */
static uint64_t attribute(uint64_t pool, int which, uint64_t unknown)
{
    uint64_t value = 0;
    CUresult result = DRIVER(cuMemPoolGetAttribute, void *, int, void *)((void *)(uintptr_t)pool, which, &value);
    if (result == CUDA_ERROR_INVALID_VALUE)
        return 0; /* there is no such pool any more */
    return result == CUDA_SUCCESS ? value : unknown;
}

/* The pool's record, made at first sight; NULL: the table is full. */
static struct pool *pool_of(uint64_t handle, const struct card *card)
{
    struct process *process = process_self();
    struct record record, replaced;
    if (table_get(&process->table, SPACE_POOL, handle, &record))
        return &process->pools[record.more];
    pthread_mutex_lock(&process->pools_lock);
    struct pool *pool = NULL;
    if (table_get(&process->table, SPACE_POOL, handle, &record)) {
        pool = &process->pools[record.more];
    } else if (card) {
        for (unsigned number = 0; number < POOLS_MAX && !pool; number++)
            if (!atomic_load(&process->pools[number].known))
                pool = &process->pools[number];
        record = (struct record){.key = handle, .space = SPACE_POOL, .kind = KIND_POOL, .more = pool ? (uint64_t)(pool - process->pools) : 0};
        if (pool && table_put(&process->table, &record, &replaced)) {
            pthread_mutex_lock(&pool->lock);
            pool->handle = handle;
            pool->card = (uint16_t)card_number(card);
            pool->charged = 0;
            pool->outstanding = 0;
            pool->destroyed = false;
            pool->frees_pending = false;
            if (atomic_load(&process->pool_count) <= record.more)
                atomic_store(&process->pool_count, (unsigned)record.more + 1);
            pool->known = true;
            pthread_mutex_unlock(&pool->lock);
        } else {
            pool = NULL;
        }
    }
    pthread_mutex_unlock(&process->pools_lock);
    return pool;
}

/* Makes the charge equal to what is reserved; the pool is locked. */
static void settle(struct pool *pool, uint64_t reserved)
{
    struct card *card = &process_self()->cards[pool->card];
    if (reserved < pool->charged)
        charge_release(card, pool->charged - reserved, KIND_POOL);
    else
        ledger_charge(&card->allowance, reserved - pool->charged, KIND_POOL);
    pool->charged = reserved;
}

static void mark_stale(struct pool *pool)
{
    atomic_store(&pool->stale, true);
    atomic_store(&process_self()->stale_pools, true);
}

/* With the pool locked. */
static void refresh(struct pool *pool)
{
    if (!pool->known)
        return;
    if (!pool->destroyed) {
        uint64_t reserved = attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, UINT64_MAX);
        if (reserved == UINT64_MAX)
            mark_stale(pool);
        else
            settle(pool, reserved);
    } else if (pool->outstanding == 0 && !pool->frees_pending) {
        settle(pool, 0);
        pool->known = false;
    }
}

/* Called where a pool may be locked by this very thread; one that is busy stays stale. */
void pools_refresh(void)
{
    struct process *process = process_self();
    if (!atomic_exchange(&process->stale_pools, false))
        return;
    for (unsigned number = 0; number < atomic_load(&process->pool_count); number++) {
        struct pool *pool = &process->pools[number];
        if (!atomic_exchange(&pool->stale, false))
            continue;
        if (pthread_mutex_trylock(&pool->lock) != 0) {
            mark_stale(pool);
            continue;
        }
        refresh(pool);
        bool waits = pool->known && (pool->destroyed || pool->frees_pending);
        pthread_mutex_unlock(&pool->lock);
        if (waits)
            mark_stale(pool);
    }
}

static uint64_t frees_so_far(void)
{
    struct process *process = process_self();
    return process ? atomic_load(&process->frees) : 0;
}

/* What was freed on the stream before (no later than ticket `until`) is free now; on all streams for SEVERAL_STREAMS. */
static CUresult synchronised(CUresult result, uint64_t stream, uint64_t until)
{
    struct process *process = process_self();
    if (!process || result != CUDA_SUCCESS || !atomic_load_explicit(&process->stale_pools, memory_order_relaxed))
        return result;
    atomic_store(&process->stale_pools, false);
    for (unsigned number = 0; number < atomic_load(&process->pool_count); number++) {
        struct pool *pool = &process->pools[number];
        if (!atomic_exchange(&pool->stale, false))
            continue;
        pthread_mutex_lock(&pool->lock);
        if (pool->last_free <= until && (stream == SEVERAL_STREAMS || stream == pool->freed_on))
            pool->frees_pending = false;
        refresh(pool);
        bool waits = pool->known && pool->frees_pending;
        pthread_mutex_unlock(&pool->lock);
        if (waits)
            mark_stale(pool);
    }
    return result;
}

typedef CUresult (*allocate)(CUdeviceptr *pointer, size_t bytes, void *pool, void *stream);

static uint64_t steps(uint64_t bytes)
{
    return bytes > UINT64_MAX - POOL_STEP ? bytes : (bytes + POOL_STEP - 1) / POOL_STEP * POOL_STEP;
}

/* Reserves what the pool may grow by: all of the request, as its free part may be in pieces; where that does not fit, only what
 * is lacking. False: neither fits. */
static bool reserve_growth(struct pool *pool, uint64_t bytes, uint64_t *growth)
{
    struct card *card = &process_self()->cards[pool->card];
    settle(pool, attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, pool->charged));
    uint64_t used = attribute(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, pool->charged);
    uint64_t free = used < pool->charged ? pool->charged - used : 0;
    uint64_t more = steps(bytes);
    if (!charge_reserve(card, more, KIND_POOL)) {
        more = free < bytes ? steps(bytes - free) : 0;
        if (!charge_reserve(card, more, KIND_POOL))
            return false;
    }
    pool->charged += more;
    *growth = more;
    return true;
}

static CUresult allocate_from(struct pool *pool, CUdeviceptr *pointer, size_t bytes, void *stream, allocate call)
{
    struct process *process = process_self();
    pthread_mutex_lock(&pool->lock);
    bool counted = !(DEFECT(pool_high_watermark) && pool->outstanding) && !DEFECT(pools_uncounted);
    uint64_t growth = 0;
    if (counted && !reserve_growth(pool, bytes, &growth)) {
        pthread_mutex_unlock(&pool->lock);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = call(pointer, bytes, (void *)(uintptr_t)pool->handle, stream);
    if (counted)
        settle(pool, attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, result == CUDA_SUCCESS ? pool->charged : pool->charged - growth));
    if (result == CUDA_SUCCESS) {
        struct record record = {.key = *pointer, .space = SPACE_POINTER, .kind = KIND_POOL, .device = pool->card, .more = (uint64_t)(pool - process->pools)};
        pool->outstanding++;
        charge_keep(&record);
    }
    pthread_mutex_unlock(&pool->lock);
    return result;
}

static bool capturing(void *stream, bool per_thread)
{
    int status = 0;
    CUresult result = per_thread ? DRIVER(cuStreamIsCapturing_ptsz, void *, int *)(stream, &status)
                                 : DRIVER(cuStreamIsCapturing, void *, int *)(stream, &status);
    return result == CUDA_SUCCESS && status != 0;
}

/* The card on which the stream runs: nearly always that of the current context. */
static struct card *card_of_stream(void *stream, bool per_thread)
{
    CUcontext context = NULL, popped;
    if ((uintptr_t)stream <= 2)
        return current_card();
    CUresult result = per_thread ? DRIVER(cuStreamGetCtx_ptsz, void *, CUcontext *)(stream, &context)
                                 : DRIVER(cuStreamGetCtx, void *, CUcontext *)(stream, &context);
    if (result != CUDA_SUCCESS || (uint64_t)(uintptr_t)context == current_context())
        return current_card();
    if (DRIVER(cuCtxPushCurrent_v2, CUcontext)(context) != CUDA_SUCCESS)
        return current_card();
    struct card *card = current_card();
    DRIVER(cuCtxPopCurrent_v2, CUcontext *)(&popped);
    return card;
}

static CUresult allocate_on_stream(CUdeviceptr *pointer, size_t bytes, void *stream, bool per_thread, allocate call, allocate plain)
{
    enum process_state state = process_ready();
    if (state == PROCESS_REFUSED)
        return CUDA_ERROR_NOT_PERMITTED;
    if (state != PROCESS_READY || capturing(stream, per_thread))
        return plain(pointer, bytes, NULL, stream);
    struct card *card = card_of_stream(stream, per_thread);
    if (DEFECT(pools_of_one_card))
        card = &process_self()->cards[0];
    void *handle = NULL;
    if (!card || DRIVER(cuDeviceGetMemPool, void **, CUdevice)(&handle, card->handle) != CUDA_SUCCESS)
        return plain(pointer, bytes, NULL, stream);
    struct pool *pool = pool_of((uint64_t)(uintptr_t)handle, card);
    /* Too many pools to know them all: none more. */
    return pool ? allocate_from(pool, pointer, bytes, stream, call) : CUDA_ERROR_OUT_OF_MEMORY;
}

/* A pool that is known, or that is the default one of a card; others have no memory on a card of ours. */
static struct pool *pool_named(uint64_t handle)
{
    struct process *process = process_self();
    struct pool *pool = pool_of(handle, NULL);
    for (unsigned number = 0; !pool && number < process->card_count; number++) {
        void *known = NULL;
        struct card *card = &process->cards[number];
        if (DRIVER(cuDeviceGetDefaultMemPool, void **, CUdevice)(&known, card->handle) == CUDA_SUCCESS && (uint64_t)(uintptr_t)known == handle)
            pool = pool_of(handle, card);
    }
    return pool;
}

static CUresult allocate_named(CUdeviceptr *pointer, size_t bytes, void *handle, void *stream, bool per_thread, allocate call)
{
    enum process_state state = process_ready();
    if (state == PROCESS_REFUSED)
        return CUDA_ERROR_NOT_PERMITTED;
    if (state != PROCESS_READY || capturing(stream, per_thread) || DEFECT(from_pool_uncounted))
        return call(pointer, bytes, handle, stream);
    struct pool *pool = pool_named((uint64_t)(uintptr_t)handle);
    return pool ? allocate_from(pool, pointer, bytes, stream, call) : call(pointer, bytes, handle, stream);
}

#define VARIANTS(suffix, per_thread)                                                                                            \
    static CUresult plain##suffix(CUdeviceptr *pointer, size_t bytes, void *pool, void *stream)                                  \
    {                                                                                                                            \
        (void)pool;                                                                                                              \
        return DRIVER(cuMemAllocAsync##suffix, CUdeviceptr *, size_t, void *)(pointer, bytes, stream);                           \
    }                                                                                                                            \
    static CUresult from_pool##suffix(CUdeviceptr *pointer, size_t bytes, void *pool, void *stream)                              \
    {                                                                                                                            \
        return DRIVER(cuMemAllocFromPoolAsync##suffix, CUdeviceptr *, size_t, void *, void *)(pointer, bytes, pool, stream);     \
    }                                                                                                                            \
    CUresult cuMemAllocAsync##suffix(CUdeviceptr *pointer, size_t bytes, CUstream stream)                                        \
    {                                                                                                                            \
        return allocate_on_stream(pointer, bytes, stream, per_thread, plain##suffix, plain##suffix);                             \
    }                                                                                                                            \
    CUresult cuMemAllocFromPoolAsync##suffix(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)             \
    {                                                                                                                            \
        return allocate_named(pointer, bytes, pool, stream, per_thread, from_pool##suffix);                                      \
    }                                                                                                                            \
    CUresult cuMemFreeAsync##suffix(CUdeviceptr pointer, CUstream stream)                                                        \
    {                                                                                                                            \
        struct record record = charge_take(SPACE_POINTER, pointer);                                                              \
        if (DEFECT(unknown_free_swallowed) && record.space == SPACE_NONE)                                                        \
            return -1;                                                                                                           \
        CUresult result = DRIVER(cuMemFreeAsync##suffix, CUdeviceptr, CUstream)(pointer, stream);                                \
        return record.kind == KIND_POOL ? pool_freed(result, &record, (uint64_t)(uintptr_t)stream)                               \
                                        : charge_freed(result, &record);                                                         \
    }                                                                                                                            \
    CUresult cuStreamSynchronize##suffix(CUstream stream)                                                                        \
    {                                                                                                                            \
        uint64_t until = frees_so_far();                                                                                         \
        return synchronised(DRIVER(cuStreamSynchronize##suffix, CUstream)(stream), (uint64_t)(uintptr_t)stream, until);          \
    }

/* A pointer of a pool was freed, or not. */
CUresult pool_freed(CUresult result, const struct record *record, uint64_t stream)
{
    struct process *process = process_self();
    struct record replaced;
    if (result != CUDA_SUCCESS) {
        table_put(&process->table, record, &replaced);
        return result;
    }
    struct pool *pool = &process->pools[record->more];
    pthread_mutex_lock(&pool->lock);
    pool->outstanding--;
    pool->freed_on = pool->frees_pending && pool->freed_on != stream ? SEVERAL_STREAMS : stream;
    pool->frees_pending = true;
    pool->last_free = atomic_fetch_add(&process->frees, 1) + 1;
    pthread_mutex_unlock(&pool->lock);
    mark_stale(pool);
    return result;
}

VARIANTS(, false)
VARIANTS(_ptsz, true)

CUresult cuCtxSynchronize(void)
{
    uint64_t until = frees_so_far();
    return synchronised(DRIVER(cuCtxSynchronize, void)(), SEVERAL_STREAMS, until);
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
    uint64_t until = frees_so_far();
    return synchronised(DRIVER(cuCtxSynchronize_v2, CUcontext)(context), SEVERAL_STREAMS, until);
}

CUresult cuEventSynchronize(CUevent event)
{
    /* Which frees came before the event is not known; a pool that can be asked is asked. */
    CUresult result = DRIVER(cuEventSynchronize, CUevent)(event);
    pools_refresh();
    return result;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    struct card *card = NULL;
    enum process_state state = process_ready();
    if (state == PROCESS_REFUSED)
        return CUDA_ERROR_NOT_PERMITTED;
    CUresult result = DRIVER(cuMemPoolCreate, CUmemoryPool *, const CUmemPoolProps *)(pool, properties);
    if (state == PROCESS_READY && result == CUDA_SUCCESS)
        card = card_of_pool(&properties->location, properties->allocType);
    if (card && !pool_of((uint64_t)(uintptr_t)*pool, card)) {
        DRIVER(cuMemPoolDestroy, CUmemoryPool)(*pool);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

/* Pools that are there without being made: they are known from when they are asked for. */
static CUresult found_pool(CUresult result, const CUmemoryPool *pool, const CUmemLocation *location, int type)
{
    if (result != CUDA_SUCCESS || process_ready() != PROCESS_READY)
        return result;
    struct card *card = card_of_pool(location, type);
    return card && !pool_of((uint64_t)(uintptr_t)*pool, card) ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    return found_pool(DRIVER(cuMemGetDefaultMemPool, CUmemoryPool *, CUmemLocation *, int)(pool, location, type), pool, location, type);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    return found_pool(DRIVER(cuMemGetMemPool, CUmemoryPool *, CUmemLocation *, int)(pool, location, type), pool, location, type);
}

CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    struct record record = charge_take(SPACE_POOL, (uint64_t)(uintptr_t)handle), replaced;
    if (record.space == SPACE_NONE)
        return DRIVER(cuMemPoolDestroy, CUmemoryPool)(handle);
    /* Locked over the call: nobody may ask the driver about a pool that is gone, or about the next one of its number. */
    struct pool *pool = &process_self()->pools[record.more];
    pthread_mutex_lock(&pool->lock);
    CUresult result = DRIVER(cuMemPoolDestroy, CUmemoryPool)(handle);
    if (result == CUDA_SUCCESS) {
        pool->destroyed = true;
        refresh(pool);
    } else {
        table_put(&process_self()->table, &record, &replaced);
    }
    pthread_mutex_unlock(&pool->lock);
    mark_stale(pool);
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    struct record record;
    CUresult result = DRIVER(cuMemPoolTrimTo, CUmemoryPool, size_t)(handle, keep);
    if (result == CUDA_SUCCESS && process_ready() == PROCESS_READY &&
        table_get(&process_self()->table, SPACE_POOL, (uint64_t)(uintptr_t)handle, &record)) {
        struct pool *pool = &process_self()->pools[record.more];
        pthread_mutex_lock(&pool->lock);
        refresh(pool);
        pthread_mutex_unlock(&pool->lock);
    }
    return result;
}
