/* cuGetProcAddress of the fake: by name, version and the per-thread flag, with the status of the second version. */
#include <string.h>

#include "fake.h"

struct entry {
    const char *name;
    int version, per_thread;
    const char *address;
};

#define ENTRIES(E)                                                                                                                   \
    E(cuInit, 2000, 0, cuInit) E(cuDriverGetVersion, 2020, 0, cuDriverGetVersion) E(cuDeviceGetCount, 2000, 0, cuDeviceGetCount)      \
    E(cuDeviceGetName, 2000, 0, cuDeviceGetName) E(cuDeviceTotalMem, 3020, 0, cuDeviceTotalMem_v2)                                    \
    E(cuMemGetInfo, 3020, 0, cuMemGetInfo_v2) E(cuMemAlloc, 2000, 0, cuMemAlloc) E(cuMemAlloc, 3020, 0, cuMemAlloc_v2)                \
    E(cuMemFree, 3020, 0, cuMemFree_v2) E(cuMemAllocPitch, 3020, 0, cuMemAllocPitch_v2)                                              \
    E(cuMemAllocManaged, 6000, 0, cuMemAllocManaged) E(cuMemAllocAsync, 11020, 0, cuMemAllocAsync)                                    \
    E(cuMemAllocAsync, 11020, 1, cuMemAllocAsync_ptsz) E(cuMemFreeAsync, 11020, 0, cuMemFreeAsync)                                    \
    E(cuMemFreeAsync, 11020, 1, cuMemFreeAsync_ptsz) E(cuMemAllocFromPoolAsync, 11020, 0, cuMemAllocFromPoolAsync)                    \
    E(cuMemAllocFromPoolAsync, 11020, 1, cuMemAllocFromPoolAsync_ptsz) E(cuMemCreate, 10020, 0, cuMemCreate)                          \
    E(cuMemRelease, 10020, 0, cuMemRelease) E(cuGraphLaunch, 10000, 0, cuGraphLaunch) E(cuGraphLaunch, 11000, 1, cuGraphLaunch_ptsz)  \
    E(cuGraphInstantiate, 11000, 0, cuGraphInstantiate_v2) E(cuGraphInstantiate, 12000, 0, cuGraphInstantiateWithFlags)               \
    E(cuDevicePrimaryCtxRetain, 7000, 0, cuDevicePrimaryCtxRetain) E(cuCtxCreate, 3020, 0, cuCtxCreate_v2)                            \
    E(cuCtxCreate, 11040, 0, cuCtxCreate_v3) E(cuCtxCreate, 12050, 0, cuCtxCreate_v4) E(cuStreamSynchronize, 2000, 0, cuStreamSynchronize) \
    E(cuStreamSynchronize, 7000, 1, cuStreamSynchronize_ptsz) E(cuMemcpyHtoD, 3020, 0, cuMemcpyHtoD_v2)                               \
    E(cuGetProcAddress, 11030, 0, cuGetProcAddress) E(cuGetProcAddress, 12000, 0, cuGetProcAddress_v2)                                \
    E(cuLaunchKernel, 4000, 0, cuLaunchKernel) E(cuLaunchKernel, 7000, 1, cuLaunchKernel_ptsz)                                        \
    E(cuLaunchKernelEx, 11060, 0, cuLaunchKernelEx) E(cuLaunchKernelEx, 11060, 1, cuLaunchKernelEx_ptsz)                              \
    E(cuLaunchCooperativeKernel, 9000, 0, cuLaunchCooperativeKernel) E(cuLaunchCooperativeKernel, 9000, 1, cuLaunchCooperativeKernel_ptsz) \
    E(cuBrandNewAlloc, 13060, 0, cuBrandNewAlloc)

#define DECLARE(name, version, per_thread, symbol) extern const char symbol[];
ENTRIES(DECLARE)

#define ENTRY(name, version, per_thread, symbol) {#name, version, per_thread, symbol},
static const struct entry entries[] = {ENTRIES(ENTRY)};

/* Addresses that no symbol has: as many small jumps as there are entries. */
#define THUNK(name, version, per_thread, symbol) __asm__(".text\n.hidden thunk_" #symbol #version "\nthunk_" #symbol #version ": " JUMP " " #symbol "\n");
#if defined(__x86_64__)
#define JUMP "jmp"
#else
#define JUMP "b"
#endif
ENTRIES(THUNK)
#define DECLARE_THUNK(name, version, per_thread, symbol) extern const char thunk_##symbol##version[];
ENTRIES(DECLARE_THUNK)
#define THUNK_ENTRY(name, version, per_thread, symbol) thunk_##symbol##version,
static const char *const thunks[] = {ENTRIES(THUNK_ENTRY)};

static int find(const char *name, void **function, int version, uint64_t flags)
{
    int known = 0;
    const struct entry *best = NULL;
    for (unsigned at = 0; at < sizeof entries / sizeof entries[0]; at++) {
        const struct entry *entry = &entries[at];
        if (strcmp(entry->name, name) != 0)
            continue;
        known = 1;
        if (entry->version > version || (entry->per_thread && !(flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)))
            continue;
        if (!best || entry->version > best->version || entry->per_thread > best->per_thread)
            best = entry;
    }
    *function = best ? (void *)(uintptr_t)(fake.world && fake.world->hidden_addresses ? thunks[best - entries] : best->address) : NULL;
    return best ? 0 : known ? 2 : 1;
}

CUresult koordra_fake_get(const char *name, void **function, int version, uint64_t flags) __asm__("cuGetProcAddress");
CUresult koordra_fake_get(const char *name, void **function, int version, uint64_t flags)
{
    return find(name, function, version, flags) ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

CUresult koordra_fake_get_v2(const char *name, void **function, int version, uint64_t flags, int *status) __asm__("cuGetProcAddress_v2");
CUresult koordra_fake_get_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    int found = find(name, function, version, flags);
    if (status)
        *status = found;
    return found ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
