/* Who lives, and who is at work on a slot.
 *
 *   seize   an exclusive lock on the slot's byte of `usage`, for the moment in which a slot is taken or given back
 *   own     a shared lock on the slot's byte of one of the files alive.N, for life
 *
 * The kernel keeps the locks of one file in a list and walks it for each lock, question and close. Kept in `usage`, the locks
 * of the living made taking a slot 30 ns longer for each of them, as it walks the list some eight times. So `usage` has only
 * the locks of who is at work, and those for life are spread over ALIVE_FILES files, with at most SLOTS_MAX / ALIVE_FILES each:
 * whatever the number of processes, no list is longer, and the time is the same within a microsecond. Robust futexes would be
 * constant too, but belong to a thread; pids and their start times cannot be asked across namespaces.
 *
 * A lock for life is for reading: so the files need no place where the tenant may write. It belongs to an open file
 * description; that lives on in a mapping when the descriptor is closed, and goes with the process's memory.
 *
 * A descriptor with a lock on it is open here only, and a child of fork would share it: the lock would outlive our death. So
 * fork waits until it is closed, which is a moment; but not for ever, as it may be called from a signal handler that has
 * interrupted the very thread. A bare clone() without exec is not kept waiting. */
#include "slot_lock.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "defect.h"
#include "old_glibc.h"

#define FORK_WAITS UINT64_C(200000000) /* ns */

static pthread_mutex_t at_work = PTHREAD_MUTEX_INITIALIZER;
static __thread bool fork_holds;

static uint64_t now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * UINT64_C(1000000000) + (uint64_t)at.tv_nsec;
}

static void before_fork(void)
{
    uint64_t until = now() + FORK_WAITS;
    while (!(fork_holds = pthread_mutex_trylock(&at_work) == 0) && now() < until)
        sched_yield();
}

static void after_fork_in_parent(void)
{
    if (fork_holds)
        pthread_mutex_unlock(&at_work);
    fork_holds = false;
}

static void after_fork_in_child(void)
{
    if (!fork_holds)
        at_work = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; /* whoever held it is not here */
    after_fork_in_parent();
}

/* From the start: a fork that is under way already would not ask. */
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

int region_file(const char *folder, const char *name, int flags)
{
    char path[512];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return -1;
    return open(path, flags | O_CLOEXEC | O_NOCTTY);
}

int slot_work_begin(const struct region *region)
{
    if (!DEFECT(locks_go_with_a_fork))
        pthread_mutex_lock(&at_work);
    int work = region_file(region->folder, "usage", O_RDWR);
    if (work < 0 && !DEFECT(locks_go_with_a_fork))
        pthread_mutex_unlock(&at_work);
    return work;
}

void slot_work_end(int work)
{
    close(work);
    if (!DEFECT(locks_go_with_a_fork))
        pthread_mutex_unlock(&at_work);
}

static bool lock_byte(int file, short type, unsigned byte)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

bool slot_seize(int work, unsigned slot)
{
    return lock_byte(work, F_WRLCK, slot);
}

void slot_release(int work, unsigned slot)
{
    lock_byte(work, F_UNLCK, slot);
}

/* A child of fork does not get the page, nor with it the lock. */
static const void *map_for_life(int file)
{
    long page = sysconf(_SC_PAGESIZE);
    void *kept = mmap(NULL, (size_t)page, PROT_NONE, MAP_SHARED, file, 0); /* nobody is to look into it: there is nothing behind it */
    if (kept == MAP_FAILED)
        return NULL;
    if (madvise(kept, (size_t)page, MADV_DONTFORK) != 0) {
        munmap(kept, (size_t)page);
        return NULL;
    }
    return kept;
}

int slot_owners(const struct region *region, unsigned slot)
{
    char name[16];
    snprintf(name, sizeof name, "alive.%u", slot % ALIVE_FILES);
    return DEFECT(one_list_of_locks) ? -1 : region_file(region->folder, name, O_RDONLY);
}

void slot_owners_end(int owners)
{
    if (owners >= 0)
        close(owners);
}

const void *slot_own(int work, int owners, unsigned slot)
{
    if (DEFECT(one_list_of_locks))
        return map_for_life(work);
    const void *kept = owners >= 0 && lock_byte(owners, F_RDLCK, slot) ? map_for_life(owners) : NULL;
    if (DEFECT(locks_go_with_a_fork))
        usleep(20000);
    return kept;
}

bool slot_owned(int owners, unsigned slot)
{
    if (DEFECT(one_list_of_locks))
        return false;
    if (owners < 0 && !DEFECT(unasked_is_dead))
        return true;
    /* A lock for writing, as it would meet one for reading; asking needs no right to write. */
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    return fcntl(owners, F_OFD_GETLK, &lock) == 0 ? lock.l_type != F_UNLCK : !DEFECT(unasked_is_dead);
}

void refused_for_life(const char *folder)
{
    pthread_mutex_lock(&at_work);
    int file = region_file(folder, "refused", O_RDONLY);
    if (file >= 0) {
        if (lock_byte(file, F_RDLCK, 0))
            map_for_life(file);
        close(file);
    }
    pthread_mutex_unlock(&at_work);
}
