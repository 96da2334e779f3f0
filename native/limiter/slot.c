/* Taking a slot.
 *
 * A zero bit of the bitmap is set, the slot is seized, owned, and the identity is written: a fixed number of steps, whatever the
 * number of processes. Killed in between, the slot is found without an owner and without a pid, and is given back (reap.c). */
#include "slot.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "defect.h"
#include "process_stat.h"
#include "slot_lock.h"

enum { ATTEMPTS = 64 };

void slot_clear(struct usage *usage, unsigned number)
{
    struct slot *slot = &usage->slots[number];
    for (unsigned device = 0; device < DEVICES_MAX; device++) {
        atomic_store(&usage->accounts[device][number].pending, 0);
        atomic_store(&usage->accounts[device][number].held, 0);
        for (unsigned kind = 0; kind < KINDS; kind++)
            atomic_store(&slot->kinds[device][kind], 0);
    }
    for (unsigned entry = 0; entry < EXPORTS_MAX; entry++)
        if (atomic_load(&usage->exports[entry].slot) == number + 1) {
            atomic_store(&usage->exports[entry].key, 0);
            atomic_store(&usage->exports[entry].slot, 0);
        }
    uint64_t generation = atomic_load(&slot->generation);
    if (generation & 1)
        atomic_store(&slot->generation, generation + 1);
    atomic_store(&slot->state, SLOT_FREE);
    atomic_store(&slot->host_pid, 0);
    atomic_store(&slot->acknowledged, 0);
    atomic_store(&slot->seen_unlocked, 0);
    atomic_store(&slot->pid, 0);
}

/* A slot whose bit was zero and is set now; SLOTS_MAX where all are taken. Looks at each word of the bitmap once, and tries each
 * bit at most once, whatever others do. */
static unsigned take_bit(struct region *region)
{
    for (unsigned number = 0; number < BITMAP_WORDS; number++) {
        _Atomic uint64_t *word = &region->usage->bitmap[number];
        uint64_t taken = atomic_load(word);
        region->looks++;
        while (~taken) {
            uint64_t bit = ~taken & (taken + 1);
            uint64_t before = atomic_fetch_or(word, bit);
            if (!(before & bit))
                return number * 64 + (unsigned)__builtin_ctzll(bit);
            taken |= before;
        }
    }
    return SLOTS_MAX;
}

static void write_identity(struct slot *slot)
{
    struct process_stat stat = {0};
    unsigned pid = (unsigned)getpid();
    process_stat(pid, &stat);
    int file = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
    char name[sizeof slot->name] = "";
    if (file >= 0) {
        ssize_t length = read(file, name, sizeof name - 1);
        name[length > 0 ? length : 0] = 0;
        name[strcspn(name, "\n")] = 0;
        close(file);
    }
    memcpy(slot->name, name, sizeof name);
    atomic_store(&slot->start_time, stat.start_time);
    atomic_store(&slot->pid_namespace, own_pid_namespace());
    atomic_store(&slot->seen_unlocked, 0);
    atomic_store(&slot->pid, pid);
    atomic_fetch_add(&slot->generation, 1);
    atomic_store(&slot->state, SLOT_LOADED);
}

/* Seizes the slot and owns it; false: somebody else has it, or the lock cannot be had. */
static bool take_slot(struct region *region, int work, unsigned number)
{
    if (!slot_seize(work, number))
        return false; /* it is being given back this very moment: the bit stays, and goes with the next reaping */
    int owners = slot_owners(region, number);
    /* One with an owner had lost its bit: only who writes over the file can do that. It has it again now. */
    if (!slot_owned(owners, number))
        region->lock = slot_own(work, owners, number);
    slot_owners_end(owners);
    if (!region->lock) {
        slot_release(work, number);
        return false;
    }
    /* A reaper may have taken the bit back before the slot was ours. */
    atomic_fetch_or(&region->usage->bitmap[number / 64], UINT64_C(1) << (number % 64));
    slot_clear(region->usage, number);
    write_identity(&region->usage->slots[number]);
    region->slot = number;
    return true;
}

bool slot_take(struct region *region, int work)
{
    for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
        unsigned number = take_bit(region);
        if (number != SLOTS_MAX && take_slot(region, work, number))
            return true;
        if (number == SLOTS_MAX && slot_reap_all(region, work) == 0)
            return false;
    }
    return false;
}
