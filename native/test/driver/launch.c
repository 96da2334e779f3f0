/* Kernels, events, captures. A kernel is found by a name that says what it does: "spin 100000" keeps each of its blocks, one to a
 * multiprocessor, busy for 100,000 ns; so with more blocks than multiprocessors it takes several rounds. A parameter, if it has one,
 * is how many times as long it takes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

enum { FUNCTIONS = 256 };

static struct function {
    uint64_t ns;
} functions[FUNCTIONS], nothing; /* a kernel that takes no time: what a launch costs the processor */
static unsigned function_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream legacy[WORLD_CARDS]; /* the default streams */

CUresult cuModuleGetFunction(void **function, void *module, const char *name)
{
    ENTER();
    (void)module;
    unsigned long long ns = 0;
    *function = &nothing;
    if (strcmp(name, "nothing") == 0)
        return CUDA_SUCCESS;
    if (sscanf(name, "%*s %llu", &ns) != 1 || !ns)
        return CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&lock);
    unsigned at = 0;
    while (at < function_count && functions[at].ns != ns)
        at++;
    if (at == function_count && function_count < FUNCTIONS)
        functions[function_count++].ns = ns;
    pthread_mutex_unlock(&lock);
    *function = &functions[at];
    return at < FUNCTIONS ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static struct world_stream *world_stream(CUstream stream, unsigned card)
{
    struct stream *mine = special(stream) ? &legacy[card] : (struct stream *)stream;
    if (mine->place)
        return &fake.world->streams[mine->place - 1];
    for (unsigned at = 0; at < WORLD_STREAMS; at++) {
        struct world_stream *found = &fake.world->streams[at];
        if (found->used)
            continue;
        found->used = 1;
        found->process = fake.me;
        found->card = card;
        found->first = found->count = found->resident = 0;
        if (at >= fake.world->stream_top)
            fake.world->stream_top = at + 1;
        mine->place = at + 1;
        return found;
    }
    return NULL;
}

CUresult stream_does(CUstream stream, unsigned card, const struct world_work *work, size_t count)
{
    struct world *world = fake.world;
    world_spend(world, world->launch_ns);
    world_lock(world);
    struct world_stream *into = world_stream(stream, card);
    scheduler_run(world);
    for (size_t at = 0; into && at < count; at++) {
        while (into->count == WORLD_WORK) {
            uint64_t until = stream_room_at(world, into);
            world_unlock(world);
            world_sleep_until(world, until);
            world_lock(world);
            scheduler_run(world);
        }
        into->work[(into->first + into->count++) % WORLD_WORK] = work[at];
    }
    scheduler_run(world);
    world_unlock(world);
    return into ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void wait_for(struct world_stream *stream)
{
    struct world *world = fake.world;
    for (;;) {
        world_lock(world);
        scheduler_run(world);
        uint64_t until = stream_busy_until(world, stream);
        world_unlock(world);
        if (!until)
            return;
        world_sleep_until(world, until);
    }
}

void stream_wait(CUstream stream)
{
    struct context *context = context_of(stream);
    struct stream *mine = special(stream) ? context ? &legacy[context->card] : NULL : (struct stream *)stream;
    if (mine && mine->place)
        wait_for(&fake.world->streams[mine->place - 1]);
}

void card_wait(unsigned card)
{
    for (unsigned at = 0; at < fake.world->stream_top; at++) {
        struct world_stream *stream = &fake.world->streams[at];
        if (stream->used && stream->process == fake.me && stream->card == card)
            wait_for(stream);
    }
}

void stream_ended(struct stream *stream)
{
    if (!stream->place)
        return;
    wait_for(&fake.world->streams[stream->place - 1]);
    fake.world->streams[stream->place - 1].used = 0;
}

/* Captures. */

static struct stream *captures[16];
static __thread int thread_mode;

void capture_began(struct stream *stream)
{
    for (unsigned at = 0; at < 16; at++)
        if (!captures[at]) {
            captures[at] = stream;
            return;
        }
}

void capture_ended(struct stream *stream)
{
    for (unsigned at = 0; at < 16; at++)
        if (captures[at] == stream)
            captures[at] = NULL;
}

bool spoils_capture(void)
{
    bool spoils = false;
    for (unsigned at = 0; at < 16 && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL; at++)
        if (captures[at] && captures[at]->mode == CU_STREAM_CAPTURE_MODE_GLOBAL)
            spoils = captures[at]->spoilt = true;
    return spoils;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    ENTER();
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* Launches. */

static CUresult launch_work(CUstream stream, const struct world_work *work)
{
    struct context *context = context_now();
    if (!context || context_of(stream) != context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (special(stream) || !((struct stream *)stream)->capturing)
        return stream_does(stream, context->card, work, 1);
    struct node *node = node_new(((struct stream *)stream)->capturing, work->kind == WORK_HOST ? 3 : 0);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->work = *work;
    return CUDA_SUCCESS;
}

static bool kernel_work(const void *handle, uint64_t blocks, struct world_work *work)
{
    const struct function *function = handle;
    struct context *context = context_now();
    if (function < functions || function >= functions + FUNCTIONS || !function->ns || !context || !blocks)
        return false;
    uint32_t sms = fake.world->cards[context->card].sms;
    *work = (struct world_work){.kind = WORK_KERNEL, .sms = blocks < sms ? (uint32_t)blocks : sms, .left = function->ns * ((blocks + sms - 1) / sms)};
    return true;
}

static CUresult launch_times(const void *function, uint64_t blocks, CUstream stream, uint64_t times)
{
    struct world_work work;
    if (function == &nothing)
        return CUDA_SUCCESS;
    if (!kernel_work(function, blocks, &work))
        return CUDA_ERROR_INVALID_VALUE;
    work.left *= times;
    return launch_work(stream, &work);
}

static CUresult launch(const void *function, uint64_t blocks, CUstream stream)
{
    return launch_times(function, blocks, stream, 1);
}

#define LAUNCHES(suffix)                                                                                                                \
    CUresult cuLaunchKernel##suffix(void *function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c,             \
                                    unsigned shared, CUstream stream, void **parameters, void **extra)                                 \
    {                                                                                                                                  \
        ENTER();                                                                                                                       \
        (void)a, (void)b, (void)c, (void)shared, (void)extra;                                                                          \
        LEAVE(launch_times(function, (uint64_t)x * y * z, stream, parameters ? *(const unsigned *)parameters[0] : 1));                 \
    }                                                                                                                                  \
    CUresult cuLaunchCooperativeKernel##suffix(void *function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, \
                                               unsigned shared, CUstream stream, void **parameters)                                   \
    {                                                                                                                                  \
        return cuLaunchKernel##suffix(function, x, y, z, a, b, c, shared, stream, parameters, NULL);                                   \
    }                                                                                                                                  \
    CUresult cuLaunchKernelEx##suffix(const CUlaunchConfig *configuration, void *function, void **parameters, void **extra)            \
    {                                                                                                                                  \
        return cuLaunchKernel##suffix(function, configuration->gridDimX, configuration->gridDimY, configuration->gridDimZ, 1, 1, 1, 0, \
                                      configuration->hStream, parameters, extra);                                                      \
    }
LAUNCHES()
LAUNCHES(_ptsz)

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
    ENTER();
    (void)flags;
    CUresult result = CUDA_SUCCESS;
    struct context *before = context_now();
    extern CUresult cuCtxSetCurrent(CUcontext context);
    for (unsigned at = 0; at < count && result == CUDA_SUCCESS; at++) {
        cuCtxSetCurrent((CUcontext)context_of(list[at].hStream));
        result = launch(list[at].function, (uint64_t)list[at].gridDimX * list[at].gridDimY * list[at].gridDimZ, list[at].hStream);
    }
    cuCtxSetCurrent((CUcontext)before);
    return result;
}

CUresult cuLaunch(void *function)
{
    ENTER();
    return launch(function, 1, NULL);
}

CUresult cuLaunchGrid(void *function, int width, int height)
{
    ENTER();
    return launch(function, (uint64_t)width * (uint64_t)height, NULL);
}

CUresult cuLaunchGridAsync(void *function, int width, int height, CUstream stream)
{
    ENTER();
    return launch(function, (uint64_t)width * (uint64_t)height, stream);
}

/* `data` is how many nanoseconds the function takes. */
CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data)
{
    ENTER();
    (void)function;
    return launch_work(stream, &(struct world_work){.kind = WORK_HOST, .left = (uintptr_t)data});
}

struct kernel_parameters {
    void *function;
    unsigned x, y, z, a, b, c, shared;
    void **parameters, **extra;
};

static CUresult add_node(CUgraphNode *node, CUgraph graph, int type, const struct world_work *work)
{
    struct node *made = node_new((struct graph *)graph, type);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->work = *work;
    *node = (CUgraphNode)made;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after_nodes, size_t count, const void *parameters)
{
    ENTER();
    (void)after_nodes, (void)count;
    const struct kernel_parameters *kernel = parameters;
    struct world_work work;
    return kernel_work(kernel->function, (uint64_t)kernel->x * kernel->y * kernel->z, &work) ? add_node(node, graph, 0, &work) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after_nodes, size_t count, const void *parameters)
{
    ENTER();
    (void)after_nodes, (void)count;
    return add_node(node, graph, 3, &(struct world_work){.kind = WORK_HOST, .left = ((const uintptr_t *)parameters)[1]});
}

/* Events. */

struct event {
    struct context *context;
    uint32_t number;
    bool gone; /* with its context */
};

static struct event events[WORLD_EVENTS];

static struct event *event_of(CUevent handle)
{
    struct event *event = (struct event *)handle;
    return event >= events && event < events + WORLD_EVENTS && event->context ? event : NULL;
}

/* A real driver may well crash. */
static CUresult misused(CUresult result)
{
    atomic_fetch_add(&fake.world->misuse, 1);
    return result;
}

void events_forget(struct context *context)
{
    for (unsigned at = 0; at < WORLD_EVENTS; at++)
        if (events[at].context == context)
            events[at].gone = true;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    ENTER();
    (void)flags;
    if (spoils_capture())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!context_now())
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    world_lock(fake.world);
    for (uint32_t at = 0; at < WORLD_EVENTS && result != CUDA_SUCCESS; at++)
        if (!fake.world->events[at].used) {
            fake.world->events[at] = (struct world_event){.used = 1, .process = fake.me};
            events[at] = (struct event){.context = context_now(), .number = at};
            *event = (CUevent)&events[at];
            result = CUDA_SUCCESS;
        }
    world_unlock(fake.world);
    return result;
}

CUresult cuEventDestroy_v2(CUevent handle)
{
    ENTER();
    struct event *event = event_of(handle);
    if (!event || event->gone)
        return misused(CUDA_ERROR_INVALID_HANDLE);
    fake.world->events[event->number].used = 0;
    event->context = NULL;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent handle, CUstream stream)
{
    ENTER();
    struct event *event = event_of(handle);
    if (!event || event->gone || event->context != context_of(stream))
        return misused(CUDA_ERROR_INVALID_HANDLE);
    if (!special(stream) && ((struct stream *)stream)->capturing)
        return misused(CUDA_SUCCESS); /* now it belongs to the capture, and cannot be asked any more */
    struct world_event *shared = &fake.world->events[event->number];
    return stream_does(stream, event->context->card, &(struct world_work){.kind = WORK_EVENT, .event = event->number, .record = ++shared->recorded}, 1);
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
    return cuEventRecord(event, stream);
}

CUresult cuEventQuery(CUevent handle)
{
    ENTER();
    struct event *event = event_of(handle);
    if (spoils_capture())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!event || event->gone)
        return misused(CUDA_ERROR_INVALID_HANDLE);
    world_lock(fake.world);
    scheduler_run(fake.world);
    bool done = fake.world->events[event->number].done == fake.world->events[event->number].recorded;
    world_unlock(fake.world);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent handle)
{
    ENTER();
    struct event *event = event_of(handle);
    while (event && cuEventQuery(handle) == CUDA_ERROR_NOT_READY)
        world_sleep_until(fake.world, world_now(fake.world) + 10000);
    pools_synchronise();
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to)
{
    ENTER();
    CUresult result = cuEventQuery(from);
    result = result == CUDA_SUCCESS ? cuEventQuery(to) : result;
    if (result == CUDA_SUCCESS)
        *milliseconds = (float)((double)(fake.world->events[event_of(to)->number].at - fake.world->events[event_of(from)->number].at) / 1e6);
    return result;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to)
{
    return cuEventElapsedTime(milliseconds, from, to);
}
