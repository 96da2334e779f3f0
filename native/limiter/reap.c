/* Giving back what the dead have left.
 *
 * Dead is who has no lock. The lock goes with the process's memory; the driver's own descriptors close shortly after, and only
 * then is the GPU memory free. So a slot is given back when its process is certainly gone (same pid namespace: no such pid, or
 * nothing of it left but a zombie), or when it was seen without an owner for GRACE (another namespace, or an exec). One that is
 * still ending (no memory, and no zombie yet) keeps its slot, however long the driver takes over it. The reaper has seized the
 * slot meanwhile, and can itself be killed at any point: the next one does the rest; while it is stopped there, that one slot
 * waits. */
#include <errno.h>
#include <signal.h>
#include <time.h>

#include "defect.h"
#include "process_stat.h"
#include "slot.h"
#include "slot_lock.h"

#define GRACE UINT64_C(200000000) /* ns */

static uint64_t now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * UINT64_C(1000000000) + (uint64_t)at.tv_nsec;
}

enum remains { GONE, ENDING, NOT_KNOWN };

/* What is left of the slot's process, as far as /proc tells; only asked about processes of our own namespace. */
static enum remains remains_of(const struct slot *slot)
{
    unsigned pid = atomic_load(&slot->pid);
    uint64_t space = atomic_load(&slot->pid_namespace);
    if (pid == 0)
        return GONE; /* killed while it attached, or half reaped */
    if (DEFECT(pid_of_another_namespace) && space != own_pid_namespace())
        return kill((pid_t)pid, 0) == 0 ? ENDING : GONE;
    if (space == 0 || space != own_pid_namespace())
        return NOT_KNOWN;
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH)
        return GONE;
    struct process_stat stat = {0};
    if (!process_stat(pid, &stat))
        return NOT_KNOWN;
    if (((stat.state == 'Z' || stat.state == 'X') && stat.threads <= 1) || stat.start_time != atomic_load(&slot->start_time))
        return GONE;
    return stat.memory ? NOT_KNOWN : ENDING;
}

#ifdef KOORDRA_DEFECTS
/* Moves the last slot into the hole, as if nobody knew where it was. */
static void compact(struct usage *usage, unsigned hole)
{
    unsigned last = SLOTS_MAX - 1;
    while (last > hole && !(atomic_load(&usage->slots[last].generation) & 1))
        last--;
    for (unsigned device = 0; device < DEVICES_MAX && last > hole && DEFECT(slots_compacted); device++) {
        atomic_store(&usage->accounts[device][hole].held, atomic_load(&usage->accounts[device][last].held));
        atomic_store(&usage->accounts[device][last].held, 0);
    }
}
#else
#define compact(usage, hole) ((void)0)
#endif

static bool gone_for_good(struct slot *slot)
{
    enum remains remains = remains_of(slot);
    if (remains != NOT_KNOWN)
        return remains == GONE;
    uint64_t seen = atomic_load(&slot->seen_unlocked), at = now();
    if (seen == 0)
        atomic_store(&slot->seen_unlocked, at);
    return seen != 0 && at - seen >= GRACE;
}

/* `owners` is the file of the slot's owners. */
static bool reap_slot(const struct region *region, int work, int owners, unsigned number)
{
    if (slot_owned(owners, number) || !slot_seize(work, number))
        return false; /* its owner lives, or somebody is at work on it */
    /* Asked again: it may have been taken in between. */
    struct usage *usage = region->usage;
    bool dead = !slot_owned(owners, number) && gone_for_good(&usage->slots[number]);
    if (dead) {
        slot_clear(usage, number);
        compact(usage, number);
        atomic_fetch_add(&usage->reaped, 1);
        atomic_fetch_and(&usage->bitmap[number / 64], ~(UINT64_C(1) << (number % 64)));
    }
    slot_release(work, number);
    return dead;
}

static bool taken(const struct region *region, unsigned number)
{
    return atomic_load(&region->usage->bitmap[number / 64]) >> (number % 64) & 1;
}

unsigned slot_reap_all(const struct region *region, int work)
{
    unsigned reaped = 0;
    if (DEFECT(dead_owner_keeps))
        return 0;
    for (unsigned file = 0; file < ALIVE_FILES; file++) {
        int owners = slot_owners(region, file);
        for (unsigned number = file; number < SLOTS_MAX; number += ALIVE_FILES)
            if (number != region->slot && taken(region, number))
                reaped += reap_slot(region, work, owners, number);
        slot_owners_end(owners);
    }
    return reaped;
}

static unsigned reap_once(const struct region *region)
{
    int work = slot_work_begin(region);
    if (work < 0)
        return 0;
    unsigned reaped = slot_reap_all(region, work);
    slot_work_end(work);
    return reaped;
}

/* How long until all that were seen without an owner may be given back: of a container that has ended, and was restarted in a
 * namespace of its own. Each is waited for once; no longer than GRACE, whatever a tenant has written there. */
static uint64_t grace_left(const struct region *region)
{
    uint64_t at = now(), longest = 0;
    for (unsigned number = 0; number < SLOTS_MAX; number++) {
        uint64_t seen = number != region->slot && taken(region, number) ? atomic_load(&region->usage->slots[number].seen_unlocked) : 0;
        if (seen != 0 && seen <= at && at - seen < GRACE && GRACE - (at - seen) > longest)
            longest = GRACE - (at - seen);
    }
    return longest;
}

/* Called where an allocation would be refused: before that the dead are waited for. */
unsigned region_reap(const struct region *region)
{
    unsigned reaped = reap_once(region);
    uint64_t left = reaped ? 0 : grace_left(region);
    if (!left)
        return reaped;
    struct timespec rest = {.tv_nsec = (long)left};
    while (nanosleep(&rest, &rest) != 0 && errno == EINTR)
        ;
    return reap_once(region);
}

void slot_reap_some(struct region *region, int work)
{
    unsigned start = (unsigned)atomic_load(&region->usage->enforcing) % SLOTS_MAX, tried = 0;
    uint64_t below = (UINT64_C(1) << (start % 64)) - 1;
    for (unsigned step = 0; step <= BITMAP_WORDS && tried < 2; step++) {
        unsigned word = (start / 64 + step) % BITMAP_WORDS;
        uint64_t bits = atomic_load(&region->usage->bitmap[word]);
        region->looks++;
        if (step == 0)
            bits &= ~below;
        else if (step == BITMAP_WORDS) /* around: the rest of the first word */
            bits &= below;
        for (; bits && tried < 2; bits &= bits - 1) {
            unsigned number = word * 64 + (unsigned)__builtin_ctzll(bits);
            if (number == region->slot)
                continue;
            int owners = slot_owners(region, number);
            reap_slot(region, work, owners, number);
            slot_owners_end(owners);
            tried++;
        }
    }
}
