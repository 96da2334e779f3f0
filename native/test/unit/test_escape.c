/* What a program may do, knowing or not, that would get it past its share: other ways to the driver's functions, other ways to
 * make a process, many threads at once. */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include "../harness.h"

static const char *const hooked[][2] = {
#define HOOK(symbol, name, version, per_thread) {#symbol, #name},
#define ALIAS(symbol, name, version, per_thread) {#symbol, #name},
#define FORWARD(symbol)
#include "../../limiter/driver_names.h"
#undef HOOK
#undef ALIAS
#undef FORWARD
};
enum { HOOKED = sizeof hooked / sizeof hooked[0] };

static void *drivers_own[HOOKED];

static void find_drivers_own(void)
{
    char path[400];
    snprintf(path, sizeof path, "%s/libcuda.so.1", getenv("KOORDRA_DRIVER_FOLDER"));
    void *driver = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    unsigned found = 0;
    CHECK(driver);
    for (unsigned at = 0; at < HOOKED; at++)
        found += (drivers_own[at] = dlsym(driver, hooked[at][0])) != NULL;
    CHECK(found > HOOKED / 2);
}

static bool is_drivers_own(const void *function)
{
    for (unsigned at = 0; at < HOOKED; at++)
        if (drivers_own[at] && drivers_own[at] == function)
            return true;
    return false;
}

typedef CUresult (*ask_v1)(const char *, void **, int, uint64_t);
typedef CUresult (*ask_v2)(const char *, void **, int, uint64_t, int *);

/* 3.1: each variant of the question, each name with and without its suffix, each version and flag: never the driver's own function where
 * there is a hook. */
TEST(no_way_of_asking_gets_the_drivers_own_function)
{
    static const int versions[] = {2000, 3020, 4000, 7000, 10000, 10020, 11000, 11020, 11030, 11040, 12000, 12030, 12090, 13000, 13050};
    unsigned answers = 0;
    begin(.limit = GIB);
    find_drivers_own();
    ask_v1 first = (ask_v1)dlsym(RTLD_DEFAULT, "cuGetProcAddress");
    ask_v2 second[2] = {(ask_v2)dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2"), (ask_v2)dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2_ptsz")};
    for (unsigned at = 0; at < HOOKED; at++)
        for (unsigned spelling = 0; spelling < 2; spelling++)
            for (unsigned version = 0; version < sizeof versions / sizeof versions[0]; version++)
                for (uint64_t flags = 0; flags < 3; flags++) {
                    const char *name = hooked[at][spelling];
                    void *function = NULL;
                    int status = 0;
                    answers += first(name, &function, versions[version], flags) == CUDA_SUCCESS;
                    CHECK(!is_drivers_own(function));
                    for (unsigned variant = 0; variant < 2; variant++) {
                        function = NULL;
                        answers += second[variant](name, &function, versions[version], flags, &status) == CUDA_SUCCESS;
                        CHECK(!is_drivers_own(function));
                    }
                }
    CHECK(answers > 1000);
}

/* The question itself, asked for by the question: what is found with it is ours again. */
TEST(a_question_that_was_asked_for_gives_hooks_too)
{
    void *function = NULL, *found = NULL;
    int status = 0;
    begin(.limit = GIB);
    OK(cuGetProcAddress_v2("cuGetProcAddress", &function, 11030, 0, &status));
    OK(((ask_v1)function)("cuMemAlloc", &found, 12000, 0));
    CHECK(found == (void *)cuMemAlloc_v2);
    OK(cuGetProcAddress_v2("cuGetProcAddress", &function, 12000, 2, &status));
    OK(((ask_v2)function)("cuMemAllocAsync", &found, 12000, 2, &status));
    CHECK(found == dlsym(RTLD_DEFAULT, "cuMemAllocAsync_ptsz"));
}

TEST(the_next_library_and_the_default_one_are_the_limiter)
{
    begin(.limit = GIB);
    find_drivers_own();
    for (unsigned at = 0; at < HOOKED; at++) {
        void *next = dlsym(RTLD_NEXT, hooked[at][0]);
        CHECK(next && next == dlsym(RTLD_DEFAULT, hooked[at][0]));
        CHECK(!is_drivers_own(next));
    }
}

/* A copy of all libraries, the limiter's too: it takes a slot of its own, and both count. */
TEST(a_second_copy_in_a_namespace_of_the_loader_is_limited)
{
    CUdeviceptr pointer;
    begin(.limit = GIB);
    if (SANITIZED)
        return; /* they cannot be loaded twice */
    void *copy = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(copy);
    CUresult (*start)(unsigned) = (CUresult(*)(unsigned))dlsym(copy, "cuInit");
    CUresult (*retain)(CUcontext *, CUdevice) = (CUresult(*)(CUcontext *, CUdevice))dlsym(copy, "cuDevicePrimaryCtxRetain");
    CUresult (*use)(CUcontext) = (CUresult(*)(CUcontext))dlsym(copy, "cuCtxSetCurrent");
    CUresult (*take)(CUdeviceptr *, size_t) = (CUresult(*)(CUdeviceptr *, size_t))dlsym(copy, "cuMemAlloc_v2");
    CUcontext context;
    CHECK(start != cuInit && take != cuMemAlloc_v2);
    OK(start(0));
    OK(retain(&context, 0));
    OK(use(context));
    OK(cuMemAlloc_v2(&pointer, 600 * MIB));
    CHECK_EQUAL(take(&pointer, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(take(&pointer, 400 * MIB));
    CHECK_EQUAL(usage->bitmap[0], 3);
    CHECK_EQUAL(world->violations, 0);
}

static CUdeviceptr taken_by_child;

__attribute__((noinline)) static pid_t allocate_in_vfork(void)
{
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    pid_t child = vfork();
    if (child == 0)
        _exit(cuMemAlloc_v2(&taken_by_child, 600 * MIB) != CUDA_SUCCESS || cuMemAlloc_v2(&(CUdeviceptr){0}, 600 * MIB) != CUDA_ERROR_OUT_OF_MEMORY);
    return child;
}

/* It has its parent's memory, driver and all: what it takes is its parent's. */
TEST(what_a_child_of_vfork_takes_is_its_parents)
{
    begin(.limit = GIB);
    if (SANITIZED)
        return; /* they keep books of their own about threads */
    CHECK_EQUAL(status_of(allocate_in_vfork()), 0);
    CHECK_EQUAL(ledger(0), 600 * MIB);
    CHECK_EQUAL(cuMemAlloc_v2(&(CUdeviceptr){0}, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFree_v2(taken_by_child));
    check_books();
}

enum { RACERS = 8, ROUNDS = 100 };

static pthread_barrier_t start_line;
static _Atomic unsigned winners;

static void *race_for_the_rest(void *unused)
{
    (void)unused;
    use_card(0);
    for (unsigned round = 0; round < ROUNDS; round++) {
        CUdeviceptr pointer = 0;
        pthread_barrier_wait(&start_line);
        bool mine = cuMemAlloc_v2(&pointer, 600 * MIB) == CUDA_SUCCESS;
        winners += mine;
        pthread_barrier_wait(&start_line);
        if (mine)
            OK(cuMemFree_v2(pointer));
    }
    return NULL;
}

/* All in one account: the one that it is read from while others announce in it. */
TEST(threads_cannot_both_take_the_last_bytes)
{
    pthread_t racers[RACERS];
    begin(.limit = GIB);
    CHECK(pthread_barrier_init(&start_line, NULL, RACERS) == 0);
    for (unsigned number = 0; number < RACERS; number++)
        CHECK(pthread_create(&racers[number], NULL, race_for_the_rest, NULL) == 0);
    for (unsigned number = 0; number < RACERS; number++)
        pthread_join(racers[number], NULL);
    CHECK_EQUAL(world->violations, 0);
    CHECK(winners <= ROUNDS && winners >= ROUNDS / 2);
    check_books();
}
