/* Contexts: the driver's own memory for one, and the end of all that was allocated in it.
 *
 * The policy says what to keep for a context; the node has measured that for its driver. Where it does not say, what the card
 * has less of afterwards is charged, in which a neighbour's allocation of the same moment may be mixed, so no more than
 * MEASURED_MOST. What modules and other interfaces take is seen by the node alone and comes in through the policy's `unseen`.
 *
 * A context that ends frees its memory without a call for each piece; so does the last release of a primary context. */
#include "charge.h"
#include "defect.h"
#include "pace.h"

#define MEASURED_MOST (UINT64_C(1) << 30)

typedef CUresult (*context_call)(void **context, const void *arguments);

static uint64_t free_bytes(void)
{
    size_t free = 0, total = 0;
    return DRIVER(cuMemGetInfo_v2, size_t *, size_t *)(&free, &total) == CUDA_SUCCESS ? free : 0;
}

/* Free memory of a card without a context of ours cannot be asked; so a later context is measured against the first's. */
static uint64_t kept_for_context(const struct card *card)
{
    if (card->allowance.share_count == 0 || DEFECT(contexts_uncounted))
        return 0;
    const struct share *share = &card->allowance.shares[0];
    return atomic_load(&share->region->policy->devices[share->index].context_bytes);
}

static CUresult create(CUcontext *context, CUdevice device, context_call call, const void *arguments)
{
    struct card *card;
    CUresult result = charge_on(device, &card);
    if (result != CUDA_SUCCESS || !card)
        return result != CUDA_SUCCESS ? result : call((void **)context, arguments);
    struct record record = {.bytes = kept_for_context(card), .space = SPACE_CONTEXT, .kind = KIND_CONTEXT};
    if (!charge_reserve(card, record.bytes, KIND_CONTEXT))
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t before = record.bytes ? 0 : free_bytes();
    result = call((void **)context, arguments);
    if (result == CUDA_SUCCESS) {
        record.key = (uint64_t)(uintptr_t)*context;
        uint64_t after = before ? free_bytes() : 0;
        if (before > after && before - after <= MEASURED_MOST && !DEFECT(contexts_uncounted)) {
            record.bytes = before - after;
            ledger_charge(&card->allowance, record.bytes, KIND_CONTEXT);
        }
    }
    return charge_settle(result, card, &record);
}

struct arguments {
    void *parameters;
    int count;
    unsigned flags;
    CUdevice device;
};

static CUresult call_v1(void **context, const void *arguments)
{
    const struct arguments *given = arguments;
    return DRIVER(cuCtxCreate, void **, unsigned, CUdevice)(context, given->flags, given->device);
}

static CUresult call_v2(void **context, const void *arguments)
{
    const struct arguments *given = arguments;
    return DRIVER(cuCtxCreate_v2, void **, unsigned, CUdevice)(context, given->flags, given->device);
}

static CUresult call_v3(void **context, const void *arguments)
{
    const struct arguments *given = arguments;
    return DRIVER(cuCtxCreate_v3, void **, void *, int, unsigned, CUdevice)(context, given->parameters, given->count, given->flags, given->device);
}

static CUresult call_v4(void **context, const void *arguments)
{
    const struct arguments *given = arguments;
    return DRIVER(cuCtxCreate_v4, void **, void *, unsigned, CUdevice)(context, given->parameters, given->flags, given->device);
}

/* Contexts that the program makes; not while one is being forgotten. */
static CUresult create_one(CUcontext *context, CUdevice device, context_call call, const void *arguments)
{
    struct process *process = process_self();
    if (process)
        pthread_mutex_lock(&process->contexts_lock);
    CUresult result = create(context, device, call, arguments);
    if (process)
        pthread_mutex_unlock(&process->contexts_lock);
    return result;
}

CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    return create_one(context, device, call_v1, &(struct arguments){NULL, 0, flags, device});
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    return create_one(context, device, call_v2, &(struct arguments){NULL, 0, flags, device});
}

CUresult cuCtxCreate_v3(CUcontext *context, void *parameters, int count, unsigned flags, CUdevice device)
{
    return create_one(context, device, call_v3, &(struct arguments){parameters, count, flags, device});
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device)
{
    return create_one(context, device, call_v4, &(struct arguments){parameters, 0, flags, device});
}

static CUresult destroy_v1(CUcontext context)
{
    return DRIVER(cuCtxDestroy, CUcontext)(context);
}

static CUresult destroy_v2(CUcontext context)
{
    return DRIVER(cuCtxDestroy_v2, CUcontext)(context);
}

static CUresult detach(CUcontext context)
{
    return DRIVER(cuCtxDetach, CUcontext)(context);
}

/* The context is gone, if the driver ended it. */
static CUresult ended(CUresult result, struct record *record, uint64_t context)
{
    if (result == CUDA_SUCCESS)
        charge_forget_context(context);
    return charge_freed(result, record);
}

static CUresult end_one(CUcontext context, CUresult (*call)(CUcontext context))
{
    struct process *process = process_self();
    if (process_ready() != PROCESS_READY)
        return call(context);
    pthread_mutex_lock(&process->contexts_lock);
    struct record record = charge_take(SPACE_CONTEXT, (uint64_t)(uintptr_t)context), replaced;
    if (!DEFECT(events_outlive_the_context))
        pace_forget_context(context);
    CUresult result = call(context);
    unsigned version;
    bool lives = result == CUDA_SUCCESS && call == detach &&
                 DRIVER(cuCtxGetApiVersion, CUcontext, unsigned *)(context, &version) == CUDA_SUCCESS;
    if (!lives)
        result = ended(result, &record, (uint64_t)(uintptr_t)context);
    else if (record.space != SPACE_NONE)
        table_put(&process->table, &record, &replaced); /* somebody else is attached still */
    pthread_mutex_unlock(&process->contexts_lock);
    return result;
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    return end_one(context, destroy_v2);
}

CUresult cuCtxDestroy(CUcontext context)
{
    return end_one(context, destroy_v1);
}

CUresult cuCtxDetach(CUcontext context)
{
    return end_one(context, detach);
}

static bool primary_active(CUdevice device)
{
    unsigned flags = 0;
    int active = 0;
    return DRIVER(cuDevicePrimaryCtxGetState, CUdevice, unsigned *, int *)(device, &flags, &active) == CUDA_SUCCESS && active;
}

static CUresult call_retain(void **context, const void *arguments)
{
    return DRIVER(cuDevicePrimaryCtxRetain, void **, CUdevice)(context, *(const CUdevice *)arguments);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    struct card *card;
    CUresult result = charge_on(device, &card);
    if (result != CUDA_SUCCESS || !card || !context)
        return result != CUDA_SUCCESS ? result : call_retain((void **)context, &device);
    pthread_mutex_lock(&card->context_lock);
    result = primary_active(device) ? call_retain((void **)context, &device) : create(context, device, call_retain, &device);
    if (result == CUDA_SUCCESS)
        card->primary = (uint64_t)(uintptr_t)*context;
    pthread_mutex_unlock(&card->context_lock);
    return result;
}

/* Releases or resets; either may have been the end of the primary context, or not. */
static CUresult let_go(CUdevice device, CUresult (*call)(CUdevice device))
{
    struct card *card;
    if (charge_on(device, &card) != CUDA_SUCCESS || !card)
        return call(device);
    pthread_mutex_lock(&card->context_lock);
    if (card->primary && !DEFECT(events_outlive_the_context))
        pace_forget_context((CUcontext)(uintptr_t)card->primary);
    CUresult result = call(device);
    if (result == CUDA_SUCCESS && card->primary && !primary_active(device)) {
        struct record record = charge_take(SPACE_CONTEXT, card->primary);
        ended(CUDA_SUCCESS, &record, card->primary);
        card->primary = 0;
        atomic_store(&process_self()->stale_pools, true);
        graphs_refresh(card);
    }
    pthread_mutex_unlock(&card->context_lock);
    return result;
}

static CUresult release_v1(CUdevice device)
{
    return DRIVER(cuDevicePrimaryCtxRelease, CUdevice)(device);
}

static CUresult release_v2(CUdevice device)
{
    return DRIVER(cuDevicePrimaryCtxRelease_v2, CUdevice)(device);
}

static CUresult reset_v1(CUdevice device)
{
    return DRIVER(cuDevicePrimaryCtxReset, CUdevice)(device);
}

static CUresult reset_v2(CUdevice device)
{
    return DRIVER(cuDevicePrimaryCtxReset_v2, CUdevice)(device);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return let_go(device, release_v1);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return let_go(device, release_v2);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return let_go(device, reset_v1);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return let_go(device, reset_v2);
}
