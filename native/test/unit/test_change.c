/* Limits that change while programs run: who tells that it has seen it, and what is certain then. */
#include <pthread.h>
#include <sched.h>

#include "../share.h"

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
static _Atomic int over, settled;

static void *take_and_give(void *unused)
{
    CUdeviceptr pointer;
    OK(cuCtxSetCurrent(shared));
    while (!atomic_load(&over))
        if (cuMemAlloc_v2(&pointer, 64 * MIB) == CUDA_SUCCESS) {
            CHECK(!atomic_load(&settled));
            OK(cuMemFree_v2(pointer));
        }
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
        /* In this order: what leaves `pending` between the two is in `held` by then. */
        while (atomic_load(&usage->accounts[0][0].pending) || atomic_load(&usage->accounts[0][0].held) > 32 * MIB)
            sched_yield();
        atomic_store(&settled, 1);
        for (int turn = 0; turn < 100; turn++)
            sched_yield();
        atomic_store(&settled, 0);
    }
    atomic_store(&over, 1);
    pthread_join(thread, NULL);
}

static void try_memory(void *function, CUstream stream)
{
    CUdeviceptr pointer;
    uint64_t now = world_now(world) - 1000 * SECOND;
    CUresult got = cuMemAlloc_v2(&pointer, 64 * MIB);
    (void)function, (void)stream;
    if (got == CUDA_SUCCESS)
        OK(cuMemFree_v2(pointer));
    if (now > SECOND / 2 && now < SECOND)
        CHECK_EQUAL(got, CUDA_ERROR_OUT_OF_MEMORY);
    if (now > SECOND + 200 * MS && now < 2 * SECOND)
        CHECK_EQUAL(got, CUDA_SUCCESS);
    if (now > 2 * SECOND + 200 * MS)
        CHECK_EQUAL(got, CUDA_ERROR_OUT_OF_MEMORY);
    if (now > 3 * SECOND)
        _exit(0);
}

/* Memory up and down, in virtual time: the next call acts by it, and says so. */
TEST(a_changed_memory_limit_holds_within_200_ms)
{
    start_shares(.tenants = 1, .blind = true);
    struct policy *only = tenant(0, (struct load){.kernel_ns = 1000, .own = try_memory, .idle_ns = 50 * MS});
    const struct usage *written = usage;
    only->devices[0].limit = 32 * MIB;
    pass(SECOND);
    only->devices[0].limit = 128 * MIB;
    only->sequence++;
    pass(200 * MS);
    CHECK_EQUAL(written->slots[0].acknowledged, only->sequence);
    pass(800 * MS);
    only->devices[0].limit = 32 * MIB;
    only->sequence++;
    pass(200 * MS);
    CHECK_EQUAL(written->slots[0].acknowledged, only->sequence);
    pass(2 * SECOND);
    CHECK_EQUAL(end_status(0), 0);
}

static void launch_and_wait(void *function, CUstream stream)
{
    static unsigned launched;
    uint64_t before = world_now(world);
    OK(cuLaunchKernel(function, 132, 1, 1, 64, 1, 1, 0, stream, NULL, NULL));
    uint64_t waited = world_now(world) - before;
    OK(cuStreamSynchronize(stream));
    CHECK(waited <= 10 * SECOND + 100 * MS);
    CHECK(++launched < 3 || waited >= 8 * SECOND);
    if (launched == 5)
        _exit(0);
}

/* At 1 % a kernel of a second is 100 s of debt. */
TEST(no_launch_waits_for_more_than_ten_seconds)
{
    start_shares(.tenants = 1, .blind = true);
    tenant(100, (struct load){.kernel_ns = SECOND, .own = launch_and_wait});
    pass(60 * SECOND);
    CHECK_EQUAL(end_status(0), 0);
}

static void launch_and_wait_little(void *function, CUstream stream)
{
    static unsigned launched;
    uint64_t before = world_now(world);
    OK(cuLaunchKernel(function, 132, 1, 1, 64, 1, 1, 0, stream, NULL, NULL));
    CHECK(world_now(world) - before <= 10 * SECOND + 100 * MS);
    OK(cuStreamSynchronize(stream));
    if (++launched == 5)
        _exit(0);
}

/* Nor where the limit is lowered while it waits, or between two launches: 5 s of debt at a half are 250 s at 1 %. */
TEST(no_launch_waits_for_longer_since_its_limit_is_lower)
{
    start_shares(.tenants = 1, .blind = true);
    struct policy *only = tenant(5000, (struct load){.kernel_ns = 5 * SECOND, .own = launch_and_wait_little});
    for (unsigned at = 0; at < 60; at++) { /* five launches take 75 s at most */
        pass(1700 * MS);
        only->devices[0].rate = at % 2 ? 5000 : 100;
    }
    CHECK_EQUAL(end_status(0), 0);
}
