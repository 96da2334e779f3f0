/* Launches that are being measured: two events of the driver's around each. */
#ifndef KOORDRA_SPAN_H
#define KOORDRA_SPAN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

enum { SPANS_MAX = 16 };

enum span_state { SPAN_FREE, SPAN_OPEN, SPAN_PENDING };

/* Who has opened one has it alone until it is pending. */
struct span {
    _Atomic enum span_state state;
    bool first;        /* nothing was known of it */
    bool stuck;        /* somebody has waited for it long enough */
    uint64_t key, charged, since;
    CUcontext context; /* of the events */
    CUevent from, to;
};

struct spans {
    pthread_mutex_t lock;
    struct span all[SPANS_MAX];
    _Atomic unsigned under_way;
};

struct card;

/* A stream as a launch names it. */
struct where {
    CUstream stream;
    bool per_thread; /* what the default stream is */
};

/* Whether what is launched there now is recorded and not run; unclear counts as recorded. Leaves captures as they are. */
bool stream_captures(struct where where);

/* Begins to measure; the span's number, or -1 where that cannot be now. */
int span_begin(struct card *card, struct where where, uint64_t key, uint64_t charged, bool first, uint64_t now);

/* The launch is in the stream (or, `launched` false, is not). */
void span_end(struct card *card, int number, struct where where, bool launched);

/* Learns from what is done. What launches of no known cost took beyond what was charged for them, in ns. */
int64_t spans_harvest(struct card *card, bool shared);

/* Whether to wait for one: of the same key, or because too many of no known cost are under way; or because what was launched
 * long ago is not done. */
bool spans_hold(struct card *card, uint64_t key, bool known, uint64_t now);

/* Nobody waits for those any more that are under way. */
void spans_give_up(struct card *card);

/* Before a context ends: its events go. */
void spans_forget(struct card *card, CUcontext context);

#endif
