/* Memory that crosses processes or interfaces: CUDA IPC and external memory.
 *
 * It exists already, so opening it cannot make the card fuller; it is charged all the same, because who made it may let go of
 * it first and leave it to us. Once per claim: what another process of the same claim exports is charged to the claim already,
 * and an exporter has to outlive its importers by the rules of CUDA IPC. The region has the keys of what its processes
 * export. A policy may trust imports altogether. */
#include <string.h>

#include "charge.h"
#include "defect.h"

static uint64_t key_of(const CUipcMemHandle *handle)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (unsigned at = 0; at < sizeof handle->reserved; at++)
        hash = (hash ^ (unsigned char)handle->reserved[at]) * UINT64_C(0x100000001b3);
    return hash ? hash : 1;
}

static struct region *region_of(const struct card *card)
{
    return card->allowance.share_count ? card->allowance.shares[0].region : NULL;
}

static bool exported_in(const struct region *region, uint64_t key)
{
    for (unsigned entry = 0; entry < EXPORTS_MAX; entry++)
        if (atomic_load(&region->usage->exports[entry].key) == key)
            return true;
    return false;
}

/* A full list only means that an import within the claim is charged twice. */
static void remember_export(struct region *region, uint64_t key)
{
    if (exported_in(region, key))
        return;
    for (unsigned entry = 0; entry < EXPORTS_MAX; entry++) {
        uint32_t nobody = 0;
        struct exported *exported = &region->usage->exports[entry];
        if (atomic_compare_exchange_strong(&exported->slot, &nobody, region->slot + 1)) {
            atomic_store(&exported->key, key);
            return;
        }
    }
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    CUresult result = DRIVER(cuIpcGetMemHandle, CUipcMemHandle *, CUdeviceptr)(handle, pointer);
    struct card *card;
    if (result == CUDA_SUCCESS && charge_where(&card) == CUDA_SUCCESS && card && region_of(card))
        remember_export(region_of(card), key_of(handle));
    return result;
}

typedef CUresult (*open_handle)(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags);

static CUresult open_with(open_handle call, CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
    struct card *card;
    CUresult result = charge_where(&card);
    if (result != CUDA_SUCCESS)
        return result;
    result = call(pointer, handle, flags);
    struct process *process = process_self();
    if (result != CUDA_SUCCESS || !card || process->trust_imports || DEFECT(imports_uncounted))
        return result;
    struct record record;
    CUdeviceptr base = 0;
    size_t bytes = 0;
    if (table_take(&process->table, SPACE_POINTER, *pointer, &record)) {
        struct record replaced;
        record.count++; /* opened again: the same address */
        table_put(&process->table, &record, &replaced);
        return result;
    }
    if ((region_of(card) && exported_in(region_of(card), key_of(&handle))) ||
        DRIVER(cuMemGetAddressRange_v2, CUdeviceptr *, size_t *, CUdeviceptr)(&base, &bytes, *pointer) != CUDA_SUCCESS)
        return result;
    if (!charge_reserve(card, bytes, KIND_IMPORT)) {
        DRIVER(cuIpcCloseMemHandle, CUdeviceptr)(*pointer);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    record = (struct record){.key = *pointer, .bytes = bytes, .context = current_context(), .space = SPACE_POINTER, .kind = KIND_IMPORT, .count = 1};
    return charge_settle(CUDA_SUCCESS, card, &record);
}

static CUresult open_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
    return DRIVER(cuIpcOpenMemHandle_v2, CUdeviceptr *, CUipcMemHandle, unsigned)(pointer, handle, flags);
}

static CUresult open_v1(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
    return DRIVER(cuIpcOpenMemHandle, CUdeviceptr *, CUipcMemHandle, unsigned)(pointer, handle, flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
    return open_with(open_v2, pointer, handle, flags);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
    return open_with(open_v1, pointer, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    struct record record = charge_take(SPACE_POINTER, pointer), replaced;
    CUresult result = DRIVER(cuIpcCloseMemHandle, CUdeviceptr)(pointer);
    if (result == CUDA_SUCCESS && record.space != SPACE_NONE && record.count > 1) {
        record.count--;
        table_put(&process_self()->table, &record, &replaced);
        return result;
    }
    return charge_freed(result, &record);
}

CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
    struct card *card;
    CUresult result = charge_where(&card);
    if (result != CUDA_SUCCESS)
        return result;
#define CALL DRIVER(cuImportExternalMemory, CUexternalMemory *, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *)(memory, description)
    if (!card || !description || process_self()->trust_imports || DEFECT(imports_uncounted))
        return CALL;
    struct record record = {.bytes = description->size, .space = SPACE_EXTERNAL, .kind = KIND_IMPORT};
    if (!charge_reserve(card, record.bytes, KIND_IMPORT))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = CALL;
#undef CALL
    if (result == CUDA_SUCCESS)
        record.key = (uint64_t)(uintptr_t)*memory;
    return charge_settle(result, card, &record);
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
    struct record record = charge_take(SPACE_EXTERNAL, (uint64_t)(uintptr_t)memory);
    return charge_freed(DRIVER(cuDestroyExternalMemory, CUexternalMemory)(memory), &record);
}
