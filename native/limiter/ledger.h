/* How many bytes a process may still take: the decision, without a lock. See ledger.c for the story. */
#ifndef KOORDRA_LEDGER_H
#define KOORDRA_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "region.h"

enum { SHARES_MAX = 4 };

/* One claim's share of one card. */
struct share {
    struct region *region;
    unsigned index; /* of the device in the region */
};

/* All that this process may use of one card: two claims of one container may hold shares of the same one. */
struct allowance {
    unsigned share_count;
    struct share shares[SHARES_MAX];
};

/* Takes `bytes` before the driver is asked for them; false: over the limit, and nothing is taken. */
bool ledger_reserve(const struct allowance *allowance, uint64_t bytes, enum kind kind);

/* Takes `bytes` that are in use already, whatever the limit. */
void ledger_charge(const struct allowance *allowance, uint64_t bytes, enum kind kind);

void ledger_release(const struct allowance *allowance, uint64_t bytes, enum kind kind);

/* The policy as it is now is what this process acts by from here on: told, for the node to see. */
void ledger_acknowledge(const struct share *share);

/* Limit and use of the whole claim (or claims); UNLIMITED where any share is. */
uint64_t ledger_limit(const struct allowance *allowance);
uint64_t ledger_used(const struct allowance *allowance);

/* What all processes of the claim hold of one device, and what the node sees beyond it. */
uint64_t region_used(const struct region *region, unsigned index);

#endif
