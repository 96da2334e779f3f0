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
enum { WORLD_CLOCKS = 64, WORLD_STREAMS = 128, WORLD_WORK = 1024, WORLD_EVENTS = 8192, WORLD_SAMPLES = 512 };

#define SAMPLE_NS UINT64_C(166666667) /* how often NVML looks at what processes do */

struct fault {
    char function[40]; /* "" : none */
    int32_t result;    /* what it answers; 0 with `kill`: the process is killed */
    int32_t countdown; /* calls to let through first */
    uint8_t kill;      /* 1: before the driver acts, 2: after */
    uint8_t reserved[3];
    uint32_t delay_us;
};

/* What NVML samples of a process on a card: in how many percent of the time since the last sample a kernel of it ran. */
struct world_sample {
    uint64_t at;
    uint32_t pid, percent;
};

struct world_card {
    uint8_t uuid[16];
    uint64_t total;
    uint64_t context_bytes, module_bytes; /* cost of a context; of a module */
    uint64_t watched;                     /* the total may never exceed this; 0: not watched */
    uint64_t peak;
    uint32_t integrated, deferred_arrays;
    uint64_t pool_step;
    uint32_t sms;        /* multiprocessors */
    uint32_t concurrent; /* kernels of several processes run at once, as under MPS; otherwise processes take turns */
    uint64_t slice_ns;   /* a turn, where somebody else waits */
    uint64_t switch_ns;  /* lost when the turn passes on */
    uint64_t at;         /* simulated up to here */
    uint64_t turn_ends;
    uint32_t turn; /* process + 1 */
    uint32_t sample_count; /* all in all; the last WORLD_SAMPLES are kept */
    uint64_t next_sample;
    struct world_sample samples[WORLD_SAMPLES];
};

/* What a stream has to do. A kernel's `left` is device time, a host function's is time of any kind. */
enum work { WORK_KERNEL, WORK_HOST, WORK_EVENT };

struct world_work {
    uint32_t kind, sms, event;
    uint32_t record; /* of an event: which of its records */
    uint64_t left;
    uint64_t ends; /* of a host function that runs */
};

struct world_stream {
    uint32_t used, process, card, first, count, resident;
    struct world_work work[WORLD_WORK];
};

struct world_event {
    uint32_t used, process, recorded, done;
    uint64_t at;
};

/* Virtual time: one thread of all that take part runs at any moment, the others sleep until some time. When the one that runs
 * falls asleep, the clock goes on to whoever is to wake first. So a test takes no time and always goes the same way. */
struct world_clock {
    uint32_t on, awaited; /* how many have still to join before the first may run */
    uint64_t now;
    _Atomic uint32_t turn; /* thread + 1 */
    uint32_t reserved;
    struct {
        uint32_t used, thread, pid;
        _Atomic uint32_t runs; /* a futex: 1 while it is this one's turn */
        uint64_t until;
    } threads[WORLD_CLOCKS];
};

struct world_process {
    uint32_t pid, used;
    uint64_t bytes[WORLD_CARDS];
    uint64_t device_ns[WORLD_CARDS]; /* while a kernel of it ran */
    uint64_t sm_ns[WORLD_CARDS];     /* that, for each multiprocessor */
    uint64_t sampled_ns[WORLD_CARDS];
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
    struct world_clock clock;
    uint32_t stream_top;
    uint32_t launch_ns;      /* of the processor's time for one launch */
    _Atomic uint64_t misuse; /* calls that a real driver punishes: an event recorded into a capture, one of a context that is gone */
    struct world_event events[WORLD_EVENTS];
    struct world_stream streams[WORLD_STREAMS];
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

/* Virtual or real nanoseconds, and sleeping until such a time; in clock.c. */
uint64_t world_now(struct world *world);
void world_sleep_until(struct world *world, uint64_t until);

/* The processor is busy for so long. */
void world_spend(struct world *world, uint64_t ns);

/* This thread takes part in virtual time, in this place, from when all `awaited` have joined; until it leaves. */
void clock_join(struct world *world, unsigned place);
void clock_leave(struct world *world);
bool clock_joined(void);

/* Runs all cards up to now; the world is locked (scheduler.c). */
void scheduler_run(struct world *world);
/* When the stream can be done at the earliest; 0: it is. */
uint64_t stream_busy_until(const struct world *world, const struct world_stream *stream);
uint64_t stream_room_at(const struct world *world, const struct world_stream *stream);

#endif
