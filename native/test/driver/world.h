/* The machine that the fake driver pretends to drive: one file, shared by all its processes, and the referee of the tests.
 *
 * It knows how many bytes of each card are truly in use at every instant: an allocation adds to the total under the world's lock
 * and compares with the watched limit then and there. A process's memory is its own as long as its "device file" is open: an
 * ordinary descriptor with a lock on it, which the kernel closes some time after the process's memory is gone, as the real
 * driver's are. Tests map the file too: to describe the machine, to inject faults, to read the truth. */
#ifndef KOORDRA_FAKE_WORLD_H
#define KOORDRA_FAKE_WORLD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { WORLD_CARDS = 16, WORLD_PROCESSES = 1024, WORLD_SHARED = 256, FAULTS_MAX = 4 };

struct fault {
    char function[40]; /* "" : none */
    int32_t result;    /* what it answers; 0 with `kill`: the process is killed */
    int32_t countdown; /* calls to let through first */
    uint8_t kill;      /* 1: before the driver acts, 2: after */
    uint8_t reserved[3];
    uint32_t delay_us;
};

struct world_card {
    uint8_t uuid[16];
    uint64_t total;
    uint64_t context_bytes, module_bytes; /* cost of a context; of a module */
    uint64_t watched;                     /* the total may never exceed this; 0: not watched */
    uint64_t peak;
    uint32_t integrated, deferred_arrays;
    uint64_t pool_step;
};

struct world_process {
    uint32_t pid, used;
    uint64_t bytes[WORLD_CARDS];
};

/* Memory with more than one owner. */
struct world_shared {
    uint32_t used, card;
    uint64_t bytes;
    uint64_t holders[WORLD_PROCESSES / 64];
};

struct world {
    pthread_mutex_t lock; /* robust */
    uint32_t card_count;
    int32_t driver_version;
    uint32_t hidden_addresses; /* cuGetProcAddress gives addresses that are not exported */
    uint32_t process_top; /* processes from here on have never been */
    _Atomic uint64_t violations, operations;
    struct world_card cards[WORLD_CARDS];
    struct fault faults[FAULTS_MAX];
    struct world_shared shared[WORLD_SHARED];
    struct world_process processes[WORLD_PROCESSES];
};

/* Makes the file <folder>/world: `cards` cards of `bytes` each. */
struct world *world_make(const char *folder, unsigned cards, uint64_t bytes);

struct world *world_open(const char *folder);

/* Bytes of a card in use by the living, as of now. Takes the memory of the dead away. */
uint64_t world_truth(struct world *world, const char *folder, unsigned card);

void world_lock(struct world *world);
void world_unlock(struct world *world);

/* Everything of dead processes goes; the world is locked. `file` is an open world file, `self` who holds its lock, if anybody. */
void world_bury(struct world *world, int file, unsigned self);

#endif
