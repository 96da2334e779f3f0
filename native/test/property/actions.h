/* Random things that a CUDA program does with memory; for the property test and the fuzzer. */
#ifndef KOORDRA_ACTIONS_H
#define KOORDRA_ACTIONS_H

#include <stdbool.h>
#include <stdint.h>

enum { HELD_MAX = 48 };

enum thing { NOTHING, POINTER, ASYNC_POINTER, ARRAY, MIPMAP, HANDLE, MAPPED, POOL, GRAPH, EXTERNAL };

struct held {
    enum thing thing;
    uint64_t value, more, bytes;
    int card;
};

/* One thread's belongings and its randomness. */
struct actor {
    uint64_t random;
    struct held held[HELD_MAX];
    uint64_t granted, refused, unexpected;
    int card;
    bool own_contexts; /* may make and destroy contexts of its own */
};

/* Does one thing; every answer must be success, out of memory, or what the action provokes. */
void act(struct actor *actor);

/* Gives everything back. */
void give_everything_back(struct actor *actor);

#endif
