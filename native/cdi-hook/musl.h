/* Images whose C library is musl (Alpine): they read neither ld.so.cache nor ld.so.preload, and the driver needs glibc. */
#ifndef KOORDRA_HOOK_MUSL_H
#define KOORDRA_HOOK_MUSL_H

#include <stdbool.h>

#include "conf.h"

bool has_musl(int root);
bool has_glibc(int root);

/* /etc/ld-musl-<processor>.path names the folders too, behind what it names already. */
void musl_path_write(int root, const struct folders *ours);

#endif
