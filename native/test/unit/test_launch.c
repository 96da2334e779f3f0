/* Every way to launch is paced; captures, contexts, threads and the driver's answers stay what they are. */
#include <pthread.h>

#include "../share.h"

/* One process that does this after it has started, at 30 % of the card. */
static void every_way(uint32_t low, uint32_t high, void (*launch)(void *function, CUstream stream))
{
    start_shares(.tenants = 1, .blind = true);
    tenant(3000, (struct load){.kernel_ns = 400000, .own = launch});
    pass(SECOND);
    struct parts parts = parts_over(SECOND, SECOND);
    CHECK_BETWEEN(parts.mean[0], low, high);
    end_shares();
}

#define LAUNCH(name, ...)                                          \
    static void launch_##name(void *function, CUstream stream)   \
    {                                                            \
        (void)stream;                                            \
        OK(__VA_ARGS__);                                         \
        OK(cuCtxSynchronize());                                  \
    }

static CUlaunchConfig configuration(CUstream stream)
{
    return (CUlaunchConfig){132, 1, 1, 64, 1, 1, 0, stream, NULL, 0};
}

static CUDA_LAUNCH_PARAMS parameters(void *function, CUstream stream)
{
    return (CUDA_LAUNCH_PARAMS){function, 132, 1, 1, 64, 1, 1, 0, stream, NULL};
}

LAUNCH(cuLaunchKernel, cuLaunchKernel(function, 132, 1, 1, 64, 1, 1, 0, stream, NULL, NULL))
TEST(a_launch_by_cuLaunchKernel_is_paced)
{
    every_way(27, 33, launch_cuLaunchKernel);
}

LAUNCH(cuLaunchKernel_ptsz, cuLaunchKernel_ptsz(function, 132, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL))
TEST(a_launch_by_cuLaunchKernel_ptsz_is_paced)
{
    every_way(27, 33, launch_cuLaunchKernel_ptsz);
}

LAUNCH(cuLaunchKernelEx, cuLaunchKernelEx(&(CUlaunchConfig[]){configuration(stream)}[0], function, NULL, NULL))
TEST(a_launch_by_cuLaunchKernelEx_is_paced)
{
    every_way(27, 33, launch_cuLaunchKernelEx);
}

LAUNCH(cuLaunchKernelEx_ptsz, cuLaunchKernelEx_ptsz(&(CUlaunchConfig[]){configuration(stream)}[0], function, NULL, NULL))
TEST(a_launch_by_cuLaunchKernelEx_ptsz_is_paced)
{
    every_way(27, 33, launch_cuLaunchKernelEx_ptsz);
}

LAUNCH(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel(function, 132, 1, 1, 64, 1, 1, 0, stream, NULL))
TEST(a_launch_by_cuLaunchCooperativeKernel_is_paced)
{
    every_way(27, 33, launch_cuLaunchCooperativeKernel);
}

LAUNCH(cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel_ptsz(function, 132, 1, 1, 64, 1, 1, 0, stream, NULL))
TEST(a_launch_by_cuLaunchCooperativeKernel_ptsz_is_paced)
{
    every_way(27, 33, launch_cuLaunchCooperativeKernel_ptsz);
}

LAUNCH(cuLaunchCooperativeKernelMultiDevice, cuLaunchCooperativeKernelMultiDevice(&(CUDA_LAUNCH_PARAMS[]){parameters(function, stream)}[0], 1, 0))
TEST(a_launch_by_cuLaunchCooperativeKernelMultiDevice_is_paced)
{
    every_way(27, 33, launch_cuLaunchCooperativeKernelMultiDevice);
}

LAUNCH(cuLaunch, cuLaunch(function))
TEST(a_launch_by_cuLaunch_is_paced)
{
    every_way(27, 33, launch_cuLaunch);
}

LAUNCH(cuLaunchGrid, cuLaunchGrid(function, 12, 11))
TEST(a_launch_by_cuLaunchGrid_is_paced)
{
    every_way(27, 33, launch_cuLaunchGrid);
}

LAUNCH(cuLaunchGridAsync, cuLaunchGridAsync(function, 12, 11, stream))
TEST(a_launch_by_cuLaunchGridAsync_is_paced)
{
    every_way(27, 33, launch_cuLaunchGridAsync);
}


static void launch_graph(void *function, CUstream stream)
{
    static CUgraphExec executable;
    static bool per_thread;
    CUgraph graph;
    if (!executable) {
        OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(cuLaunchKernel(function, 132, 1, 1, 64, 1, 1, 0, stream, NULL, NULL));
        OK(cuLaunchKernel(function, 66, 1, 1, 64, 1, 1, 0, stream, NULL, NULL));
        OK(cuStreamEndCapture(stream, &graph));
        OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    }
    per_thread = !per_thread;
    OK(per_thread ? cuGraphLaunch_ptsz(executable, stream) : cuGraphLaunch(executable, stream));
    OK(cuStreamSynchronize(stream));
}

/* 3.3: graphs are not throttled; and nothing is recorded into a capture, or asked that spoils it. */
TEST(a_captured_graph_is_paced)
{
    every_way(27, 33, launch_graph);
}

static void launch_while_capturing(void *function, CUstream stream)
{
    static CUstream other;
    CUgraph graph;
    if (!other)
        OK(cuStreamCreate(&other, 0));
    OK(cuLaunchKernel(function, 100, 1, 1, 64, 1, 1, 0, other, NULL, NULL));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (unsigned at = 0; at < 20; at++) {
        OK(cuLaunchKernel(function, 132 - at, 1, 1, 64, 1, 1, 0, stream, NULL, NULL));
        OK(cuLaunchKernel(function, 131 - at, 1, 1, 64, 1, 1, 0, other, NULL, NULL));
    }
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
    OK(cuStreamSynchronize(other));
}

/* Of kernels that nothing is known of, in the capture and beside it. */
TEST(a_capture_is_left_alone)
{
    every_way(25, 35, launch_while_capturing);
}

static void launch_known_into_captures(void *function, CUstream stream)
{
    CUgraph graph;
    for (unsigned at = 0; at < 10; at++)
        OK(cuLaunchKernel(function, 132, 1, 1, 64, 1, 1, 0, stream, NULL, NULL));
    OK(cuStreamSynchronize(stream));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (unsigned at = 0; at < 200; at++)
        OK(cuLaunchKernel(function, 132, 1, 1, 64, 1, 1, 0, stream, NULL, NULL));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
}

/* Recorded is not run. */
TEST(what_is_captured_costs_nothing)
{
    start_shares(.tenants = 1, .blind = true);
    tenant(3000, (struct load){.kernel_ns = 10000, .own = launch_known_into_captures});
    pass(SECOND);
    CHECK_BETWEEN(parts_over(SECOND, SECOND).mean[0], 27, 33);
    end_shares();
}

static void launch_in_passing_contexts(void *function, CUstream stream)
{
    CUcontext context, before;
    (void)stream;
    OK(cuCtxGetCurrent(&before));
    OK(cuCtxCreate_v2(&context, 0, 0));
    for (unsigned at = 0; at < 4; at++)
        OK(cuLaunchKernel(function, 132, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxDestroy_v2(context));
    OK(cuCtxSetCurrent(before));
    OK(cuLaunchKernel(function, 132, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
}

/* What measures a launch goes with its context. */
TEST(a_context_that_ends_takes_its_measurements_along)
{
    every_way(25, 35, launch_in_passing_contexts);
}

static void launch_for_nothing(void *function, CUstream stream)
{
    for (unsigned at = 0; at < 50; at++)
        CHECK_EQUAL(cuLaunchKernel(function, 0, 1, 1, 64, 1, 1, 0, stream, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cuLaunchKernelEx(&(CUlaunchConfig){.hStream = stream}, function, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuLaunchKernel(function, 132, 1, 1, 64, 1, 1, 0, stream, NULL, NULL));
    OK(cuStreamSynchronize(stream));
}

/* A launch that the driver refuses takes no time, and costs none. */
TEST(a_refused_launch_costs_nothing)
{
    every_way(27, 33, launch_for_nothing);
}

/* Kernels that wait for the program: the second must be launched although the first is not done (3.8: hangs of TP > 1). */
static void launch_what_waits(void *function, CUstream stream)
{
    static CUstream other;
    if (!other)
        OK(cuStreamCreate(&other, 0));
    uint64_t began = world_now(world);
    OK(cuLaunchKernel(function, 132, 1, 1, 64, 1, 1, 0, stream, NULL, NULL)); /* of an hour, if nobody ends it */
    OK(cuLaunchKernel(function, 132, 1, 1, 64, 1, 1, 0, other, NULL, NULL));
    CHECK(world_now(world) - began < 500 * MS);
    _exit(0);
}

TEST(a_launch_never_waits_for_the_card_alone)
{
    start_shares(.tenants = 1, .blind = true);
    tenant(3000, (struct load){.kernel_ns = 3600 * SECOND, .own = launch_what_waits});
    pass(5 * SECOND);
    CHECK_EQUAL(end_status(0), 0);
}

/* A program's threads that launch at once are one budget, and no race. */
static void *launch_in_thread(void *argument)
{
    void **given = argument;
    CUstream stream;
    use_card(0);
    OK(cuStreamCreate(&stream, 0));
    for (int at = 0; at < 3000; at++) {
        OK(cuLaunchKernel(given[0], 1 + (unsigned)at % 5, 1, 1, 64, 1, 1, 0, stream, NULL, NULL));
        if (at % 100 == 0)
            OK(cuStreamSynchronize(stream));
    }
    OK(cuStreamSynchronize(stream));
    return NULL;
}

TEST(threads_may_all_launch_at_once)
{
    void *module, *function;
    pthread_t threads[4];
    begin(.cards = 2);
    policy->devices[0].rate = 9000;
    OK(cuModuleLoadData(&module, ""));
    OK(cuModuleGetFunction(&function, module, "spin 1000"));
    for (int number = 0; number < 4; number++)
        CHECK(pthread_create(&threads[number], NULL, launch_in_thread, &function) == 0);
    for (int number = 0; number < 4; number++)
        pthread_join(threads[number], NULL);
    CHECK_EQUAL(world->misuse, 0);
    CHECK(usage->paces[0].charged > 0);
    CHECK_EQUAL(usage->paces[1].charged, 0);
}

/* Each card of a process has a limit of its own. */
TEST(a_launch_is_charged_to_the_card_it_is_on)
{
    void *module, *function;
    begin(.cards = 2);
    policy->devices[1].rate = 5000;
    OK(cuModuleLoadData(&module, ""));
    OK(cuModuleGetFunction(&function, module, "spin 1000"));
    OK(cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
    CHECK_EQUAL(usage->paces[0].charged + usage->paces[1].charged, 0);
    use_card(1);
    OK(cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
    CHECK_EQUAL(usage->paces[0].charged, 0);
    CHECK(usage->paces[1].charged > 0);
}
