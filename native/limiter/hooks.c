/* The table of our own functions, made from driver_names.h. */
#include "driver.h"

/* Only their addresses are wanted here, whatever their signatures. */
#define HOOK(symbol, name, version, per_thread) extern const char symbol[];
#define ALIAS(symbol, name, version, per_thread)
#define FORWARD(symbol)
#include "driver_names.h"
#undef HOOK
#undef ALIAS

#define HOOK(symbol, name, version, per_thread) {#symbol, #name, version, per_thread, (void *)(uintptr_t)symbol, FN_##symbol},
#define ALIAS(symbol, name, version, per_thread) {#symbol, #name, version, per_thread, (void *)(uintptr_t)symbol, FN_##symbol},
const struct hook hooks[] = {
#include "driver_names.h"
};

const unsigned hook_count = sizeof hooks / sizeof hooks[0];

/* Who finds this in the libcuda.so.1 of a program knows that a limit is in front of the driver already. */
extern const unsigned koordra_limiter_version;
const unsigned koordra_limiter_version = 1;
