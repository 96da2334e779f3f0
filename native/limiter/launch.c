/* Every way to start work on a card. Its key says what work it is, as far as its cost goes. */
#include "defect.h"
#include "driver.h"
#include "pace.h"

#define LAUNCH(key, stream, per_thread, call)                            \
    struct card *card = pace_card();                                     \
    if (__builtin_expect(!card, 1))                                      \
        return call;                                                     \
    struct launch launch;                                                \
    pace_launch(&launch, card, key, (struct where){stream, per_thread}); \
    CUresult result = call;                                              \
    pace_launched(&launch, result);                                      \
    return result

static uint64_t key_of(const void *function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c)
{
    return cost_key(function, (uint64_t)x * y * z, (uint64_t)a * b * c);
}

#define VARIANTS(suffix, per_thread)                                                                                                     \
    CUresult cuLaunchKernel##suffix(void *function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c,              \
                                    unsigned shared, CUstream stream, void **parameters, void **extra)                                  \
    {                                                                                                                                   \
        LAUNCH(key_of(function, x, y, z, a, b, c), stream, per_thread,                                                                  \
               (DRIVER(cuLaunchKernel##suffix, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,   \
                       void **, void **)(function, x, y, z, a, b, c, shared, stream, parameters, extra)));                              \
    }                                                                                                                                   \
    CUresult cuLaunchKernelEx##suffix(const CUlaunchConfig *given, void *function, void **parameters, void **extra)                     \
    {                                                                                                                                   \
        if (!given)                                                                                                                     \
            return DRIVER(cuLaunchKernelEx##suffix, const CUlaunchConfig *, void *, void **, void **)(given, function, parameters, extra); \
        LAUNCH(key_of(function, given->gridDimX, given->gridDimY, given->gridDimZ, given->blockDimX, given->blockDimY, given->blockDimZ), \
               given->hStream, per_thread,                                                                                              \
               (DRIVER(cuLaunchKernelEx##suffix, const CUlaunchConfig *, void *, void **, void **)(given, function, parameters, extra))); \
    }                                                                                                                                   \
    CUresult cuLaunchCooperativeKernel##suffix(void *function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c,   \
                                               unsigned shared, CUstream stream, void **parameters)                                    \
    {                                                                                                                                   \
        if (DEFECT(cooperative_unpaced))                                                                                                \
            return DRIVER(cuLaunchCooperativeKernel##suffix, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,        \
                          unsigned, CUstream, void **)(function, x, y, z, a, b, c, shared, stream, parameters);                         \
        LAUNCH(key_of(function, x, y, z, a, b, c), stream, per_thread,                                                                  \
               (DRIVER(cuLaunchCooperativeKernel##suffix, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,  \
                       CUstream, void **)(function, x, y, z, a, b, c, shared, stream, parameters)));                                    \
    }

VARIANTS(, false)
VARIANTS(_ptsz, true)

/* One kernel on each of several cards; each is charged to its own. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
    struct launch launches[CARDS_MAX];
    unsigned begun = 0;
    for (; list && begun < count && begun < CARDS_MAX; begun++) {
        const CUDA_LAUNCH_PARAMS *each = &list[begun];
        CUcontext context = NULL, popped;
        bool other = DRIVER(cuStreamGetCtx, CUstream, CUcontext *)(each->hStream, &context) == CUDA_SUCCESS && context &&
                     DRIVER(cuCtxPushCurrent_v2, CUcontext)(context) == CUDA_SUCCESS;
        struct card *card = pace_card();
        launches[begun] = (struct launch){.span = -1};
        if (card)
            pace_launch(&launches[begun], card, key_of(each->function, each->gridDimX, each->gridDimY, each->gridDimZ, each->blockDimX, each->blockDimY, each->blockDimZ),
                        (struct where){each->hStream, false});
        if (other)
            DRIVER(cuCtxPopCurrent_v2, CUcontext *)(&popped);
    }
    CUresult result = DRIVER(cuLaunchCooperativeKernelMultiDevice, CUDA_LAUNCH_PARAMS *, unsigned, unsigned)(list, count, flags);
    for (unsigned at = 0; at < begun; at++)
        pace_launched(&launches[at], result);
    return result;
}

/* The oldest interface: the size of a block was set before, and does not tell. */
CUresult cuLaunch(void *function)
{
    LAUNCH(cost_key(function, 1, 0), NULL, false, (DRIVER(cuLaunch, void *)(function)));
}

CUresult cuLaunchGrid(void *function, int width, int height)
{
    LAUNCH(cost_key(function, (uint64_t)width * (uint64_t)height, 0), NULL, false, (DRIVER(cuLaunchGrid, void *, int, int)(function, width, height)));
}

CUresult cuLaunchGridAsync(void *function, int width, int height, CUstream stream)
{
    LAUNCH(cost_key(function, (uint64_t)width * (uint64_t)height, 0), stream, false,
           (DRIVER(cuLaunchGridAsync, void *, int, int, CUstream)(function, width, height, stream)));
}
