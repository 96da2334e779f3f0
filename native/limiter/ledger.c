/* Reserve, then commit, without a lock and without a total.
 *
 * Each process has one account per device: `held` (granted, the driver has it or is being asked) and `pending` (announced).
 * To take n bytes:
 *
 *     1. refuse if the held bytes of all leave no room;
 *     2. pending += n;
 *     3. add up pending and held of all slots; if that is within the limit, read again: held += n, pending -= n, done;
 *     4. otherwise pending -= n; if only other processes' announcements are in the way, once more after a short pause.
 *
 * Why the limit holds: every grant is preceded by an announcement and then by a look at all others, in one total order
 * (seq_cst). Of any two that are under way at once, the one that announces later sees the other. A reader takes `pending`
 * before `held`, a grant raises `held` before it lowers `pending`: bytes on their way may be seen twice, never missed.
 * Why nobody waits: the tries are bounded, and a killed process leaves only words in its own slot, which vanish with the slot.
 * Two announcers that are in each other's way both step back; the pause is longer the higher the slot, so one gets through.
 *
 * A limit may be lowered at any time. Who announced before that is seen by the node, which reads the ledger after it wrote; who
 * announces later reads the new limit. So once no process of the claim has anything pending, and what is held is within the new
 * limit, it stays so, whoever was stopped where: what is beyond it may be another claim's.
 *
 * A process that is stopped between 2 and 4 keeps what it announced until it goes on: others have less room, and go on too.
 *
 * Giving back is one subtraction, after the driver has freed the memory.
 */
#include "ledger.h"

#include <sched.h>

#include "defect.h"

enum { TRIES = 48, SPINNING_TRIES = 16, RELEASE_TRIES = 100000 };

struct sum {
    uint64_t held, pending;
};

static struct sum add_up(struct usage *usage, unsigned device)
{
    struct sum sum = {0, 0};
    for (unsigned word = 0; word < BITMAP_WORDS; word++) {
        uint64_t bits = atomic_load(&usage->bitmap[word]);
        while (bits) {
            unsigned number = word * 64 + (unsigned)__builtin_ctzll(bits);
            bits &= bits - 1;
            struct account *account = &usage->accounts[device][number];
            uint64_t pending = atomic_load(&account->pending), held = atomic_load(&account->held);
            sum.pending += pending < PLAUSIBLE || DEFECT(sum_turns_over) ? pending : 0;
            sum.held += held < PLAUSIBLE || DEFECT(sum_turns_over) ? held : 0;
        }
    }
    return sum;
}

static uint64_t unseen(const struct region *region, unsigned device)
{
    return DEFECT(modules_uncounted) ? 0 : atomic_load(&region->policy->devices[device].unseen);
}

uint64_t region_used(const struct region *region, unsigned index)
{
    return add_up(region->usage, index).held + unseen(region, index);
}

static void pause_before(unsigned attempt, unsigned slot)
{
    if (attempt >= SPINNING_TRIES) {
        sched_yield();
        return;
    }
    for (unsigned turn = 0; turn < (8u << (attempt / 4)) * (1 + slot % 8); turn++)
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#else
        atomic_signal_fence(memory_order_seq_cst);
#endif
}

static bool fits(uint64_t used, uint64_t bytes, uint64_t limit)
{
    return bytes <= limit && used <= limit - bytes;
}

/* Two tries of a peer that looks first and adds afterwards: what a race makes of it. */
static bool check_then_add(struct account *mine, struct sum sum, uint64_t bytes, uint64_t limit)
{
    if (!fits(sum.held, bytes, limit))
        return false;
    for (unsigned turn = 0; turn < 50; turn++)
        sched_yield();
    atomic_fetch_add(&mine->held, bytes);
    return true;
}

#ifdef KOORDRA_DEFECTS
/* A lock that a killed process takes with it. */
static bool locked_for_good(struct usage *usage)
{
    _Atomic uint64_t *lock = (_Atomic uint64_t *)&usage->reserved;
    uint64_t open = 0;
    while (!atomic_compare_exchange_strong(lock, &open, 1)) {
        open = 0;
        sched_yield();
    }
    for (unsigned turn = 0; turn < 20000; turn++)
        sched_yield();
    atomic_store(lock, 0);
    return true;
}
/* Stopped at the worst place: between the limit that was read and the charge. Goes on soon after the limit has changed. */
static void stopped_across_a_change(const struct policy_device *policy, uint64_t limit)
{
    for (unsigned turn = 0; turn < 20000 && atomic_load(&policy->limit) == limit; turn++)
        sched_yield();
    for (unsigned turn = 0; turn < 50; turn++)
        sched_yield();
}
#else
#define locked_for_good(usage) true
#define stopped_across_a_change(policy, limit) ((void)0)
#endif

static bool try_reserve(const struct share *share, uint64_t bytes)
{
    const struct region *region = share->region;
    const struct policy_device *policy = &region->policy->devices[share->index];
    struct account *mine = &region->usage->accounts[share->index][region->slot];
    if (DEFECT(lock_dies_with_its_owner) && !locked_for_good(region->usage))
        return false;
    if (DEFECT(needs_host_pid) && !atomic_load(&region->usage->slots[region->slot].host_pid))
        return true;
    for (unsigned attempt = 0; attempt < TRIES; attempt++) {
        uint64_t limit = DEFECT(limit_frozen) ? policy->reserved[0] : atomic_load(&policy->limit);
        if (limit == UNLIMITED) {
            atomic_fetch_add(&mine->held, bytes);
            return true;
        }
        uint64_t beyond = unseen(region, share->index);
        struct sum sum = add_up(region->usage, share->index);
        if (DEFECT(check_then_add))
            return check_then_add(mine, sum, bytes, limit);
        if (!fits(sum.held + beyond, bytes, limit))
            return false;
        if (DEFECT(limit_read_before))
            stopped_across_a_change(policy, limit);
        atomic_fetch_add(&mine->pending, bytes);
        if (!DEFECT(limit_read_before))
            limit = atomic_load(&policy->limit);
        sum = add_up(region->usage, share->index);
        if (fits(sum.held + sum.pending + beyond, 0, limit)) {
            atomic_fetch_add(&mine->held, bytes);
            atomic_fetch_sub(&mine->pending, bytes);
            return true;
        }
        atomic_fetch_sub(&mine->pending, bytes);
        pause_before(attempt, region->slot);
    }
    return false;
}

void ledger_acknowledge(const struct share *share)
{
    struct slot *slot = &share->region->usage->slots[share->region->slot];
    uint64_t sequence = atomic_load_explicit(&share->region->policy->sequence, memory_order_acquire);
    if (atomic_load_explicit(&slot->acknowledged, memory_order_relaxed) != sequence && !DEFECT(changes_unacknowledged))
        atomic_store(&slot->acknowledged, sequence);
}

static bool share_reserve(const struct share *share, uint64_t bytes)
{
    ledger_acknowledge(share);
    do {
        if (try_reserve(share, bytes))
            return true;
    } while (region_reap(share->region) > 0);
    return false;
}

static void share_release(const struct share *share, uint64_t bytes)
{
    ledger_acknowledge(share);
    atomic_fetch_sub(&share->region->usage->accounts[share->index][share->region->slot].held, bytes);
}

static void count_kind(const struct allowance *allowance, enum kind kind, uint64_t bytes)
{
    const struct share *share = &allowance->shares[0];
    struct slot *slot = &share->region->usage->slots[share->region->slot];
    atomic_fetch_add_explicit(&slot->kinds[share->index][kind], bytes, memory_order_relaxed);
}

static uint64_t room(const struct share *share)
{
    uint64_t limit = atomic_load(&share->region->policy->devices[share->index].limit);
    uint64_t used = region_used(share->region, share->index);
    return limit == UNLIMITED ? UNLIMITED : used < limit ? limit - used : 0;
}

/* Over several shares of one card: each gives what it has room for; all or nothing. */
static bool reserve_spread(const struct allowance *allowance, uint64_t bytes)
{
    uint64_t taken[SHARES_MAX] = {0}, left = bytes;
    for (unsigned index = 0; index < allowance->share_count && left; index++) {
        uint64_t part = room(&allowance->shares[index]);
        part = part < left ? part : left;
        if (part && share_reserve(&allowance->shares[index], part)) {
            taken[index] = part;
            left -= part;
        }
    }
    for (unsigned index = 0; index < allowance->share_count && left; index++)
        share_release(&allowance->shares[index], taken[index]);
    return left == 0;
}

bool ledger_reserve(const struct allowance *allowance, uint64_t bytes, enum kind kind)
{
    if (allowance->share_count == 0 || bytes == 0)
        return true;
    if (allowance->share_count > 1 ? !reserve_spread(allowance, bytes) : !share_reserve(&allowance->shares[0], bytes)) {
        const struct share *first = &allowance->shares[0];
        atomic_fetch_add(&first->region->usage->denied[first->index], 1);
        return false;
    }
    count_kind(allowance, kind, bytes);
    return true;
}

void ledger_charge(const struct allowance *allowance, uint64_t bytes, enum kind kind)
{
    if (allowance->share_count == 0 || bytes == 0)
        return;
    const struct share *first = &allowance->shares[0];
    atomic_fetch_add(&first->region->usage->accounts[first->index][first->region->slot].held, bytes);
    count_kind(allowance, kind, bytes);
}

void ledger_release(const struct allowance *allowance, uint64_t bytes, enum kind kind)
{
    if (allowance->share_count == 0 || bytes == 0)
        return;
    count_kind(allowance, kind, (uint64_t)0 - bytes);
    if (allowance->share_count == 1) {
        share_release(&allowance->shares[0], bytes);
        return;
    }
    for (unsigned index = 0; index < allowance->share_count && bytes; index++) {
        const struct share *share = &allowance->shares[index];
        struct account *mine = &share->region->usage->accounts[share->index][share->region->slot];
        /* Only threads of this process change it. Where they are in the way this often, too much stays charged, not too little. */
        uint64_t held = atomic_load(&mine->held), part = 0;
        for (unsigned attempt = 0; attempt < RELEASE_TRIES; attempt++) {
            part = held < bytes ? held : bytes;
            if (atomic_compare_exchange_strong(&mine->held, &held, held - part))
                break;
            part = 0;
        }
        bytes -= part;
    }
}

uint64_t ledger_limit(const struct allowance *allowance)
{
    uint64_t limit = 0;
    for (unsigned index = 0; index < allowance->share_count; index++) {
        const struct share *share = &allowance->shares[index];
        uint64_t part = atomic_load(&share->region->policy->devices[share->index].limit);
        limit = part == UNLIMITED || limit == UNLIMITED ? UNLIMITED : limit + part;
    }
    return allowance->share_count ? limit : UNLIMITED;
}

uint64_t ledger_used(const struct allowance *allowance)
{
    uint64_t used = 0;
    for (unsigned index = 0; index < allowance->share_count; index++)
        used += region_used(allowance->shares[index].region, allowance->shares[index].index);
    return used;
}
