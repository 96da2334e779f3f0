/* dlopen and dlmopen of our own: where a program asks for a driver by whatever path (an image's compat folder, a path of
 * LD_LIBRARY_PATH, libcuda.so instead of libcuda.so.1), it is given the limiter. The loader itself does so for the SONAME only.
 *
 * The call is passed on by a jump (open.S): dlopen searches for its caller, by the return address. Only where the hook of the node
 * has mounted the limiter's folder anything is changed; a container of somebody else's keeps its own ways. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "loader.h"
#include "real_library.h"

#if defined(__x86_64__)
#define PLATFORM "x86_64"
#else
#define PLATFORM "aarch64"
#endif

static bool is_driver(const char *path)
{
    static const char name[] = "libcuda.so";
    const char *file = strrchr(path, '/');
    file = file ? file + 1 : path;
    return strncmp(file, name, sizeof name - 1) == 0 && (file[sizeof name - 1] == 0 || file[sizeof name - 1] == '.');
}

/* For open.S: what is opened when the name is asked for. */
const char *open_name(const char *path)
{
    static char front[256];
    static _Atomic(const char *) known;
    if (!path || !is_driver(path))
        return path;
    const char *found = atomic_load(&known);
    if (!found) {
        snprintf(front, sizeof front, "%.200s/" PLATFORM "/libcuda.so.1", folder_of("KOORDRA_FRONT_FOLDER", FRONT_FOLDER));
        found = access(front, R_OK) == 0 ? front : "";
        atomic_store(&known, found);
    }
    return *found ? found : path;
}

/* For open.S: 0 is dlopen, 1 dlmopen. */
void *open_function(unsigned which)
{
    static _Atomic(void *) found[2];
    void *function = atomic_load(&found[which]);
    if (!function) {
        function = loader_function(which ? "dlmopen" : "dlopen");
        atomic_store(&found[which], function);
    }
    return function;
}
