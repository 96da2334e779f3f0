/* Start, cards, contexts, and the books that the whole fake keeps. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

struct fake fake = {.file = -1, .lock = PTHREAD_MUTEX_INITIALIZER};

static __thread struct context *stack[32];
static __thread int depth;

static void forked(void)
{
    /* As the real driver: a child of an initialised process has no CUDA. */
    if (!fake.world)
        return;
    close(fake.file);
    fake.world = NULL;
    fake.file = -2;
}

bool faulty(const char *function, CUresult *result)
{
    for (unsigned at = 0; at < FAULTS_MAX; at++) {
        struct fault *fault = &fake.world->faults[at];
        if (strcmp(fault->function, function) != 0 || __atomic_fetch_sub(&fault->countdown, 1, __ATOMIC_SEQ_CST) > 0)
            continue;
        if (fault->delay_us)
            usleep(fault->delay_us);
        if (fault->kill == 1)
            kill(getpid(), SIGKILL);
        if (fault->result) {
            *result = fault->result;
            return true;
        }
    }
    return false;
}

void after(const char *function)
{
    for (unsigned at = 0; at < FAULTS_MAX; at++)
        if (fake.world->faults[at].kill == 2 && strcmp(fake.world->faults[at].function, function) == 0 && fake.world->faults[at].countdown < 0)
            kill(getpid(), SIGKILL);
}

/* A place that nobody uses, locked. One that was killed while it joined may keep its lock for a moment more: not that place. */
static unsigned free_place(const struct world *world)
{
    for (unsigned process = 0; process < WORLD_PROCESSES; process++) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = process, .l_len = 1};
        if (!world->processes[process].used && fcntl(fake.file, F_OFD_SETLK, &lock) == 0)
            return process;
    }
    return WORLD_PROCESSES;
}

static bool join_world(struct world *world, const char *folder)
{
    char path[512];
    snprintf(path, sizeof path, "%s/world", folder);
    fake.file = open(path, O_RDWR | O_CLOEXEC);
    if (fake.file < 0)
        return false;
    world_lock(world);
    unsigned process = free_place(world);
    if (process == WORLD_PROCESSES) {
        world_bury(world, fake.file, WORLD_PROCESSES);
        process = free_place(world);
    }
    bool joined = process < WORLD_PROCESSES;
    if (joined) {
        world->processes[process] = (struct world_process){.pid = (uint32_t)getpid(), .used = 1};
        fake.me = process;
        if (process >= world->process_top)
            world->process_top = process + 1;
    }
    world_unlock(world);
    return joined;
}

static const char *visible_cards; /* CUDA_VISIBLE_DEVICES of the fake, read once */

CUresult cuInit(unsigned flags)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    (void)flags;
    if (fake.file == -2)
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&once);
    CUresult result = CUDA_SUCCESS;
    const char *folder = getenv("KOORDRA_FAKE_CUDA");
    struct world *world = fake.world ? NULL : world_open(folder ? folder : "/run/koordra-fake-cuda");
    if (!fake.world) {
        fake.allocations = mmap(NULL, sizeof(struct allocation) * ALLOCATIONS_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (!world || fake.allocations == MAP_FAILED || !join_world(world, folder ? folder : "/run/koordra-fake-cuda")) {
            result = CUDA_ERROR_NO_DEVICE;
        } else {
            visible_cards = getenv("KOORDRA_FAKE_VISIBLE");
            pthread_atfork(NULL, NULL, forked);
            fake.world = world;
        }
    }
    pthread_mutex_unlock(&once);
    return result;
}

CUresult take_for(const char *function, unsigned card, uint64_t bytes)
{
    struct world *world = fake.world;
    CUresult result = CUDA_SUCCESS;
    world_lock(world);
    uint64_t used = 0;
    for (int look = 0; look < 2; look++) {
        used = 0;
        for (unsigned process = 0; process < world->process_top; process++)
            used += world->processes[process].used ? world->processes[process].bytes[card] : 0;
        for (unsigned at = 0; at < WORLD_SHARED; at++)
            used += world->shared[at].used && world->shared[at].card == card ? world->shared[at].bytes : 0;
        uint64_t bound = world->cards[card].watched && world->cards[card].watched < world->cards[card].total ? world->cards[card].watched : world->cards[card].total;
        if (bytes <= bound && used <= bound - bytes)
            break;
        world_bury(world, fake.file, fake.me);
    }
    if (bytes > world->cards[card].total || used > world->cards[card].total - bytes) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        world->processes[fake.me].bytes[card] += bytes;
        used += bytes;
        if (used > world->cards[card].peak)
            world->cards[card].peak = used;
        if (world->cards[card].watched && used > world->cards[card].watched && atomic_fetch_add(&world->violations, 1) < 3)
            fprintf(stderr, "fake driver: %s of process %u takes %llu bytes and card %u holds %llu, over %llu\n", function, fake.me, (unsigned long long)bytes,
                    card, (unsigned long long)used, (unsigned long long)world->cards[card].watched);
    }
    world_unlock(world);
    return result;
}

void give(unsigned card, uint64_t bytes)
{
    world_lock(fake.world);
    fake.world->processes[fake.me].bytes[card] -= bytes;
    world_unlock(fake.world);
}

uint64_t address_new(const struct allocation *allocation)
{
    pthread_mutex_lock(&fake.lock);
    uint32_t at = fake.allocations_free ? fake.allocations_free - 1 : fake.allocations_used;
    if (at >= ALLOCATIONS_MAX) {
        pthread_mutex_unlock(&fake.lock);
        return 0;
    }
    if (fake.allocations_free)
        fake.allocations_free = fake.allocations[at].next;
    else
        __atomic_fetch_add(&fake.allocations_used, 1, __ATOMIC_RELEASE);
    fake.allocations[at] = *allocation;
    pthread_mutex_unlock(&fake.lock);
    return (uint64_t)(at + 1) << ADDRESS_SHIFT;
}

struct allocation *allocation_at(uint64_t address)
{
    uint64_t at = address >> ADDRESS_SHIFT;
    if (at == 0 || at > __atomic_load_n(&fake.allocations_used, __ATOMIC_ACQUIRE) || __atomic_load_n(&fake.allocations[at - 1].kind, __ATOMIC_ACQUIRE) == FREE_ADDRESS)
        return NULL;
    return &fake.allocations[at - 1];
}

/* The address is given out again by the very next allocation. */
void address_free(uint64_t address)
{
    uint32_t at = (uint32_t)(address >> ADDRESS_SHIFT) - 1;
    pthread_mutex_lock(&fake.lock);
    fake.allocations[at].kind = FREE_ADDRESS;
    fake.allocations[at].next = fake.allocations_free;
    fake.allocations_free = at + 1;
    pthread_mutex_unlock(&fake.lock);
}

struct context *context_now(void)
{
    return depth && stack[depth - 1] && stack[depth - 1]->alive ? stack[depth - 1] : NULL;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = fake.world ? fake.world->driver_version : 13050;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    ENTER();
    *count = (int)fake.world->card_count;
    return CUDA_SUCCESS;
}

/* CUDA_VISIBLE_DEVICES of the fake: ordinals in their new order, "1,0". */
static unsigned physical(unsigned ordinal)
{
    const char *visible = visible_cards;
    for (; visible && *visible; ordinal--) {
        if (ordinal == 0)
            return (unsigned)strtoul(visible, NULL, 10);
        visible = strchr(visible, ',');
        visible = visible ? visible + 1 : "";
    }
    return ordinal;
}

static unsigned card_of(CUdevice device)
{
    return physical((unsigned)device);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER();
    if (ordinal < 0 || ordinal >= (int)fake.world->card_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    ENTER();
    memcpy(uuid->bytes, fake.world->cards[card_of(device)].uuid, 16);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    return cuDeviceGetUuid_v2(uuid, device);
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    ENTER();
    snprintf(name, (size_t)length, "Fake card %d", device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    ENTER();
    const struct world_card *card = &fake.world->cards[card_of(device)];
    *value = attribute == 16 /* multiprocessors */                                   ? (int)card->sms
             : attribute == CU_DEVICE_ATTRIBUTE_INTEGRATED                            ? (int)card->integrated
             : attribute == CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED ? (int)card->deferred_arrays
                                                                                       : 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    ENTER();
    *bytes = fake.world->cards[card_of(device)].total;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    ENTER();
    struct context *context = context_now();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    uint64_t used = 0;
    world_lock(fake.world);
    for (unsigned process = 0; process < fake.world->process_top; process++)
        used += fake.world->processes[process].bytes[context->card];
    world_unlock(fake.world);
    *total = fake.world->cards[context->card].total;
    *free = *total - used;
    return CUDA_SUCCESS;
}

static CUresult context_begin(struct context *context, unsigned card, bool primary)
{
    CUresult result = take(card, fake.world->cards[card].context_bytes);
    if (result == CUDA_SUCCESS)
        *context = (struct context){.card = card, .alive = true, .primary = primary};
    return result;
}

static void context_end(struct context *context)
{
    events_forget(context);
    context_ended(context);
    if (context->primary)
        graph_pool_ended(context->card);
    context->alive = false;
    give(context->card, fake.world->cards[context->card].context_bytes);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    ENTER();
    (void)flags;
    for (unsigned at = 0; at < CONTEXTS_MAX; at++)
        if (!fake.contexts[at].alive) {
            CUresult result = context_begin(&fake.contexts[at], card_of(device), false);
            if (result != CUDA_SUCCESS)
                return result;
            *context = (CUcontext)&fake.contexts[at];
            stack[depth++] = &fake.contexts[at];
            LEAVE(CUDA_SUCCESS);
        }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device)
{
    (void)parameters;
    return cuCtxCreate_v2(context, flags, device);
}

CUresult cuCtxCreate_v3(CUcontext *context, void *parameters, int count, unsigned flags, CUdevice device)
{
    (void)parameters;
    (void)count;
    return cuCtxCreate_v2(context, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext handle)
{
    ENTER();
    struct context *context = (struct context *)handle;
    if (!context || !context->alive || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    context_end(context);
    if (depth && stack[depth - 1] == context)
        depth--;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    ENTER();
    *context = (CUcontext)context_now();
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER();
    if (!depth)
        depth = 1;
    stack[depth - 1] = (struct context *)context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER();
    stack[depth++] = (struct context *)context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER();
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = (CUcontext)stack[--depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER();
    struct context *context = context_now();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    for (unsigned ordinal = 0; ordinal < fake.world->card_count; ordinal++)
        if (physical(ordinal) == context->card) {
            *device = (CUdevice)ordinal;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxSynchronize(void)
{
    ENTER();
    if (context_now())
        card_wait(context_now()->card);
    pools_synchronise();
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER();
    struct context *primary = &fake.primaries[card_of(device)];
    if (!primary->alive) {
        CUresult result = context_begin(primary, card_of(device), true);
        if (result != CUDA_SUCCESS)
            return result;
    }
    primary->references++;
    *context = (CUcontext)primary;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER();
    struct context *primary = &fake.primaries[card_of(device)];
    if (!primary->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--primary->references == 0)
        context_end(primary);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    ENTER();
    struct context *primary = &fake.primaries[card_of(device)];
    if (primary->alive) {
        context_end(primary);
        primary->references = 0;
    }
    LEAVE(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    ENTER();
    *flags = 0;
    *active = fake.primaries[card_of(device)].alive;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(void **module, const void *image)
{
    ENTER();
    (void)image;
    struct context *context = context_now();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *module = &fake.primaries[context->card];
    LEAVE(take(context->card, fake.world->cards[context->card].module_bytes));
}

CUresult cuModuleUnload(void *module)
{
    ENTER();
    struct context *context = module;
    give(context->card, fake.world->cards[context->card].module_bytes);
    return CUDA_SUCCESS;
}

/* Twelve arguments, some on the stack: what a stub must not disturb. */
CUresult cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *sizes, const uint64_t *strides, const unsigned *box, const unsigned *steps,
                                int interleave, int swizzle, int promotion, int fill)
{
    ENTER();
    *(uint64_t *)map = (uint64_t)type + 2 * rank + 3 * (uintptr_t)address + 4 * (uintptr_t)sizes + 5 * (uintptr_t)strides + 6 * (uintptr_t)box + 7 * (uintptr_t)steps +
                       8 * (uint64_t)interleave + 9 * (uint64_t)swizzle + 10 * (uint64_t)promotion + 11 * (uint64_t)fill;
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    ENTER();
    (void)from;
    struct allocation *allocation = allocation_at(to);
    return allocation && bytes <= allocation->bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : error == CUDA_SUCCESS ? "no error" : "error";
    return CUDA_SUCCESS;
}

/* Of a driver that is newer than this library's list. */
CUresult cuBrandNewAlloc(CUdeviceptr *pointer)
{
    ENTER();
    *pointer = 0;
    return take(0, 4096);
}
