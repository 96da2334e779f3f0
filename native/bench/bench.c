/* What the limiter costs, against the bare fake driver:
 *
 *     bench pairs N      nanoseconds for one cuMemAlloc and cuMemFree, over N pairs, best of nine
 *     bench pool-pairs N the same for cuMemAllocAsync and cuMemFreeAsync with a synchronisation
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

static double pairs(void (*one)(void), unsigned count)
{
    double best = 1e9;
    begin(.limit = GIB);
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
    printf("%.1f\n", strcmp(what, "pairs") == 0        ? pairs(pair, number)
                     : strcmp(what, "pool-pairs") == 0 ? pairs(pool_pair, number)
                     : strcmp(what, "start") == 0      ? start(number)
                                                       : attach(number));
    return 0;
}
