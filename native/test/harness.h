/* Tests of the limiter against the fake driver. Each runs in a process of its own, with a machine and a claim of its own:
 *
 *     TEST(what_it_shows)
 *     {
 *         begin(.limit = GIB);
 *         CHECK(cuMemAlloc_v2(&pointer, 2 * GIB) == CUDA_ERROR_OUT_OF_MEMORY);
 *     }
 *
 * The program is linked with libcuda.so.1, which the runner's LD_LIBRARY_PATH makes the limiter, in whichever flavour. */
#ifndef KOORDRA_HARNESS_H
#define KOORDRA_HARNESS_H

/* A sanitizer's runtime has to come first in its process, so that what is built with one cannot be loaded twice. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api.h"
#include "driver/world.h"
#include "../limiter/region.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

struct test {
    const char *name;
    void (*run)(void);
    struct test *next;
};

void test_add(struct test *test);

#define TEST(NAME)                                                       \
    static void NAME(void);                                               \
    __attribute__((constructor)) static void add_##NAME(void)             \
    {                                                                     \
        static struct test test = {#NAME, NAME, NULL};                    \
        test_add(&test);                                                  \
    }                                                                     \
    static void NAME(void)

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);         \
            _exit(1);                                                               \
        }                                                                           \
    } while (0)

#define CHECK_EQUAL(got, wanted)                                                                                              \
    do {                                                                                                                      \
        unsigned long long got_ = (unsigned long long)(got), wanted_ = (unsigned long long)(wanted);                          \
        if (got_ != wanted_) {                                                                                                \
            fprintf(stderr, "%s:%d: %s is %llu, not %s = %llu\n", __FILE__, __LINE__, #got, got_, #wanted, wanted_);          \
            _exit(1);                                                                                                         \
        }                                                                                                                     \
    } while (0)

#define OK(call) CHECK_EQUAL((call), CUDA_SUCCESS)

/* The machine and the claim of a test. */
struct setting {
    unsigned cards;          /* 2 */
    uint64_t card_bytes;     /* 8 GiB */
    uint64_t limit;          /* of each card; 1 GiB */
    bool unlimited;
    bool unwatched;          /* the referee does not compare the truth with the limit */
    uint64_t context_bytes;  /* what a context costs, and what the policy keeps for it */
    uint64_t policy_context; /* what the policy keeps, where that is different; 1: nothing */
    unsigned flags;
    unsigned claims;         /* 1; each gets `limit` */
    bool no_region, no_context;
};

extern struct world *world;
extern struct policy *policy; /* of the first claim, writable here */
extern struct usage *usage;
extern char folder[256];

void begin_with(struct setting setting);
#define begin(...) begin_with((struct setting){__VA_ARGS__})

/* The two files of a claim. */
void region_make(const char *path, const uint8_t (*uuids)[16], unsigned count, uint64_t limit, uint64_t context_bytes, unsigned flags);

/* cuInit and the primary context of a card, made current. */
void start_cuda(void);
void use_card(int ordinal);

uint64_t truth(unsigned card);
uint64_t ledger(unsigned card);
void reap(void);

/* Nothing is over the limit, and what the claim is charged is what the card really holds. */
void check_books(void);

/* In a child, first of all: it is killed when its parent ends, in whatever way. */
void end_with_parent(pid_t parent);

/* Runs it in another process of the claim, before CUDA is started in this one; its exit status is the answer. */
pid_t other_process(void (*run)(void *argument), void *argument);
int status_of(pid_t process);

#endif
