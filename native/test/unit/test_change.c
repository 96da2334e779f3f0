/* Limits that change while programs run: who tells that it has seen it, and what is certain then. */
#include <pthread.h>
#include <sched.h>

#include "../harness.h"

/* The node can tell that a change has arrived. */
TEST(a_change_is_acknowledged_by_who_launches)
{
    void *module, *function;
    begin(.cards = 1);
    policy->devices[0].rate = 5000;
    policy->sequence = 7;
    OK(cuModuleLoadData(&module, ""));
    OK(cuModuleGetFunction(&function, module, "spin 1000000"));
    for (int at = 0; at < 3; at++) {
        OK(cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
        OK(cuCtxSynchronize());
    }
    CHECK_EQUAL(usage->slots[0].acknowledged, 7);
}

TEST(a_change_is_acknowledged_by_who_takes_memory)
{
    CUdeviceptr pointer;
    begin(.limit = GIB, .unwatched = true);
    OK(cuMemAlloc_v2(&pointer, MIB));
    policy->devices[0].limit = 2 * GIB;
    policy->sequence = 8;
    CHECK(usage->slots[0].acknowledged != 8);
    OK(cuMemFree_v2(pointer));
    CHECK_EQUAL(usage->slots[0].acknowledged, 8);
    policy->sequence = 9;
    OK(cuMemAlloc_v2(&pointer, GIB + MIB));
    CHECK_EQUAL(usage->slots[0].acknowledged, 9);
    policy->devices[0].limit = GIB;
    policy->sequence = 10;
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(usage->slots[0].acknowledged, 10);
}

static CUcontext shared;
static _Atomic int over;

static void *take_and_give(void *unused)
{
    CUdeviceptr pointer;
    OK(cuCtxSetCurrent(shared));
    while (!atomic_load(&over))
        if (cuMemAlloc_v2(&pointer, 64 * MIB) == CUDA_SUCCESS)
            OK(cuMemFree_v2(pointer));
    return unused;
}

/* Once nothing is pending, and what is held is within the lower limit, nobody takes more, whoever was stopped where: what is beyond
 * it may be another claim's. */
TEST(a_lower_limit_holds_from_the_moment_that_nothing_is_pending)
{
    pthread_t thread;
    begin(.limit = 64 * MIB, .unwatched = true);
    OK(cuCtxGetCurrent(&shared));
    CHECK_EQUAL(pthread_create(&thread, NULL, take_and_give, NULL), 0);
    for (int round = 0; round < 300; round++) {
        atomic_store(&policy->devices[0].limit, 64 * MIB);
        for (int turn = 0; turn < 20; turn++)
            sched_yield();
        atomic_store(&policy->devices[0].limit, 32 * MIB);
        while (atomic_load(&usage->accounts[0][0].pending) + atomic_load(&usage->accounts[0][0].held))
            sched_yield();
        for (int turn = 0; turn < 100; turn++) {
            CHECK(atomic_load(&usage->accounts[0][0].held) <= 32 * MIB);
            sched_yield();
        }
    }
    atomic_store(&over, 1);
    pthread_join(thread, NULL);
}
