/* What a launch takes of the card's time, as far as it was measured: by function and size of its grid, or by graph. */
#ifndef KOORDRA_COST_H
#define KOORDRA_COST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { COSTS_MAX = 8192 };

struct cost {
    _Atomic uint64_t key; /* 0: free */
    _Atomic uint32_t ns;  /* 0: not known yet */
    uint32_t reserved;
};

/* All zero bytes know nothing. */
struct costs {
    struct cost entries[COSTS_MAX];
};

/* A key is never 0. */
uint64_t cost_key(const void *function, uint64_t blocks, uint64_t threads);

/* 0: not known. */
uint32_t cost_known(struct costs *costs, uint64_t key);

/* A launch took `ns`. `shared`: others may have had the card in between, so it may have taken less. */
void cost_learn(struct costs *costs, uint64_t key, uint64_t ns, bool shared);

/* What the key stood for is gone, and its number is given out again. */
void cost_forget(struct costs *costs, uint64_t key);

#endif
