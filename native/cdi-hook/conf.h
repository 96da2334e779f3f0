/* Where the container's loader is told to look: /etc/ld.so.conf and what it includes, then the folders of its own. */
#ifndef KOORDRA_HOOK_CONF_H
#define KOORDRA_HOOK_CONF_H

enum { FOLDERS_MOST = 1024 };

struct folders {
    unsigned count;
    char *paths[FOLDERS_MOST]; /* as they are written, absolute, each once */
};

void folders_add(struct folders *folders, const char *path);

/* Those of the container at `root`. What cannot be read, or is too much, is left out: then the loader does not find there what
 * it would have found, and the driver all the same. */
void folders_configured(int root, struct folders *folders);

#endif
