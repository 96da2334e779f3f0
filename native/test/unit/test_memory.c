/* Plain, pitched, managed, host memory; what is shown. */
#include "../harness.h"

TEST(an_allocation_past_the_limit_is_refused)
{
    CUdeviceptr first, second;
    begin(.limit = GIB);
    OK(cuMemAlloc_v2(&first, GIB / 2));
    CHECK_EQUAL(cuMemAlloc_v2(&second, GIB / 2 + 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&second, GIB / 2));
    check_books();
    OK(cuMemFree_v2(first));
    OK(cuMemFree_v2(second));
    CHECK_EQUAL(ledger(0), 0);
    OK(cuMemAlloc_v2(&first, GIB));
    CHECK_EQUAL(usage->denied[0], 1);
    check_books();
}

TEST(each_card_has_its_own_limit)
{
    CUdeviceptr pointer;
    begin(.limit = GIB);
    OK(cuMemAlloc_v2(&pointer, GIB));
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 512), CUDA_ERROR_OUT_OF_MEMORY);
    use_card(1);
    OK(cuMemAlloc_v2(&pointer, GIB));
    CHECK_EQUAL(ledger(1), GIB);
    check_books();
}

TEST(small_requests_are_charged_as_the_driver_rounds_them)
{
    CUdeviceptr pointer;
    begin(.limit = 4096);
    for (int count = 0; count < 8; count++)
        OK(cuMemAlloc_v2(&pointer, 1));
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY);
    check_books();
}

TEST(what_the_driver_refuses_is_not_charged)
{
    CUdeviceptr pointer;
    begin(.limit = 4 * GIB, .card_bytes = GIB);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(ledger(0), 0);
}

/* 3.2: pitch guessed before the call. */
TEST(pitched_memory_is_charged_with_its_padding)
{
    CUdeviceptr pointer;
    size_t pitch;
    begin(.limit = 64 * MIB);
    OK(cuMemAllocPitch_v2(&pointer, &pitch, 1, 65536, 4));
    CHECK_EQUAL(pitch, 512);
    CHECK_EQUAL(ledger(0), 32 * MIB);
    check_books();
    CHECK_EQUAL(cuMemAllocPitch_v2(&pointer, &pitch, 1, 65537, 4), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFree_v2(pointer));
    check_books();
}

TEST(managed_memory_counts_in_full)
{
    CUdeviceptr pointer;
    begin(.limit = GIB);
    CHECK_EQUAL(cuMemAllocManaged(&pointer, GIB + 1, 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAllocManaged(&pointer, GIB, 1));
    CHECK_EQUAL(usage->slots[0].kinds[0][KIND_MANAGED], GIB);
    check_books();
    OK(cuMemFree_v2(pointer));
    check_books();
}

TEST(host_memory_counts_where_it_is_the_cards)
{
    void *pointer;
    begin(.limit = GIB, .no_context = true);
    world->cards[0].integrated = 1;
    start_cuda();
    CHECK_EQUAL(cuMemHostAlloc(&pointer, GIB + 1, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemHostAlloc(&pointer, GIB, 0));
    CHECK_EQUAL(ledger(0), GIB);
    check_books();
    OK(cuMemFreeHost(pointer));
    check_books();
}

TEST(host_memory_beside_a_card_is_free)
{
    void *pointer;
    begin(.limit = MIB);
    OK(cuMemHostAlloc(&pointer, GIB, 0));
    CHECK_EQUAL(ledger(0), 0);
    OK(cuMemFreeHost(pointer));
}

/* 3.2, 3.8, row 2: frees of unknown pointers return -1 and leak. */
TEST(an_unknown_pointer_is_for_the_driver_to_judge)
{
    CUdeviceptr pointer;
    begin(.limit = GIB);
    CHECK_EQUAL(cuMemFree_v2(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemFree_v2(0x7777), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuMemFreeAsync(0x7777, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc_v2(&pointer, MIB));
    OK(cuMemFree_v2(pointer));
    CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_ERROR_INVALID_VALUE);
    check_books();
}

TEST(a_free_that_fails_stays_charged)
{
    CUdeviceptr pointer;
    begin(.limit = GIB);
    OK(cuMemAlloc_v2(&pointer, MIB));
    world->faults[0] = (struct fault){.function = "cuMemFree_v2", .result = 700};
    CHECK_EQUAL(cuMemFree_v2(pointer), 700);
    CHECK_EQUAL(ledger(0), MIB);
    world->faults[0].function[0] = 0;
    OK(cuMemFree_v2(pointer));
    check_books();
}

TEST(the_share_is_what_a_program_sees)
{
    size_t free, total;
    CUdeviceptr pointer;
    begin(.limit = 2 * GIB);
    OK(cuMemAlloc_v2(&pointer, GIB / 2));
    OK(cuMemGetInfo_v2(&free, &total));
    CHECK_EQUAL(total, 2 * GIB);
    CHECK_EQUAL(free, 2 * GIB - GIB / 2);
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK_EQUAL(total, 2 * GIB);
}

/* 3.2, 3.8 (clamp while graphs are profiled): cuMemGetInfo is an error as soon as more is used than allowed. */
TEST(free_memory_is_zero_not_an_error_when_the_limit_was_lowered)
{
    size_t free, total;
    CUdeviceptr pointer;
    begin(.limit = 2 * GIB, .unwatched = true);
    OK(cuMemAlloc_v2(&pointer, GIB));
    policy->devices[0].limit = GIB / 2;
    OK(cuMemGetInfo_v2(&free, &total));
    CHECK_EQUAL(free, 0);
    CHECK_EQUAL(total, GIB / 2);
}

/* 3.2: without a limit cuDeviceTotalMem says 0. */
TEST(without_a_limit_the_card_is_shown_as_it_is)
{
    size_t free, total;
    begin(.unlimited = true);
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK_EQUAL(total, 8 * GIB);
    OK(cuMemGetInfo_v2(&free, &total));
    CHECK_EQUAL(total, 8 * GIB);
    CHECK_EQUAL(free, 8 * GIB);
}

/* Row 12: a 24 GB card shown as 58 GB. */
TEST(a_limit_above_the_card_never_shows_more_than_the_card)
{
    size_t free, total;
    begin(.limit = 64 * GIB);
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK_EQUAL(total, 8 * GIB);
    OK(cuMemGetInfo_v2(&free, &total));
    CHECK_EQUAL(total, 8 * GIB);
}

/* Row 17: figures are zero unless a limit is set. */
TEST(use_is_counted_without_a_limit_too)
{
    CUdeviceptr pointer;
    begin(.unlimited = true);
    OK(cuMemAlloc_v2(&pointer, 3 * GIB));
    CHECK_EQUAL(ledger(0), 3 * GIB);
    CHECK_EQUAL(usage->slots[0].kinds[0][KIND_PLAIN], 3 * GIB);
    check_books();
}

/* 3.4: limits frozen when the region is made. */
TEST(a_limit_changes_while_the_program_runs)
{
    CUdeviceptr pointer;
    begin(.limit = GIB, .unwatched = true);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    policy->devices[0].limit = 3 * GIB;
    OK(cuMemAlloc_v2(&pointer, 2 * GIB));
    policy->devices[0].limit = GIB;
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 512), CUDA_ERROR_OUT_OF_MEMORY);
    check_books();
}

TEST(two_claims_on_one_card_add_up)
{
    CUdeviceptr first, second, third;
    size_t total;
    begin(.limit = GIB, .claims = 2);
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK_EQUAL(total, 2 * GIB);
    OK(cuMemAlloc_v2(&first, GIB + GIB / 2));
    CHECK_EQUAL(cuMemAlloc_v2(&second, GIB / 2 + 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&third, GIB / 2));
    OK(cuMemFree_v2(first));
    OK(cuMemAlloc_v2(&first, GIB + GIB / 2));
    CHECK_EQUAL(world->violations, 0);
}

/* Row 8: what other interfaces and modules take comes in through what the node sees. */
TEST(what_the_node_sees_beyond_the_ledger_counts)
{
    CUdeviceptr pointer;
    void *module;
    size_t free, total;
    begin(.limit = GIB, .no_context = true);
    world->cards[0].module_bytes = 300 * MIB;
    start_cuda();
    OK(cuModuleLoadData(&module, "image"));
    policy->devices[0].unseen = truth(0) - ledger(0);
    OK(cuMemGetInfo_v2(&free, &total));
    CHECK_EQUAL(free, GIB - 300 * MIB);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 725 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&pointer, 724 * MIB));
    CHECK_EQUAL(world->violations, 0);
}
