/* Attaching to a claim's region, and giving back what the dead have left.
 *
 * Attach: a zero bit of the bitmap is set, the byte of that slot is locked, the identity is written: a fixed number of steps,
 * whatever the number of processes. Killed in between, the slot is found unlocked and without a pid, and is given back.
 *
 * Dead is who has no lock. The lock goes with the process's memory; the driver's own descriptors close shortly after, and only
 * then is the GPU memory free. So a slot is reaped when its process is certainly gone (same pid namespace: no such pid, or
 * nothing of it left but a zombie), or when it was seen unlocked for GRACE (another namespace, or an exec). One that is still
 * ending (no memory, and no zombie yet) keeps its slot, however long the driver takes over it. The reaper holds the slot's lock
 * meanwhile, and can itself be killed at any point: the next one does the rest; while it is stopped there, that one slot waits.
 */
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "defect.h"
#include "old_glibc.h"

#define GRACE UINT64_C(200000000) /* ns */

enum { ATTEMPTS = 64 };

static uint64_t now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * UINT64_C(1000000000) + (uint64_t)at.tv_nsec;
}

static int open_file(const char *folder, const char *name, int flags)
{
    char path[512];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return -1;
    return open(path, flags | O_CLOEXEC | O_NOCTTY);
}

/* A file with a lock on it is open here only, and a child of fork would share the lock: it would keep the slot after our death.
 * So fork waits until the file is closed, which is a moment; but not for ever, as it may be called from a signal handler that
 * has interrupted the very thread. A bare clone() without exec is not kept waiting. */
static pthread_mutex_t lock_files = PTHREAD_MUTEX_INITIALIZER;
static __thread bool fork_holds;

#define FORK_WAITS UINT64_C(200000000) /* ns */

static void before_fork(void)
{
    uint64_t until = now() + FORK_WAITS;
    while (!(fork_holds = pthread_mutex_trylock(&lock_files) == 0) && now() < until)
        sched_yield();
}

static void after_fork_in_parent(void)
{
    if (fork_holds)
        pthread_mutex_unlock(&lock_files);
    fork_holds = false;
}

static void after_fork_in_child(void)
{
    if (!fork_holds)
        lock_files = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; /* whoever held it is not here */
    after_fork_in_parent();
}

/* From the start: a fork that is under way already would not ask. */
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* Opens the usage file to lock bytes of it; close_locks closes it. */
static int open_locks(const char *folder)
{
    if (!DEFECT(locks_go_with_a_fork))
        pthread_mutex_lock(&lock_files);
    int file = open_file(folder, "usage", O_RDWR);
    if (file < 0 && !DEFECT(locks_go_with_a_fork))
        pthread_mutex_unlock(&lock_files);
    return file;
}

static void close_locks(int file)
{
    if (DEFECT(locks_go_with_a_fork))
        usleep(20000);
    close(file);
    if (!DEFECT(locks_go_with_a_fork))
        pthread_mutex_unlock(&lock_files);
}

static bool lock_byte(int file, unsigned slot)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

static void unlock_byte(int file, unsigned slot)
{
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    fcntl(file, F_OFD_SETLK, &lock);
}

/* What /proc tells of a process; `memory` is 0 once it has none: it ended, but may have descriptors open still. */
struct stat_line {
    char state;
    unsigned long threads;
    uint64_t start_time, memory;
};

/* False where it cannot be read. */
static bool read_stat(unsigned pid, struct stat_line *line)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return false;
    text[length] = 0;
    char *field = strrchr(text, ')'); /* the name may hold anything, also parentheses */
    if (!field || field[1] != ' ')
        return false;
    line->state = field[2];
    field += 2;
    for (int number = 4; number <= 23; number++) {
        field = strchr(field, ' ');
        if (!field)
            return false;
        field++;
        if (number == 20)
            line->threads = strtoul(field, NULL, 10);
        else if (number == 22)
            line->start_time = strtoull(field, NULL, 10);
        else if (number == 23)
            line->memory = strtoull(field, NULL, 10);
    }
    return true;
}

uint64_t region_pid_namespace(void)
{
    char text[64];
    ssize_t length = readlink("/proc/self/ns/pid", text, sizeof text - 1);
    if (length <= 0)
        return 0;
    text[length] = 0;
    const char *number = strchr(text, '[');
    return number ? strtoull(number + 1, NULL, 10) : 0;
}

enum remains { GONE, ENDING, NOT_KNOWN };

/* What is left of the slot's process, as far as /proc tells; only asked about processes of our own namespace. */
static enum remains remains_of(const struct slot *slot)
{
    unsigned pid = atomic_load(&slot->pid);
    uint64_t space = atomic_load(&slot->pid_namespace);
    if (pid == 0)
        return GONE; /* killed while it attached, or half reaped */
    if (DEFECT(pid_of_another_namespace) && space != region_pid_namespace())
        return kill((pid_t)pid, 0) == 0 ? ENDING : GONE;
    if (space == 0 || space != region_pid_namespace())
        return NOT_KNOWN;
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH)
        return GONE;
    struct stat_line line = {0};
    if (!read_stat(pid, &line))
        return NOT_KNOWN;
    if (((line.state == 'Z' || line.state == 'X') && line.threads <= 1) || line.start_time != atomic_load(&slot->start_time))
        return GONE;
    return line.memory ? NOT_KNOWN : ENDING;
}

static void clear_slot(struct usage *usage, unsigned number)
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
    atomic_store(&slot->seen_unlocked, 0);
    atomic_store(&slot->pid, 0);
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

/* Gives the slot back if its process is dead; `file` is the usage file, opened by the caller. */
static bool reap_slot(struct usage *usage, int file, unsigned number)
{
    struct slot *slot = &usage->slots[number];
    if (!lock_byte(file, number))
        return false; /* its owner lives */
    enum remains remains = remains_of(slot);
    bool dead = remains == GONE;
    if (remains == NOT_KNOWN) {
        uint64_t seen = atomic_load(&slot->seen_unlocked), at = now();
        if (seen == 0)
            atomic_store(&slot->seen_unlocked, at);
        else
            dead = at - seen >= GRACE;
    }
    if (dead) {
        clear_slot(usage, number);
        compact(usage, number);
        atomic_fetch_add(&usage->reaped, 1);
        atomic_fetch_and(&usage->bitmap[number / 64], ~(UINT64_C(1) << (number % 64)));
    }
    unlock_byte(file, number);
    return dead;
}

unsigned region_reap(const struct region *region)
{
    if (DEFECT(dead_owner_keeps))
        return 0;
    int file = open_locks(region->folder);
    if (file < 0)
        return 0;
    unsigned reaped = 0;
    for (unsigned number = 0; number < SLOTS_MAX; number++)
        if (number != region->slot && (atomic_load(&region->usage->bitmap[number / 64]) >> (number % 64) & 1))
            reaped += reap_slot(region->usage, file, number);
    close_locks(file);
    return reaped;
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
    struct stat_line line = {0};
    unsigned pid = (unsigned)getpid();
    read_stat(pid, &line);
    int file = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
    char name[sizeof slot->name] = "";
    if (file >= 0) {
        ssize_t length = read(file, name, sizeof name - 1);
        name[length > 0 ? length : 0] = 0;
        name[strcspn(name, "\n")] = 0;
        close(file);
    }
    memcpy(slot->name, name, sizeof name);
    atomic_store(&slot->start_time, line.start_time);
    atomic_store(&slot->pid_namespace, region_pid_namespace());
    atomic_store(&slot->seen_unlocked, 0);
    atomic_store(&slot->pid, pid);
    atomic_fetch_add(&slot->generation, 1);
    atomic_store(&slot->state, SLOT_LOADED);
}

/* The page whose mapping keeps the lock of `file`; a child of fork does not get it, nor with it the lock. */
static const void *keep_alive(int file)
{
    long page = sysconf(_SC_PAGESIZE);
    void *kept = mmap(NULL, (size_t)page, PROT_READ, MAP_SHARED, file, 0);
    if (kept == MAP_FAILED)
        return NULL;
    if (madvise(kept, (size_t)page, MADV_DONTFORK) != 0) {
        munmap(kept, (size_t)page);
        return NULL;
    }
    return kept;
}

static bool take_slot(struct region *region)
{
    for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
        unsigned number = take_bit(region);
        if (number == SLOTS_MAX) {
            region->slot = SLOTS_MAX;
            if (region_reap(region) == 0)
                return false;
            continue;
        }
        int file = open_locks(region->folder);
        if (file < 0)
            return false;
        if (lock_byte(file, number)) {
            region->lock = keep_alive(file);
            if (region->lock) {
                /* A reaper may have taken the bit back before the lock was ours. */
                atomic_fetch_or(&region->usage->bitmap[number / 64], UINT64_C(1) << (number % 64));
                clear_slot(region->usage, number);
                write_identity(&region->usage->slots[number]);
                region->slot = number;
            }
            close_locks(file);
            return region->lock != NULL;
        }
        close_locks(file); /* being reaped this very moment: the bit stays, and goes with the next reaping */
    }
    return false;
}

/* Each attach looks at two other slots, so that short-lived processes do not fill the table. */
static void reap_some(struct region *region)
{
    int file = open_locks(region->folder);
    if (file < 0)
        return;
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
            reap_slot(region->usage, file, number);
            tried++;
        }
    }
    close_locks(file);
}

/* Tells the node who we are: it reads our host pid from the connection itself. Never waits; without a node nothing is lost. */
static void tell_broker(const struct region *region)
{
    /* A path may be longer than a socket's name can be; the folder's descriptor stands for it. */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int folder = open(region->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return;
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/broker.sock", folder);
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connection < 0) {
        close(folder);
        return;
    }
    if (connect(connection, (struct sockaddr *)&address, sizeof address) == 0) {
        uint64_t word[2] = {region->slot, atomic_load(&region->usage->slots[region->slot].generation)};
        ssize_t sent = send(connection, word, sizeof word, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)sent;
    }
    close(connection);
    close(folder);
}

/* Maps a file of at least `bytes`; NULL where it is absent, shorter, or cannot be mapped. */
static void *map_file(const char *folder, const char *name, size_t bytes, bool writable)
{
    int file = open_file(folder, name, writable ? O_RDWR : O_RDONLY);
    if (file < 0)
        return NULL;
    void *mapped = MAP_FAILED;
    if (lseek(file, 0, SEEK_END) >= (off_t)bytes)
        mapped = mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED)
        return NULL;
    madvise(mapped, bytes, MADV_DONTFORK);
    return mapped;
}

void region_detach(struct region *region)
{
    if (region->policy)
        munmap((void *)(uintptr_t)region->policy, sizeof *region->policy);
    if (region->usage)
        munmap(region->usage, sizeof *region->usage);
    if (region->lock)
        munmap((void *)(uintptr_t)region->lock, (size_t)sysconf(_SC_PAGESIZE));
    memset(region, 0, sizeof *region);
}

static enum region_answer map_region(struct region *region, const char *folder, bool writable)
{
    memset(region, 0, sizeof *region);
    region->slot = SLOTS_MAX;
    snprintf(region->folder, sizeof region->folder, "%s", folder);
    region->policy = map_file(folder, "policy", sizeof *region->policy, DEFECT(policy_writable));
    region->usage = map_file(folder, "usage", sizeof *region->usage, writable);
    enum region_answer answer = REGION_OK;
    if (!region->policy || !region->usage)
        answer = REGION_ABSENT;
    else if (region->policy->magic != POLICY_MAGIC || region->policy->version != REGION_VERSION ||
             region->policy->bytes != sizeof *region->policy || region->usage->magic != USAGE_MAGIC ||
             region->usage->version != REGION_VERSION || region->usage->bytes != sizeof *region->usage ||
             atomic_load(&region->policy->device_count) > DEVICES_MAX)
        answer = REGION_INVALID;
    if (answer != REGION_OK)
        region_detach(region);
    return answer;
}

enum region_answer region_open(struct region *region, const char *folder)
{
    return map_region(region, folder, false);
}

enum region_answer region_attach(struct region *region, const char *folder)
{
    enum region_answer answer = map_region(region, folder, true);
    if (answer != REGION_OK)
        return answer;
    int node_wide = DEFECT(node_wide_lock) ? open_file(folder, "..", O_RDONLY) : -1;
    if (node_wide >= 0 && flock(node_wide, LOCK_EX) == 0) {
        usleep(60000);
        close(node_wide);
    }
    atomic_fetch_add(&region->usage->loaded, 1);
    if (!take_slot(region)) {
        atomic_fetch_add(&region->usage->turned_away, 1);
        region_detach(region);
        return REGION_FULL;
    }
    atomic_fetch_add(&region->usage->enforcing, 1);
    reap_some(region);
    tell_broker(region);
    return REGION_OK;
}
