/* What the limiter costs, against the bare fake driver:
 *
 *     bench pairs N      nanoseconds for one cuMemAlloc and cuMemFree, over N pairs, best of nine
 *     bench pool-pairs N the same for cuMemAllocAsync and cuMemFreeAsync with a synchronisation
 *     bench launches N   for one cuLaunchKernel where no device time is limited
 *     bench paced N      the same where it is, and there is enough of it
 *     bench shared N     the same while three other processes of the claim launch
 *     bench start N      milliseconds until N processes that start together have a context
 *     bench attach N     microseconds of taking a slot while N others are taken
 *
 * bench/run calls each twice, with and without the limiter in front. */
#include <signal.h>
#include <time.h>

#include "../test/harness.h"

static double seconds(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static void pair(void)
{
    CUdeviceptr pointer;
    OK(cuMemAlloc_v2(&pointer, MIB));
    OK(cuMemFree_v2(pointer));
}

static void pool_pair(void)
{
    CUdeviceptr pointer;
    OK(cuMemAllocAsync(&pointer, MIB, NULL));
    OK(cuMemFreeAsync(pointer, NULL));
    OK(cuStreamSynchronize(NULL));
}

static void *function;

static void launch(void)
{
    OK(cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
}

static void find_function(void)
{
    void *module;
    OK(cuModuleLoadData(&module, ""));
    OK(cuModuleGetFunction(&function, module, "nothing"));
}

/* Without it nobody says that the others have begun. */
static bool limiter_there(void)
{
    return strstr(getenv("LD_LIBRARY_PATH"), "/test/") == NULL;
}

static void launch_for_ever(void *unused)
{
    (void)unused;
    start_cuda();
    find_function();
    for (;;)
        launch();
}

static double pairs(void (*one)(void), unsigned count, uint32_t rate, unsigned others)
{
    double best = 1e9;
    begin(.limit = GIB, .no_context = true);
    policy->devices[0].rate = rate;
    world->clock.on = 1; /* the card's time stands still: a launch is measured as if it took none, and there is always time left */
    for (unsigned at = 0; at < others; at++)
        other_process(launch_for_ever, NULL);
    while (others && limiter_there() && atomic_load(&usage->enforcing) < others)
        usleep(1000);
    start_cuda();
    find_function();
    for (int round = 0; round < 9; round++) {
        double from = seconds();
        for (unsigned at = 0; at < count; at++)
            one();
        double took = (seconds() - from) / count * 1e9;
        best = took < best ? took : best;
    }
    return best;
}

static double start(unsigned count)
{
    int go[2], done[2];
    char byte;
    begin(.limit = GIB, .no_context = true);
    CHECK(pipe(go) == 0 && pipe(done) == 0);
    for (unsigned at = 0; at < count; at++)
        if (fork() == 0) {
            CHECK(read(go[0], &byte, 1) == 1);
            start_cuda();
            CHECK(write(done[1], &byte, 1) == 1);
            pause(); /* all of them stay */
        }
    char start_signal[1024] = {0};
    double from = seconds();
    CHECK(write(go[1], start_signal, count) == (ssize_t)count);
    for (unsigned at = 0; at < count; at++)
        CHECK(read(done[0], &byte, 1) == 1);
    double took = seconds() - from;
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM);
    return took * 1e3;
}

static double attach(unsigned others)
{
    static struct region regions[SLOTS_MAX];
    char path[340];
    begin(.limit = GIB, .no_context = true);
    snprintf(path, sizeof path, "%s/regions/claim-0", folder);
    for (unsigned at = 0; at < others; at++)
        CHECK_EQUAL(region_attach(&regions[at], path), REGION_OK);
    double best = 1e9;
    for (int round = 0; round < 20; round++) {
        double from = seconds();
        CHECK_EQUAL(region_attach(&regions[SLOTS_MAX - 1], path), REGION_OK);
        double took = seconds() - from;
        best = took < best ? took : best;
        region_detach(&regions[SLOTS_MAX - 1]);
    }
    return best * 1e6;
}

int main(int count, char **arguments)
{
    CHECK(count == 3);
    snprintf(folder, sizeof folder, "%s", getenv("KOORDRA_TEST_FOLDER"));
    unsigned number = (unsigned)strtoul(arguments[2], NULL, 10);
    const char *what = arguments[1];
    printf("%.1f\n", strcmp(what, "pairs") == 0        ? pairs(pair, number, 0, 0)
                     : strcmp(what, "pool-pairs") == 0 ? pairs(pool_pair, number, 0, 0)
                     : strcmp(what, "launches") == 0   ? pairs(launch, number, 0, 0)
                     : strcmp(what, "paced") == 0      ? pairs(launch, number, 9900, 0)
                     : strcmp(what, "shared") == 0     ? pairs(launch, number, 9900, 3)
                     : strcmp(what, "start") == 0      ? start(number)
                                                       : attach(number));
    return 0;
}
