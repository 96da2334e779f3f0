/* Files below the container's root, which holds whatever its image and its volumes do.
 *
 * Everything is reached from an O_PATH descriptor of the root by openat2(RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS): links, "..", and
 * absolute links stay below it, whoever exchanges them meanwhile (CVE-2024-0132, CVE-2025-23267 and CVE-2026-24260 are paths that
 * were looked up twice). What is written is written on the root's own file system only (RESOLVE_NO_XDEV): a folder that is a volume
 * may be the node's, or another pod's. A new file is made under a name that nobody has (O_EXCL) and put in place by rename, so no
 * link of the image is followed and nobody sees half of it. Only what the hook has just written is ever mounted. */
#ifndef KOORDRA_HOOK_BENEATH_H
#define KOORDRA_HOOK_BENEATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* A descriptor of the path, O_PATH unless `flags` has O_RDONLY for folders; -1 with errno. Ends the program where the kernel has
 * no openat2. */
int open_beneath(int root, const char *path, int flags);

/* To write in, on the root's own file system; made, with those above it, where it is missing. -1 with errno where it is something
 * else, EXDEV: on a volume. Ends the program where it cannot be made. */
int folder_of_root(int root, const char *path);
/* The same; ends the program where it cannot be had. */
int folder_to_write(int root, const char *path);

/* The names in the folder that match the pattern, no hidden ones, sorted, each to be freed; no more than `most`. */
size_t names_of(int root, const char *folder, const char *pattern, char **names, size_t most);

/* A regular file, to be read; -1 with errno. Nothing else is ever opened: opening a pipe waits, opening a device may act. */
int open_file(int folder, const char *path, struct stat *is);

/* What is left to read, in memory of its own with a NUL behind it; NULL with errno, EFBIG where it is longer than `most`. */
char *read_all(int file, size_t most, size_t *length);

/* The same of a whole regular file. */
char *read_file(int folder, const char *path, size_t most, size_t *length);

/* The folder's file of this name becomes this one; ends the program where it cannot. */
void replace_file(int folder, const char *name, const void *data, size_t length, const char *shown);

/* The link of this name; one that says the same, and a file or folder in its place, stay. Ends the program where it cannot be made. */
void make_link(int folder, const char *name, const char *target, const char *shown);

/* Whether the runtime mounted something exactly here. */
bool is_mount(int descriptor);

#endif
