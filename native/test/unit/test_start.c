/* Start, end, slots, locks: what happens to a claim when processes come and go, in whatever way. */
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

#include "../harness.h"

struct together {
    _Atomic unsigned ready, go, granted, done;
};

static struct together *share_page(void)
{
    return mmap(NULL, sizeof(struct together), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static void nap(long milliseconds)
{
    nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000}, NULL);
}

static void allocate_and_stay(void *argument)
{
    struct together *together = argument;
    CUdeviceptr pointer;
    start_cuda();
    OK(cuMemAlloc_v2(&pointer, 600 * MIB));
    together->ready++;
    for (;;)
        pause();
}

static void wait_for(_Atomic unsigned *word, unsigned value)
{
    while (atomic_load(word) < value)
        nap(1);
}

/* 3.4, row 3: what a killed process held. */
TEST(memory_of_a_killed_process_comes_back)
{
    CUdeviceptr pointer;
    struct together *together = share_page();
    begin(.limit = GIB, .no_context = true);
    pid_t other = other_process(allocate_and_stay, together);
    wait_for(&together->ready, 1);
    start_cuda();
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    kill(other, SIGKILL);
    status_of(other);
    OK(cuMemAlloc_v2(&pointer, 600 * MIB));
    check_books();
}

static void allocate_for_ever(void *argument)
{
    struct together *together = argument;
    CUdeviceptr pointer;
    start_cuda();
    for (;;) {
        together->ready++;
        if (cuMemAlloc_v2(&pointer, MIB) == CUDA_SUCCESS)
            cuMemFree_v2(pointer);
    }
}

/* 3.4, row 3: waiters of a killed owner wait for minutes, then the limit is off. */
TEST(nobody_waits_for_a_killed_process)
{
    CUdeviceptr pointer;
    begin(.limit = GIB, .no_context = true);
    struct together *together = share_page();
    for (int round = 0; round < 5; round++) {
        unsigned before = together->ready;
        pid_t other = other_process(allocate_for_ever, together);
        wait_for(&together->ready, before + 2);
        nap(2 + round);
        kill(other, SIGKILL);
        status_of(other);
    }
    start_cuda();
    OK(cuMemAlloc_v2(&pointer, GIB));
    check_books();
}

static void take_the_worlds_lock(void *argument)
{
    struct together *together = argument;
    together->ready++;
    world_lock(world);
    together->done++;
    world_unlock(world);
}

/* The fake driver's own lock, where a process that was woken has been killed before it was its turn: glibc's mutex then says that
 * nobody waits, as is said here for it. */
TEST(a_killed_waiter_of_the_fake_driver_stops_nobody)
{
    begin(.no_context = true);
    struct together *together = share_page();
    world_lock(world);
    pid_t other = other_process(take_the_worlds_lock, together);
    _Atomic int *word = (_Atomic int *)&world->lock.__data.__lock;
    while (!(atomic_load(word) & FUTEX_WAITERS))
        nap(1);
    nap(20);
    atomic_fetch_and(word, (int)~FUTEX_WAITERS);
    world_unlock(world);
    wait_for(&together->done, 1);
    status_of(other);
}

static void free_after_a_neighbour_died(void *argument)
{
    struct together *together = argument;
    CUdeviceptr pointer;
    start_cuda();
    OK(cuMemAlloc_v2(&pointer, 300 * MIB));
    together->ready++;
    wait_for(&together->go, 1);
    CUdeviceptr more;
    CHECK_EQUAL(cuMemAlloc_v2(&more, 4 * GIB), CUDA_ERROR_OUT_OF_MEMORY); /* looks for dead neighbours */
    OK(cuMemFree_v2(pointer));
    together->done++;
    pause();
}

/* 3.4: slots of the living are moved when one is freed. */
TEST(slots_of_the_living_stay_where_they_are)
{
    struct together *together = share_page();
    begin(.limit = 2 * GIB, .no_context = true);
    pid_t first = other_process(allocate_and_stay, together);
    wait_for(&together->ready, 1);
    pid_t second = other_process(free_after_a_neighbour_died, together);
    wait_for(&together->ready, 2);
    kill(first, SIGKILL);
    status_of(first);
    together->go = 1;
    wait_for(&together->done, 1);
    for (unsigned slot = 0; slot < SLOTS_MAX; slot++)
        CHECK_EQUAL(usage->accounts[0][slot].held, 0);
    check_books();
    kill(second, SIGKILL);
    status_of(second);
}

static void race(void *argument)
{
    struct together *together = argument;
    CUdeviceptr pointer;
    start_cuda();
    for (unsigned round = 1; round <= 20; round++) {
        together->ready++;
        while (together->go < round)
            sched_yield();
        bool mine = cuMemAlloc_v2(&pointer, 600 * MIB) == CUDA_SUCCESS;
        together->granted += mine;
        together->done++;
        while (together->done < round * 4)
            sched_yield();
        if (mine)
            OK(cuMemFree_v2(pointer));
    }
}

/* 3.2: check, allocate, add. */
TEST(two_processes_cannot_both_take_the_last_bytes)
{
    struct together *together = share_page();
    pid_t others[4];
    begin(.limit = GIB, .no_context = true);
    for (int number = 0; number < 4; number++)
        others[number] = other_process(race, together);
    for (unsigned round = 1; round <= 20; round++) {
        wait_for(&together->ready, round * 4);
        together->go = round;
    }
    for (int number = 0; number < 4; number++)
        CHECK_EQUAL(status_of(others[number]), 0);
    CHECK_EQUAL(world->violations, 0);
    CHECK(together->granted <= 20 && together->granted >= 15);
}

/* 3.2, 3.8, row 5: limits by ordinal, which CUDA_VISIBLE_DEVICES changes. */
TEST(limits_follow_the_uuid_not_the_ordinal)
{
    CUdeviceptr pointer;
    setenv("KOORDRA_FAKE_VISIBLE", "1,0", 1);
    begin(.limit = GIB, .no_context = true);
    policy->devices[0].limit = 100 * MIB;
    world->cards[0].watched = 100 * MIB;
    start_cuda(); /* ordinal 0 is card 1 */
    OK(cuMemAlloc_v2(&pointer, GIB));
    use_card(1);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 101 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&pointer, 100 * MIB));
    check_books();
}

/* 3.3, 3.8, row 5: no host pid, no limit. */
TEST(the_limit_holds_without_a_host_pid)
{
    CUdeviceptr pointer;
    begin(.limit = GIB);
    CHECK_EQUAL(usage->slots[0].host_pid, 0);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, GIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
}

/* 3.8, row 7: something is missing and nobody is told. */
TEST(without_its_region_there_is_no_cuda)
{
    CUdeviceptr pointer;
    begin(.no_region = true, .no_context = true);
    CHECK_EQUAL(cuInit(0), CUDA_ERROR_NOT_PERMITTED);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 512), CUDA_ERROR_NOT_PERMITTED);
}

TEST(a_region_of_another_version_is_not_used)
{
    begin(.no_context = true);
    policy->version++;
    CHECK_EQUAL(cuInit(0), CUDA_ERROR_NOT_PERMITTED);
}

TEST(without_a_driver_there_is_no_cuda)
{
    CUdeviceptr pointer;
    char name[16];
    begin(.no_context = true);
    setenv("KOORDRA_DRIVER_FOLDER", "/nonexistent", 1);
    CHECK_EQUAL(cuInit(0), CUDA_ERROR_STUB_LIBRARY);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 512), CUDA_ERROR_STUB_LIBRARY);
    CHECK_EQUAL(cuDeviceGetName(name, 16, 0), CUDA_ERROR_STUB_LIBRARY);
}

/* 3.8, row 8: a variable of the environment switches the limit off. */
TEST(no_variable_switches_the_limit_off)
{
    CUdeviceptr pointer;
    setenv("CUDA_DISABLE_CONTROL", "true", 1);
    setenv("GPU_CORE_UTILIZATION_POLICY", "DISABLE", 1);
    setenv("CUDA_DEVICE_MEMORY_LIMIT", "100g", 1);
    begin(.limit = GIB);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
}

/* 3.4: a tenant can edit its limits. */
TEST(the_policy_is_mapped_read_only)
{
    char line[600], name[400];
    unsigned writable = 0, readable = 0;
    begin(.limit = GIB);
    snprintf(name, sizeof name, "%s/regions/claim-0/policy", folder);
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, name)) {
            writable += strstr(line, " rw") != NULL;
            readable += strstr(line, " r--s") != NULL;
        }
    fclose(maps);
    CHECK_EQUAL(writable, 1); /* the test's own */
    CHECK_EQUAL(readable, 1);
}

/* 3.4, 3.8: SIGUSR1 and SIGUSR2 are taken over. */
TEST(no_signal_is_taken)
{
    struct sigaction before[32], after[32];
    for (int number = 1; number < 32; number++)
        sigaction(number, NULL, &before[number]);
    begin(.limit = GIB);
    for (int number = 1; number < 32; number++) {
        sigaction(number, NULL, &after[number]);
        CHECK(before[number].sa_handler == after[number].sa_handler);
    }
}

static void start_only(void *argument)
{
    struct together *together = argument;
    together->ready++;
    while (!together->go)
        nap(1);
    start_cuda();
    together->done++;
}

/* 3.7, row 6: a lock for the whole node makes starts queue. */
TEST(a_hundred_processes_start_together)
{
    struct together *together = share_page();
    pid_t others[100];
    struct timespec from, to;
    begin(.limit = GIB, .no_context = true);
    for (int number = 0; number < 100; number++)
        others[number] = other_process(start_only, together);
    wait_for(&together->ready, 100);
    clock_gettime(CLOCK_MONOTONIC, &from);
    together->go = 1;
    for (int number = 0; number < 100; number++)
        CHECK_EQUAL(status_of(others[number]), 0);
    clock_gettime(CLOCK_MONOTONIC, &to);
    CHECK_EQUAL(together->done, 100);
    CHECK(to.tv_sec - from.tv_sec < 90); /* they would queue for longer */
}

static void start_and_count(void *argument)
{
    (void)argument;
    start_cuda();
}

TEST(short_lived_processes_do_not_fill_the_table)
{
    begin(.limit = GIB, .no_context = true);
    for (int number = 0; number < 60; number++)
        CHECK_EQUAL(status_of(other_process(start_and_count, NULL)), 0);
    unsigned owned = 0;
    for (unsigned slot = 0; slot < SLOTS_MAX; slot++)
        owned += usage->slots[slot].generation & 1;
    CHECK(owned < 4);
    CHECK_EQUAL(usage->enforcing, 60);
}

TEST(a_full_table_refuses_rather_than_forgets)
{
    char path[340];
    begin(.limit = GIB, .no_context = true);
    snprintf(path, sizeof path, "%s/regions/claim-0", folder);
    static struct region regions[SLOTS_MAX];
    for (unsigned number = 0; number < SLOTS_MAX; number++)
        CHECK_EQUAL(region_attach(&regions[number], path), REGION_OK);
    CHECK_EQUAL(cuInit(0), CUDA_ERROR_NOT_PERMITTED);
    CHECK_EQUAL(usage->turned_away, 1);
}

TEST(the_handshake_tells_that_the_limit_is_enforced)
{
    begin(.limit = GIB);
    CHECK_EQUAL(usage->slots[0].state, SLOT_ENFORCING);
    CHECK_EQUAL(usage->slots[0].pid, getpid());
    CHECK_EQUAL(usage->slots[0].generation & 1, 1);
    CHECK_EQUAL(usage->slots[0].driver_version, 13050);
    CHECK_EQUAL(usage->enforcing, 1);
    CHECK(strncmp(usage->slots[0].name, "limiter-tests", 13) == 0 || usage->slots[0].name[0]);
}

TEST(a_child_of_fork_starts_anew)
{
    CUdeviceptr pointer;
    begin(.limit = GIB);
    OK(cuMemAlloc_v2(&pointer, 700 * MIB));
    pid_t child = fork();
    if (child == 0) {
        /* As with the driver alone. */
        CHECK_EQUAL(cuMemAlloc_v2(&pointer, 512), CUDA_ERROR_NOT_INITIALIZED);
        CHECK_EQUAL(cuMemFree_v2(pointer), CUDA_ERROR_NOT_INITIALIZED);
        _exit(0);
    }
    CHECK_EQUAL(status_of(child), 0);
    CHECK_EQUAL(ledger(0), 700 * MIB);
    OK(cuMemFree_v2(pointer));
    check_books();
}

/* The child holds descriptors and memory of its parent, and must not hold its slot. */
TEST(a_child_does_not_keep_its_dead_parents_memory)
{
    struct together *together = share_page();
    CUdeviceptr pointer;
    begin(.limit = GIB, .no_context = true);
    pid_t parent = fork();
    if (parent == 0) {
        start_cuda();
        OK(cuMemAlloc_v2(&pointer, 600 * MIB));
        if (fork() == 0) {
            together->ready++;
            for (int turn = 0; turn < 60000 && !together->go; turn++)
                nap(1);
            _exit(0);
        }
        pause();
    }
    wait_for(&together->ready, 1);
    kill(parent, SIGKILL);
    status_of(parent);
    reap();
    CHECK_EQUAL(ledger(0), 0);
    together->go = 1;
}

/* 3.4: whether a dead owner is dead was looked up by its pid, in the namespace of who looks. */
TEST(a_dead_neighbour_of_another_namespace_is_found)
{
    struct together *together = share_page();
    CUdeviceptr pointer;
    begin(.limit = GIB, .no_context = true);
    pid_t other = other_process(allocate_and_stay, together);
    wait_for(&together->ready, 1);
    start_cuda();
    kill(other, SIGKILL);
    status_of(other);
    for (unsigned slot = 0; slot < SLOTS_MAX; slot++)
        if (usage->slots[slot].pid == (unsigned)other) {
            usage->slots[slot].pid_namespace = 12345; /* where its number is that of a process that lives here */
            usage->slots[slot].pid = (unsigned)getpid();
        }
    /* A container that is started anew has what the one before it had, without trying twice. */
    OK(cuMemAlloc_v2(&pointer, 600 * MIB));
    check_books();
    CHECK_EQUAL(ledger(0), 600 * MIB);
}

static void *begin_cuda(void *unused)
{
    (void)unused;
    OK(cuInit(0));
    return NULL;
}

static void attach_while_forking(void *argument)
{
    struct together *together = argument;
    pthread_t thread;
    unsigned round = together->go;
    uint64_t before = usage->loaded;
    CHECK(pthread_create(&thread, NULL, begin_cuda, NULL) == 0);
    while (usage->loaded == before)
        sched_yield();
    for (unsigned turn = 0; turn < round % 4 * 20; turn++)
        sched_yield();
    pid_t copy = fork();
    if (copy == 0) {
        alarm(600);
        for (;;)
            pause();
    }
    together->granted = (unsigned)copy;
    pthread_join(thread, NULL);
}

/* A child of fork would share the lock of a slot that another thread takes at that moment, and keep it when its parent is dead. */
TEST(a_fork_in_the_midst_of_attaching_takes_no_lock_along)
{
    struct together *together = share_page();
    begin(.limit = GIB, .no_context = true);
    for (unsigned round = 0; round < 24; round++) {
        together->go = round;
        pid_t other = other_process(attach_while_forking, together);
        CHECK_EQUAL(status_of(other), 0);
        reap();
        unsigned left = 0;
        for (unsigned slot = 0; slot < SLOTS_MAX; slot++)
            left += usage->slots[slot].pid == (unsigned)other;
        kill((pid_t)together->granted, SIGKILL);
        CHECK_EQUAL(left, 0);
    }
}

/* 3.7, row 6: the more processes there are, the longer the next one took to start. */
TEST(attaching_looks_at_a_fixed_number_of_words)
{
    static struct region regions[SLOTS_MAX];
    char path[340];
    begin(.limit = GIB, .no_context = true);
    snprintf(path, sizeof path, "%s/regions/claim-0", folder);
    for (unsigned number = 0; number < 1000; number++) {
        CHECK_EQUAL(region_attach(&regions[number], path), REGION_OK);
        CHECK_EQUAL(regions[number].slot, number);
        CHECK(regions[number].looks <= 2 * BITMAP_WORDS + 1);
    }
    region_detach(&regions[130]);
    reap();
    for (int turn = 0; turn < 1200 && usage->bitmap[2] == UINT64_MAX; turn++) {
        nap(50);
        reap();
    }
    CHECK_EQUAL(region_attach(&regions[130], path), REGION_OK);
    CHECK_EQUAL(regions[130].slot, 130);
    CHECK(regions[130].looks <= 2 * BITMAP_WORDS + 1);
}

/* A figure that no card can have would turn the sum over, and leave room for everybody. */
TEST(a_figure_beyond_all_cards_gives_nobody_room)
{
    CUdeviceptr pointer;
    begin(.limit = GIB);
    OK(cuMemAlloc_v2(&pointer, 600 * MIB));
    unsigned slot = SLOTS_MAX - 1;
    usage->bitmap[slot / 64] |= UINT64_C(1) << (slot % 64);
    usage->accounts[0][slot].held = 0 - 600 * MIB;
    usage->accounts[0][slot].pending = 0 - 600 * MIB;
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST(closing_all_descriptors_does_not_lose_the_slot)
{
    CUdeviceptr pointer;
    begin(.limit = GIB);
    OK(cuMemAlloc_v2(&pointer, 700 * MIB));
    for (int file = 3; file < 1024; file++)
        close(file);
    reap();
    CHECK_EQUAL(ledger(0), 700 * MIB);
}

TEST(after_exec_the_old_slot_goes)
{
    struct together *together = share_page();
    CUdeviceptr pointer;
    begin(.limit = GIB, .no_context = true);
    pid_t other = fork();
    if (other == 0) {
        start_cuda();
        OK(cuMemAlloc_v2(&pointer, 600 * MIB));
        together->ready++;
        execl("/bin/sleep", "sleep", "30", (char *)NULL);
        _exit(1);
    }
    wait_for(&together->ready, 1);
    for (int turn = 0; turn < 5000 && ledger(0); turn++) {
        nap(10);
        reap();
    }
    CHECK_EQUAL(ledger(0), 0);
    kill(other, SIGKILL);
    status_of(other);
}

/* A process stopped between its announcement and the grant: what it announced is taken, the rest is there for the others. */
TEST(nobody_waits_for_a_stopped_process)
{
    CUdeviceptr pointer;
    struct together *together = share_page();
    begin(.limit = GIB, .no_context = true);
    pid_t other = other_process(allocate_and_stay, together);
    wait_for(&together->ready, 1);
    CHECK_EQUAL(kill(other, SIGSTOP), 0);
    usage->accounts[0][0].pending = 200 * MIB;
    start_cuda();
    for (unsigned turn = 0; turn < 1000; turn++) {
        OK(cuMemAlloc_v2(&pointer, 100 * MIB));
        CHECK_EQUAL(cuMemAlloc_v2(&(CUdeviceptr){0}, 200 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
        OK(cuMemFree_v2(pointer));
    }
    kill(other, SIGKILL);
    status_of(other);
    OK(cuMemAlloc_v2(&pointer, 900 * MIB));
    check_books();
}

/* A reaper stopped with a dead slot in its hands: that slot waits for it, nobody else does. */
TEST(nobody_waits_for_a_stopped_reaper)
{
    char path[340];
    CUdeviceptr pointer;
    struct together *together = share_page();
    begin(.limit = GIB, .no_context = true);
    pid_t other = other_process(allocate_and_stay, together);
    wait_for(&together->ready, 1);
    kill(other, SIGKILL);
    status_of(other);
    snprintf(path, sizeof path, "%s/regions/claim-0/usage", folder);
    int file = open(path, O_RDWR | O_CLOEXEC);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    CHECK(file >= 0 && fcntl(file, F_OFD_SETLK, &lock) == 0);
    start_cuda();
    OK(cuMemAlloc_v2(&pointer, 400 * MIB));
    CHECK_EQUAL(cuMemAlloc_v2(&(CUdeviceptr){0}, 400 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    close(file);
    OK(cuMemAlloc_v2(&(CUdeviceptr){0}, 400 * MIB));
    check_books();
}
