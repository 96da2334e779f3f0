#include "share.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { TENANTS = WORLD_CLOCKS - 1, LOOKS = 400 };
#define LOOK (100 * MS)

static struct play played;
static unsigned count, begun;
static struct one {
    struct load load;
    unsigned claim;
    char claims[340]; /* the folder of the claim's folder */
    struct policy *policy;
    struct usage *usage;
    pid_t pid;
} ones[TENANTS];

void start_shares_with(struct play play)
{
    begin(.cards = 1, .no_context = true, .no_region = true, .unlimited = true);
    played = play;
    world->cards[0].sms = play.sms ? play.sms : 132;
    world->cards[0].concurrent = play.concurrent;
    world->cards[0].switch_ns = play.switch_ns;
    world->clock.now = (play.uptime_s ? play.uptime_s : 1000) * SECOND;
    world->cards[0].at = world->clock.now;
    world->clock.awaited = play.tenants + 1;
    world->clock.on = 1;
    world->launch_ns = 2000;
}

static void turn(void *function, const struct load *load, CUstream *streams, CUgraphExec graph)
{
    static unsigned number;
    unsigned times;
    void *parameters[] = {&times};
    if (load->own)
        load->own(function, streams[0]);
    unsigned blocks = load->blocks ? load->blocks : world->cards[0].sms;
    if (graph)
        OK(cuGraphLaunch(graph, streams[0]));
    for (unsigned at = 0; !graph && !load->own && at < (load->kernels ? load->kernels : 1); at++) {
        times = 1 + (load->spread ? number++ * 7 % load->spread : 0);
        OK(cuLaunchKernel(function, blocks, 1, 1, 128, 1, 1, 0, streams[at % (load->streams ? load->streams : 1)], parameters, NULL));
    }
    for (unsigned at = 0; at < (load->streams ? load->streams : 1) && !load->asynchronous; at++)
        OK(cuStreamSynchronize(streams[at]));
    if (load->idle_ns)
        world_sleep_until(world, world_now(world) + load->idle_ns);
}

static CUgraphExec make_graph(void *function, const struct load *load)
{
    CUgraph graph, child;
    CUgraphNode node;
    CUgraphExec executable;
    struct {
        void *function;
        unsigned sizes[7];
        void *rest[4];
    } kernel = {.function = function, .sizes = {load->blocks ? load->blocks : world->cards[0].sms, 1, 1, 128, 1, 1, 0}};
    void *host[2] = {NULL, (void *)(uintptr_t)load->host_ns};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphCreate(&child, 0));
    for (unsigned at = 0; at < (load->kernels ? load->kernels : 1); at++)
        OK(cuGraphAddKernelNode_v2(&node, load->child_graph ? child : graph, NULL, 0, &kernel));
    if (load->host_ns)
        OK(cuGraphAddHostNode(&node, graph, NULL, 0, host));
    if (load->child_graph)
        OK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child));
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    return executable;
}

static void live(unsigned number)
{
    struct load load = ones[number].load;
    char name[40];
    void *module, *function;
    CUstream streams[8];
    setenv("KOORDRA_LIMITER_FOLDER", ones[number].claims, 1);
    world->clock.threads[number + 1].pid = (uint32_t)getpid();
    clock_join(world, number + 1);
    if (load.from)
        world_sleep_until(world, load.from);
    start_cuda();
    OK(cuModuleLoadData(&module, ""));
    snprintf(name, sizeof name, "spin %llu", (unsigned long long)load.kernel_ns);
    OK(cuModuleGetFunction(&function, module, name));
    for (unsigned at = 0; at < 8; at++)
        OK(cuStreamCreate(&streams[at], 0));
    CUgraphExec graph = load.graph ? make_graph(function, &load) : NULL;
    while (!load.until || world_now(world) < load.until)
        turn(function, &load, streams, graph);
    clock_leave(world);
    _exit(0);
}

static void launch(unsigned number)
{
    pid_t parent = getpid();
    CHECK((ones[number].pid = fork()) >= 0);
    if (ones[number].pid == 0) {
        end_with_parent(parent);
        live(number);
    }
    if (count == played.tenants) {
        clock_join(world, 0); /* all may run from now on */
        begun = true;
    }
}

struct policy *tenant(uint32_t rate, struct load load)
{
    char path[360];
    struct one *one = &ones[count];
    *one = (struct one){.load = load, .claim = count};
    snprintf(one->claims, sizeof one->claims, "%s/claims-%u", folder, count);
    mkdir(one->claims, 0755);
    snprintf(path, sizeof path, "%s/claim", one->claims);
    region_make(path, (const uint8_t(*)[16])world->cards[0].uuid, 1, UNLIMITED, 0, 0);
    policy->devices[0].cores = rate / 100;
    policy->devices[0].rate = rate;
    policy->devices[0].neighbours = played.neighbours;
    one->policy = policy;
    one->usage = usage;
    launch(count++);
    return one->policy;
}

void tenant_of(const char *claims, struct load load)
{
    ones[count] = (struct one){.load = load, .claim = count};
    snprintf(ones[count].claims, sizeof ones[count].claims, "%s", claims);
    launch(count++);
}

void companion(unsigned of, struct load load)
{
    unsigned number = count++;
    ones[number] = ones[of];
    ones[number].load = load;
    launch(number);
}

/* Never with the fake driver's lock, which the process would keep where the kernel does not hear of it (qemu). */
void kill_tenant(unsigned number)
{
    world_lock(world);
    kill(ones[number].pid, SIGKILL);
    waitid(P_PID, (id_t)ones[number].pid, &(siginfo_t){0}, WEXITED | WNOWAIT);
    world_unlock(world);
}

uint64_t device_time(unsigned number)
{
    for (unsigned process = 0; process < world->process_top; process++)
        if (world->processes[process].used && world->processes[process].pid == (uint32_t)ones[number].pid)
            return world->processes[process].device_ns[0];
    return 0;
}

pid_t tenant_pid(unsigned number)
{
    return ones[number].pid;
}

uint64_t claim_time(unsigned number)
{
    uint64_t time = 0;
    for (unsigned at = 0; at < count; at++)
        time += ones[at].claim == ones[number].claim ? device_time(at) : 0;
    return time;
}

/* As the node's plugin does, by the driver's samples: whole percent, six times a second, of who did anything at all. */
static void look(void)
{
    static uint64_t since, last;
    const struct world_card *card = &world->cards[0];
    uint64_t newest = since;
    for (unsigned at = card->sample_count > WORLD_SAMPLES ? card->sample_count - WORLD_SAMPLES : 0; at < card->sample_count; at++) {
        const struct world_sample *sample = &card->samples[at % WORLD_SAMPLES];
        if (sample->at > newest) {
            last = newest;
            newest = sample->at;
        }
        for (unsigned one = 0; one < count && sample->at > since && last; one++)
            if ((uint32_t)ones[one].pid == sample->pid && !played.blind)
                ones[one].policy->devices[0].device_time += sample->percent * (sample->at - last < SAMPLE_NS ? sample->at - last : SAMPLE_NS) / 100;
    }
    for (unsigned at = 0; at < count && !played.blind && newest > since; at++)
        ones[at].policy->devices[0].seen_until = newest;
    since = newest;
}

void pass(uint64_t ns)
{
    uint64_t until = world->clock.now + ns;
    while (world->clock.now < until) {
        uint64_t next = world->clock.now + LOOK;
        world_sleep_until(world, next < until ? next : until);
        look();
    }
}

struct parts parts_over(uint64_t ns, uint64_t window)
{
    static uint64_t seen[LOOKS][TENANTS];
    struct parts parts;
    unsigned looks = (unsigned)(ns / LOOK), width = (unsigned)(window / LOOK);
    CHECK(looks < LOOKS && width <= looks);
    for (unsigned at = 0; at <= looks; at++) {
        for (unsigned one = 0; one < count; one++)
            seen[at][one] = device_time(one);
        if (at < looks)
            pass(LOOK);
    }
    for (unsigned one = 0; one < count; one++) {
        parts.least[one] = 1000;
        parts.most[one] = 0;
        parts.mean[one] = 100.0 * (double)(seen[looks][one] - seen[0][one]) / (double)(looks * LOOK);
        for (unsigned at = 0; at + width <= looks; at++) {
            double part = 100.0 * (double)(seen[at + width][one] - seen[at][one]) / (double)(width * LOOK);
            parts.least[one] = part < parts.least[one] ? part : parts.least[one];
            parts.most[one] = part > parts.most[one] ? part : parts.most[one];
        }
        if (getenv("KOORDRA_SHOW_SHARES"))
            fprintf(stderr, "  tenant %u: mean %.2f, least %.2f, most %.2f\n", one, parts.mean[one], parts.least[one], parts.most[one]);
    }
    return parts;
}

int end_status(unsigned number)
{
    int status = -1;
    if (waitpid(ones[number].pid, &status, WNOHANG) != ones[number].pid)
        kill_tenant(number);
    clock_leave(world);
    return status;
}

void end_shares(void)
{
    for (unsigned at = 0; at < count; at++)
        kill_tenant(at);
    for (unsigned at = 0; at < count; at++)
        status_of(ones[at].pid);
    CHECK_EQUAL(world->misuse, 0);
    clock_leave(world);
}
