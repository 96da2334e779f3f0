/* The preloaded library answers dlsym and dlvsym itself; these are the loader's own. */
#ifndef KOORDRA_INTERPOSE_H
#define KOORDRA_INTERPOSE_H

void *true_dlsym(void *handle, const char *name);

#endif
