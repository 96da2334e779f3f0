#include "driver.h"

#include <stdatomic.h>
#include <string.h>

#include "real_library.h"

#ifdef KOORDRA_PRELOAD
#define LOOK_UP found_symbol
#else
#define LOOK_UP real_symbol
#endif

static const char *const names[] = {
#define HOOK(symbol, name, version, per_thread) #symbol,
#define ALIAS(symbol, name, version, per_thread)
#define FORWARD(symbol) #symbol,
#include "driver_names.h"
#undef HOOK
#undef ALIAS
#undef FORWARD
};

static _Atomic(void *) found[FN_COUNT];

static CUresult no_driver(void)
{
    return CUDA_ERROR_STUB_LIBRARY;
}

static CUresult no_function(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

static void *any_function(CUresult (*function)(void))
{
    void *address;
    memcpy(&address, &function, sizeof address);
    return address;
}

void *driver_function_or_null(enum driver_function number)
{
    void *function = atomic_load_explicit(&found[number], memory_order_acquire);
    if (!function) {
        function = LOOK_UP("libcuda.so.1", names[number]);
        atomic_store_explicit(&found[number], function, memory_order_release);
    }
    return function;
}

void *driver_function(enum driver_function number)
{
    void *function = driver_function_or_null(number);
    if (function)
        return function;
    return any_function(LOOK_UP("libcuda.so.1", "cuInit") ? no_function : no_driver);
}

/* For stubs.S. */
void *driver_stub(unsigned number)
{
    return driver_function((enum driver_function)number);
}

bool driver_knows(const char *name)
{
    size_t length = strlen(name);
    for (unsigned number = 0; number < FN_COUNT; number++)
        if (strncmp(names[number], name, length) == 0 && (names[number][length] == 0 || names[number][length] == '_'))
            return true;
    return false;
}
