/* Arrays and mipmapped arrays, charged what the driver says that they need.
 *
 * The driver tells the requirement of an array only where its memory is mapped later, so an array of the same shape without
 * memory is made, asked and destroyed first. A driver or card that cannot do that: the texels, rounded up as no driver pads
 * more. Sparse arrays and arrays to be mapped later have no memory of their own; what is mapped into them is (vmm.c). */
#include "charge.h"
#include "defect.h"

enum { TILE = 65536, WITHOUT_MEMORY = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING };

static uint64_t rounded(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Bytes of a texel; formats that are not plain channels take no more than 8 bytes for each. */
static uint64_t texel(int format, unsigned channels)
{
    uint64_t channel = 8;
    if (format == 0x01 || format == 0x08)
        channel = 1;
    else if (format == 0x02 || format == 0x09 || format == 0x10)
        channel = 2;
    else if (format == 0x03 || format == 0x0a || format == 0x20)
        channel = 4;
    return channel * (channels ? channels : 1);
}

static uint64_t padded(uint64_t width, uint64_t height, uint64_t depth, uint64_t texel_bytes)
{
    height = height ? height : 1;
    depth = depth ? depth : 1;
    uint64_t rows = height > 1 ? rounded(height, 16) : 1;
    double guess = (double)width * (double)texel_bytes * (double)rows * (double)depth;
    if (guess > 1e18)
        return UINT64_MAX / 4;
    return rounded(rounded(width * texel_bytes, 512) * rows * depth, TILE);
}

static uint64_t bound(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    uint64_t width = shape->Width, height = shape->Height, depth = shape->Depth, all = 0;
    /* The driver, too, stops at the level of one texel, whatever number it is told. */
    uint64_t most = width | height | (shape->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) ? 0 : depth);
    unsigned possible = most ? 64 - (unsigned)__builtin_clzll(most) : 1;
    for (unsigned level = 0; level < levels && level < possible; level++) {
        uint64_t bytes = padded(width, height, depth, texel(shape->Format, shape->NumChannels));
        all = bytes > UINT64_MAX - all ? UINT64_MAX : all + bytes;
        width = width > 1 ? width / 2 : 1;
        height = height > 1 ? height / 2 : height;
        if (!(shape->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
            depth = depth > 1 ? depth / 2 : depth;
    }
    return all;
}

static CUresult make_array(void **array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    if (levels)
        return DRIVER(cuMipmappedArrayCreate, void **, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned)(array, shape, levels);
    return DRIVER(cuArray3DCreate_v2, void **, const CUDA_ARRAY3D_DESCRIPTOR *)(array, shape);
}

/* What an array of the shape will take; `levels` 0: not mipmapped. */
static uint64_t requirement(const struct card *card, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    if (shape->Flags & WITHOUT_MEMORY)
        return 0;
    CUDA_ARRAY3D_DESCRIPTOR without = *shape;
    without.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
    void *array = NULL;
    int able = 0;
    DRIVER(cuDeviceGetAttribute, int *, int, CUdevice)(&able, CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, card->handle);
    if (!able || make_array(&array, &without, levels) != CUDA_SUCCESS)
        return bound(shape, levels ? levels : 1);
    CUresult result;
    if (levels) {
        result = DRIVER(cuMipmappedArrayGetMemoryRequirements, void *, void *, CUdevice)(&needs, array, card->handle);
        DRIVER(cuMipmappedArrayDestroy, void *)(array);
    } else {
        result = DRIVER(cuArrayGetMemoryRequirements, void *, void *, CUdevice)(&needs, array, card->handle);
        DRIVER(cuArrayDestroy, void *)(array);
    }
    return result == CUDA_SUCCESS && needs.size ? needs.size : bound(shape, levels ? levels : 1);
}

/* Creates through `call`, which knows the version that the program chose. */
static CUresult create(void **array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels, CUresult (*call)(void **array, const void *shape, unsigned levels),
                       const void *original)
{
    struct card *card;
    CUresult result = charge_where(&card);
    if (result != CUDA_SUCCESS)
        return result;
    if (!card || !array || !shape || DEFECT(arrays_uncounted))
        return call(array, original, levels);
    struct record record = {.bytes = requirement(card, shape, levels), .space = SPACE_ARRAY, .kind = KIND_ARRAY};
    if (!charge_reserve(card, record.bytes, KIND_ARRAY))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = call(array, original, levels);
    if (result == CUDA_SUCCESS) {
        record.key = (uint64_t)(uintptr_t)*array;
        record.context = current_context();
    }
    return charge_settle(result, card, &record);
}

static CUresult call_2d(void **array, const void *shape, unsigned levels)
{
    (void)levels;
    return DRIVER(cuArrayCreate_v2, void **, const void *)(array, shape);
}

static CUresult call_2d_v1(void **array, const void *shape, unsigned levels)
{
    (void)levels;
    return DRIVER(cuArrayCreate, void **, const void *)(array, shape);
}

static CUresult call_3d(void **array, const void *shape, unsigned levels)
{
    (void)levels;
    return DRIVER(cuArray3DCreate_v2, void **, const void *)(array, shape);
}

static CUresult call_3d_v1(void **array, const void *shape, unsigned levels)
{
    (void)levels;
    return DRIVER(cuArray3DCreate, void **, const void *)(array, shape);
}

static CUresult call_mipmapped(void **array, const void *shape, unsigned levels)
{
    return DRIVER(cuMipmappedArrayCreate, void **, const void *, unsigned)(array, shape, levels);
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *shape)
{
    if (!shape)
        return call_2d((void **)array, shape, 0);
    CUDA_ARRAY3D_DESCRIPTOR full = {shape->Width, shape->Height, 0, shape->Format, shape->NumChannels, 0};
    return create((void **)array, &full, 0, call_2d, shape);
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *shape)
{
    if (!shape)
        return call_2d_v1((void **)array, shape, 0);
    CUDA_ARRAY3D_DESCRIPTOR full = {shape->Width, shape->Height, 0, shape->Format, shape->NumChannels, 0};
    return create((void **)array, &full, 0, call_2d_v1, shape);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    return create((void **)array, shape, 0, call_3d, shape);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *shape)
{
    if (!shape)
        return call_3d_v1((void **)array, shape, 0);
    CUDA_ARRAY3D_DESCRIPTOR full = {shape->Width, shape->Height, shape->Depth, shape->Format, shape->NumChannels, shape->Flags};
    return create((void **)array, &full, 0, call_3d_v1, shape);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    return create((void **)array, shape, levels ? levels : 1, call_mipmapped, shape);
}

CUresult cuArrayDestroy(CUarray array)
{
    struct record record = charge_take(SPACE_ARRAY, (uint64_t)(uintptr_t)array);
    return charge_freed(DRIVER(cuArrayDestroy, CUarray)(array), &record);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    struct record record = charge_take(SPACE_ARRAY, (uint64_t)(uintptr_t)array);
    return charge_freed(DRIVER(cuMipmappedArrayDestroy, CUmipmappedArray)(array), &record);
}
