/* Tests of device time, in virtual time: tenants that launch, each a process with a claim of its own, or several of one, and a node
 * that looks at what they get.
 *
 *     start_shares(.sms = 132, .tenants = 2);
 *     tenant(0, 3000, short_kernels);       30 %
 *     tenant(1, 7000, long_kernels);
 *     CHECK_SHARE(0, 30, 3);
 */
#ifndef KOORDRA_SHARE_H
#define KOORDRA_SHARE_H

#include "harness.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

/* What a tenant does, over and over. */
struct load {
    uint64_t kernel_ns;    /* of one block */
    unsigned blocks;       /* 0: one for each multiprocessor */
    unsigned kernels;      /* of one turn; 1 */
    bool asynchronous;     /* waits for nothing */
    bool graph;            /* the turn is one graph */
    bool child_graph;
    uint64_t host_ns;      /* of a host node in the graph */
    unsigned streams;      /* 1 */
    uint64_t idle_ns;      /* after each turn */
    uint64_t spread;       /* kernels take up to so many times as long, each another time */
    void (*own)(void *function, CUstream stream); /* the turn is this */
    uint64_t from, until;  /* of virtual time; 0: ever */
};

static const struct load SHORT = {.kernel_ns = 10000, .kernels = 20}, PLAIN = {.kernel_ns = 200000, .kernels = 4}, LONG = {.kernel_ns = 10000000},
                         BURST = {.kernel_ns = 50000, .asynchronous = true}, HALF = {.kernel_ns = 150000, .kernels = 5, .blocks = 66},
                         GRAPH = {.kernel_ns = 20000, .kernels = 25, .graph = true, .child_graph = true},
                         BESIDE = {.kernel_ns = 200000, .blocks = 30, .kernels = 8, .streams = 4};

struct play {
    unsigned tenants;      /* processes */
    unsigned sms;          /* 132 */
    bool concurrent;       /* the card knows no turns */
    bool blind;            /* the node sees no device time, or is another process that writes the policies */
    unsigned neighbours;   /* what the policy says */
    uint64_t switch_ns;
    uint64_t uptime_s;     /* 1000 */
};

void start_shares_with(struct play play);
#define start_shares(...) start_shares_with((struct play){__VA_ARGS__})

/* A claim of its own at this rate (in 1/100 %), 0: not limited; and one process that does this. Its number is the order. */
struct policy *tenant(uint32_t rate, struct load load);
/* The same for a claim that is there: a folder with its folder in it. */
void tenant_of(const char *claims, struct load load);
/* One more process of the same claim as tenant number `of`. */
void companion(unsigned of, struct load load);

/* With SIGKILL, in the midst of whatever it does. */
void kill_tenant(unsigned tenant);

/* Lets time pass; the node looks every 100 ms. */
void pass(uint64_t ns);

/* Device time of a tenant, and of all processes of its claim, until now. */
uint64_t device_time(unsigned tenant);
uint64_t claim_time(unsigned tenant);
pid_t tenant_pid(unsigned tenant);

/* Parts in percent of the time passed, in every window of `window` that begins on a node's look, for `ns` from now: the least and the most. */
struct parts {
    double least[WORLD_CLOCKS], most[WORLD_CLOCKS], mean[WORLD_CLOCKS];
};
struct parts parts_over(uint64_t ns, uint64_t window);

void end_shares(void);
/* Instead: the status with which a tenant has ended by itself, and not 0 if it has not. */
int end_status(unsigned tenant);

#define CHECK_BETWEEN(got, low, high)                                                                                  \
    do {                                                                                                               \
        double got_ = (got);                                                                                           \
        if (!(got_ >= (low) && got_ <= (high))) {                                                                      \
            fprintf(stderr, "%s:%d: %s is %.2f, not within %.2f and %.2f\n", __FILE__, __LINE__, #got, got_, (double)(low), (double)(high)); \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

#endif
