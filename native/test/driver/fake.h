/* What the parts of the fake driver know of each other. */
#ifndef KOORDRA_FAKE_H
#define KOORDRA_FAKE_H

#include "../../limiter/cuda_abi.h"
#include "world.h"

enum { ALLOCATIONS_MAX = 1 << 20, ADDRESS_SHIFT = 34, CONTEXTS_MAX = 64, OBJECTS_MAX = 1 << 16 };

struct context {
    unsigned card, references;
    bool alive, primary;
};

enum allocation_kind { FREE_ADDRESS, PLAIN, POOLED, GRAPHED, RESERVED_ADDRESS, OPENED, NODE_ADDRESS };

struct allocation {
    uint64_t bytes;
    struct context *context;
    void *pool;
    uint32_t card, next;
    uint8_t kind;
};

struct fake {
    struct world *world;
    int file; /* the "device file": open as long as the process has the driver */
    unsigned me;
    struct context primaries[WORLD_CARDS], contexts[CONTEXTS_MAX];
    pthread_mutex_t lock;
    struct allocation *allocations;
    uint32_t allocations_used, allocations_free;
    uint64_t graph_used[WORLD_CARDS], graph_reserved[WORLD_CARDS];
    uint32_t graph_pools[WORLD_CARDS]; /* how many the card has had: one ends with its primary context */
};

extern struct fake fake;

/* NULL result: go on. Otherwise an injected fault answers. */
bool faulty(const char *function, CUresult *result);
void after(const char *function);

#define ENTER()                                                                \
    CUresult injected = CUDA_SUCCESS;                                           \
    if (!fake.world)                                                            \
        return CUDA_ERROR_NOT_INITIALIZED;                                      \
    if (__builtin_expect(fake.world->faults[0].function[0], 0) && faulty(__func__, &injected)) \
        return injected
#define LEAVE(result)                                                           \
    do {                                                                        \
        CUresult answer = (result);                                             \
        if (__builtin_expect(fake.world->faults[0].function[0], 0))             \
            after(__func__);                                                    \
        return answer;                                                          \
    } while (0)

struct context *context_now(void);

/* Takes bytes of a card for this process; out of memory where the card is full. */
CUresult take_for(const char *function, unsigned card, uint64_t bytes);
#define take(card, bytes) take_for(__func__, card, bytes)
void give(unsigned card, uint64_t bytes);

/* A fresh address; 0: none left. */
uint64_t address_new(const struct allocation *allocation);
struct allocation *allocation_at(uint64_t address);
void address_free(uint64_t address);

/* Frees what the context owns. */
void context_ended(struct context *context);

/* Memory that several processes own (vmm.c). */
int shared_new(unsigned card, uint64_t bytes);
void shared_hold(int number);
void shared_drop(int number);

CUresult pool_free(uint64_t address, struct allocation *allocation, bool now);
void graph_free(uint64_t address, struct allocation *allocation);
void graph_pool_ended(unsigned card);

enum { NODES = 1100, LEGACY_PLACES = 2 };

struct node {
    int type;
    unsigned card; /* of an allocation */
    uint64_t bytes;
    CUdeviceptr pointer;
    struct graph *child;
    struct graph *owner;
    struct world_work work; /* of a kernel or host function */
};

struct graph {
    struct node *nodes[NODES];
    size_t count;
};

struct node *node_new(struct graph *graph, int type);

struct stream {
    struct context *context;
    struct graph *capturing;
    int mode; /* of the capture */
    bool spoilt;
    unsigned place; /* in the world, + 1; 0: nothing has been done in it */
};

static inline bool special(CUstream stream)
{
    return (uintptr_t)stream <= 2;
}

struct context *context_of(CUstream stream);

/* The stream that captures in global mode, if any does (launch.c). */
void capture_began(struct stream *stream);
void capture_ended(struct stream *stream);
/* Whether a call is one that a capture in global mode forbids, of any thread that has not said otherwise. */
bool spoils_capture(void);

/* Does the work, in order, in the stream; waits while the stream has no room. */
CUresult stream_does(CUstream stream, unsigned card, const struct world_work *work, size_t count);
/* Waits until all is done in the stream, or (NULL) in all of this process's on a card. */
void stream_wait(CUstream stream);
void card_wait(unsigned card);
void stream_ended(struct stream *stream);
void events_forget(struct context *context);
void pools_synchronise(void);

static inline uint64_t rounded_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

#endif
