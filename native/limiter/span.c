/* Measuring costs two records of an event, so it is done once in a while only, and for launches of no known cost.
 *
 * An event belongs to a context and must be used with streams of that one alone, and goes with it. What must never happen is that
 * an event is recorded into a capture, or that a capture is spoilt by a question: so nothing is measured in a stream that
 * captures, and the driver is asked in relaxed mode (pace.c). A record may wait for room in its stream, so no lock is held over it,
 * and who finds the lock taken goes without. */
#include "span.h"

#include "defect.h"
#include "driver.h"
#include "old_glibc.h"
#include "process.h"

enum { FIRSTS_MAX = 8 };
#define LATE UINT64_C(50000000) /* ns */

bool stream_captures(struct where where)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (DEFECT(events_in_captures))
        return false;
    CUresult result = where.per_thread ? DRIVER(cuStreamIsCapturing_ptsz, CUstream, int *)(where.stream, &status)
                                       : DRIVER(cuStreamIsCapturing, CUstream, int *)(where.stream, &status);
    return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static CUresult record(CUevent event, struct where where)
{
    return where.per_thread ? DRIVER(cuEventRecord_ptsz, CUevent, CUstream)(event, where.stream) : DRIVER(cuEventRecord, CUevent, CUstream)(event, where.stream);
}

static void release(struct spans *spans, struct span *span)
{
    atomic_store(&span->state, SPAN_FREE);
    atomic_fetch_sub(&spans->under_way, 1);
}

static void drop_events(struct span *span)
{
    if (span->from)
        DRIVER(cuEventDestroy_v2, CUevent)(span->from);
    if (span->to)
        DRIVER(cuEventDestroy_v2, CUevent)(span->to);
    span->from = span->to = NULL;
    span->context = NULL;
}

static bool make_events(struct span *span, CUcontext context)
{
    if (span->context == context && span->to)
        return true;
    drop_events(span);
    span->context = context;
    if (DRIVER(cuEventCreate, CUevent *, unsigned)(&span->from, 0) == CUDA_SUCCESS &&
        DRIVER(cuEventCreate, CUevent *, unsigned)(&span->to, 0) == CUDA_SUCCESS)
        return true;
    drop_events(span);
    return false;
}

/* Opens a free span, best one whose events are of the context; -1: there is none, or somebody is looking. */
static int open_span(struct spans *spans, CUcontext context)
{
    int found = -1;
    if (pthread_mutex_trylock(&spans->lock) != 0)
        return -1;
    for (int number = 0; number < SPANS_MAX; number++)
        if (atomic_load(&spans->all[number].state) == SPAN_FREE && (found < 0 || spans->all[number].context == context))
            found = number;
    if (found >= 0) {
        spans->all[found].stuck = false;
        atomic_store(&spans->all[found].state, SPAN_OPEN);
        atomic_fetch_add(&spans->under_way, 1);
    }
    pthread_mutex_unlock(&spans->lock);
    return found;
}

int span_begin(struct card *card, struct where where, uint64_t key, uint64_t charged, bool first, uint64_t now)
{
    CUcontext context = NULL, of_stream = NULL;
    if (DRIVER(cuCtxGetCurrent, CUcontext *)(&context) != CUDA_SUCCESS || !context)
        return -1;
    if ((uintptr_t)where.stream > 2 && (DRIVER(cuStreamGetCtx, CUstream, CUcontext *)(where.stream, &of_stream) != CUDA_SUCCESS || of_stream != context))
        return -1;
    int number = open_span(&card->spans, context);
    if (number < 0)
        return -1;
    struct span *span = &card->spans.all[number];
    span->first = first;
    span->key = key;
    span->charged = charged;
    span->since = now;
    if (make_events(span, context) && record(span->from, where) == CUDA_SUCCESS)
        return number;
    release(&card->spans, span);
    return -1;
}

void span_end(struct card *card, int number, struct where where, bool launched)
{
    struct span *span = &card->spans.all[number];
    if (launched && record(span->to, where) == CUDA_SUCCESS)
        atomic_store(&span->state, SPAN_PENDING);
    else
        release(&card->spans, span);
}

static int64_t harvest(struct card *card, struct span *span, bool shared)
{
    float milliseconds = 0;
    CUresult result = DRIVER(cuEventQuery, CUevent)(span->to);
    if (result == CUDA_ERROR_NOT_READY)
        return 0;
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuEventElapsedTime, float *, CUevent, CUevent)(&milliseconds, span->from, span->to);
    release(&card->spans, span);
    if (result != CUDA_SUCCESS || !(milliseconds >= 0) || milliseconds > 3.6e6f)
        return 0;
    uint64_t ns = (uint64_t)((double)milliseconds * 1e6);
    cost_learn(&process_self()->costs, span->key, ns, shared);
    return span->first ? (int64_t)ns - (int64_t)span->charged : 0;
}

int64_t spans_harvest(struct card *card, bool shared)
{
    struct spans *spans = &card->spans;
    int64_t more = 0;
    if (!atomic_load_explicit(&spans->under_way, memory_order_relaxed) || pthread_mutex_trylock(&spans->lock) != 0)
        return 0;
    for (struct span *span = spans->all; span < spans->all + SPANS_MAX; span++)
        if (atomic_load(&span->state) == SPAN_PENDING)
            more += harvest(card, span, shared);
    pthread_mutex_unlock(&spans->lock);
    return more;
}

bool spans_hold(struct card *card, uint64_t key, bool known, uint64_t now)
{
    struct spans *spans = &card->spans;
    unsigned firsts = 0;
    bool hold = false;
    if (!atomic_load_explicit(&spans->under_way, memory_order_relaxed) || pthread_mutex_trylock(&spans->lock) != 0)
        return false;
    for (const struct span *span = spans->all; span < spans->all + SPANS_MAX; span++) {
        if (atomic_load(&span->state) != SPAN_PENDING || span->stuck)
            continue;
        firsts += span->first;
        hold = hold || (!known && span->key == key) || (now > span->since && now - span->since > LATE + 4 * span->charged);
    }
    pthread_mutex_unlock(&spans->lock);
    return hold || (!known && firsts >= FIRSTS_MAX);
}

void spans_give_up(struct card *card)
{
    if (pthread_mutex_trylock(&card->spans.lock) != 0)
        return;
    for (struct span *span = card->spans.all; span < card->spans.all + SPANS_MAX; span++)
        if (atomic_load(&span->state) == SPAN_PENDING)
            span->stuck = true;
    pthread_mutex_unlock(&card->spans.lock);
}

void spans_forget(struct card *card, CUcontext context)
{
    pthread_mutex_lock(&card->spans.lock);
    for (struct span *span = card->spans.all; span < card->spans.all + SPANS_MAX; span++)
        if (atomic_load(&span->state) != SPAN_OPEN && span->context == context && context) {
            if (atomic_load(&span->state) == SPAN_PENDING)
                release(&card->spans, span);
            drop_events(span);
        }
    pthread_mutex_unlock(&card->spans.lock);
}
