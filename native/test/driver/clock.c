/* Virtual time. All that take part sleep but one; see world.h. A thread that is killed while it runs is found by who waits. */
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "world.h"

/* Not by the names of the C library, which tests replace. */
static uint64_t real_now(void)
{
    struct timespec at;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * UINT64_C(1000000000) + (uint64_t)at.tv_nsec;
}

static int place_of_thread(const struct world *world)
{
    static __thread int place = -1;
    static __thread uint32_t thread;
    uint32_t me = (uint32_t)syscall(SYS_gettid);
    if (place >= 0 && thread == me && world->clock.threads[place].used && world->clock.threads[place].thread == me)
        return place;
    for (place = 0; place < WORLD_CLOCKS; place++)
        if (world->clock.threads[place].used && world->clock.threads[place].thread == me) {
            thread = me;
            return place;
        }
    return place = -1;
}

static void wake_next(struct world *world)
{
    struct world_clock *clock = &world->clock;
    unsigned next = WORLD_CLOCKS;
    for (unsigned place = 0; place < WORLD_CLOCKS && !clock->awaited; place++)
        if (clock->threads[place].used && (next == WORLD_CLOCKS || clock->threads[place].until < clock->threads[next].until))
            next = place;
    if (next < WORLD_CLOCKS && clock->threads[next].until > clock->now)
        clock->now = clock->threads[next].until;
    if (next < WORLD_CLOCKS)
        scheduler_run(world);
    uint32_t before = atomic_exchange(&clock->turn, next < WORLD_CLOCKS ? next + 1 : 0);
    if (before)
        atomic_store(&clock->threads[before - 1].runs, 0);
    if (next == WORLD_CLOCKS)
        return;
    atomic_store(&clock->threads[next].runs, 1);
    if (before != next + 1)
        syscall(SYS_futex, &clock->threads[next].runs, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static bool ended(uint32_t pid)
{
    char path[40], line[200], state = 'X';
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "re");
    if (file) {
        if (fgets(line, sizeof line, file))
            sscanf(line, "%*d (%*[^)]) %c", &state);
        fclose(file);
    }
    return state == 'X' || state == 'Z';
}

static void wait_for_turn(struct world *world, unsigned place)
{
    struct world_clock *clock = &world->clock;
    while (!atomic_load(&clock->threads[place].runs)) {
        struct timespec patience = {.tv_nsec = 50000000};
        if (syscall(SYS_futex, &clock->threads[place].runs, FUTEX_WAIT, 0, &patience, NULL, 0) == 0 || errno != ETIMEDOUT)
            continue;
        world_lock(world);
        uint32_t turn = atomic_load(&clock->turn);
        if (turn && turn != place + 1 && ended(clock->threads[turn - 1].pid)) {
            clock->threads[turn - 1].used = 0;
            wake_next(world);
        }
        world_unlock(world);
    }
}

uint64_t world_now(struct world *world)
{
    return world->clock.on ? world->clock.now : real_now();
}

void world_sleep_until(struct world *world, uint64_t until)
{
    int place = world->clock.on ? place_of_thread(world) : -1;
    if (place < 0) {
        uint64_t now = real_now();
        if (!world->clock.on && until > now) {
            struct timespec rest = {(time_t)((until - now) / 1000000000), (long)((until - now) % 1000000000)};
            syscall(SYS_nanosleep, &rest, NULL);
        }
        return;
    }
    world_lock(world);
    world->clock.threads[place].until = until > world->clock.now ? until : world->clock.now + 1;
    wake_next(world);
    world_unlock(world);
    wait_for_turn(world, (unsigned)place);
}

void world_spend(struct world *world, uint64_t ns)
{
    if (!ns || !world->clock.on)
        return;
    uint64_t until = world->clock.now + ns;
    bool alone = true;
    int me = place_of_thread(world);
    for (int place = 0; place < WORLD_CLOCKS && me >= 0; place++)
        alone = alone && (place == me || !world->clock.threads[place].used || world->clock.threads[place].until > until);
    if (alone && me >= 0)
        world->clock.now = until; /* nobody wakes meanwhile */
    else
        world_sleep_until(world, until);
}

static __thread bool joined;

bool clock_joined(void)
{
    return joined;
}

void clock_join(struct world *world, unsigned place)
{
    world_lock(world);
    world->clock.threads[place].thread = (uint32_t)syscall(SYS_gettid);
    world->clock.threads[place].pid = (uint32_t)getpid();
    world->clock.threads[place].until = world->clock.now;
    world->clock.threads[place].used = 1;
    if (world->clock.awaited && --world->clock.awaited == 0)
        wake_next(world);
    world_unlock(world);
    joined = true;
    wait_for_turn(world, place);
}

void clock_leave(struct world *world)
{
    int place = place_of_thread(world);
    joined = false;
    if (place < 0)
        return;
    world_lock(world);
    world->clock.threads[place].used = 0;
    wake_next(world);
    world_unlock(world);
}
