#include "real_library.h"

#include <dlfcn.h>
#include <features.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "loader.h"
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

/* Not through a dlopen of our own, which would give us ourselves. */
static void *open_library(const char *path)
{
    void *(*open)(const char *, int) = (void *(*)(const char *, int))loader_function("dlopen");
    return open ? open(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static void *open_in(const char *folder, const char *file)
{
    char path[512];
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path || access(path, F_OK) != 0)
        return NULL;
    return open_library(path);
}

void *real_symbol(const char *file, const char *name)
{
    /* The loader itself sees to it that two threads get the same handle. A library that is not there is looked for again. */
    void *handle = atomic_load(&library);
    if (!handle) {
        handle = open_in(folder_of("KOORDRA_NEWER_FOLDER", NEWER_FOLDER), file);
        handle = handle ? handle : open_in(folder_of("KOORDRA_DRIVER_FOLDER", DRIVER_FOLDER), file);
        atomic_store(&library, handle);
    }
    return handle ? dlsym(handle, name) : NULL;
}

void *found_symbol(const char *file, const char *name)
{
    void *handle = atomic_load(&library);
    if (!handle) {
        handle = open_library(file);
        atomic_store(&library, handle);
    }
    return handle ? dlsym(handle, name) : NULL;
}
