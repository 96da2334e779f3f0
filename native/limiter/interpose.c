/* The second way in, for use without mounts: preloaded, with dlsym and dlvsym of our own.
 *
 * A program linked against libcuda.so.1 finds our functions first, because a preloaded library is searched first. One that
 * loads the driver itself asks dlsym: for a name that we have a hook for, found in a driver, it is given the hook. Everything
 * else is passed on by a jump, not a call (dlsym_*.S), because RTLD_NEXT and RTLD_DEFAULT look at who is calling.
 *
 * If the driver that is found has a limit in front of it already (mounted), this library passes everything on.
 */
#include "interpose.h"

#include <stdatomic.h>
#include <string.h>

#include "driver.h"
#include "loader.h"

#define RTLD_NEXT_HANDLE ((void *)-1l)

static _Atomic(void *) loaders[2]; /* dlsym, dlvsym */

/* For dlsym_*.S: which 0 is dlsym, 1 dlvsym. */
void *interpose_loader(unsigned which)
{
    void *found = atomic_load(&loaders[which]);
    if (!found) {
        found = loader_function(which ? "dlvsym" : "dlsym");
        atomic_store(&loaders[which], found);
    }
    return found;
}

void *true_dlsym(void *handle, const char *name)
{
    return ((void *(*)(void *, const char *))interpose_loader(0))(handle, name);
}

static const struct hook *hook_named(const char *name)
{
    for (unsigned at = 0; at < hook_count; at++)
        if (strcmp(hooks[at].symbol, name) == 0)
            return &hooks[at];
    return NULL;
}

/* For dlsym_*.S: the answer, or NULL to let the loader answer. */
void *interpose_answer(void *handle, const char *name)
{
    if (!name || name[0] != 'c' || name[1] != 'u')
        return NULL;
    const struct hook *hook = hook_named(name);
    if (!hook)
        return NULL;
    void *real = driver_function_or_null(hook->number);
    if (!real || handle == RTLD_NEXT_HANDLE)
        return real ? hook->function : NULL;
    return true_dlsym(handle, name) == real ? hook->function : NULL;
}
