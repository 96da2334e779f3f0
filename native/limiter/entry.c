/* Ways in: cuInit, which makes the process ready or refuses it, and cuGetProcAddress, by which most programs get the rest.
 *
 * cuGetProcAddress: the real one is asked first, with the caller's version and flags, so what is there and what is not, and the
 * status, are its answer. What it found is one of the real functions that we have a hook for, known by its address: the hook of
 * the same signature is given. Should a driver give an address that it does not export, the name, the version and the
 * per-thread flag say which hook it is. A strict policy hides names that this library does not know: they may allocate. */
#include <string.h>

#include "charge.h"
#include "defect.h"

CUresult cuInit(unsigned flags)
{
    CUresult result = DRIVER(cuInit, unsigned)(flags);
    return result == CUDA_SUCCESS && process_ready() == PROCESS_REFUSED ? CUDA_ERROR_NOT_PERMITTED : result;
}

static bool hidden(const char *name)
{
    struct process *process = process_self();
    return process && atomic_load(&process->state) == PROCESS_READY && process->strict && !driver_knows(name);
}

/* Our function for what the driver found under the name; the driver's own where there is none. */
static void *hook_for(const char *name, void *found, int version, bool per_thread)
{
    const struct hook *best = NULL;
    for (unsigned at = 0; at < hook_count; at++) {
        const struct hook *hook = &hooks[at];
        if (strcmp(hook->name, name) != 0 && strcmp(hook->symbol, name) != 0)
            continue;
        if (driver_function_or_null(hook->number) == found)
            return hook->function;
        bool fits = hook->version <= version && (!hook->per_thread || per_thread);
        bool better = !best || hook->version > best->version || (hook->version == best->version && hook->per_thread);
        if ((fits && better) || strcmp(hook->symbol, name) == 0)
            best = hook;
    }
    return best ? best->function : found;
}

static CUresult resolved(CUresult result, const char *name, void **function, int version, uint64_t flags, int *status)
{
    if (result != CUDA_SUCCESS || !name || !function || !*function)
        return result;
    if (hidden(name)) {
        *function = NULL;
        if (status)
            *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        return CUDA_ERROR_NOT_FOUND;
    }
    bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    if (DEFECT(ignores_stream_flag))
        *function = hook_for(name, NULL, version, false);
    else
        *function = hook_for(name, *function, version, per_thread);
    if (DEFECT(status_left_unset) && status)
        *status = -1;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    CUresult result = DRIVER(cuGetProcAddress, const char *, void **, int, uint64_t)(name, function, version, flags);
    return resolved(result, name, function, version, flags, NULL);
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    CUresult result = DRIVER(cuGetProcAddress_v2, const char *, void **, int, uint64_t, int *)(name, function, version, flags, status);
    return resolved(result, name, function, version, flags, status);
}

CUresult cuGetProcAddress_v2_ptsz(const char *name, void **function, int version, uint64_t flags, int *status)
{
    CUresult result = DRIVER(cuGetProcAddress_v2_ptsz, const char *, void **, int, uint64_t, int *)(name, function, version, flags, status);
    return resolved(result, name, function, version, flags | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, status);
}
