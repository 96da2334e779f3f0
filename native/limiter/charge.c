#include "charge.h"

#include <stdio.h>

#include "defect.h"

CUresult charge_where(struct card **card)
{
    enum process_state state = process_ready();
    *card = NULL;
    if (state == PROCESS_REFUSED)
        return CUDA_ERROR_NOT_PERMITTED;
    if (state == PROCESS_READY)
        *card = current_card();
    return CUDA_SUCCESS;
}

CUresult charge_on(CUdevice device, struct card **card)
{
    enum process_state state = process_ready();
    *card = NULL;
    if (state == PROCESS_REFUSED)
        return CUDA_ERROR_NOT_PERMITTED;
    if (state == PROCESS_READY)
        *card = card_of(device);
    return CUDA_SUCCESS;
}

bool charge_reserve(struct card *card, uint64_t bytes, enum kind kind)
{
    if (ledger_reserve(&card->allowance, bytes, kind))
        return true;
    if (!atomic_load(&process_self()->stale_pools))
        return false;
    pools_refresh();
    return ledger_reserve(&card->allowance, bytes, kind);
}

void charge_release(struct card *card, uint64_t bytes, enum kind kind)
{
    ledger_release(&card->allowance, bytes, kind);
}

static void release_record(const struct record *record)
{
    charge_release(&process_self()->cards[record->device], record->bytes, (enum kind)record->kind);
}

void charge_keep(const struct record *record)
{
    struct record replaced;
    /* Without memory for the record the charge stays until the process ends: too much is counted, never too little. */
    if (table_put(&process_self()->table, record, &replaced) && replaced.space != SPACE_NONE)
        release_record(&replaced);
}

CUresult charge_settle(CUresult result, struct card *card, const struct record *record)
{
    if (result != CUDA_SUCCESS) {
        charge_release(card, record->bytes, (enum kind)record->kind);
        return result;
    }
    struct record kept = *record;
    kept.device = (uint16_t)card_number(card);
    charge_keep(&kept);
    return CUDA_SUCCESS;
}

struct record charge_take(enum space space, uint64_t key)
{
    struct record record = {.space = SPACE_NONE};
    struct process *process = process_self();
    if (process && atomic_load_explicit(&process->state, memory_order_acquire) == PROCESS_READY &&
        !table_take(&process->table, space, key, &record))
        record.space = SPACE_NONE;
    return record;
}

CUresult charge_freed(CUresult result, const struct record *record)
{
    if (record->space == SPACE_NONE)
        return result;
    if (result == CUDA_SUCCESS) {
        release_record(record);
    } else {
        struct record replaced;
        table_put(&process_self()->table, record, &replaced);
    }
    return result;
}

uint64_t current_context(void)
{
    CUcontext context = NULL;
    if (DRIVER(cuCtxGetCurrent, CUcontext *)(&context) != CUDA_SUCCESS)
        return 0;
    return (uint64_t)(uintptr_t)context;
}

static bool of_context(const struct record *record, void *context)
{
    if (record->context != *(uint64_t *)context)
        return false;
    release_record(record);
    return true;
}

void charge_forget_context(uint64_t context)
{
    if (context && !DEFECT(context_keeps_memory))
        table_sweep(&process_self()->table, of_context, &context);
}
