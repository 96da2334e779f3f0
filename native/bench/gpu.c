/* What koordra node selftest runs on a real card, with and without the limiter in front. Nothing but the driver's own interface. Prints JSON.
 *
 *     gpu card             which card is the first, and the driver's version
 *     gpu costs PAIRS      ms to start; ns for one call or pair of calls, best of several rounds
 *     gpu limit            takes 64 MiB at a time of each kind of memory until it is refused, gives all back, takes half again */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../test/api.h"

CUresult cuDeviceGetUuid(CUuuid *, CUdevice);
CUresult cuDeviceGetUuid_v2(CUuuid *, CUdevice) __attribute__((weak));

enum { CHUNK = 64 << 20, CHUNKS_MAX = 1 << 14, ROUNDS = 7, FLOATS = 0x20, PINNED = 1, READ_WRITE = 3, DEVICE = 1 };

#define NEEDED(call)                                                                       \
    do {                                                                                    \
        CUresult result_ = (call);                                                          \
        if (result_ != CUDA_SUCCESS) {                                                      \
            fprintf(stderr, "%s: error %d of the driver\n", #call, result_);                \
            exit(2);                                                                        \
        }                                                                                   \
    } while (0)

static double nanoseconds(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}

static void start(void)
{
    CUdevice device;
    CUcontext context;
    NEEDED(cuInit(0));
    NEEDED(cuDeviceGet(&device, 0));
    NEEDED(cuDevicePrimaryCtxRetain(&context, device));
    NEEDED(cuCtxSetCurrent(context));
}

/* What NVML says is in use of the card; 0 where it is not there. */
static unsigned long long card_bytes(void)
{
    struct {
        unsigned long long total, free, used;
    } memory = {0, 0, 0};
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *device = NULL;
    if (!library)
        return 0;
    int (*begin)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
    int (*find)(unsigned, void **) = (int (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    int (*ask)(void *, void *) = (int (*)(void *, void *))dlsym(library, "nvmlDeviceGetMemoryInfo");
    int (*end)(void) = (int (*)(void))dlsym(library, "nvmlShutdown");
    if (!begin || !find || !ask || !end || begin() != 0)
        return 0;
    bool told = find(0, &device) == 0 && ask(device, &memory) == 0;
    end();
    return told ? memory.used : 0;
}

static int card(void)
{
    CUdevice device;
    CUuuid uuid;
    char name[128] = "";
    int version = 0;
    NEEDED(cuInit(0));
    NEEDED(cuDeviceGet(&device, 0));
    if (!cuDeviceGetUuid_v2 || cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS)
        NEEDED(cuDeviceGetUuid(&uuid, device));
    NEEDED(cuDeviceGetName(name, sizeof name, device));
    NEEDED(cuDriverGetVersion(&version));
    printf("{\"uuid\": \"GPU-");
    for (unsigned at = 0; at < 16; at++)
        printf("%s%02x", at == 4 || at == 6 || at == 8 || at == 10 ? "-" : "", (unsigned)(unsigned char)uuid.bytes[at]);
    printf("\", \"name\": \"%s\", \"cudaDriverVersion\": %d}\n", name, version);
    return 0;
}

static void pair(size_t bytes)
{
    CUdeviceptr pointer;
    NEEDED(cuMemAlloc_v2(&pointer, bytes));
    NEEDED(cuMemFree_v2(pointer));
}

static void small_pair(void)
{
    pair(4096);
}

static void large_pair(void)
{
    pair(CHUNK);
}

static void pool_pair(void)
{
    CUdeviceptr pointer;
    NEEDED(cuMemAllocAsync(&pointer, 1 << 20, NULL));
    NEEDED(cuMemFreeAsync(pointer, NULL));
    NEEDED(cuStreamSynchronize(NULL));
}

static void physical_pair(void)
{
    CUmemAllocationProp properties = {.type = PINNED, .location = {DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    NEEDED(cuMemCreate(&handle, CHUNK, &properties, 0));
    NEEDED(cuMemRelease(handle));
}

static void ask_room(void)
{
    size_t free, total;
    NEEDED(cuMemGetInfo_v2(&free, &total));
}

static void pass_on(void)
{
    CUcontext context;
    NEEDED(cuCtxGetCurrent(&context));
}

static double best(void (*call)(void), unsigned count)
{
    double least = 1e18;
    for (unsigned round = 0; round < ROUNDS; round++) {
        double from = nanoseconds();
        for (unsigned at = 0; at < count; at++)
            call();
        double took = (nanoseconds() - from) / count;
        least = took < least ? took : least;
    }
    return least;
}

static int costs(unsigned count)
{
    double from = nanoseconds();
    start();
    double started = (nanoseconds() - from) / 1e6;
    printf("{\"start_ms\": %.3f, \"cuCtxGetCurrent_ns\": %.1f, \"cuMemGetInfo_ns\": %.1f, \"cuMemAlloc_4KiB_ns\": %.1f, ", started,
           best(pass_on, count * 100), best(ask_room, count), best(small_pair, count));
    printf("\"cuMemAlloc_64MiB_ns\": %.1f, \"cuMemCreate_64MiB_ns\": %.1f, \"cuMemAllocAsync_1MiB_ns\": %.1f}\n", best(large_pair, count),
           best(physical_pair, count), best(pool_pair, count));
    return 0;
}

/* One piece of a kind of memory: taken into `piece`, and given back. */
struct piece {
    uint64_t handle;
    CUgraph graph;
    CUgraphExec run;
};

static CUresult take_plain(struct piece *piece)
{
    return cuMemAlloc_v2((CUdeviceptr *)&piece->handle, CHUNK);
}

static void give_plain(const struct piece *piece)
{
    NEEDED(cuMemFree_v2((CUdeviceptr)piece->handle));
}

static CUresult take_physical(struct piece *piece)
{
    CUmemAllocationProp properties = {.type = PINNED, .location = {DEVICE, 0}};
    return cuMemCreate((CUmemGenericAllocationHandle *)&piece->handle, CHUNK, &properties, 0);
}

static void give_physical(const struct piece *piece)
{
    NEEDED(cuMemRelease((CUmemGenericAllocationHandle)piece->handle));
}

static CUresult take_pool(struct piece *piece)
{
    return cuMemAllocAsync((CUdeviceptr *)&piece->handle, CHUNK, NULL);
}

static void give_pool(const struct piece *piece)
{
    NEEDED(cuMemFreeAsync((CUdeviceptr)piece->handle, NULL));
    NEEDED(cuStreamSynchronize(NULL));
}

static CUresult take_array(struct piece *piece)
{
    CUDA_ARRAY_DESCRIPTOR description = {.Width = 4096, .Height = CHUNK / 4 / 4096, .Format = FLOATS, .NumChannels = 1};
    CUarray array = NULL;
    CUresult result = cuArrayCreate_v2(&array, &description);
    piece->handle = (uint64_t)(uintptr_t)array;
    return result;
}

static void give_array(const struct piece *piece)
{
    NEEDED(cuArrayDestroy((CUarray)(uintptr_t)piece->handle));
}

static CUresult take_graph(struct piece *piece)
{
    struct {
        int location_type, location_id, flags;
    } access = {DEVICE, 0, READ_WRITE};
    CUDA_MEM_ALLOC_NODE_PARAMS node = {.poolProps = {.allocType = PINNED, .location = {DEVICE, 0}}, .accessDescs = &access, .accessDescCount = 1, .bytesize = CHUNK};
    CUgraphNode added;
    NEEDED(cuGraphCreate(&piece->graph, 0));
    CUresult result = cuGraphAddMemAllocNode(&added, piece->graph, NULL, 0, &node);
    if (result == CUDA_SUCCESS)
        result = cuGraphInstantiateWithFlags(&piece->run, piece->graph, 0);
    if (result == CUDA_SUCCESS && (result = cuGraphLaunch(piece->run, NULL)) != CUDA_SUCCESS)
        NEEDED(cuGraphExecDestroy(piece->run));
    if (result == CUDA_SUCCESS)
        NEEDED(cuStreamSynchronize(NULL));
    else
        NEEDED(cuGraphDestroy(piece->graph));
    piece->handle = node.dptr;
    return result;
}

static void give_graph(const struct piece *piece)
{
    NEEDED(cuMemFree_v2((CUdeviceptr)piece->handle));
    NEEDED(cuGraphExecDestroy(piece->run));
    NEEDED(cuGraphDestroy(piece->graph));
    NEEDED(cuDeviceGraphMemTrim(0));
}

static struct piece pieces[CHUNKS_MAX];

static void fill(const char *kind, CUresult (*take)(struct piece *), void (*give)(const struct piece *), bool last)
{
    unsigned count = 0, again = 0;
    size_t free = 0, total = 0;
    CUresult result = CUDA_SUCCESS;
    while (count < CHUNKS_MAX && (result = take(&pieces[count])) == CUDA_SUCCESS)
        count++;
    unsigned long long on_card = card_bytes();
    NEEDED(cuMemGetInfo_v2(&free, &total));
    for (unsigned at = 0; at < count; at++)
        give(&pieces[at]);
    while (again < count / 2 && take(&pieces[again]) == CUDA_SUCCESS)
        again++;
    for (unsigned at = 0; at < again; at++)
        give(&pieces[at]);
    printf("\"%s\": {\"granted\": %llu, \"refusedWith\": %d, \"halfAgain\": %s, \"freeThen\": %zu, \"total\": %zu, \"onCard\": %llu}%s", kind,
           (unsigned long long)count * CHUNK, result, again == count / 2 ? "true" : "false", free, total, on_card, last ? "}\n" : ", ");
}

static int limit(void)
{
    unsigned long long before = card_bytes();
    start();
    printf("{\"onCardBefore\": %llu, ", before);
    fill("cuMemAlloc", take_plain, give_plain, false);
    fill("cuMemCreate", take_physical, give_physical, false);
    fill("cuMemAllocAsync", take_pool, give_pool, false);
    fill("cuArrayCreate", take_array, give_array, false);
    fill("cuGraphLaunch", take_graph, give_graph, true);
    return 0;
}

int main(int count, char **arguments)
{
    if (count == 2 && strcmp(arguments[1], "card") == 0)
        return card();
    if (count == 2 && strcmp(arguments[1], "limit") == 0)
        return limit();
    if (count == 3 && strcmp(arguments[1], "costs") == 0)
        return costs((unsigned)strtoul(arguments[2], NULL, 10));
    fprintf(stderr, "gpu card | costs PAIRS | limit\n");
    return 2;
}
