#include "real_library.h"

#include <dlfcn.h>
#include <features.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "old_glibc.h"
#ifdef KOORDRA_PRELOAD
#include "interpose.h"
#define dlsym true_dlsym
#endif

const char *folder_of(const char *variable, const char *fixed)
{
    if (access(REGIONS_FOLDER, F_OK) == 0)
        return fixed;
    const char *told = getenv(variable);
    return told && *told ? told : fixed;
}

static _Atomic(void *) library;

/* The loader itself sees to it that two threads get the same handle. A library that is not there is looked for again. */
static void *loaded(const char *path)
{
    void *handle = atomic_load(&library);
    if (!handle) {
        handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        atomic_store(&library, handle);
    }
    return handle;
}

void *real_symbol(const char *file, const char *name)
{
    char path[512];
    if (snprintf(path, sizeof path, "%s/%s", folder_of("KOORDRA_DRIVER_FOLDER", DRIVER_FOLDER), file) >= (int)sizeof path)
        return NULL;
    void *handle = loaded(path);
    return handle ? dlsym(handle, name) : NULL;
}

void *found_symbol(const char *file, const char *name)
{
    void *handle = loaded(file);
    return handle ? dlsym(handle, name) : NULL;
}
