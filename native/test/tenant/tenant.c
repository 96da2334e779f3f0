/* A container's program: opens the driver as a statically linked runtime does, and tries to take more than its share.
 *
 *     tenant SHARE                  prints what it was told and given, as JSON
 *     tenant SHARE stay             then stays, until a line without a number: a number of bytes is taken, or the last ones given back
 *                                   for 0, and what the driver says to that is printed
 *     tenant SHARE launch NS        then launches a kernel that takes so long, and waits for it
 *     TENANT_OPENS=PATH tenant SHARE  opens the driver by that name
 *     tenant --world FOLDER UUID BYTES   on the node: makes the fake driver's machine of one card */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../limiter/cuda_abi.h"
#include "../driver/world.h"

static void *library;

#define FUNCTION(name, ...) ((CUresult(*)(__VA_ARGS__))dlsym(library, #name))

static int make_world(const char *folder, const char *uuid, uint64_t bytes)
{
    struct world *world = world_make(folder, 1, bytes);
    if (!world)
        return 1;
    unsigned digits = 0;
    for (const char *at = uuid + 4; *at && digits < 32; at++) {
        if (*at == '-')
            continue;
        unsigned value = (unsigned)strtoul((char[]){*at, 0}, NULL, 16);
        uint8_t *byte = &world->cards[0].uuid[digits / 2];
        *byte = (uint8_t)(digits % 2 ? *byte | value : value << 4);
        digits++;
    }
    return 0;
}

static void launch(const char *ns)
{
    char name[64];
    void *module, *function;
    snprintf(name, sizeof name, "spin %s", ns);
    FUNCTION(cuModuleLoadData, void **, const void *)(&module, "");
    if (FUNCTION(cuModuleGetFunction, void **, void *, const char *)(&function, module, name) != CUDA_SUCCESS)
        return;
    FUNCTION(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)
    (function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    FUNCTION(cuCtxSynchronize, void)();
}

static void stay(CUdeviceptr pointer)
{
    char line[40], *end;
    while (fgets(line, sizeof line, stdin)) {
        uint64_t bytes = strtoull(line, &end, 10);
        if (end == line)
            return;
        printf("%d\n", bytes ? FUNCTION(cuMemAlloc_v2, CUdeviceptr *, size_t)(&pointer, bytes) : FUNCTION(cuMemFree_v2, CUdeviceptr)(pointer));
        fflush(stdout);
    }
}

int main(int count, char **arguments)
{
    if (count == 5 && strcmp(arguments[1], "--world") == 0)
        return make_world(arguments[2], arguments[3], strtoull(arguments[4], NULL, 10));
    uint64_t share = count > 1 ? strtoull(arguments[1], NULL, 10) : 0;
    const char *told = getenv("TENANT_OPENS");
    library = dlopen(told ? told : "libcuda.so.1", RTLD_NOW);
    if (!library) {
        printf("{\"opened\": false}\n");
        return 0;
    }
    int begun = FUNCTION(cuInit, unsigned)(0), past = -1, within = -1, card = 0;
    CUdeviceptr pointer = 0;
    CUcontext context = NULL;
    size_t free = 0, total = 0;
    if (begun == CUDA_SUCCESS) {
        FUNCTION(cuDevicePrimaryCtxRetain, CUcontext *, int)(&context, card);
        FUNCTION(cuCtxSetCurrent, CUcontext)(context);
        past = FUNCTION(cuMemAlloc_v2, CUdeviceptr *, size_t)(&pointer, share + 1);
        within = FUNCTION(cuMemAlloc_v2, CUdeviceptr *, size_t)(&pointer, share);
        FUNCTION(cuMemGetInfo_v2, size_t *, size_t *)(&free, &total);
    }
    printf("{\"opened\": true, \"init\": %d, \"past\": %d, \"within\": %d, \"free\": %zu, \"total\": %zu}\n", begun, past, within, free, total);
    fflush(stdout);
    if (count > 2 && strcmp(arguments[2], "stay") == 0)
        stay(pointer);
    if (count > 3 && strcmp(arguments[2], "launch") == 0)
        launch(arguments[3]);
    return 0;
}
