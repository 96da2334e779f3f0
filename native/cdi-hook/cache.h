/* /etc/ld.so.cache of the container: where its loader finds libraries by name. */
#ifndef KOORDRA_HOOK_CACHE_H
#define KOORDRA_HOOK_CACHE_H

#include <stdbool.h>

#include "conf.h"

/* `ours` are the folders where the runtime mounted the driver's files; `compat`: COMPAT_FOLDER stands before them; `limited`: of
 * libcuda and NVML only what is mounted is listed. */
void cache_write(int root, const struct folders *ours, bool compat, bool limited);

#endif
