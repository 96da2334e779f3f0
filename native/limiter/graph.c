/* Graphs that allocate: their memory is the card's graph pool, which grows when such a graph is uploaded or launched, and
 * shrinks only when it is trimmed. However the nodes came about (added, cloned, captured from a stream, in a child graph), they
 * are counted when the graph is made executable; that much growth is reserved before the launch, and afterwards the charge
 * becomes what the driver says that the graph pool has reserved. A graph may allocate on several cards, whichever is the current
 * one: the growth of all is then reserved on each. */
#include <sys/mman.h>

#include "charge.h"
#include "defect.h"
#include "pace.h"

enum { STEP = 2 << 20, NODES_AT_ONCE = 65536, DEPTH_MAX = 32 };

/* What a graph's nodes allocate, as if none gave anything back, and on which cards (bit N: card N). */
struct need {
    uint64_t bytes, cards;
};

_Static_assert(CARDS_MAX <= 64, "a bit for each card");

static void add_graph(struct need *need, CUgraph graph, unsigned depth);

static void add_allocation(struct need *need, const CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    const CUmemLocation *location = &parameters->poolProps.location;
    bool untold = location->type == CU_MEM_LOCATION_TYPE_NONE || DEFECT(graphs_of_current_card);
    struct card *card = untold ? current_card() : card_of_pool(location, parameters->poolProps.allocType);
    if (!card)
        return;
    need->bytes += (parameters->bytesize + STEP - 1) / STEP * STEP;
    need->cards |= UINT64_C(1) << card_number(card);
}

static void add_node(struct need *need, CUgraphNode node, unsigned depth)
{
    int type = -1;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {0};
    CUgraph child = NULL;
    if (DRIVER(cuGraphNodeGetType, CUgraphNode, int *)(node, &type) != CUDA_SUCCESS)
        return;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
        DRIVER(cuGraphMemAllocNodeGetParams, CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS *)(node, &parameters) == CUDA_SUCCESS)
        add_allocation(need, &parameters);
    if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
        DRIVER(cuGraphChildGraphNodeGetGraph, CUgraphNode, CUgraph *)(node, &child) == CUDA_SUCCESS)
        add_graph(need, child, depth + 1);
}

static void add_graph(struct need *need, CUgraph graph, unsigned depth)
{
    size_t count = 0;
    if (depth > DEPTH_MAX || DRIVER(cuGraphGetNodes, CUgraph, CUgraphNode *, size_t *)(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    size_t bytes = count * sizeof(CUgraphNode);
    CUgraphNode *nodes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (nodes == MAP_FAILED) {
        *need = (struct need){UNLIMITED / 2, ~UINT64_C(0)}; /* cannot tell: refused rather than uncounted */
        return;
    }
    if (DRIVER(cuGraphGetNodes, CUgraph, CUgraphNode *, size_t *)(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t at = 0; at < count; at++)
            add_node(need, nodes[at], depth);
    munmap(nodes, bytes);
}

static struct need need_of(CUgraph graph)
{
    struct need need = {0, 0};
    add_graph(&need, graph, 0);
    return need;
}

/* Remembers what the executable graph will need, if it allocates at all. The record's bytes are not a charge. */
static CUresult instantiated(CUresult result, CUgraph graph, CUgraphExec *executable)
{
    if (result != CUDA_SUCCESS || process_ready() != PROCESS_READY || DEFECT(graphs_uncounted))
        return result;
    struct need need = need_of(graph);
    struct record record = {.key = (uint64_t)(uintptr_t)*executable, .space = SPACE_EXEC, .kind = KIND_GRAPH, .bytes = need.bytes, .more = need.cards}, replaced;
    if (need.bytes)
        table_put(&process_self()->table, &record, &replaced);
    return result;
}

CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, CUgraphNode *error, char *log, size_t bytes)
{
    return instantiated(DRIVER(cuGraphInstantiate, CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t)(executable, graph, error, log, bytes), graph, executable);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *executable, CUgraph graph, CUgraphNode *error, char *log, size_t bytes)
{
    return instantiated(DRIVER(cuGraphInstantiate_v2, CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t)(executable, graph, error, log, bytes), graph, executable);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags)
{
    return instantiated(DRIVER(cuGraphInstantiateWithFlags, CUgraphExec *, CUgraph, unsigned long long)(executable, graph, flags), graph, executable);
}

/* With CU_GRAPH_INSTANTIATE_UPLOAD (2) the memory may be taken here. */
#define WITH_PARAMETERS(suffix)                                                                                                        \
    CUresult cuGraphInstantiateWithParams##suffix(CUgraphExec *executable, CUgraph graph, void *parameters)                             \
    {                                                                                                                                   \
        unsigned long long flags = parameters ? *(unsigned long long *)parameters : 0;                                                  \
        if (flags & 2 && process_ready() == PROCESS_READY)                                                                              \
            return grow(need_of(graph), upload_now##suffix, executable, graph, parameters);                                             \
        return upload_now##suffix(executable, graph, parameters);                                                                       \
    }

typedef CUresult (*graph_call)(void *first, void *second, void *third);

static uint64_t reserved_by(const struct card *card, uint64_t unknown)
{
    uint64_t bytes = 0;
    if (DRIVER(cuDeviceGetGraphMemAttribute, CUdevice, int, void *)(card->handle, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) != CUDA_SUCCESS)
        return unknown; /* after a fault on the card it does not say; the memory stays */
    return bytes;
}

/* The card's graph lock is held. */
static void settle(struct card *card, uint64_t reserved)
{
    if (reserved < card->graph_charged)
        charge_release(card, card->graph_charged - reserved, KIND_GRAPH);
    else
        ledger_charge(&card->allowance, reserved - card->graph_charged, KIND_GRAPH);
    card->graph_charged = reserved;
}

/* Reserves what the card's graph pool may grow by; its lock is held. */
static bool reserve_growth(struct card *card, uint64_t bytes, uint64_t *more)
{
    uint64_t used = 0;
    settle(card, reserved_by(card, card->graph_charged));
    DRIVER(cuDeviceGetGraphMemAttribute, CUdevice, int, void *)(card->handle, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used);
    uint64_t free = used < card->graph_charged ? card->graph_charged - used : 0;
    *more = free < bytes ? bytes - free : 0;
    if (!charge_reserve(card, *more, KIND_GRAPH))
        return false;
    card->graph_charged += *more;
    return true;
}

/* Does what may make the graph pools grow by what is needed. Where that much is not left, it is done only if they have it. */
static CUresult grow(struct need need, graph_call call, void *first, void *second, void *third)
{
    struct process *process = process_self();
    uint64_t more[CARDS_MAX];
    unsigned locked = 0;
    CUresult result = CUDA_SUCCESS;
    for (; locked < process->card_count && result == CUDA_SUCCESS; locked++) {
        struct card *card = &process->cards[locked];
        if (!(need.cards >> locked & 1))
            continue;
        pthread_mutex_lock(&card->graph_lock); /* always in this order */
        more[locked] = 0;
        if (!reserve_growth(card, need.bytes, &more[locked])) {
            more[locked] = 0;
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (result == CUDA_SUCCESS)
        result = call(first, second, third);
    while (locked-- > 0)
        if (need.cards >> locked & 1) {
            struct card *card = &process->cards[locked];
            settle(card, reserved_by(card, result == CUDA_SUCCESS ? card->graph_charged : card->graph_charged - more[locked]));
            pthread_mutex_unlock(&card->graph_lock);
        }
    return result;
}

#define VARIANTS(suffix)                                                                                                          \
    static CUresult upload_now##suffix(void *executable, void *graph, void *parameters)                                            \
    {                                                                                                                              \
        return instantiated(DRIVER(cuGraphInstantiateWithParams##suffix, void *, void *, void *)(executable, graph, parameters),   \
                            graph, executable);                                                                                    \
    }                                                                                                                              \
    static CUresult launch##suffix(void *executable, void *stream, void *unused)                                                   \
    {                                                                                                                              \
        (void)unused;                                                                                                              \
        return DRIVER(cuGraphLaunch##suffix, void *, void *)(executable, stream);                                                  \
    }                                                                                                                              \
    static CUresult upload##suffix(void *executable, void *stream, void *unused)                                                   \
    {                                                                                                                              \
        (void)unused;                                                                                                              \
        return DRIVER(cuGraphUpload##suffix, void *, void *)(executable, stream);                                                  \
    }                                                                                                                              \
    CUresult cuGraphLaunch##suffix(CUgraphExec executable, CUstream stream)                                                        \
    {                                                                                                                              \
        struct card *card = DEFECT(graphs_unpaced) ? NULL : pace_card();                                                           \
        if (!card)                                                                                                                 \
            return run(executable, stream, launch##suffix);                                                                        \
        struct launch paced;                                                                                                       \
        pace_launch(&paced, card, graph_key(executable), (struct where){stream, sizeof #suffix > 1});                              \
        CUresult result = run(executable, stream, launch##suffix);                                                                 \
        pace_launched(&paced, result);                                                                                             \
        return result;                                                                                                             \
    }                                                                                                                              \
    CUresult cuGraphUpload##suffix(CUgraphExec executable, CUstream stream)                                                        \
    {                                                                                                                              \
        return run(executable, stream, upload##suffix);                                                                            \
    }                                                                                                                              \
    WITH_PARAMETERS(suffix)

/* As a whole: what its nodes are and which of them wait for which changes nothing of how it is measured. */
static uint64_t graph_key(CUgraphExec executable)
{
    return cost_key(executable, 0, 0);
}

/* A graph without memory of its own goes straight on. */
static CUresult run(CUgraphExec executable, CUstream stream, graph_call call)
{
    struct record record;
    enum process_state state = process_ready();
    if (state == PROCESS_REFUSED)
        return CUDA_ERROR_NOT_PERMITTED;
    if (state != PROCESS_READY || !table_get(&process_self()->table, SPACE_EXEC, (uint64_t)(uintptr_t)executable, &record))
        return call(executable, stream, NULL);
    return grow((struct need){record.bytes, record.more}, call, executable, stream, NULL);
}

VARIANTS()
VARIANTS(_ptsz)

void graphs_refresh(struct card *card)
{
    pthread_mutex_lock(&card->graph_lock);
    if (card->graph_charged && !DEFECT(graphs_outlive_the_context))
        settle(card, reserved_by(card, card->graph_charged));
    pthread_mutex_unlock(&card->graph_lock);
}

CUresult cuGraphExecDestroy(CUgraphExec executable)
{
    struct record record = charge_take(SPACE_EXEC, (uint64_t)(uintptr_t)executable), replaced;
    CUresult result = DRIVER(cuGraphExecDestroy, CUgraphExec)(executable);
    if (result != CUDA_SUCCESS && record.space != SPACE_NONE)
        table_put(&process_self()->table, &record, &replaced);
    if (result == CUDA_SUCCESS && process_self())
        cost_forget(&process_self()->costs, graph_key(executable));
    return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    CUresult result = DRIVER(cuDeviceGraphMemTrim, CUdevice)(device);
    struct card *card;
    if (result == CUDA_SUCCESS && charge_on(device, &card) == CUDA_SUCCESS && card)
        graphs_refresh(card);
    return result;
}
