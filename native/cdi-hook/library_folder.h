/* The shared libraries of a folder of the container, as ldconfig sees them: files lib*.so* and ld-*.so*, and links to such. */
#ifndef KOORDRA_HOOK_LIBRARY_FOLDER_H
#define KOORDRA_HOOK_LIBRARY_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

#include "elf.h"

struct entry {
    char *name, *soname; /* "" where the file says none */
    int32_t flags;
    bool link;
};

struct entries {
    struct entry *list;
    size_t count;
};

enum { ENTRIES_MOST = 1 << 17 };
enum libraries { ALL_LIBRARIES, MOUNTED_LIBRARIES };

/* By name, sorted; no more than ENTRIES_MOST. MOUNTED_LIBRARIES: only those that the runtime mounted there, which no image can pretend, and links to such. */
struct entries libraries_of(int root, const char *folder, enum libraries which);
void libraries_free(struct entries entries);

/* The entry of this name and kind; NULL: there is none. */
const struct entry *library_named(const struct entries *entries, const char *name, int32_t flags);

/* The order of the loader's cache: names compared as text, numbers in them as numbers. */
int library_order(const char *a, const char *b);

#endif
