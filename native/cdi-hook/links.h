/* Links to the driver's files, under the names by which programs, linkers and the loader ask for them. */
#ifndef KOORDRA_HOOK_LINKS_H
#define KOORDRA_HOOK_LINKS_H

#include <stdbool.h>

#include "conf.h"

/* Whether the runtime mounted any library into one of the folders. */
bool any_mounted(int root, const struct folders *folders);

/* "TARGET::PATH": PATH becomes a link to TARGET. Ends the program where that is not what it says, or cannot be made. */
void make_told_link(int root, const char *told);

/* For a mounted library whose SONAME no file of its folder is called, the link that ldconfig would make. */
void make_soname_links(int root, const struct folders *folders);

#endif
