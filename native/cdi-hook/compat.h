/* CUDA's forward compatibility: an image's own, newer user-space driver, in front of the node's older kernel module. */
#ifndef KOORDRA_HOOK_COMPAT_H
#define KOORDRA_HOOK_COMPAT_H

#include <stdbool.h>

#define COMPAT_FOLDER "/usr/local/cuda/compat"

/* Whether the image's is to be used on a node whose driver is of this version ("580.95.05"). `library` gets its file's name. */
bool compat_wanted(int root, const char *host_version, char *library, unsigned size);

/* So that an ldconfig that the container runs later finds it first, too. */
void compat_remember(int root);

#endif
