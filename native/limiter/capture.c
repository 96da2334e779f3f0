/* What is launched into a stream that captures is recorded, and takes no time: it is not charged. Whether any stream captures is
 * counted, so that only then each launch has to ask. A capture that ends unseen, with its stream say, leaves the count too high,
 * which costs a question for each launch and nothing else. */
#include "driver.h"
#include "pace.h"

static CUresult begun(CUresult result)
{
    struct process *process = process_self();
    if (result == CUDA_SUCCESS && process)
        atomic_fetch_add(&process->captures, 1);
    return result;
}

static CUresult ended(CUresult result)
{
    struct process *process = process_self();
    bool over = result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED || result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    unsigned count = process && over ? atomic_load(&process->captures) : 0;
    while (count && !atomic_compare_exchange_weak(&process->captures, &count, count - 1))
        ;
    return result;
}

#define VARIANTS(suffix)                                                                                                                  \
    CUresult cuStreamBeginCapture##suffix(CUstream stream)                                                                                \
    {                                                                                                                                     \
        return begun(DRIVER(cuStreamBeginCapture##suffix, CUstream)(stream));                                                             \
    }                                                                                                                                     \
    CUresult cuStreamBeginCapture_v2##suffix(CUstream stream, int mode)                                                                   \
    {                                                                                                                                     \
        return begun(DRIVER(cuStreamBeginCapture_v2##suffix, CUstream, int)(stream, mode));                                               \
    }                                                                                                                                     \
    CUresult cuStreamBeginCaptureToGraph##suffix(CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *edges, size_t count, int mode) \
    {                                                                                                                                     \
        return begun(DRIVER(cuStreamBeginCaptureToGraph##suffix, CUstream, CUgraph, const CUgraphNode *, const void *, size_t, int)(      \
            stream, graph, nodes, edges, count, mode));                                                                                   \
    }                                                                                                                                     \
    CUresult cuStreamBeginRecaptureToGraph##suffix(CUstream stream, int mode, CUgraph graph, void *callback, void *data)                  \
    {                                                                                                                                     \
        return begun(DRIVER(cuStreamBeginRecaptureToGraph##suffix, CUstream, int, CUgraph, void *, void *)(stream, mode, graph, callback, data)); \
    }                                                                                                                                     \
    CUresult cuStreamBeginCaptureToCig##suffix(CUstream stream, void *parameters)                                                         \
    {                                                                                                                                     \
        return begun(DRIVER(cuStreamBeginCaptureToCig##suffix, CUstream, void *)(stream, parameters));                                    \
    }                                                                                                                                     \
    CUresult cuStreamEndCapture##suffix(CUstream stream, CUgraph *graph)                                                                  \
    {                                                                                                                                     \
        return ended(DRIVER(cuStreamEndCapture##suffix, CUstream, CUgraph *)(stream, graph));                                             \
    }                                                                                                                                     \
    CUresult cuStreamEndCaptureToCig##suffix(CUstream stream)                                                                             \
    {                                                                                                                                     \
        return ended(DRIVER(cuStreamEndCaptureToCig##suffix, CUstream)(stream));                                                          \
    }

VARIANTS()
VARIANTS(_ptsz)
