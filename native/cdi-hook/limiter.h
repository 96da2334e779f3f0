/* The memory limiter of a GPU share (native/limiter), where the container has one: every program loads it, whatever it asks for. */
#ifndef KOORDRA_HOOK_LIMITER_H
#define KOORDRA_HOOK_LIMITER_H

#include <stdbool.h>

/* Whether the runtime mounted the limiter's folder, or another limit's library, into this container. */
bool limit_mounted(int root, const char *path);

/* Ends the program where the limit could not hold, or the container could not use a GPU. `preloaded`: the container's LD_PRELOAD. */
void limiter_refuse(int root, const char *preloaded);

/* /etc/ld.so.preload names the limiter. `compat`: the file of the image's newer driver that is to stand behind it; NULL: none. */
void limiter_enforce(int root, const char *folder, const char *compat);

#endif
