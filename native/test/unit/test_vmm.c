/* Virtual memory management: what a handle, a mapping, a location mean for the charge. */
#include "../harness.h"

static CUmemAllocationProp on(int type, int id)
{
    return (CUmemAllocationProp){.type = 1, .location = {type, id}};
}

static CUmemGenericAllocationHandle create(uint64_t bytes, int card)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = on(CU_MEM_LOCATION_TYPE_DEVICE, card);
    OK(cuMemCreate(&handle, bytes, &properties, 0));
    return handle;
}

/* 3.2: charged to the card of the current context. */
TEST(physical_memory_is_charged_to_the_card_it_is_on)
{
    begin(.limit = GIB);
    create(64 * MIB, 1);
    CHECK_EQUAL(ledger(0), 0);
    CHECK_EQUAL(ledger(1), 64 * MIB);
    check_books();
}

/* 3.2, 3.8, row 1: memory on the host or a NUMA node reads beyond a table. */
TEST(physical_memory_on_the_host_is_not_counted)
{
    CUmemGenericAllocationHandle handle;
    begin(.limit = 64 * MIB);
    for (int type = CU_MEM_LOCATION_TYPE_HOST; type <= CU_MEM_LOCATION_TYPE_HOST_NUMA; type++) {
        CUmemAllocationProp properties = on(type, type == CU_MEM_LOCATION_TYPE_HOST ? 0 : 1);
        OK(cuMemCreate(&handle, 512 * MIB, &properties, 0));
        OK(cuMemRelease(handle));
    }
    CUmemAllocationProp nowhere = on(0, -7);
    OK(cuMemCreate(&handle, 512 * MIB, &nowhere, 0));
    CHECK_EQUAL(ledger(0) + ledger(1), 0);
}

TEST(physical_memory_past_the_limit_is_refused)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = on(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    begin(.limit = 64 * MIB);
    CHECK_EQUAL(cuMemCreate(&handle, 66 * MIB, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
    create(64 * MIB, 0);
    check_books();
}

/* 3.2, 3.8 (expandable segments): the first release gives the bytes back although they are mapped. */
TEST(memory_that_is_mapped_outlives_its_handle)
{
    CUdeviceptr range, pointer;
    begin(.limit = 64 * MIB);
    CUmemGenericAllocationHandle handle = create(48 * MIB, 0);
    OK(cuMemAddressReserve(&range, 48 * MIB, 0, 0, 0));
    OK(cuMemMap(range, 48 * MIB, 0, handle, 0));
    OK(cuMemRelease(handle));
    CHECK_EQUAL(truth(0), 48 * MIB);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 32 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    check_books();
    OK(cuMemUnmap(range, 48 * MIB));
    OK(cuMemAlloc_v2(&pointer, 64 * MIB));
    check_books();
}

TEST(a_retained_handle_keeps_the_memory)
{
    CUdeviceptr range;
    CUmemGenericAllocationHandle again;
    begin(.limit = 64 * MIB);
    CUmemGenericAllocationHandle handle = create(32 * MIB, 0);
    OK(cuMemAddressReserve(&range, 32 * MIB, 0, 0, 0));
    OK(cuMemMap(range, 32 * MIB, 0, handle, 0));
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(range + 3 * MIB)));
    OK(cuMemRelease(handle));
    OK(cuMemUnmap(range, 32 * MIB));
    CHECK_EQUAL(ledger(0), 32 * MIB);
    OK(cuMemRelease(again));
    CHECK_EQUAL(ledger(0), 0);
    check_books();
}

TEST(the_number_of_a_released_handle_may_come_again_while_its_memory_lives)
{
    CUdeviceptr range;
    begin(.limit = GIB);
    CUmemGenericAllocationHandle first = create(32 * MIB, 0);
    OK(cuMemAddressReserve(&range, 32 * MIB, 0, 0, 0));
    OK(cuMemMap(range, 32 * MIB, 0, first, 0));
    OK(cuMemRelease(first));
    CUmemGenericAllocationHandle second = create(64 * MIB, 0);
    CHECK_EQUAL(first, second);
    CHECK_EQUAL(ledger(0), 96 * MIB);
    OK(cuMemUnmap(range, 32 * MIB));
    CHECK_EQUAL(ledger(0), 64 * MIB);
    OK(cuMemRelease(second));
    check_books();
}

TEST(one_unmap_may_end_several_mappings)
{
    CUdeviceptr range;
    begin(.limit = GIB);
    OK(cuMemAddressReserve(&range, 16 * MIB, 0, 0, 0));
    for (unsigned part = 0; part < 8; part += part == 3 ? 2 : 1) { /* with a hole */
        CUmemGenericAllocationHandle handle = create(2 * MIB, 0);
        OK(cuMemMap(range + part * 2 * MIB, 2 * MIB, 0, handle, 0));
        OK(cuMemRelease(handle));
    }
    CHECK_EQUAL(ledger(0), 14 * MIB);
    OK(cuMemUnmap(range, 16 * MIB));
    CHECK_EQUAL(ledger(0), 0);
    check_books();
}

static void import(void *argument)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr range;
    start_cuda();
    OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)*(int *)argument, 1));
    OK(cuMemAddressReserve(&range, 64 * MIB, 0, 0, 0));
    OK(cuMemMap(range, 64 * MIB, 0, handle, 0));
    _exit(ledger(0) >= 64 * MIB && usage->slots[1].kinds[0][KIND_IMPORT] == 64 * MIB ? 0 : 1);
}

/* 3.2: importing is not charged, so memory whose owner has left is nobody's. */
TEST(imported_memory_is_charged_to_who_maps_it)
{
    int shareable;
    begin(.limit = GIB, .no_context = true);
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid_t importer = fork();
    if (importer == 0) {
        CHECK(read(ready[0], &shareable, sizeof shareable) == sizeof shareable);
        import(&shareable);
    }
    start_cuda();
    OK(cuMemExportToShareableHandle(&shareable, create(64 * MIB, 0), 1, 0));
    CHECK(write(ready[1], &shareable, sizeof shareable) == sizeof shareable);
    CHECK_EQUAL(status_of(importer), 0);
}

/* A newer driver's kinds of memory: CUDA 13. The lowest byte is the card, the next one which part of it. */
TEST(physical_memory_of_a_part_of_a_card_is_charged_to_the_card)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, 1 | 3 << 8}};
    begin(.limit = 64 * MIB);
    OK(cuMemCreate(&handle, 40 * MIB, &properties, 0));
    CHECK_EQUAL(ledger(1), 40 * MIB);
    CHECK_EQUAL(cuMemCreate(&handle, 40 * MIB, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
    check_books();
}
