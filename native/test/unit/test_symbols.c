/* The ways in which programs find the driver's functions. */
#include <dlfcn.h>
#include <pthread.h>

#include "../harness.h"

/* Sanitizers refuse it. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DEEPBIND 0
#else
#define DEEPBIND RTLD_DEEPBIND
#endif

typedef CUresult (*allocate)(CUdeviceptr *, size_t);

static void *ask(const char *name, int version, uint64_t flags, CUresult *result, int *status)
{
    void *function = NULL;
    *status = 77;
    *result = cuGetProcAddress_v2(name, &function, version, flags, status);
    return function;
}

/* 3.1: names by a small version map; the flag ignored; the status unset on the way through recursion. */
TEST(cuGetProcAddress_gives_the_hook_of_the_asked_version)
{
    CUresult result;
    CUdeviceptr pointer;
    int status;
    begin(.limit = GIB);
    allocate found = (allocate)ask("cuMemAlloc", 12000, 0, &result, &status);
    CHECK_EQUAL(result, CUDA_SUCCESS);
    CHECK_EQUAL(status, CU_GET_PROC_ADDRESS_SUCCESS);
    CHECK(found == cuMemAlloc_v2);
    CHECK_EQUAL(found(&pointer, 2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(ask("cuMemAlloc", 2000, 0, &result, &status) == dlsym(RTLD_DEFAULT, "cuMemAlloc"));
    CHECK(ask("cuGraphInstantiate", 11000, 0, &result, &status) == dlsym(RTLD_DEFAULT, "cuGraphInstantiate_v2"));
    CHECK(ask("cuGraphInstantiate", 12000, 0, &result, &status) == (void *)cuGraphInstantiateWithFlags);
    CHECK(ask("cuGetProcAddress", 12000, 0, &result, &status) == (void *)cuGetProcAddress_v2);
    CHECK(ask("cuCtxCreate", 11040, 0, &result, &status) == dlsym(RTLD_DEFAULT, "cuCtxCreate_v3"));
}

TEST(cuGetProcAddress_honours_the_per_thread_flag)
{
    CUresult result;
    int status;
    begin(.limit = GIB);
    CHECK(ask("cuMemAllocAsync", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &result, &status) == (void *)cuMemAllocAsync_ptsz);
    CHECK(ask("cuMemAllocAsync", 12000, 1, &result, &status) == (void *)cuMemAllocAsync);
    CHECK(ask("cuMemAllocAsync", 12000, 0, &result, &status) == (void *)cuMemAllocAsync);
    CHECK(ask("cuMemAlloc", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &result, &status) == (void *)cuMemAlloc_v2);
}

TEST(cuGetProcAddress_tells_the_drivers_status)
{
    CUresult result;
    int status;
    begin(.limit = GIB);
    CHECK(!ask("cuMemAllocAsync", 10000, 0, &result, &status));
    CHECK_EQUAL(result, CUDA_ERROR_NOT_FOUND);
    CHECK_EQUAL(status, 2);
    CHECK(!ask("cuNoSuchThing", 12000, 0, &result, &status));
    CHECK_EQUAL(status, 1);
    CHECK(ask("cuMemcpyHtoD", 12000, 0, &result, &status));
    CHECK_EQUAL(status, 0);
}

TEST(addresses_that_are_not_exported_are_told_by_name)
{
    CUresult result;
    int status;
    begin(.limit = GIB, .no_context = true);
    world->hidden_addresses = 1;
    start_cuda();
    CHECK(ask("cuMemAlloc", 12000, 0, &result, &status) == (void *)cuMemAlloc_v2);
    CHECK(ask("cuMemAllocAsync", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &result, &status) == (void *)cuMemAllocAsync_ptsz);
    CHECK(ask("cuMemAllocAsync", 12000, 0, &result, &status) == (void *)cuMemAllocAsync);
    CHECK(ask("cuMemAlloc", 2000, 0, &result, &status) == dlsym(RTLD_DEFAULT, "cuMemAlloc"));
}

/* Row 7, 3.8: a driver that is newer than the limiter. */
TEST(a_strict_policy_hides_what_the_limiter_does_not_know)
{
    CUresult result;
    int status;
    begin(.limit = GIB, .flags = POLICY_STRICT, .no_context = true);
    world->driver_version = 13060;
    start_cuda();
    CHECK(!ask("cuBrandNewAlloc", 13060, 0, &result, &status));
    CHECK_EQUAL(result, CUDA_ERROR_NOT_FOUND);
    CHECK_EQUAL(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    CHECK(ask("cuMemcpyHtoD", 12000, 0, &result, &status));
}

TEST(otherwise_a_newer_driver_works_as_it_is)
{
    CUresult result;
    int status;
    begin(.limit = GIB);
    CHECK(ask("cuBrandNewAlloc", 13060, 0, &result, &status));
}

/* A statically linked runtime does just this; so do libraries opened with RTLD_DEEPBIND. */
TEST(a_library_that_opens_the_driver_itself_gets_the_hooks)
{
    CUdeviceptr pointer;
    begin(.limit = GIB);
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | DEEPBIND);
    CHECK(handle);
    allocate found = (allocate)dlsym(handle, "cuMemAlloc_v2");
    CHECK(found == cuMemAlloc_v2);
    CHECK_EQUAL(found(&pointer, 2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(dlvsym(handle, "cuMemAlloc_v2", "none") == NULL || true);
}

TEST(arguments_survive_the_first_call_through_a_stub)
{
    uint64_t sum = 0;
    begin(.limit = GIB);
    for (int turn = 0; turn < 2; turn++) {
        OK(cuTensorMapEncodeTiled(&sum, 1, 2, (void *)3, (void *)4, (void *)5, (void *)6, (void *)7, 8, 9, 10, 11));
        CHECK_EQUAL(sum, 1 + 4 + 9 + 16 + 25 + 36 + 49 + 64 + 81 + 100 + 121);
    }
}

TEST(a_function_that_the_driver_lacks_says_so)
{
    CUresult (*missing)(void) = (CUresult(*)(void))dlsym(RTLD_DEFAULT, "cuCheckpointProcessLock");
    begin(.limit = GIB);
    CHECK(missing);
    CHECK_EQUAL(missing(), CUDA_ERROR_NOT_SUPPORTED);
}

static void *churn(void *argument)
{
    uint64_t random = (uint64_t)(uintptr_t)argument;
    CUdeviceptr held[16] = {0};
    use_card((int)(random % 2));
    for (int step = 0; step < 20000; step++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        CUdeviceptr *place = &held[random >> 33 & 15];
        if (*place) {
            OK(cuMemFree_v2(*place));
            *place = 0;
        } else {
            CUresult result = cuMemAlloc_v2(place, (random >> 40) % (32 * MIB) + 1);
            CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
        }
    }
    for (int at = 0; at < 16; at++)
        if (held[at])
            OK(cuMemFree_v2(held[at]));
    return NULL;
}

TEST(threads_may_all_allocate_at_once)
{
    pthread_t threads[4];
    begin(.limit = 200 * MIB);
    for (uintptr_t number = 0; number < 4; number++)
        CHECK(pthread_create(&threads[number], NULL, churn, (void *)(number + 1)) == 0);
    for (int number = 0; number < 4; number++)
        pthread_join(threads[number], NULL);
    CHECK_EQUAL(ledger(0) + ledger(1), 0);
    check_books();
}
