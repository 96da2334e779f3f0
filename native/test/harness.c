/* What a test stands on: its machine, its claim, their books. */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

/* In place of the C library's, for the program and for the limiter: the time of who takes part in virtual time is the world's. */
int clock_gettime(clockid_t id, struct timespec *at)
{
    if (id != CLOCK_MONOTONIC || !clock_joined())
        return (int)syscall(SYS_clock_gettime, id, at);
    uint64_t now = world_now(world);
    *at = (struct timespec){(time_t)(now / 1000000000), (long)(now % 1000000000)};
    return 0;
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *time, struct timespec *left)
{
    if (!clock_joined())
        return syscall(SYS_clock_nanosleep, id, flags, time, left) == 0 ? 0 : errno;
    uint64_t until = (uint64_t)time->tv_sec * 1000000000 + (uint64_t)time->tv_nsec;
    world_sleep_until(world, flags & TIMER_ABSTIME ? until : world_now(world) + until);
    return 0;
}

struct world *world;
struct policy *policy;
struct usage *usage;
char folder[256];

static void *make_file(const char *path, const char *name, size_t bytes)
{
    char file_name[512];
    snprintf(file_name, sizeof file_name, "%s/%s", path, name);
    int file = open(file_name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    CHECK(file >= 0 && ftruncate(file, (off_t)bytes) == 0);
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    CHECK(mapped != MAP_FAILED);
    return mapped;
}

static void make_owners(const char *path)
{
    char name[400];
    for (unsigned number = 0; number <= ALIVE_FILES; number++) {
        snprintf(name, sizeof name, number < ALIVE_FILES ? "%s/alive.%u" : "%s/refused", path, number);
        int file = open(name, O_RDONLY | O_CREAT | O_CLOEXEC, 0644);
        CHECK(file >= 0);
        close(file);
    }
}

void region_make(const char *path, const uint8_t (*uuids)[16], unsigned count, uint64_t limit, uint64_t context_bytes, unsigned flags)
{
    CHECK(mkdir(path, 0755) == 0 || errno == EEXIST);
    policy = make_file(path, "policy", sizeof *policy);
    usage = make_file(path, "usage", sizeof *usage);
    make_owners(path);
    policy->version = REGION_VERSION;
    policy->bytes = sizeof *policy;
    policy->flags = flags;
    for (unsigned device = 0; device < count; device++) {
        memcpy(policy->devices[device].uuid, uuids[device], 16);
        policy->devices[device].limit = limit;
        policy->devices[device].context_bytes = context_bytes;
        policy->devices[device].reserved[0] = limit; /* for the defect limit_frozen */
    }
    policy->device_count = count;
    usage->version = REGION_VERSION;
    usage->bytes = sizeof *usage;
    policy->magic = POLICY_MAGIC;
    usage->magic = USAGE_MAGIC;
}

void begin_with(struct setting setting)
{
    unsigned cards = setting.cards ? setting.cards : 2, claims = setting.claims ? setting.claims : 1;
    uint64_t limit = setting.unlimited ? UNLIMITED : setting.limit ? setting.limit : GIB;
    char regions[300], path[340];
    world = world_make(folder, cards, setting.card_bytes ? setting.card_bytes : 8 * GIB);
    CHECK(world);
    uint8_t uuids[WORLD_CARDS][16];
    for (unsigned card = 0; card < cards; card++) {
        memcpy(uuids[card], world->cards[card].uuid, 16);
        world->cards[card].context_bytes = setting.context_bytes;
        world->cards[card].watched = setting.unlimited || setting.unwatched ? 0 : limit * claims;
    }
    snprintf(regions, sizeof regions, "%s/regions", folder);
    mkdir(regions, 0755);
    uint64_t kept = setting.policy_context ? setting.policy_context & ~UINT64_C(1) : setting.context_bytes;
    for (unsigned claim = claims; !setting.no_region && claim-- > 0;) {
        snprintf(path, sizeof path, "%s/claim-%u", regions, claim);
        region_make(path, (const uint8_t(*)[16])uuids, cards, limit, kept, setting.flags);
    }
    if (!setting.no_context)
        start_cuda();
}

void use_card(int ordinal)
{
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, ordinal));
    OK(cuCtxSetCurrent(context));
}

void start_cuda(void)
{
    OK(cuInit(0));
    use_card(0);
}

uint64_t truth(unsigned card)
{
    return world_truth(world, folder, card);
}

uint64_t ledger(unsigned card)
{
    uint64_t bytes = 0;
    for (unsigned slot = 0; slot < SLOTS_MAX; slot++)
        bytes += usage->accounts[card][slot].held + usage->accounts[card][slot].pending;
    return bytes;
}

void reap(void)
{
    char path[340];
    struct region region;
    snprintf(path, sizeof path, "%s/regions/claim-0", folder);
    CHECK(region_attach(&region, path) == REGION_OK); /* attaching and dying is what reaps here */
    region_reap(&region);
    region_detach(&region);
}

void check_books(void)
{
    for (unsigned card = 0; card < world->card_count; card++)
        CHECK_EQUAL(ledger(card), truth(card));
    CHECK_EQUAL(world->violations, 0);
}

void end_with_parent(pid_t parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(1); /* it was gone before the kernel was told */
}

pid_t other_process(void (*run)(void *argument), void *argument)
{
    pid_t parent = getpid(), process = fork();
    CHECK(process >= 0);
    if (process == 0) {
        end_with_parent(parent);
        run(argument);
        _exit(0);
    }
    return process;
}

int status_of(pid_t process)
{
    int status;
    CHECK(waitpid(process, &status, 0) == process);
    return status;
}
