/* A file of the hook's own making, bound over a file of the container, which its programs can then neither write nor remove. */
#ifndef KOORDRA_HOOK_BIND_H
#define KOORDRA_HOOK_BIND_H

/* Binds `name` of the folder `source`, which the hook has just written there, over `target` of `folder`, which may be that file
 * itself: read-only, and in this container alone. `above` is the path of the mount that the target is in. A source of another name
 * is removed, so that the bind is the only way to it. Ends the program where it cannot. */
void bind_read_only(int root, const char *above, int source, const char *name, int folder, const char *target, const char *shown);

#endif
