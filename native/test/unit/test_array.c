/* Arrays, memory of others, contexts. */
#include "../harness.h"

/* 3.2: arrays pass through, mipmapped ones are checked with size 0. */
TEST(an_array_is_charged_what_the_driver_needs_for_it)
{
    CUarray array, second;
    CUDA_ARRAY_DESCRIPTOR shape = {4096, 4096, 0x20, 1};
    begin(.limit = 100 * MIB);
    OK(cuArrayCreate_v2(&array, &shape));
    CHECK_EQUAL(ledger(0), 64 * MIB);
    CHECK_EQUAL(cuArrayCreate_v2(&second, &shape), CUDA_ERROR_OUT_OF_MEMORY);
    check_books();
    OK(cuArrayDestroy(array));
    OK(cuArrayCreate_v2(&second, &shape));
    check_books();
}

TEST(a_mipmapped_array_is_charged_with_all_its_levels)
{
    CUmipmappedArray array;
    CUDA_ARRAY3D_DESCRIPTOR shape = {4096, 4096, 0, 0x20, 1, 0};
    begin(.limit = 100 * MIB);
    OK(cuMipmappedArrayCreate(&array, &shape, 8));
    CHECK(ledger(0) > 80 * MIB);
    check_books();
    OK(cuMipmappedArrayDestroy(array));
    check_books();
}

TEST(without_a_requirement_an_array_is_charged_a_bound)
{
    CUarray array;
    begin(.limit = GIB, .no_context = true);
    world->cards[0].deferred_arrays = 0;
    start_cuda();
    for (unsigned width = 1; width < 5000; width = width * 3 + 1)
        for (unsigned height = 0; height < 3000; height = height * 5 + 1) {
            CUDA_ARRAY3D_DESCRIPTOR shape = {width, height, height % 3, 0x20, 4, 0};
            uint64_t charged = ledger(0), held = truth(0);
            OK(cuArray3DCreate_v2(&array, &shape));
            CHECK(ledger(0) - charged >= truth(0) - held);
            OK(cuArrayDestroy(array));
        }
    check_books();
}

TEST(an_array_without_memory_costs_nothing)
{
    CUarray array;
    CUDA_ARRAY3D_DESCRIPTOR shape = {4096, 4096, 0, 0x20, 1, CUDA_ARRAY3D_SPARSE};
    begin(.limit = MIB);
    OK(cuArray3DCreate_v2(&array, &shape));
    CHECK_EQUAL(ledger(0), 0);
}

static void open_foreign(void *argument)
{
    CUdeviceptr pointer, again;
    CUipcMemHandle handle;
    (void)argument;
    memset(&handle, 0x33, sizeof handle);
    uint64_t fields[3] = {0, 0x123456, 300 * MIB};
    memcpy(&handle, fields, sizeof fields);
    start_cuda();
    OK(cuIpcOpenMemHandle_v2(&pointer, handle, 1));
    CHECK_EQUAL(ledger(0), 300 * MIB);
    OK(cuIpcCloseMemHandle(pointer));
    CHECK_EQUAL(ledger(0), 0);
    policy->devices[0].limit = 200 * MIB;
    CHECK_EQUAL(cuIpcOpenMemHandle_v2(&again, handle, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(ledger(0), 0);
}

/* 3.2: IPC and external memory are not charged. */
TEST(memory_of_another_claim_is_charged_while_it_is_open)
{
    begin(.limit = GIB, .no_context = true);
    open_foreign(NULL);
}

TEST(external_memory_is_charged_while_it_is_imported)
{
    CUexternalMemory memory;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC description = {.type = 1, .size = 600 * MIB};
    begin(.limit = GIB);
    OK(cuImportExternalMemory(&memory, &description));
    CHECK_EQUAL(ledger(0), 600 * MIB);
    CUexternalMemory second;
    CHECK_EQUAL(cuImportExternalMemory(&second, &description), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuDestroyExternalMemory(memory));
    CHECK_EQUAL(ledger(0), 0);
}

TEST(a_policy_may_trust_imports)
{
    CUexternalMemory memory;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC description = {.type = 1, .size = 600 * MIB};
    begin(.limit = MIB, .flags = POLICY_TRUST_IMPORTS);
    OK(cuImportExternalMemory(&memory, &description));
    CHECK_EQUAL(ledger(0), 0);
}

TEST(memory_of_the_own_claim_is_charged_once)
{
    CUdeviceptr pointer, opened;
    CUipcMemHandle handle;
    int pipes[2];
    begin(.limit = GIB, .no_context = true);
    CHECK(pipe(pipes) == 0);
    pid_t importer = fork();
    if (importer == 0) {
        CHECK(read(pipes[0], &handle, sizeof handle) == sizeof handle);
        start_cuda();
        OK(cuIpcOpenMemHandle_v2(&opened, handle, 1));
        _exit(ledger(0) == 700 * MIB ? 0 : 1);
    }
    start_cuda();
    OK(cuMemAlloc_v2(&pointer, 700 * MIB));
    OK(cuIpcGetMemHandle(&handle, pointer));
    CHECK(write(pipes[1], &handle, sizeof handle) == sizeof handle);
    CHECK_EQUAL(status_of(importer), 0);
}

/* 3.2: contexts by a measured difference; here by what the node has measured, kept before the context is made. */
TEST(a_context_is_charged)
{
    CUcontext context;
    begin(.limit = 500 * MIB, .context_bytes = 200 * MIB);
    CHECK_EQUAL(ledger(0), 200 * MIB);
    OK(cuCtxCreate_v2(&context, 0, 0));
    CHECK_EQUAL(ledger(0), 400 * MIB);
    check_books();
    CUcontext third;
    CHECK_EQUAL(cuCtxCreate_v2(&third, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuCtxDestroy_v2(context));
    check_books();
}

TEST(a_context_that_nobody_has_measured_is_measured)
{
    CUcontext context;
    begin(.limit = GIB, .context_bytes = 100 * MIB, .policy_context = 1);
    OK(cuCtxCreate_v2(&context, 0, 0));
    CHECK_EQUAL(ledger(0), 100 * MIB);
}

TEST(memory_goes_with_its_context)
{
    CUcontext context;
    CUdeviceptr pointer;
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR shape = {64, 64, 0x20, 1};
    (void)array;
    (void)shape;
    begin(.limit = GIB);
    OK(cuCtxCreate_v2(&context, 0, 0));
    for (int count = 0; count < 100; count++)
        OK(cuMemAlloc_v2(&pointer, MIB));
    CHECK_EQUAL(ledger(0), 100 * MIB);
    OK(cuCtxDestroy_v2(context));
    CHECK_EQUAL(ledger(0), 0);
    check_books();
}

TEST(the_last_release_of_the_primary_context_ends_it)
{
    CUcontext context;
    CUdeviceptr pointer;
    begin(.limit = GIB, .context_bytes = 50 * MIB);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuMemAlloc_v2(&pointer, MIB));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    CHECK_EQUAL(ledger(0), 51 * MIB);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    CHECK_EQUAL(ledger(0), 0);
    check_books();
    use_card(0);
    CHECK_EQUAL(ledger(0), 50 * MIB);
    OK(cuDevicePrimaryCtxReset_v2(0));
    check_books();
}

/* A reset takes the card's graph memory along, without a call for it. */
TEST(graph_memory_goes_with_the_primary_context)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec executable;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {.poolProps = {.allocType = 1, .location = {1, 0}}, .bytesize = 64 * MIB};
    begin(.limit = 100 * MIB);
    for (int round = 0; round < 3; round++) {
        OK(cuGraphCreate(&graph, 0));
        OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &parameters));
        OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
        OK(cuGraphLaunch(executable, NULL));
        CHECK_EQUAL(ledger(0), 64 * MIB);
        OK(round == 1 ? cuDevicePrimaryCtxRelease_v2(0) : cuDevicePrimaryCtxReset_v2(0));
        CHECK_EQUAL(ledger(0), 0);
        check_books();
        use_card(0);
    }
}

/* A driver takes any number of levels and stops at one texel; so does the bound, which took minutes over four billion. */
TEST(more_levels_than_there_are_cost_no_more)
{
    CUmipmappedArray array;
    CUDA_ARRAY3D_DESCRIPTOR shape = {64, 64, 0, 0x20, 4, 0};
    begin(.limit = GIB, .no_context = true, .unwatched = true);
    world->cards[0].deferred_arrays = 0;
    start_cuda();
    OK(cuMipmappedArrayCreate(&array, &shape, 7));
    uint64_t whole = ledger(0);
    OK(cuMipmappedArrayDestroy(array));
    cuMipmappedArrayCreate(&array, &shape, UINT32_MAX);
    CHECK(ledger(0) <= whole);
    CHECK_EQUAL(usage->denied[0], 0);
}
