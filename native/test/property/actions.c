#include "actions.h"

#include <stdio.h>

#include "../harness.h"

static uint64_t next(struct actor *actor)
{
    uint64_t x = actor->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return actor->random = x;
}

static uint64_t below(struct actor *actor, uint64_t end)
{
    return next(actor) % end;
}

/* From a byte to a quarter of a GiB, small ones as often as large ones. */
static uint64_t some_bytes(struct actor *actor)
{
    uint64_t bits = below(actor, 29);
    return 1 + below(actor, UINT64_C(1) << bits);
}

static struct held *free_place(struct actor *actor)
{
    for (int at = 0; at < HELD_MAX; at++)
        if (actor->held[at].thing == NOTHING)
            return &actor->held[at];
    return NULL;
}

static struct held *any_of(struct actor *actor, enum thing thing)
{
    unsigned start = (unsigned)below(actor, HELD_MAX);
    for (unsigned step = 0; step < HELD_MAX; step++)
        if (actor->held[(start + step) % HELD_MAX].thing == thing)
            return &actor->held[(start + step) % HELD_MAX];
    return NULL;
}

static bool judge(struct actor *actor, CUresult result, const char *what)
{
    if (getenv("KOORDRA_TRACE"))
        fprintf(stderr, "  %s: %d\n", what, result);
    if (result == CUDA_SUCCESS)
        actor->granted++;
    else if (result == CUDA_ERROR_OUT_OF_MEMORY)
        actor->refused++;
    else if (actor->unexpected++ < 3)
        fprintf(stderr, "%s answers %d\n", what, result);
    return result == CUDA_SUCCESS;
}

static void put_back(struct actor *actor, struct held *held)
{
    struct held was = *held;
    held->thing = NOTHING;
    switch (was.thing) {
    case POINTER: judge(actor, cuMemFree_v2(was.value), "cuMemFree"); break;
    case ASYNC_POINTER: judge(actor, below(actor, 4) ? cuMemFreeAsync(was.value, NULL) : cuMemFree_v2(was.value), "cuMemFreeAsync"); break;
    case ARRAY: judge(actor, cuArrayDestroy((CUarray)(uintptr_t)was.value), "cuArrayDestroy"); break;
    case MIPMAP: judge(actor, cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)was.value), "cuMipmappedArrayDestroy"); break;
    case HANDLE: judge(actor, cuMemRelease(was.value), "cuMemRelease"); break;
    case MAPPED:
        judge(actor, cuMemUnmap(was.value, was.bytes), "cuMemUnmap");
        cuMemAddressFree(was.value, was.bytes);
        break;
    case POOL: judge(actor, cuMemPoolDestroy((CUmemoryPool)(uintptr_t)was.value), "cuMemPoolDestroy"); break;
    case GRAPH:
        cuGraphExecDestroy((CUgraphExec)(uintptr_t)was.value);
        cuGraphDestroy((CUgraph)(uintptr_t)was.more);
        break;
    case EXTERNAL: judge(actor, cuDestroyExternalMemory((CUexternalMemory)(uintptr_t)was.value), "cuDestroyExternalMemory"); break;
    case NOTHING: break;
    }
}

static void allocate(struct actor *actor, struct held *held)
{
    CUdeviceptr pointer = 0;
    size_t pitch;
    uint64_t bytes = some_bytes(actor);
    CUresult result;
    switch (below(actor, 4)) {
    case 0: result = cuMemAllocPitch_v2(&pointer, &pitch, 1 + below(actor, 2000), 1 + below(actor, 20000), 4); break;
    case 1: result = cuMemAllocManaged(&pointer, bytes, 1); break;
    default: result = cuMemAlloc_v2(&pointer, bytes); break;
    }
    if (judge(actor, result, "allocate"))
        *held = (struct held){POINTER, pointer, 0, bytes, actor->card};
}

static void allocate_array(struct actor *actor, struct held *held)
{
    void *array = NULL;
    CUDA_ARRAY3D_DESCRIPTOR shape = {1 + below(actor, 3000), below(actor, 1000), below(actor, 5), below(actor, 2) ? 0x20 : 0x01, 1 + (unsigned)below(actor, 2) * 3, 0};
    bool mipmap = below(actor, 2);
    CUresult result = mipmap ? cuMipmappedArrayCreate((CUmipmappedArray *)&array, &shape, 1 + (unsigned)below(actor, 6)) : cuArray3DCreate_v2((CUarray *)&array, &shape);
    if (judge(actor, result, "array"))
        *held = (struct held){mipmap ? MIPMAP : ARRAY, (uint64_t)(uintptr_t)array, 0, 0, actor->card};
}

static void create_physical(struct actor *actor, struct held *held)
{
    CUmemGenericAllocationHandle handle = 0;
    uint64_t bytes = (1 + below(actor, 64)) << 21;
    CUmemAllocationProp properties = {.type = 1, .location = {below(actor, 8) ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST, (int)below(actor, 2)}};
    if (judge(actor, cuMemCreate(&handle, bytes, &properties, 0), "cuMemCreate"))
        *held = (struct held){HANDLE, handle, 0, bytes, properties.location.id};
}

static void map(struct actor *actor, struct held *held)
{
    struct held *handle = any_of(actor, HANDLE);
    CUdeviceptr pointer;
    if (!handle || cuMemAddressReserve(&pointer, handle->bytes, 0, 0, 0) != CUDA_SUCCESS)
        return;
    if (judge(actor, cuMemMap(pointer, handle->bytes, 0, handle->value, 0), "cuMemMap"))
        *held = (struct held){MAPPED, pointer, 0, handle->bytes, handle->card};
}

static void retain(struct actor *actor, struct held *held)
{
    struct held *mapped = any_of(actor, MAPPED);
    CUmemGenericAllocationHandle handle;
    if (mapped && judge(actor, cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)(mapped->value + below(actor, mapped->bytes))), "cuMemRetainAllocationHandle"))
        *held = (struct held){HANDLE, handle, 0, mapped->bytes, mapped->card};
}

static void allocate_async(struct actor *actor, struct held *held)
{
    struct held *pool = below(actor, 2) ? any_of(actor, POOL) : NULL;
    CUdeviceptr pointer;
    uint64_t bytes = some_bytes(actor);
    CUresult result = pool ? cuMemAllocFromPoolAsync(&pointer, bytes, (CUmemoryPool)(uintptr_t)pool->value, NULL) : cuMemAllocAsync(&pointer, bytes, NULL);
    if (judge(actor, result, "cuMemAllocAsync"))
        *held = (struct held){ASYNC_POINTER, pointer, 0, bytes, actor->card};
}

static void make_pool(struct actor *actor, struct held *held)
{
    CUmemoryPool pool;
    CUmemPoolProps properties = {.allocType = 1, .location = {below(actor, 8) ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST, (int)below(actor, 2)}};
    if (!any_of(actor, POOL) && judge(actor, cuMemPoolCreate(&pool, &properties), "cuMemPoolCreate"))
        *held = (struct held){POOL, (uint64_t)(uintptr_t)pool, 0, 0, properties.location.id};
}

static void make_graph(struct actor *actor, struct held *held)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec executable;
    if (cuGraphCreate(&graph, 0) != CUDA_SUCCESS)
        return;
    for (uint64_t count = below(actor, 3); count; count--) {
        CUDA_MEM_ALLOC_NODE_PARAMS parameters = {.poolProps = {.allocType = 1, .location = {1, actor->card}}, .bytesize = (1 + below(actor, 16)) << 20};
        cuGraphAddMemAllocNode(&node, graph, NULL, 0, &parameters);
        if (below(actor, 2))
            cuGraphAddMemFreeNode(&node, graph, NULL, 0, parameters.dptr);
    }
    if (judge(actor, cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiate")) {
        judge(actor, cuGraphLaunch(executable, NULL), "cuGraphLaunch");
        *held = (struct held){GRAPH, (uint64_t)(uintptr_t)executable, (uint64_t)(uintptr_t)graph, 0, actor->card};
    }
}

static void use_own_context(struct actor *actor)
{
    CUcontext context, popped;
    CUdeviceptr pointer;
    if (!actor->own_contexts || !judge(actor, cuCtxCreate_v2(&context, 0, actor->card), "cuCtxCreate"))
        return;
    /* Never freed: it goes with the context. */
    judge(actor, cuMemAlloc_v2(&pointer, some_bytes(actor)), "cuMemAlloc");
    if (below(actor, 2))
        cuCtxPopCurrent_v2(&popped);
    judge(actor, cuCtxDestroy_v2(context), "cuCtxDestroy");
}

static void ask(struct actor *actor)
{
    size_t free = 0, total = 0;
    judge(actor, cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
    if (free > total && actor->unexpected++ < 3)
        fprintf(stderr, "%zu of %zu bytes are free\n", free, total);
}

void act(struct actor *actor)
{
    struct held *place = free_place(actor), *victim = &actor->held[below(actor, HELD_MAX)];
    uint64_t choice = below(actor, 100);
    if (!place || choice < 30) {
        /* A pool with pointers of ours is destroyed too: it lives on until they are freed. */
        put_back(actor, place ? victim : &actor->held[below(actor, HELD_MAX)]);
    } else if (choice < 55) {
        allocate(actor, place);
    } else if (choice < 60) {
        allocate_array(actor, place);
    } else if (choice < 68) {
        create_physical(actor, place);
    } else if (choice < 74) {
        map(actor, place);
    } else if (choice < 77) {
        retain(actor, place);
    } else if (choice < 87) {
        allocate_async(actor, place);
    } else if (choice < 89) {
        make_pool(actor, place);
    } else if (choice < 92) {
        make_graph(actor, place);
    } else if (choice < 94) {
        cuDeviceGraphMemTrim(actor->card);
    } else if (choice < 96) {
        cuCtxSynchronize();
    } else if (choice < 97) {
        use_own_context(actor);
    } else if (choice < 98) {
        cuMemFree_v2(0xdead0000 + choice); /* nobody's */
    } else {
        ask(actor);
    }
}

void give_everything_back(struct actor *actor)
{
    for (int at = 0; at < HELD_MAX; at++)
        put_back(actor, &actor->held[at]);
}
