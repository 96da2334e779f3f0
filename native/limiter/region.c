/* Attaching to a claim's region: both files are mapped, a slot is taken (slot.c), some of the dead are given back (reap.c), and
 * the node is told who we are. Nothing is waited for. Who cannot attach says so, to be seen for as long as it lives. */
#include "region.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "defect.h"
#include "old_glibc.h"
#include "slot.h"
#include "slot_lock.h"

/* Tells the node who we are: it reads our host pid from the connection itself. Slot SLOTS_MAX: we got none. Never waits; without
 * a node nothing is lost. */
static void tell_broker(const char *path, uint64_t slot, uint64_t generation)
{
    /* A path may be longer than a socket's name can be; the folder's descriptor stands for it. */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int folder = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return;
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/broker.sock", folder);
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connection < 0) {
        close(folder);
        return;
    }
    if (connect(connection, (struct sockaddr *)&address, sizeof address) == 0) {
        uint64_t word[2] = {slot, generation};
        ssize_t sent = send(connection, word, sizeof word, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)sent;
    }
    close(connection);
    close(folder);
}

/* Maps a file of at least `bytes`; NULL where it is absent, shorter, or cannot be mapped. */
static void *map_file(const char *folder, const char *name, size_t bytes, bool writable)
{
    int file = region_file(folder, name, writable ? O_RDWR : O_RDONLY);
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
             region->usage->version != REGION_VERSION ||
             region->usage->bytes != sizeof *region->usage || atomic_load(&region->policy->device_count) > DEVICES_MAX)
        answer = REGION_INVALID;
    if (answer != REGION_OK)
        region_detach(region);
    return answer;
}

enum region_answer region_open(struct region *region, const char *folder)
{
    return map_region(region, folder, false);
}

void region_refused(struct usage *usage, const char *folder)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    if (usage) {
        atomic_store(&usage->refused_at, (uint64_t)at.tv_sec * UINT64_C(1000000000) + (uint64_t)at.tv_nsec);
        atomic_fetch_add(&usage->turned_away, 1);
    }
    if (!DEFECT(refused_unseen))
        refused_for_life(folder);
    tell_broker(folder, SLOTS_MAX, 0);
}

enum region_answer region_attach(struct region *region, const char *folder)
{
    enum region_answer answer = map_region(region, folder, true);
    if (answer != REGION_OK) {
        region_refused(NULL, folder);
        return answer;
    }
    int node_wide = DEFECT(node_wide_lock) ? region_file(folder, "..", O_RDONLY) : -1;
    if (node_wide >= 0 && flock(node_wide, LOCK_EX) == 0) {
        usleep(999999);
        close(node_wide);
    }
    atomic_fetch_add(&region->usage->loaded, 1);
    int work = slot_work_begin(region);
    bool taken = work >= 0 && slot_take(region, work);
    if (taken) {
        atomic_fetch_add(&region->usage->enforcing, 1);
        slot_reap_some(region, work);
    }
    if (work >= 0)
        slot_work_end(work);
    if (!taken) {
        region_refused(region->usage, folder);
        region_detach(region);
        return REGION_FULL;
    }
    tell_broker(region->folder, region->slot, atomic_load(&region->usage->slots[region->slot].generation));
    return REGION_OK;
}
