/* The real driver: where it is, and its entry points by number. */
#ifndef KOORDRA_DRIVER_H
#define KOORDRA_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

/* One number for each name: FN_cuMemAlloc_v2. */
enum driver_function {
#define HOOK(symbol, name, version, per_thread) FN_##symbol,
#define ALIAS(symbol, name, version, per_thread)
#define FORWARD(symbol) FN_##symbol,
#include "driver_names.h"
#undef HOOK
#undef ALIAS
#undef FORWARD
    FN_COUNT
};

/* The real entry point; one that answers with an error where the driver, or only this function, is missing. */
void *driver_function(enum driver_function number);

/* NULL where the driver lacks it. */
void *driver_function_or_null(enum driver_function number);

/* Of type `signature`, which is that of cuda.h. */
#define DRIVER(symbol, ...) ((CUresult(*)(__VA_ARGS__))driver_function(FN_##symbol))

/* One of our functions: what it is called, and as of which version of CUDA. */
struct hook {
    const char *symbol, *name;
    int version;
    bool per_thread;
    void *function;
    enum driver_function number;
};

extern const struct hook hooks[];
extern const unsigned hook_count;

/* Whether driver_names.h has the name, with or without a suffix. */
bool driver_knows(const char *name);

#endif
