/* Memory pools, stream-ordered allocation, graphs. */
#include <dlfcn.h>

#include "../harness.h"

static CUmemoryPool pool_on(int card)
{
    CUmemoryPool pool;
    CUmemPoolProps properties = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, card}};
    OK(cuMemPoolCreate(&pool, &properties));
    return pool;
}

/* A newer driver's kinds of memory: CUDA 13. */
TEST(pools_of_managed_memory_are_charged)
{
    CUdeviceptr pointer;
    CUmemoryPool pool;
    begin(.limit = 100 * MIB);
    CUmemLocation anywhere = {CU_MEM_LOCATION_TYPE_NONE, 0}, second = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
    OK(cuMemGetDefaultMemPool(&pool, &anywhere, CU_MEM_ALLOCATION_TYPE_MANAGED));
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&pointer, 101 * MIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAllocFromPoolAsync(&pointer, 60 * MIB, pool, NULL));
    CHECK_EQUAL(ledger(0), 64 * MIB);
    OK(cuMemGetMemPool(&pool, &second, CU_MEM_ALLOCATION_TYPE_MANAGED));
    OK(cuMemAllocFromPoolAsync(&pointer, 33 * MIB, pool, NULL));
    CHECK_EQUAL(ledger(1), 64 * MIB);
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED, .location = {CU_MEM_LOCATION_TYPE_NONE, 0}};
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuMemAllocFromPoolAsync(&pointer, 1, pool, NULL));
    CHECK_EQUAL(ledger(0), 96 * MIB);
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&pointer, 40 * MIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    check_books();
}

TEST(a_pool_of_a_part_of_a_card_is_charged_to_the_card)
{
    CUdeviceptr pointer;
    CUmemoryPool pool;
    begin(.limit = 64 * MIB);
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, 1 | 1 << 8}};
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuMemAllocFromPoolAsync(&pointer, 33 * MIB, pool, NULL));
    CHECK_EQUAL(ledger(1), 64 * MIB);
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&pointer, 64 * MIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    check_books();
}

TEST(a_pool_is_charged_what_it_has_reserved)
{
    CUdeviceptr pointer;
    begin(.limit = GIB);
    OK(cuMemAllocAsync(&pointer, 1, NULL));
    CHECK_EQUAL(ledger(0), 32 * MIB);
    check_books();
    OK(cuMemAllocAsync(&pointer, 20 * MIB, NULL));
    CHECK_EQUAL(ledger(0), 32 * MIB);
    check_books();
}

TEST(a_pool_cannot_grow_past_the_limit)
{
    CUdeviceptr pointer;
    begin(.limit = 100 * MIB);
    OK(cuMemAllocAsync(&pointer, 60 * MIB, NULL));
    CHECK_EQUAL(cuMemAllocAsync(&pointer, 40 * MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAllocAsync(&pointer, 30 * MIB, NULL));
    CHECK_EQUAL(ledger(0), 96 * MIB);
    check_books();
}

TEST(what_a_full_pool_has_free_can_be_used)
{
    CUdeviceptr first, second;
    begin(.limit = 64 * MIB);
    OK(cuMemAllocAsync(&first, 40 * MIB, NULL));
    OK(cuMemAllocAsync(&second, 20 * MIB, NULL));
    check_books();
}

/* 3.2: charged by the growth of the high watermark, so what is given back and taken again is free of charge. */
TEST(a_pool_that_shrinks_and_grows_is_charged_again)
{
    CUdeviceptr first, second;
    begin(.limit = GIB);
    OK(cuMemAllocAsync(&first, 256 * MIB, NULL));
    OK(cuMemAllocAsync(&second, 1, NULL));
    OK(cuMemFreeAsync(first, NULL));
    OK(cuStreamSynchronize(NULL));
    CHECK_EQUAL(ledger(0), 32 * MIB);
    OK(cuMemAllocAsync(&first, 256 * MIB, NULL));
    CHECK_EQUAL(ledger(0), 288 * MIB);
    check_books();
}

/* 3.2: one counter for the pools of all cards. */
TEST(pools_are_charged_to_their_own_card)
{
    CUdeviceptr pointer;
    begin(.limit = GIB);
    use_card(1);
    OK(cuMemAllocAsync(&pointer, MIB, NULL));
    CHECK_EQUAL(ledger(0), 0);
    CHECK_EQUAL(ledger(1), 32 * MIB);
    check_books();
}

/* 3.2, row 2: cuMemAllocFromPoolAsync is not charged. */
TEST(allocating_from_a_named_pool_is_charged)
{
    CUdeviceptr pointer;
    begin(.limit = 64 * MIB);
    CUmemoryPool pool = pool_on(1);
    OK(cuMemAllocFromPoolAsync(&pointer, 33 * MIB, pool, NULL));
    CHECK_EQUAL(ledger(1), 64 * MIB);
    CHECK_EQUAL(cuMemAllocFromPoolAsync(&pointer, 33 * MIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    check_books();
}

TEST(a_pool_on_the_host_is_not_counted)
{
    CUmemoryPool pool;
    CUdeviceptr pointer;
    CUmemPoolProps properties = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_HOST, 0}};
    begin(.limit = 32 * MIB);
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuMemAllocFromPoolAsync(&pointer, 512 * MIB, pool, NULL));
    OK(cuMemFreeAsync(pointer, NULL));
    CHECK_EQUAL(ledger(0), 0);
}

TEST(trimming_gives_the_bytes_back)
{
    CUdeviceptr pointer;
    uint64_t keep = UINT64_MAX;
    begin(.limit = GIB);
    CUmemoryPool pool = pool_on(0);
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    OK(cuMemAllocFromPoolAsync(&pointer, 96 * MIB, pool, NULL));
    OK(cuMemFreeAsync(pointer, NULL));
    OK(cuStreamSynchronize(NULL));
    CHECK_EQUAL(ledger(0), 96 * MIB);
    OK(cuMemPoolTrimTo(pool, 0));
    CHECK_EQUAL(ledger(0), 0);
    check_books();
}

TEST(a_destroyed_pool_is_charged_until_its_last_pointer_is_free)
{
    CUdeviceptr pointer;
    begin(.limit = 64 * MIB);
    CUmemoryPool pool = pool_on(0);
    OK(cuMemAllocFromPoolAsync(&pointer, 64 * MIB, pool, NULL));
    OK(cuMemPoolDestroy(pool));
    CHECK_EQUAL(ledger(0), 64 * MIB);
    OK(cuMemFreeAsync(pointer, NULL));
    CHECK_EQUAL(ledger(0), 64 * MIB);
    OK(cuCtxSynchronize());
    CHECK_EQUAL(ledger(0), 0);
    check_books();
}

TEST(a_pool_that_shrank_makes_room_without_being_asked)
{
    CUdeviceptr pointer;
    begin(.limit = 64 * MIB);
    OK(cuMemAllocAsync(&pointer, 64 * MIB, NULL));
    OK(cuMemFreeAsync(pointer, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemAlloc_v2(&pointer, 64 * MIB));
    check_books();
}

static CUgraphExec graph_of(uint64_t bytes, bool frees)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec executable;
    OK(cuGraphCreate(&graph, 0));
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {.poolProps = {.allocType = 1, .location = {1, 0}}, .bytesize = bytes};
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &parameters));
    if (frees)
        OK(cuGraphAddMemFreeNode(&node, graph, NULL, 0, parameters.dptr));
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    return executable;
}

/* 3.2, row 2: allocation nodes are not charged. */
TEST(a_graph_that_allocates_is_charged_when_it_runs)
{
    begin(.limit = 64 * MIB);
    CUgraphExec small = graph_of(48 * MIB, false), large = graph_of(32 * MIB, false);
    CHECK_EQUAL(ledger(0), 0);
    OK(cuGraphLaunch(small, NULL));
    CHECK_EQUAL(ledger(0), 48 * MIB);
    check_books();
    CHECK_EQUAL(cuGraphLaunch(large, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuGraphExecDestroy(small));
    OK(cuDeviceGraphMemTrim(0));
    CHECK_EQUAL(ledger(0), 0);
    OK(cuGraphUpload(large, NULL));
    check_books();
}

TEST(a_graph_that_frees_what_it_allocates_can_run_again_and_again)
{
    begin(.limit = 64 * MIB);
    CUgraphExec executable = graph_of(40 * MIB, true);
    for (int run = 0; run < 100; run++)
        OK(cuGraphLaunch(executable, NULL));
    CHECK_EQUAL(ledger(0), 40 * MIB);
    check_books();
}

TEST(captured_allocations_are_the_graphs)
{
    CUstream stream;
    CUgraph graph, parent;
    CUgraphNode node;
    CUgraphExec executable;
    CUdeviceptr pointer;
    begin(.limit = 64 * MIB);
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, 0));
    OK(cuMemAllocAsync(&pointer, 60 * MIB, stream));
    CHECK_EQUAL(ledger(0), 0);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphCreate(&parent, 0));
    OK(cuGraphAddChildGraphNode(&node, parent, NULL, 0, graph));
    OK(cuGraphAddChildGraphNode(&node, parent, NULL, 0, graph));
    OK(cuGraphInstantiateWithFlags(&executable, parent, 0));
    CHECK_EQUAL(cuGraphLaunch(executable, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    OK(cuGraphLaunch(executable, NULL));
    CHECK_EQUAL(ledger(0), 60 * MIB);
    OK(cuMemFreeAsync(pointer, NULL));
    check_books();
}

/* The driver may give an address out again before it is known here that its context is gone. */
TEST(a_pool_may_get_the_address_of_memory_that_went_with_its_context)
{
    CUdeviceptr pointer, again;
    char path[512];
    begin(.limit = GIB);
    OK(cuMemAlloc_v2(&pointer, 512));
    snprintf(path, sizeof path, "%s/libcuda.so.1", getenv("KOORDRA_DRIVER_FOLDER"));
    void *driver = dlopen(path, RTLD_NOW);
    CHECK(driver);
    OK(((CUresult(*)(CUdeviceptr))dlsym(driver, "cuMemFree_v2"))(pointer)); /* behind the limiter's back */
    OK(cuMemAllocAsync(&again, 512, NULL));
    CHECK_EQUAL(pointer, again);
    check_books();
}

/* After a fault on the card no call works any more; its memory is there until the process ends, and so is the charge. */
TEST(a_pool_that_cannot_be_asked_stays_charged)
{
    CUdeviceptr pointer, more;
    begin(.limit = GIB);
    OK(cuMemAllocAsync(&pointer, 256 * MIB, NULL));
    OK(cuMemAllocAsync(&more, 1, NULL));
    uint64_t before = ledger(0);
    OK(cuMemFreeAsync(more, NULL));
    world->faults[0] = (struct fault){.function = "cuMemPoolGetAttribute", .result = 700, .countdown = 0};
    cuCtxSynchronize();
    CHECK_EQUAL(ledger(0), before);
    world->faults[0].function[0] = 0;
    OK(cuCtxSynchronize());
    check_books();
}

TEST(a_graph_pool_that_cannot_be_asked_stays_charged)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec executable;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {.poolProps = {.allocType = 1, .location = {1, 0}}, .bytesize = 64 * MIB};
    begin(.limit = GIB);
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &parameters));
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    OK(cuGraphLaunch(executable, NULL));
    uint64_t before = ledger(0);
    CHECK(before >= 64 * MIB);
    world->faults[0] = (struct fault){.function = "cuDeviceGetGraphMemAttribute", .result = 700, .countdown = 0};
    cuDeviceGraphMemTrim(0);
    CHECK_EQUAL(ledger(0), before);
}

/* A graph may allocate on another card than the one it is launched from. */
TEST(a_graph_is_charged_to_the_card_it_allocates_on)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec executable;
    begin(.limit = 100 * MIB);
    for (unsigned round = 0; round < 2; round++) {
        CUDA_MEM_ALLOC_NODE_PARAMS parameters = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}}, .bytesize = 60 * MIB};
        OK(cuGraphCreate(&graph, 0));
        OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &parameters));
        OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
        CHECK_EQUAL(cuGraphLaunch(executable, NULL), round == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQUAL(ledger(0), 0);
        CHECK_EQUAL(ledger(1), 60 * MIB);
    }
    check_books();
}
