#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static int open_world(const char *folder, int flags)
{
    char path[512];
    snprintf(path, sizeof path, "%s/world", folder);
    return open(path, flags | O_CLOEXEC, 0666);
}

static struct world *map(int file)
{
    if (file < 0)
        return NULL;
    struct world *world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return world == MAP_FAILED ? NULL : world;
}

struct world *world_make(const char *folder, unsigned cards, uint64_t bytes)
{
    int file = open_world(folder, O_RDWR | O_CREAT | O_TRUNC);
    if (file < 0 || ftruncate(file, sizeof(struct world)) != 0)
        return NULL;
    struct world *world = map(file);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&world->lock, &attributes);
    world->card_count = cards;
    world->driver_version = 13050;
    for (unsigned card = 0; card < cards; card++) {
        for (unsigned at = 0; at < 16; at++)
            world->cards[card].uuid[at] = (uint8_t)(0x10 * card + at + 1);
        world->cards[card].total = bytes;
        world->cards[card].deferred_arrays = 1;
        world->cards[card].pool_step = UINT64_C(32) << 20;
        world->cards[card].sms = 132;
        world->cards[card].slice_ns = 2000000;
    }
    return world;
}

struct world *world_open(const char *folder)
{
    return map(open_world(folder, O_RDWR));
}

/* Robust mutexes lose a wake-up: who is woken and killed before it has the lock, while somebody else has taken it meanwhile, leaves a
 * lock that says that nobody waits. So nobody waits for longer than this without a look. */
enum { PATIENCE_NS = 50000000 };

void world_lock(struct world *world)
{
    int result = pthread_mutex_trylock(&world->lock);
    while (result == EBUSY || result == ETIMEDOUT) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += PATIENCE_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        result = pthread_mutex_timedlock(&world->lock, &until);
    }
    if (result == EOWNERDEAD)
        pthread_mutex_consistent(&world->lock);
}

void world_unlock(struct world *world)
{
    pthread_mutex_unlock(&world->lock);
}

static bool alive(int file, unsigned process)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = process, .l_len = 1};
    return fcntl(file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

void world_bury(struct world *world, int file, unsigned self)
{
    for (unsigned process = 0; process < world->process_top; process++) {
        if (process == self || !world->processes[process].used || alive(file, process))
            continue;
        memset(&world->processes[process], 0, sizeof world->processes[process]);
        for (unsigned at = 0; at < world->stream_top; at++)
            if (world->streams[at].process == process)
                world->streams[at].used = 0;
        for (unsigned at = 0; at < WORLD_SHARED; at++) {
            struct world_shared *shared = &world->shared[at];
            uint64_t left = 0;
            shared->holders[process / 64] &= ~(UINT64_C(1) << (process % 64));
            for (unsigned word = 0; word < WORLD_PROCESSES / 64; word++)
                left |= shared->holders[word];
            if (shared->used && !left)
                memset(shared, 0, sizeof *shared);
        }
    }
}

static uint64_t total(const struct world *world, unsigned card)
{
    uint64_t bytes = 0;
    for (unsigned process = 0; process < WORLD_PROCESSES; process++)
        bytes += world->processes[process].bytes[card];
    for (unsigned at = 0; at < WORLD_SHARED; at++)
        if (world->shared[at].used && world->shared[at].card == card)
            bytes += world->shared[at].bytes;
    return bytes;
}

uint64_t world_truth(struct world *world, const char *folder, unsigned card)
{
    int file = open_world(folder, O_RDWR);
    world_lock(world);
    world_bury(world, file, WORLD_PROCESSES);
    uint64_t bytes = total(world, card);
    world_unlock(world);
    close(file);
    return bytes;
}
