/* The limit as a property, with the fake driver as the referee:
 *
 *   - the bytes that are truly in use never exceed the limit, at any instant (the referee compares at every allocation);
 *   - whenever the living hold still and the dead are reaped, the ledger says exactly what is truly in use;
 *   - nobody waits: every process goes on doing things, whoever is killed next to it.
 *
 * PROCESSES workers of one to three threads do random things on two cards of one claim, and are killed at random moments, some
 * of them in the middle of a call of the driver. Arguments: operations, processes, seed. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#include "../harness.h"
#include "actions.h"

enum { WORKERS_MAX = 64, THREADS_MAX = 3, LIMIT_MIB = 1024, STUCK_AFTER = 60 /* s without an operation of a worker */ };

struct worker_state {
    _Atomic uint64_t operations, granted, refused, unexpected;
    _Atomic uint32_t parked;
    pid_t process;
};

struct stage {
    _Atomic uint32_t hold;
    struct worker_state workers[WORKERS_MAX];
};

static struct stage *stage;

struct thread {
    struct worker_state *worker;
    struct actor actor;
    _Atomic uint32_t *parked;
    uint32_t threads;
};

static void nap(long microseconds)
{
    nanosleep(&(struct timespec){microseconds / 1000000, microseconds % 1000000 * 1000}, NULL);
}

static void hold_still(struct thread *thread)
{
    cuCtxSynchronize();
    atomic_fetch_add(&thread->worker->parked, 1);
    while (atomic_load(&stage->hold))
        nap(1000);
    atomic_fetch_sub(&thread->worker->parked, 1);
}

static void *work(void *argument)
{
    struct thread *thread = argument;
    use_card(thread->actor.card);
    for (;;) {
        if (atomic_load(&stage->hold))
            hold_still(thread);
        act(&thread->actor);
        atomic_fetch_add(&thread->worker->operations, 1);
        atomic_fetch_add(&world->operations, 1);
        atomic_store(&thread->worker->unexpected, thread->actor.unexpected);
        atomic_fetch_add(&thread->worker->granted, thread->actor.granted);
        atomic_fetch_add(&thread->worker->refused, thread->actor.refused);
        thread->actor.granted = thread->actor.refused = 0;
    }
    return NULL;
}

static uint64_t random_state;

static uint64_t random_below(uint64_t end)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % end;
}

static uint32_t threads_of(const struct worker_state *worker)
{
    return 1 + (uint32_t)(worker - stage->workers) % THREADS_MAX;
}

static void start_worker(struct worker_state *worker)
{
    uint64_t seed = random_state + random_below(UINT64_MAX) + 1;
    atomic_store(&worker->parked, 0);
    pid_t parent = getpid(), process = fork();
    if (process) {
        CHECK(process > 0);
        worker->process = process;
        return;
    }
    end_with_parent(parent);
    /* A limit that is full of contexts refuses even to start; then this process has nothing to do but try again. */
    CUcontext context;
    OK(cuInit(0));
    while (cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_OUT_OF_MEMORY || cuDevicePrimaryCtxRetain(&context, 1) == CUDA_ERROR_OUT_OF_MEMORY) {
        atomic_fetch_add(&worker->operations, 1);
        if (atomic_load(&stage->hold)) {
            atomic_store(&worker->parked, threads_of(worker));
            while (atomic_load(&stage->hold))
                nap(1000);
            atomic_store(&worker->parked, 0);
        }
        nap(1000);
    }
    static struct thread threads[THREADS_MAX];
    for (uint32_t number = 0; number < threads_of(worker); number++) {
        threads[number] = (struct thread){.worker = worker, .actor = {.random = seed * (number + 1) | 1, .card = (int)(number + seed) % 2, .own_contexts = number == 0}};
        pthread_t id;
        if (number + 1 < threads_of(worker))
            pthread_create(&id, NULL, work, &threads[number]);
        else
            work(&threads[number]);
    }
}

static void kill_worker(struct worker_state *worker)
{
    /* The grace of a process that has not been waited for is the reaper's business: a zombie holds no memory. */
    kill(worker->process, SIGKILL);
    if (random_below(2))
        nap((long)random_below(2000));
    waitpid(worker->process, NULL, 0);
    start_worker(worker);
}

/* Who is charged what and holds what, for somebody who has to find out why. */
static void tell_difference(unsigned workers)
{
    for (unsigned number = 0; number < workers; number++)
        kill(stage->workers[number].process, SIGSTOP);
    nap(100000);
    for (unsigned process = 0; process < world->process_top; process++) {
        if (!world->processes[process].used)
            continue;
        fprintf(stderr, "pid %u holds %llu %llu\n", world->processes[process].pid, (unsigned long long)world->processes[process].bytes[0],
                (unsigned long long)world->processes[process].bytes[1]);
    }
    for (unsigned slot = 0; slot < SLOTS_MAX; slot++)
        if (usage->slots[slot].generation & 1)
            fprintf(stderr, "pid %u in slot %u (bit %d) is charged %llu %llu, pending %llu %llu\n", usage->slots[slot].pid, slot, (int)(usage->bitmap[slot / 64] >> slot % 64 & 1),
                    (unsigned long long)usage->accounts[0][slot].held, (unsigned long long)usage->accounts[1][slot].held,
                    (unsigned long long)usage->accounts[0][slot].pending, (unsigned long long)usage->accounts[1][slot].pending);
}

static void watch(unsigned workers)
{
    static uint64_t seen[WORKERS_MAX];
    static time_t since[WORKERS_MAX];
    for (unsigned number = 0; number < workers; number++) {
        uint64_t operations = atomic_load(&stage->workers[number].operations);
        if (operations != seen[number] || !since[number]) {
            seen[number] = operations;
            since[number] = time(NULL);
        }
        if (time(NULL) - since[number] > STUCK_AFTER) {
            fprintf(stderr, "worker %u has been waiting for %d s\n", number, STUCK_AFTER);
            exit(1);
        }
        CHECK_EQUAL(atomic_load(&stage->workers[number].unexpected), 0);
    }
    if (atomic_load(&world->violations))
        tell_difference(workers);
    CHECK_EQUAL(atomic_load(&world->violations), 0);
}

/* The living hold still, the dead are reaped: ledger and truth must be the same number. */
static void compare_books(unsigned workers)
{
    atomic_store(&stage->hold, 1);
    for (unsigned number = 0; number < workers; number++)
        for (long turns = 0; atomic_load(&stage->workers[number].parked) < threads_of(&stage->workers[number]); turns++) {
            nap(1000);
            if (waitpid(stage->workers[number].process, NULL, WNOHANG) > 0)
                start_worker(&stage->workers[number]); /* a kill point of the driver */
            CHECK(turns < STUCK_AFTER * 1000);
        }
    reap();
    for (unsigned card = 0; card < world->card_count; card++)
        CHECK_EQUAL(ledger(card), truth(card));
    atomic_store(&stage->hold, 0);
    for (unsigned number = 0; number < workers; number++)
        while (atomic_load(&stage->workers[number].parked))
            nap(200);
}

/* Now and then a call of the driver is where a process ends. */
static void set_kill_point(void)
{
    static const char *const functions[] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemCreate", "cuMemRelease", "cuMemAllocAsync", "cuMemMap", "cuGraphLaunch", "cuArrayDestroy"};
    struct fault fault = {.kill = (uint8_t)(1 + random_below(2)), .countdown = (int32_t)random_below(30)};
    snprintf(fault.function, sizeof fault.function, "%s", functions[random_below(sizeof functions / sizeof functions[0])]);
    world->faults[0].function[0] = 0;
    world->faults[0].kill = fault.kill;
    world->faults[0].countdown = fault.countdown;
    memcpy(world->faults[0].function + 1, fault.function + 1, sizeof fault.function - 1);
    world->faults[0].function[0] = fault.function[0];
}

int main(int count, char **arguments)
{
    uint64_t target = count > 1 ? strtoull(arguments[1], NULL, 10) : 100000;
    unsigned workers = count > 2 ? (unsigned)strtoul(arguments[2], NULL, 10) : 8, kills = 0, comparisons = 0;
    random_state = count > 3 ? strtoull(arguments[3], NULL, 10) : (uint64_t)time(NULL);
    uint64_t seed = random_state;
    snprintf(folder, sizeof folder, "%s", getenv("KOORDRA_TEST_FOLDER"));
    stage = mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    begin(.limit = LIMIT_MIB * MIB, .card_bytes = 64 * GIB, .context_bytes = 8 * MIB, .no_context = true);
    random_state = random_state * 2 + 1;
    for (unsigned number = 0; number < workers; number++)
        start_worker(&stage->workers[number]);
    while (atomic_load(&world->operations) < target) {
        nap(200 + (long)random_below(3000));
        if (random_below(3) == 0)
            set_kill_point();
        kill_worker(&stage->workers[random_below(workers)]);
        kills++;
        for (unsigned number = 0; number < workers; number++)
            if (waitpid(stage->workers[number].process, NULL, WNOHANG) > 0) {
                world->faults[0].function[0] = 0;
                start_worker(&stage->workers[number]);
                kills++;
            }
        watch(workers);
        if (random_below(8) == 0) {
            world->faults[0].function[0] = 0;
            compare_books(workers);
            comparisons++;
        }
    }
    world->faults[0].function[0] = 0;
    compare_books(workers);
    comparisons++;
    uint64_t granted = 0, refused = 0;
    for (unsigned number = 0; number < workers; number++) {
        granted += stage->workers[number].granted;
        refused += stage->workers[number].refused;
        kill(stage->workers[number].process, SIGKILL);
        waitpid(stage->workers[number].process, NULL, 0);
    }
    reap();
    for (unsigned card = 0; card < world->card_count; card++) {
        CHECK_EQUAL(truth(card), 0);
        CHECK_EQUAL(ledger(card), 0);
    }
    CHECK_EQUAL(atomic_load(&world->violations), 0);
    CHECK(granted > target / 4 && refused > 0 && world->cards[0].peak > LIMIT_MIB * MIB / 2);
    fprintf(stderr, "property: %llu operations of %u processes, %u kills, %u comparisons of the books, %llu granted, %llu refused, peak %llu of %d MiB (seed %llu)\n",
            (unsigned long long)atomic_load(&world->operations), workers, kills, comparisons, (unsigned long long)granted, (unsigned long long)refused,
            (unsigned long long)(world->cards[0].peak / MIB), LIMIT_MIB, (unsigned long long)seed);
    return 0;
}
