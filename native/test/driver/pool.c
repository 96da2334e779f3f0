/* Streams, events, memory pools, graphs that allocate.
 *
 * A pool grows in steps and keeps what it has reserved. Frees take effect at the next synchronisation, when what exceeds the
 * release threshold goes back. A destroyed pool lives until its last pointer is freed. The card's graph pool grows when a graph
 * that allocates is uploaded or launched, and shrinks when it is trimmed. */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

struct memory_pool {
    unsigned card;
    bool host, destroyed, used;
    uint64_t reserved, taken, pending, threshold;
    unsigned outstanding;
};

enum { POOLS = 512 };

static struct memory_pool pools[POOLS]; /* the first are the cards' default pools, then those for managed memory */
static struct memory_pool *current[WORLD_CARDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct executable {
    uint64_t bytes, freed;
    unsigned card;
    uint32_t pool; /* in which of the card's graph pools it is resident; 0: in none */
    size_t count;
    struct world_work work[]; /* of its kernels and host functions, children's too */
};

static struct memory_pool *pool_default(unsigned card)
{
    pools[card].card = card;
    pools[card].used = true;
    if (!current[card])
        current[card] = &pools[card];
    return &pools[card];
}

static void shrink(struct memory_pool *pool, uint64_t keep)
{
    if (keep >= pool->reserved)
        return;
    uint64_t step = fake.world->cards[pool->card].pool_step, needed = rounded_up(pool->taken + pool->pending > keep ? pool->taken + pool->pending : keep, step);
    if (needed >= pool->reserved)
        return;
    if (!pool->host)
        give(pool->card, pool->reserved - needed);
    pool->reserved = needed;
}

static void buried(struct memory_pool *pool)
{
    if (!pool->destroyed || pool->outstanding || pool->pending)
        return;
    shrink(pool, 0);
    memset(pool, 0, sizeof *pool);
}

void pools_synchronise(void)
{
    pthread_mutex_lock(&lock);
    for (unsigned at = 0; at < POOLS; at++)
        if (pools[at].used) {
            pools[at].pending = 0;
            if (!pools[at].destroyed) /* what a destroyed pool has goes all at once, with its last pointer */
                shrink(&pools[at], pools[at].threshold);
            buried(&pools[at]);
        }
    pthread_mutex_unlock(&lock);
}

static CUresult pool_allocate(struct memory_pool *pool, CUdeviceptr *pointer, uint64_t bytes)
{
    bytes = rounded_up(bytes, 512);
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    uint64_t busy = pool->taken + pool->pending;
    if (!bytes || pool->destroyed || !pool->used) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (busy + bytes > pool->reserved) {
        uint64_t more = rounded_up(busy + bytes - pool->reserved, fake.world->cards[pool->card].pool_step);
        result = pool->host ? CUDA_SUCCESS : take(pool->card, more);
        if (result == CUDA_SUCCESS)
            pool->reserved += more;
    }
    if (result == CUDA_SUCCESS) {
        pool->taken += bytes;
        pool->outstanding++;
        *pointer = address_new(&(struct allocation){.bytes = bytes, .pool = pool, .card = pool->card, .kind = POOLED});
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult pool_free(uint64_t address, struct allocation *allocation, bool now)
{
    struct memory_pool *pool = allocation->pool;
    pthread_mutex_lock(&lock);
    pool->taken -= allocation->bytes;
    if (!now)
        pool->pending += allocation->bytes;
    pool->outstanding--;
    address_free(address);
    buried(pool);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static unsigned card_of_device(int device)
{
    extern CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
    CUuuid uuid;
    cuDeviceGetUuid_v2(&uuid, device);
    for (unsigned card = 0; card < fake.world->card_count; card++)
        if (memcmp(uuid.bytes, fake.world->cards[card].uuid, 16) == 0)
            return card;
    return 0;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    ENTER();
    *pool = (CUmemoryPool)pool_default(card_of_device(device));
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    ENTER();
    pool_default(card_of_device(device));
    *pool = (CUmemoryPool)current[card_of_device(device)];
    return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    ENTER();
    current[card_of_device(device)] = (struct memory_pool *)pool;
    return CUDA_SUCCESS;
}

/* Managed memory is on the card of its preference, else on that of the current context. */
static struct memory_pool pool_at(const CUmemLocation *location, int type)
{
    bool domain = location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;
    if (domain || location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        return (struct memory_pool){.card = card_of_device(domain ? location->id & 0xff : location->id), .used = true};
    bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    return (struct memory_pool){.card = managed ? context_now()->card : 0, .host = !managed, .used = true};
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    ENTER();
    struct memory_pool wanted = pool_at(location, type);
    if (wanted.host)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct memory_pool *found = type == CU_MEM_ALLOCATION_TYPE_MANAGED ? &pools[WORLD_CARDS + wanted.card] : pool_default(wanted.card);
    if (!found->used)
        *found = wanted;
    *pool = (CUmemoryPool)found;
    return CUDA_SUCCESS;
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
    return cuMemGetDefaultMemPool(pool, location, type);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    ENTER();
    pthread_mutex_lock(&lock);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned at = 2 * WORLD_CARDS; at < POOLS && result != CUDA_SUCCESS; at++)
        if (!pools[at].used) {
            pools[at] = pool_at(&properties->location, properties->allocType);
            *pool = (CUmemoryPool)&pools[at];
            result = CUDA_SUCCESS;
        }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    ENTER();
    struct memory_pool *pool = (struct memory_pool *)handle;
    if (!pool->used || pool->destroyed || pool < &pools[2 * WORLD_CARDS])
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    pool->destroyed = true;
    for (unsigned card = 0; card < WORLD_CARDS; card++)
        if (current[card] == pool)
            current[card] = &pools[card];
    buried(pool);
    pthread_mutex_unlock(&lock);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    ENTER();
    pthread_mutex_lock(&lock);
    shrink((struct memory_pool *)handle, keep);
    pthread_mutex_unlock(&lock);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, int attribute, void *value)
{
    ENTER();
    const struct memory_pool *pool = (const struct memory_pool *)handle;
    if (!pool->used || pool->destroyed)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    *(uint64_t *)value = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? pool->reserved
                         : attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT   ? pool->taken + pool->pending
                                                                            : pool->threshold;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int attribute, void *value)
{
    ENTER();
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        ((struct memory_pool *)handle)->threshold = *(uint64_t *)value;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    ENTER();
    (void)flags;
    struct stream *made = calloc(1, sizeof *made);
    made->context = context_now();
    *stream = (CUstream)made;
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    ENTER();
    stream_ended((struct stream *)stream);
    free(stream);
    return CUDA_SUCCESS;
}

struct context *context_of(CUstream stream)
{
    return special(stream) ? context_now() : ((struct stream *)stream)->context;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    ENTER();
    *context = (CUcontext)context_of(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *context)
{
    return cuStreamGetCtx(stream, context);
}

CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    ENTER();
    *status = !special(stream) && ((struct stream *)stream)->capturing ? 1 : 0;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
    return cuStreamIsCapturing(stream, status);
}

CUresult cuStreamSynchronize(CUstream stream)
{
    ENTER();
    stream_wait(stream);
    pools_synchronise();
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return cuStreamSynchronize(stream);
}

struct node *node_new(struct graph *graph, int type)
{
    struct node *node = graph->count < NODES ? calloc(1, sizeof *node) : NULL;
    if (node) {
        node->type = type;
        node->owner = graph;
        graph->nodes[graph->count++] = node;
    }
    return node;
}

static int device_of_card(unsigned card)
{
    int device = 0;
    while (device < (int)fake.world->card_count && card_of_device(device) != card)
        device++;
    return device;
}

static CUresult allocation_node(struct graph *graph, unsigned card, uint64_t bytes, struct node **made, CUdeviceptr *pointer)
{
    struct node *node = node_new(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->bytes = bytes;
    node->card = card;
    node->pointer = address_new(&(struct allocation){.bytes = bytes, .card = card, .kind = NODE_ADDRESS});
    *pointer = node->pointer;
    if (made)
        *made = node;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    ENTER();
    struct context *context = context_of(stream);
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!special(stream) && ((struct stream *)stream)->capturing)
        return allocation_node(((struct stream *)stream)->capturing, context_now()->card, bytes, NULL, pointer);
    pool_default(context->card);
    LEAVE(pool_allocate(current[context->card], pointer, bytes));
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    return cuMemAllocAsync(pointer, bytes, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    ENTER();
    if (!special(stream) && ((struct stream *)stream)->capturing)
        return allocation_node(((struct stream *)stream)->capturing, context_now()->card, bytes, NULL, pointer);
    LEAVE(pool_allocate((struct memory_pool *)pool, pointer, bytes));
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return cuMemAllocFromPoolAsync(pointer, bytes, pool, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    ENTER();
    struct allocation *allocation = allocation_at(pointer);
    if (!allocation)
        return CUDA_ERROR_INVALID_VALUE;
    if (allocation->kind == NODE_ADDRESS && !special(stream) && ((struct stream *)stream)->capturing) {
        struct node *node = node_new(((struct stream *)stream)->capturing, CU_GRAPH_NODE_TYPE_MEM_FREE);
        node->bytes = allocation->bytes;
        node->pointer = pointer;
        return CUDA_SUCCESS;
    }
    if (allocation->kind == NODE_ADDRESS) {
        graph_free(pointer, allocation);
        return CUDA_SUCCESS;
    }
    if (allocation->kind != POOLED)
        return CUDA_ERROR_INVALID_VALUE;
    LEAVE(pool_free(pointer, allocation, false));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    return cuMemFreeAsync(pointer, stream);
}

CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
    ENTER();
    (void)flags;
    *graph = calloc(1, sizeof(struct graph));
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph handle)
{
    ENTER();
    struct graph *graph = (struct graph *)handle;
    for (size_t at = 0; at < graph->count; at++)
        free(graph->nodes[at]);
    free(graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after_nodes, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    ENTER();
    (void)after_nodes;
    (void)count;
    const CUmemLocation *location = &parameters->poolProps.location;
    unsigned card = location->type == CU_MEM_LOCATION_TYPE_DEVICE ? card_of_device(location->id) : context_now()->card;
    return allocation_node((struct graph *)graph, card, parameters->bytesize, (struct node **)node, &parameters->dptr);
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after_nodes, size_t count, CUdeviceptr pointer)
{
    ENTER();
    (void)after_nodes;
    (void)count;
    struct node *made = node_new((struct graph *)graph, CU_GRAPH_NODE_TYPE_MEM_FREE);
    struct allocation *allocation = allocation_at(pointer);
    if (!made || !allocation)
        return CUDA_ERROR_INVALID_VALUE;
    made->pointer = pointer;
    made->bytes = allocation->bytes;
    *node = (CUgraphNode)made;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after_nodes, size_t count, CUgraph child)
{
    ENTER();
    (void)after_nodes;
    (void)count;
    struct node *made = node_new((struct graph *)graph, CU_GRAPH_NODE_TYPE_GRAPH);
    made->child = (struct graph *)child;
    *node = (CUgraphNode)made;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
    ENTER();
    struct graph *graph = (struct graph *)handle;
    if (nodes)
        for (size_t at = 0; at < graph->count && at < *count; at++)
            nodes[at] = (CUgraphNode)graph->nodes[at];
    *count = graph->count;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
    ENTER();
    *type = ((struct node *)node)->type;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    ENTER();
    memset(parameters, 0, sizeof *parameters);
    parameters->bytesize = ((struct node *)node)->bytes;
    parameters->dptr = ((struct node *)node)->pointer;
    parameters->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    parameters->poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device_of_card(((struct node *)node)->card)};
    return CUDA_SUCCESS;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
    ENTER();
    *graph = (CUgraph)((struct node *)node)->child;
    return CUDA_SUCCESS;
}

static void weigh(const struct graph *graph, struct executable *executable)
{
    for (size_t at = 0; at < graph->count; at++) {
        const struct node *node = graph->nodes[at];
        uint64_t bytes = rounded_up(node->bytes, 2 << 20);
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
            executable->bytes += bytes;
            executable->card = node->card; /* all on one, whichever that is */
        }
        executable->freed += node->type == CU_GRAPH_NODE_TYPE_MEM_FREE ? bytes : 0;
        if (node->child)
            weigh(node->child, executable);
    }
}

static size_t count_work(const struct graph *graph)
{
    size_t count = 0;
    for (size_t at = 0; at < graph->count; at++)
        count += (graph->nodes[at]->work.left != 0) + (graph->nodes[at]->child ? count_work(graph->nodes[at]->child) : 0);
    return count;
}

static void list_work(const struct graph *graph, struct executable *executable)
{
    for (size_t at = 0; at < graph->count; at++) {
        if (graph->nodes[at]->work.left)
            executable->work[executable->count++] = graph->nodes[at]->work;
        if (graph->nodes[at]->child)
            list_work(graph->nodes[at]->child, executable);
    }
}

static bool resident(const struct executable *executable)
{
    return executable->pool == fake.graph_pools[executable->card] + 1;
}

static CUresult load(struct executable *executable)
{
    unsigned card = executable->card;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (resident(executable) || !executable->bytes) {
        pthread_mutex_unlock(&lock);
        return CUDA_SUCCESS;
    }
    uint64_t needed = fake.graph_used[card] + executable->bytes;
    if (needed > fake.graph_reserved[card]) {
        result = take(card, needed - fake.graph_reserved[card]);
        if (result == CUDA_SUCCESS)
            fake.graph_reserved[card] = needed;
    }
    if (result == CUDA_SUCCESS) {
        fake.graph_used[card] = needed;
        executable->pool = fake.graph_pools[card] + 1;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *handle, CUgraph graph, unsigned long long flags)
{
    ENTER();
    struct executable *executable = calloc(1, sizeof *executable + count_work((struct graph *)graph) * sizeof executable->work[0]);
    executable->card = context_now()->card;
    list_work((struct graph *)graph, executable);
    weigh((struct graph *)graph, executable);
    *handle = (CUgraphExec)executable;
    return flags & 2 ? load(executable) : CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *handle, CUgraph graph, void *parameters)
{
    return cuGraphInstantiateWithFlags(handle, graph, *(unsigned long long *)parameters);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *handle, CUgraph graph, CUgraphNode *error, char *log, size_t bytes)
{
    (void)error;
    (void)log;
    (void)bytes;
    return cuGraphInstantiateWithFlags(handle, graph, 0);
}

static void unload(struct executable *executable, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    if (resident(executable))
        fake.graph_used[executable->card] -= bytes;
    executable->pool = 0;
    pthread_mutex_unlock(&lock);
}

/* All of a card's graph memory goes with its primary context. */
void graph_pool_ended(unsigned card)
{
    pthread_mutex_lock(&lock);
    give(card, fake.graph_reserved[card]);
    fake.graph_reserved[card] = fake.graph_used[card] = 0;
    fake.graph_pools[card]++;
    pthread_mutex_unlock(&lock);
}

CUresult cuGraphExecDestroy(CUgraphExec handle)
{
    ENTER();
    struct executable *executable = (struct executable *)handle;
    unload(executable, executable->bytes);
    free(executable);
    return CUDA_SUCCESS;
}

/* A graph that frees what it allocates has nothing left when it is done; the graph pool keeps it all the same. */
CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream)
{
    ENTER();
    struct executable *executable = (struct executable *)handle;
    CUresult result = load(executable);
    if (result == CUDA_SUCCESS && executable->count)
        result = stream_does(stream, context_now()->card, executable->work, executable->count);
    if (result == CUDA_SUCCESS && executable->freed >= executable->bytes)
        unload(executable, executable->bytes);
    LEAVE(result);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec handle, CUstream stream)
{
    return cuGraphLaunch(handle, stream);
}

CUresult cuGraphUpload(CUgraphExec handle, CUstream stream)
{
    ENTER();
    (void)stream;
    LEAVE(load((struct executable *)handle));
}

/* Freed outside its graph; the graph's own books are simpler than the real ones and do not mind. */
void graph_free(uint64_t address, struct allocation *allocation)
{
    (void)address;
    (void)allocation;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
    ENTER();
    unsigned card = card_of_device(device);
    pthread_mutex_lock(&lock);
    *(uint64_t *)value = attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? fake.graph_reserved[card] : fake.graph_used[card];
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    ENTER();
    unsigned card = card_of_device(device);
    pthread_mutex_lock(&lock);
    give(card, fake.graph_reserved[card] - fake.graph_used[card]);
    fake.graph_reserved[card] = fake.graph_used[card];
    pthread_mutex_unlock(&lock);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    ENTER();
    struct stream *begun = (struct stream *)stream;
    begun->capturing = calloc(1, sizeof(struct graph));
    begun->mode = mode;
    begun->spoilt = false;
    capture_began(begun);
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    ENTER();
    struct stream *ended = (struct stream *)stream;
    *graph = (CUgraph)ended->capturing;
    ended->capturing = NULL;
    capture_ended(ended);
    return ended->spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}
