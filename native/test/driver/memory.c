/* Plain, pitched, managed and host memory, arrays, IPC and external memory. Plain memory comes in grains of 512 bytes, rows of
 * pitched memory too. */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

enum { GRAIN = 512 };

static CUresult allocate(uint64_t *address, uint64_t bytes)
{
    struct context *context = context_now();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!bytes || !address)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > UINT64_MAX - GRAIN)
        return CUDA_ERROR_OUT_OF_MEMORY;
    bytes = rounded_up(bytes, GRAIN);
    CUresult result = take(context->card, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    *address = address_new(&(struct allocation){.bytes = bytes, .context = context, .card = context->card, .kind = PLAIN});
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    ENTER();
    uint64_t address = 0;
    CUresult result = allocate(&address, bytes);
    if (result == CUDA_SUCCESS)
        *pointer = address;
    LEAVE(result);
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
    ENTER();
    (void)flags;
    uint64_t address = 0;
    CUresult result = allocate(&address, bytes);
    if (result == CUDA_SUCCESS)
        *pointer = address;
    LEAVE(result);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    ENTER();
    uint64_t address = 0;
    if (!width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t row = rounded_up(width, GRAIN);
    CUresult result = row > UINT64_MAX / height ? CUDA_ERROR_OUT_OF_MEMORY : allocate(&address, row * height);
    if (result == CUDA_SUCCESS) {
        *pointer = address;
        *pitch = row;
    }
    LEAVE(result);
}

/* The oldest interface hands out 32 bits, which no address here has: as on today's cards it cannot work. */
CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned bytes)
{
    ENTER();
    (void)pointer;
    (void)bytes;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void release(uint64_t address, struct allocation *allocation)
{
    give(allocation->card, allocation->bytes);
    address_free(address);
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    ENTER();
    struct allocation *allocation = allocation_at(pointer);
    if (!pointer)
        return CUDA_SUCCESS;
    if (!allocation || pointer & ((1ull << ADDRESS_SHIFT) - 1))
        return CUDA_ERROR_INVALID_VALUE;
    if (allocation->kind == POOLED)
        LEAVE(pool_free(pointer, allocation, true));
    if (allocation->kind == NODE_ADDRESS) {
        graph_free(pointer, allocation);
        return CUDA_SUCCESS;
    }
    if (allocation->kind != PLAIN)
        return CUDA_ERROR_INVALID_VALUE;
    release(pointer, allocation);
    LEAVE(CUDA_SUCCESS);
}

void context_ended(struct context *context)
{
    for (uint64_t at = 1; at <= fake.allocations_used; at++) {
        struct allocation *allocation = &fake.allocations[at - 1];
        if (allocation->context != context)
            continue;
        if (allocation->kind == PLAIN)
            release(at << ADDRESS_SHIFT, allocation);
        else if (allocation->kind == OPENED)
            address_free(at << ADDRESS_SHIFT);
    }
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)
{
    ENTER();
    struct allocation *allocation = allocation_at(pointer);
    if (!allocation)
        return CUDA_ERROR_NOT_FOUND;
    *base = pointer >> ADDRESS_SHIFT << ADDRESS_SHIFT;
    *bytes = allocation->bytes;
    return CUDA_SUCCESS;
}

/* Host memory: of the card only where the card has none of its own. */
CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    ENTER();
    (void)flags;
    struct context *context = context_now();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    uint64_t address = 0;
    CUresult result = fake.world->cards[context->card].integrated ? allocate(&address, bytes) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    *pointer = address ? (void *)(uintptr_t)address : malloc(64);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuMemAllocHost_v2(void **pointer, size_t bytes)
{
    return cuMemHostAlloc(pointer, bytes, 0);
}

CUresult cuMemFreeHost(void *pointer)
{
    ENTER();
    struct allocation *allocation = allocation_at((uint64_t)(uintptr_t)pointer);
    if (fake.world->cards[0].integrated && allocation)
        release((uint64_t)(uintptr_t)pointer, allocation);
    else
        free(pointer);
    LEAVE(CUDA_SUCCESS);
}

struct array {
    struct context *context;
    uint64_t bytes, needs;
    bool deferred;
};

/* Tiles of 64 KiB; rows of whole 64-byte pieces; heights in fours. */
static uint64_t array_needs(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    uint64_t width = shape->Width, height = shape->Height ? shape->Height : 1, depth = shape->Depth ? shape->Depth : 1, all = 0;
    unsigned texel = (shape->Format == 0x01 || shape->Format == 0x08 ? 1 : shape->Format == 0x02 || shape->Format == 0x09 || shape->Format == 0x10 ? 2 : 4) * shape->NumChannels;
    for (unsigned level = 0; level < levels; level++) {
        all += rounded_up(rounded_up(width * texel, 64) * (height > 1 ? rounded_up(height, 4) : 1) * depth, 65536);
        width = width > 1 ? width / 2 : 1;
        height = height > 1 ? height / 2 : 1;
        if (!(shape->Flags & CUDA_ARRAY3D_LAYERED))
            depth = depth > 1 ? depth / 2 : 1;
    }
    return all;
}

static CUresult array_new(void **handle, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    struct context *context = context_now();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!shape->Width || !shape->NumChannels)
        return CUDA_ERROR_INVALID_VALUE;
    bool without = (shape->Flags & (CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_SPARSE)) != 0;
    if (shape->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING && !fake.world->cards[context->card].deferred_arrays)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct array made = {.context = context, .needs = array_needs(shape, levels), .deferred = (shape->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0};
    made.bytes = without ? 0 : made.needs;
    CUresult result = take(context->card, made.bytes);
    struct array *array = result == CUDA_SUCCESS ? malloc(sizeof *array) : NULL;
    if (array) {
        *array = made;
        *handle = array;
    }
    return result;
}

static CUresult array_free(void *handle)
{
    struct array *array = handle;
    if (!array)
        return CUDA_ERROR_INVALID_HANDLE;
    give(array->context->card, array->bytes);
    free(array);
    return CUDA_SUCCESS;
}

static CUresult array_requirement(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, const struct array *array)
{
    if (!array->deferred)
        return CUDA_ERROR_INVALID_VALUE;
    needs->size = array->needs;
    needs->alignment = 65536;
    return CUDA_SUCCESS;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *shape)
{
    ENTER();
    LEAVE(array_new((void **)array, &(CUDA_ARRAY3D_DESCRIPTOR){shape->Width, shape->Height, 0, shape->Format, shape->NumChannels, 0}, 1));
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    ENTER();
    LEAVE(array_new((void **)array, shape, 1));
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    ENTER();
    LEAVE(array_new((void **)array, shape, levels));
}

CUresult cuArrayDestroy(CUarray array)
{
    ENTER();
    LEAVE(array_free(array));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    ENTER();
    LEAVE(array_free(array));
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, CUarray array, CUdevice device)
{
    ENTER();
    (void)device;
    return array_requirement(needs, (struct array *)array);
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, CUmipmappedArray array, CUdevice device)
{
    ENTER();
    (void)device;
    return array_requirement(needs, (struct array *)array);
}

/* An IPC handle says whose memory it is and how much; opening it takes nothing. */
struct ipc {
    uint32_t process, card;
    uint64_t address, bytes;
};

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    ENTER();
    struct allocation *allocation = allocation_at(pointer);
    if (!allocation || allocation->kind != PLAIN)
        return CUDA_ERROR_INVALID_VALUE;
    struct ipc ipc = {fake.me, allocation->card, pointer, allocation->bytes};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &ipc, sizeof ipc);
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
    ENTER();
    (void)flags;
    struct ipc ipc;
    memcpy(&ipc, &handle, sizeof ipc);
    *pointer = address_new(&(struct allocation){.bytes = ipc.bytes, .context = context_now(), .card = ipc.card, .kind = OPENED});
    return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    ENTER();
    struct allocation *allocation = allocation_at(pointer);
    if (!allocation || allocation->kind != OPENED)
        return CUDA_ERROR_INVALID_VALUE;
    address_free(pointer);
    return CUDA_SUCCESS;
}

CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
    ENTER();
    *memory = malloc(16);
    return description->size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
    ENTER();
    free(memory);
    return CUDA_SUCCESS;
}
