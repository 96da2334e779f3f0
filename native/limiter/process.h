/* What the limiter knows of its own process. It lives on pages that a child of fork gets wiped: a child starts from nothing, as
 * it does with the driver. */
#ifndef KOORDRA_PROCESS_H
#define KOORDRA_PROCESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "cuda_abi.h"
#include "cost.h"
#include "ledger.h"
#include "region.h"
#include "span.h"
#include "table.h"

enum { CARDS_MAX = 64, REGIONS_MAX = 16, POOLS_MAX = 1024, OBJECTS_MAX = 1 << 20 };

/* A card as this process numbers it. */
struct card {
    CUdevice handle;
    uint8_t uuid[16];
    struct allowance allowance; /* without shares: nothing is counted, nothing limited */
    bool integrated;            /* host memory is the card's memory */
    pthread_mutex_t context_lock;
    pthread_mutex_t graph_lock;
    uint64_t graph_charged;
    uint64_t primary; /* its primary context while we know one */
    _Atomic int64_t prepaid;   /* ns of device time that launches may take without asking (pace.c) */
    _Atomic bool measure_next; /* the next launch of a known cost */
    uint64_t measured_at, grace_until;
    struct spans spans;
};

#define SEVERAL_STREAMS UINT64_MAX

/* A memory pool. `charged` is what it has reserved on its card, as far as we know. */
struct pool {
    pthread_mutex_t lock;
    uint64_t handle;
    uint64_t charged;
    uint64_t last_free; /* its ticket */
    uint64_t freed_on;  /* the stream of the frees since the last synchronisation; SEVERAL_STREAMS */
    uint32_t outstanding;
    uint16_t card;
    bool destroyed, frees_pending;
    _Atomic bool known;
    _Atomic bool stale; /* something was freed: it may have shrunk */
};

/* Physical memory of cuMemCreate: lives as long as a handle or a mapping does. */
struct object {
    uint64_t bytes;
    uint32_t handles, mappings;
    uint32_t next; /* in the list of free ones */
    uint16_t card;
    bool imported;
};

struct objects {
    pthread_mutex_t lock;
    struct object *all;
    uint32_t used, free; /* free: number + 1 */
};

enum process_state { PROCESS_NEW, PROCESS_READY, PROCESS_REFUSED };

struct process {
    _Atomic int state;
    pthread_mutex_t lock;
    unsigned region_count, card_count;
    _Atomic unsigned pool_count; /* those beyond were never known */
    bool strict, trust_imports;
    struct region regions[REGIONS_MAX];
    struct card cards[CARDS_MAX];
    struct pool pools[POOLS_MAX];
    _Atomic bool stale_pools;
    _Atomic uint64_t frees; /* tickets of frees to pools */
    pthread_mutex_t pools_lock;
    pthread_mutex_t contexts_lock; /* over the end of a context: its number is given out again at once */
    struct objects objects;
    _Atomic unsigned captures; /* streams that capture (capture.c) */
    struct table table;
    struct costs costs;
};

/* The process's own state, in whatever condition; NULL only where the kernel gives no memory. */
struct process *process_self(void);

/* Makes the process ready once the driver is initialised; no more than a look once it is. */
enum process_state process_ready(void);

/* The card of a CUdevice, or of the current context; NULL where it cannot be told. */
struct card *card_of(CUdevice device);
struct card *current_card(void);

/* The card whose memory the location is; NULL: the host's, another machine's, or none. */
struct card *card_of_location(const CUmemLocation *location);

/* Where memory of a pool is charged that is of this type (CU_MEM_ALLOCATION_TYPE_...) and at this location. */
struct card *card_of_pool(const CUmemLocation *location, int type);

/* Number of a card in process_self()->cards. */
unsigned card_number(const struct card *card);

#endif
