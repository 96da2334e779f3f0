/* The container for which the runtime calls: its root, and what its programs are started with. */
#ifndef KOORDRA_HOOK_CONTAINER_H
#define KOORDRA_HOOK_CONTAINER_H

/* An O_PATH descriptor of the container's root, by the OCI state on standard input and the bundle's config.json. `preloaded` gets
 * the value of LD_PRELOAD that the container has, "" for none. Ends the program where something is not as it must be. */
int container_root(char *preloaded, unsigned size);

#endif
