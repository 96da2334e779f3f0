/* The shared region of one claim: two files in one folder, which every container of the claim gets.
 *
 *   policy   what the claim may use. Written by the node's plugin, mapped read-only by the tenant, changeable live.
 *   usage    what the claim's processes use. Written by them, read by the plugin and by `koordra top`.
 *
 *   alive.N  empty files; locks on their bytes say which slots have a living owner (slot_lock.h).
 *   refused  an empty file; a lock on it says that a process lives which was refused.
 *
 * A process owns one slot of `usage` for as long as it lives. Owning is a lock on one byte of a file, held by an open file
 * description that nothing but a memory mapping keeps alive: so the kernel lets go of it when the process's memory goes, by
 * whatever death, and neither fork, exec nor closing descriptors can confuse it. There is no total: the sum over the slots is
 * the truth (ledger.c), so there is nothing that a killed process could leave half done.
 *
 * Slots never move. The generation of a slot is odd while it is owned; it tells a reader that the owner has changed.
 * region.py reads and writes the same layout; a test compares the two, field by field.
 *
 * What the card's other claims do reaches a claim through the policy alone (`rate`, `lent`, `device_time`, `neighbours`).
 */
#ifndef KOORDRA_REGION_H
#define KOORDRA_REGION_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define POLICY_MAGIC UINT64_C(0x31594c4f50524f4b) /* "KORPOLY1" */
#define USAGE_MAGIC UINT64_C(0x3147535552524f4b)  /* "KORRUSG1" */
#define UNLIMITED UINT64_MAX

/* No process has so much of one card. A larger figure in `usage` is a lie that would turn the sum over; it counts as nothing, and
 * what the process really has is for the node to see. */
#define PLAUSIBLE (UINT64_C(1) << 46)

enum {
    REGION_VERSION = 3,
    DEVICES_MAX = 16,
    SLOTS_MAX = 1024,
    BITMAP_WORDS = SLOTS_MAX / 64,
    EXPORTS_MAX = 256,
    ALIVE_FILES = 32, /* the lock of slot n is on byte n of file n % 32 */
};

/* Policy flags. */
enum {
    POLICY_STRICT = 1u << 0,         /* entry points that this library does not know are not handed out */
    POLICY_TRUST_IMPORTS = 1u << 1,  /* memory of other processes is not charged to who opens it */
};

/* What memory is used for. */
enum kind {
    KIND_PLAIN,
    KIND_MANAGED,
    KIND_ARRAY,
    KIND_VMM,
    KIND_POOL,
    KIND_GRAPH,
    KIND_IMPORT,
    KIND_CONTEXT,
    KINDS,
};

/* How far a process has come. */
enum slot_state { SLOT_FREE, SLOT_LOADED, SLOT_ENFORCING };

struct policy_device {
    uint8_t uuid[16];
    _Atomic uint64_t limit;         /* bytes; UNLIMITED: counted, not limited */
    _Atomic uint64_t unseen;        /* bytes that the node sees in use beyond the ledger: modules, other APIs; they count */
    _Atomic uint64_t context_bytes; /* kept for each context; 0: measured when it is made */
    _Atomic uint32_t cores;         /* percent reserved, 0: none; what is enforced of it is `rate` */
    _Atomic uint32_t priority;
    _Atomic uint32_t rate;          /* of the card's device time, in 1/100 %; 0: it is not limited */
    _Atomic uint32_t lent;          /* until `lent_until` (ns of CLOCK_MONOTONIC) so much instead, of what others leave idle; 0: nothing */
    _Atomic uint64_t lent_until;
    _Atomic uint64_t device_time;   /* ns that the node has seen the claim's kernels on the card; less than before: it has begun anew */
    _Atomic uint64_t seen_until;    /* ns of some clock: until when it has seen them; 0: it cannot */
    _Atomic uint32_t neighbours;    /* other claims with a share of the card */
    _Atomic uint32_t elastic;       /* 1: may be lent what others leave idle; for the node alone */
    uint64_t reserved[5];
};

struct policy {
    uint64_t magic;
    uint32_t version;
    uint32_t bytes; /* of the file */
    _Atomic uint32_t flags;
    _Atomic uint32_t device_count;
    _Atomic uint64_t sequence; /* counts changes of limits: after the change */
    char claim[40];
    _Atomic uint64_t outside; /* processes that the node saw compute on the claim's cards without a slot: told, not enforced */
    uint8_t reserved[48];
    struct policy_device devices[DEVICES_MAX];
};

/* One process on one device. `pending` is announced and not yet granted. */
struct account {
    _Atomic uint64_t pending, held;
};

struct slot {
    _Atomic uint64_t generation;
    _Atomic uint32_t state;
    _Atomic uint32_t pid;           /* in the process's own namespace */
    _Atomic uint64_t pid_namespace; /* inode */
    _Atomic uint64_t start_time;    /* clock ticks after boot, as in /proc/PID/stat */
    _Atomic uint64_t seen_unlocked; /* ns of CLOCK_MONOTONIC; 0: not seen */
    _Atomic uint32_t host_pid;      /* from the node's broker; 0: not known */
    _Atomic uint32_t driver_version;
    char name[16];
    _Atomic uint64_t acknowledged; /* the policy's sequence that this process has acted by */
    _Atomic uint64_t kinds[DEVICES_MAX][KINDS]; /* told, not enforced */
};

/* The device time of a claim on one card, for all its processes (pace.c). */
struct pace {
    _Atomic uint64_t paid_until; /* all that was launched is paid for by then; with the rate it was charged at */
    _Atomic uint64_t charged;    /* ns, all in all */
    _Atomic uint64_t seen_until; /* the policy's, when `correction` was made */
    _Atomic uint64_t charged_then, device_time_then;
    _Atomic uint32_t correction; /* what a charged ns is really, in 1/1024; 0: 1 */
    _Atomic uint32_t then;       /* when that was, in 2^16 ns of CLOCK_MONOTONIC */
    _Atomic uint64_t waited;     /* ns, all in all: told, not used */
    _Atomic uint64_t active;     /* ns of CLOCK_MONOTONIC: when device time was last taken or waited for */
};

/* Memory that a process of the claim has exported; who opens it within the claim is not charged again. */
struct exported {
    _Atomic uint64_t key; /* of the handle; 0: free */
    _Atomic uint32_t slot;
    uint32_t reserved;
};

struct usage {
    uint64_t magic;
    uint32_t version;
    uint32_t bytes;
    _Atomic uint64_t loaded;    /* processes that came this far */
    _Atomic uint64_t enforcing; /* processes that took a slot */
    _Atomic uint64_t turned_away; /* processes that could not, and got no CUDA */
    _Atomic uint64_t reaped;
    uint64_t reserved;
    _Atomic uint64_t refused_at; /* ns of CLOCK_MONOTONIC, when the last one was turned away; 0: none was */
    _Atomic uint64_t denied[DEVICES_MAX]; /* allocations over the limit */
    _Atomic uint64_t bitmap[BITMAP_WORDS]; /* slots that may be owned */
    struct exported exports[EXPORTS_MAX];
    struct account accounts[DEVICES_MAX][SLOTS_MAX];
    struct slot slots[SLOTS_MAX];
    struct pace paces[DEVICES_MAX];
};

_Static_assert(sizeof(struct policy_device) == 128, "layout");
_Static_assert(sizeof(struct policy) == 128 + 128 * DEVICES_MAX, "layout");
_Static_assert(sizeof(struct pace) == 64, "layout");
_Static_assert(offsetof(struct policy, devices) == 128, "layout");
_Static_assert(sizeof(struct account) == 16, "layout");
_Static_assert(sizeof(struct slot) == 72 + 8 * DEVICES_MAX * KINDS, "layout");
_Static_assert(offsetof(struct usage, refused_at) == 56, "layout");
_Static_assert(offsetof(struct usage, denied) == 64, "layout");
_Static_assert(offsetof(struct usage, bitmap) == 192, "layout");
_Static_assert(offsetof(struct usage, exports) == 320, "layout");
_Static_assert(offsetof(struct usage, accounts) == 4416, "layout");
_Static_assert(offsetof(struct usage, slots) == 266560, "layout");
_Static_assert(sizeof(_Atomic uint64_t) == 8 && ATOMIC_LLONG_LOCK_FREE == 2, "atomics without locks");

/* A claim's region as one process sees it. */
struct region {
    const struct policy *policy;
    struct usage *usage;
    unsigned slot;
    unsigned looks;   /* words of the bitmap that attaching has looked at */
    const void *lock; /* the mapping that keeps the slot's lock alive */
    char folder[256];
};

enum region_answer { REGION_OK, REGION_ABSENT, REGION_INVALID, REGION_FULL };

/* Maps both files and takes a slot; nothing is left behind unless the answer is REGION_OK. */
enum region_answer region_attach(struct region *region, const char *folder);

/* Maps both files to read them. */
enum region_answer region_open(struct region *region, const char *folder);

/* This process gets no CUDA: counted, and to be seen by the node for as long as it lives. */
void region_refused(struct usage *usage, const char *folder); /* `usage` NULL: it cannot be read */

/* Gives the slots of dead processes back; how many. Never waits. */
unsigned region_reap(const struct region *region);

void region_detach(struct region *region);

#endif
