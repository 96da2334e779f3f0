/* Loads the library that this one stands in front of. */
#ifndef KOORDRA_REAL_LIBRARY_H
#define KOORDRA_REAL_LIBRARY_H

/* Where the node's plugin mounts things in a container. */
#define REGIONS_FOLDER "/run/koordra/limiter"
#define DRIVER_FOLDER "/usr/lib/koordra/driver"
#define FRONT_FOLDER "/usr/lib/koordra/limiter" /* this library, for every program's preload */

/* Where the node's hook puts a newer driver of the image, which then is the one behind this library. */
#define NEWER_FOLDER "/usr/lib/koordra/compat"

/* A folder of the container, or, only where the container has no REGIONS_FOLDER (tests, use without koordra), what the variable
 * of the environment says: a tenant's environment has no say in a container that koordra made. */
const char *folder_of(const char *variable, const char *fixed);

/* The entry point in the real `file`; NULL where the file or the entry point is missing. */
void *real_symbol(const char *file, const char *name);

/* For the preloaded library: the entry point in the libcuda.so.1 that the program's own search path finds. */
void *found_symbol(const char *file, const char *name);

#endif
