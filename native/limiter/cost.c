/* Costs are measured, never guessed from the size of a grid: one block may take a microsecond or an hour.
 *
 * Alone on the card, what is measured is what it takes, and the figure follows by a quarter of the difference. Where others may
 * have had their turns in between, a measurement is the launch and their turns; so it follows downwards at once by half of the
 * difference, and upwards slowly: a 16th, of no more than the figure itself. What remains of the error is the node's to correct
 * (pace.c).
 *
 * A table without a lock: an entry is found by its key within a few places, and may be lost to another key; then it is measured
 * again. Two threads that learn at once may lose one of the two measurements. */
#include "cost.h"

#include <stddef.h>

enum { PLACES = 8 };

static uint64_t mixed(uint64_t value)
{
    value ^= value >> 32;
    value *= UINT64_C(0x9e3779b97f4a7c15);
    value ^= value >> 29;
    return value;
}

uint64_t cost_key(const void *function, uint64_t blocks, uint64_t threads)
{
    uint64_t key = mixed((uint64_t)(uintptr_t)function + blocks * UINT64_C(0xd6e8feb86659fd93) + (threads << 40));
    return key ? key : 1;
}

static struct cost *place(struct costs *costs, uint64_t key, bool make)
{
    struct cost *first = NULL;
    for (unsigned at = 0; at < PLACES; at++) {
        struct cost *cost = &costs->entries[(key + at) % COSTS_MAX];
        uint64_t found = atomic_load_explicit(&cost->key, memory_order_acquire);
        if (found == key)
            return cost;
        if (found == 0) {
            first = cost;
            break;
        }
    }
    if (!make)
        return NULL;
    if (!first)
        first = &costs->entries[key % COSTS_MAX];
    atomic_store(&first->ns, 0);
    atomic_store_explicit(&first->key, key, memory_order_release);
    return first;
}

uint32_t cost_known(struct costs *costs, uint64_t key)
{
    const struct cost *cost = place(costs, key, false);
    return cost ? atomic_load_explicit(&cost->ns, memory_order_relaxed) : 0;
}

void cost_learn(struct costs *costs, uint64_t key, uint64_t measured, bool shared)
{
    struct cost *cost = place(costs, key, true);
    uint32_t known = atomic_load(&cost->ns), ns = measured < UINT32_MAX ? (uint32_t)measured : UINT32_MAX;
    ns = ns ? ns : 1;
    uint32_t next = ns;
    if (known && ns < known)
        next = known - (known - ns) / (shared ? 2 : 4);
    else if (known && shared)
        next = known + (ns - known < known ? ns - known : known) / 16;
    else if (known)
        next = known + (ns - known) / 4;
    atomic_store(&cost->ns, next ? next : 1);
}

void cost_forget(struct costs *costs, uint64_t key)
{
    struct cost *cost = place(costs, key, false);
    if (cost)
        atomic_store(&cost->ns, 0);
}
