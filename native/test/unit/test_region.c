/* Who owns a slot, who is refused, and regions that are damaged or older: what the claim's files say when something is odd. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

#include "../harness.h"

struct together {
    _Atomic unsigned ready;
};

static struct together *share_page(void)
{
    return mmap(NULL, sizeof(struct together), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static void nap(long milliseconds)
{
    nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000}, NULL);
}

static void wait_for(_Atomic unsigned *word, unsigned value)
{
    while (atomic_load(word) < value)
        nap(1);
}

static const char *file_of_claim(const char *name)
{
    static char path[400];
    snprintf(path, sizeof path, "%s/regions/claim-0/%s", folder, name);
    return path;
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

/* How many bytes of the file are locked: each is a lock in the kernel's list of the file's. */
static unsigned locks_on(const char *name)
{
    unsigned found = 0;
    int file = open(file_of_claim(name), O_RDONLY | O_CLOEXEC);
    CHECK(file >= 0);
    for (unsigned byte = 0; byte < SLOTS_MAX; byte++) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
        CHECK(fcntl(file, F_OFD_GETLK, &lock) == 0);
        found += lock.l_type != F_UNLCK;
    }
    close(file);
    return found;
}

/* 3.7, row 6: the kernel walks the list of a file's locks, so one list for all made each start longer than the last. */
TEST(no_list_of_locks_grows_with_the_number_of_processes)
{
    static struct region regions[SLOTS_MAX];
    char path[340], name[16];
    unsigned all = 0;
    begin(.limit = GIB, .no_context = true);
    snprintf(path, sizeof path, "%s/regions/claim-0", folder);
    for (unsigned number = 0; number < SLOTS_MAX - 1; number++)
        CHECK_EQUAL(region_attach(&regions[number], path), REGION_OK);
    start_cuda();
    CHECK_EQUAL(locks_on("usage"), 0);
    for (unsigned file = 0; file < ALIVE_FILES; file++) {
        snprintf(name, sizeof name, "alive.%u", file);
        CHECK(locks_on(name) <= SLOTS_MAX / ALIVE_FILES);
        all += locks_on(name);
    }
    CHECK_EQUAL(all, SLOTS_MAX);
}

/* Somebody who may have no more descriptors, say. */
TEST(an_owner_that_cannot_be_asked_for_is_alive)
{
    struct together *together = share_page();
    CUdeviceptr pointer;
    char aside[420];
    begin(.limit = GIB, .no_context = true);
    pid_t other = other_process(allocate_and_stay, together);
    wait_for(&together->ready, 1);
    start_cuda();
    snprintf(aside, sizeof aside, "%s", file_of_claim("aside"));
    CHECK(rename(file_of_claim("alive.0"), aside) == 0);
    for (unsigned look = 0; look < 5; look++) {
        CHECK_EQUAL(cuMemAlloc_v2(&pointer, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY); /* which looks for the dead */
        nap(100);
    }
    CHECK(rename(aside, file_of_claim("alive.0")) == 0);
    CHECK_EQUAL(ledger(0), 600 * MIB);
    kill(other, SIGKILL);
    status_of(other);
    OK(cuMemAlloc_v2(&pointer, 600 * MIB));
    check_books();
}

/* A tenant that clears the bitmap gives no slot away that has an owner. */
TEST(a_slot_with_an_owner_is_not_taken_again)
{
    struct together *together = share_page();
    CUdeviceptr pointer;
    begin(.limit = GIB, .no_context = true);
    pid_t other = other_process(allocate_and_stay, together);
    wait_for(&together->ready, 1);
    usage->bitmap[0] = 0;
    start_cuda();
    CHECK_EQUAL(usage->bitmap[0], 3);
    CHECK_EQUAL(usage->slots[0].pid, other);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    kill(other, SIGKILL);
    status_of(other);
}

static bool somebody_refused_lives(void)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    int file = open(file_of_claim("refused"), O_RDONLY | O_CLOEXEC);
    CHECK(file >= 0 && fcntl(file, F_OFD_GETLK, &lock) == 0);
    close(file);
    return lock.l_type != F_UNLCK;
}

static void be_refused(void *argument)
{
    struct together *together = argument;
    CHECK_EQUAL(cuInit(0), CUDA_ERROR_NOT_PERMITTED);
    for (int file = 3; file < 256; file++)
        close(file);
    together->ready++;
    for (;;)
        pause();
}

/* 3.8, row 7: nobody is told; or told for ever. */
TEST(a_refused_process_is_seen_for_as_long_as_it_lives)
{
    static struct region regions[SLOTS_MAX];
    char path[340];
    pid_t refused[3];
    struct together *together = share_page();
    begin(.limit = GIB, .no_context = true);
    snprintf(path, sizeof path, "%s/regions/claim-0", folder);
    for (unsigned number = 0; number < SLOTS_MAX; number++)
        CHECK_EQUAL(region_attach(&regions[number], path), REGION_OK);
    CHECK(!somebody_refused_lives());
    CHECK_EQUAL(usage->refused_at, 0);
    for (unsigned number = 0; number < 3; number++)
        refused[number] = other_process(be_refused, together);
    wait_for(&together->ready, 3);
    CHECK_EQUAL(usage->turned_away, 3);
    CHECK(usage->refused_at != 0);
    for (unsigned number = 0; number < 3; number++) {
        CHECK(somebody_refused_lives());
        kill(refused[number], SIGKILL);
        status_of(refused[number]);
    }
    CHECK(!somebody_refused_lives());
}

/* Cut short, written over, or of a version that is not known: no CUDA for who starts, and the node sees it. */
TEST(who_starts_with_a_damaged_region_is_refused_and_seen)
{
    struct together *together = share_page();
    begin(.limit = GIB, .no_context = true);
    for (unsigned damage = 0; damage < 5; damage++) {
        uint64_t magic = usage->magic;
        if (damage == 0)
            usage->magic = 0;
        else if (damage == 1)
            policy->version = usage->version = REGION_VERSION + 1;
        else if (damage == 2)
            policy->version = usage->version = REGION_VERSION - 1;
        else if (damage == 3)
            usage->version = REGION_VERSION - 1; /* not the policy's */
        else
            CHECK(truncate(file_of_claim("usage"), 100) == 0);
        pid_t other = other_process(be_refused, together);
        wait_for(&together->ready, damage + 1);
        CHECK(somebody_refused_lives());
        kill(other, SIGKILL);
        status_of(other);
        CHECK(!somebody_refused_lives());
        if (damage < 4) {
            usage->magic = magic;
            policy->version = usage->version = REGION_VERSION;
        }
    }
}
