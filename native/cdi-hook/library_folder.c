#include "library_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "beneath.h"

enum { PATH_LONGEST = 1024, DIGITS_MOST = 9 };

static bool is_digit(char letter)
{
    return letter >= '0' && letter <= '9';
}

/* glibc's _dl_cache_libcmp: the loader searches the cache by it, so it must be the same. Names for which an int or a signed char
 * would matter are left out by `is_library`. */
int library_order(const char *a, const char *b)
{
    while (*a) {
        if (is_digit(*a) != is_digit(*b))
            return is_digit(*a) ? 1 : -1;
        if (is_digit(*a)) {
            char *after_a, *after_b;
            long one = strtol(a, &after_a, 10), other = strtol(b, &after_b, 10);
            if (one != other)
                return one < other ? -1 : 1;
            a = after_a;
            b = after_b;
        } else if (*a != *b) {
            return *a - *b;
        } else {
            a++;
            b++;
        }
    }
    return *a - *b;
}

static bool is_library(const char *name)
{
    size_t digits = 0;
    for (const char *at = name; *at; at++) {
        digits = is_digit(*at) ? digits + 1 : 0;
        if (*at <= ' ' || *at > '~' || digits > DIGITS_MOST)
            return false;
    }
    return (strncmp(name, "lib", 3) == 0 || strncmp(name, "ld-", 3) == 0 || strncmp(name, "ld.so", 5) == 0 || strncmp(name, "ld64.so", 7) == 0) &&
           strstr(name, ".so") && strlen(name) < SONAME_SIZE;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

static bool read_entry(int folder, int root, const char *path, enum libraries which, struct entry *entry)
{
    char whole[PATH_LONGEST];
    struct stat is;
    if (fstatat(folder, entry->name, &is, AT_SYMLINK_NOFOLLOW) != 0 || (!S_ISREG(is.st_mode) && !S_ISLNK(is.st_mode)) ||
        snprintf(whole, sizeof whole, "%s/%s", path, entry->name) >= (int)sizeof whole)
        return false;
    entry->link = S_ISLNK(is.st_mode);
    int file = open_file(root, whole, &is); /* from the root, as links may be absolute */
    if (file < 0)
        return false;
    struct library library;
    bool good = (which == ALL_LIBRARIES || is_mount(file)) && elf_library(file, &library);
    close(file);
    entry->flags = library.flags;
    entry->soname = good && is_library(library.soname[0] ? library.soname : entry->name) ? strdup(library.soname) : NULL;
    return entry->soname;
}

struct entries libraries_of(int root, const char *path, enum libraries which)
{
    struct entries found = {NULL, 0};
    int folder = open_beneath(root, path, O_RDONLY | O_DIRECTORY);
    DIR *names = folder >= 0 ? fdopendir(folder) : NULL;
    size_t room = 0;
    for (struct dirent *each; names && found.count < ENTRIES_MOST && (each = readdir(names));) {
        if (!is_library(each->d_name))
            continue;
        if (found.count == room) {
            struct entry *more = realloc(found.list, (room = room ? 2 * room : 64) * sizeof *more);
            if (!more)
                break;
            found.list = more;
        }
        struct entry *entry = &found.list[found.count];
        entry->name = strdup(each->d_name);
        if (entry->name && read_entry(folder, root, path, which, entry))
            found.count++;
        else
            free(entry->name);
    }
    if (names)
        closedir(names);
    if (found.count)
        qsort(found.list, found.count, sizeof *found.list, by_name);
    return found;
}

void libraries_free(struct entries entries)
{
    for (size_t at = 0; at < entries.count; at++) {
        free(entries.list[at].name);
        free(entries.list[at].soname);
    }
    free(entries.list);
}

const struct entry *library_named(const struct entries *entries, const char *name, int32_t flags)
{
    for (size_t low = 0, high = entries->count; low < high;) {
        size_t middle = (low + high) / 2;
        int order = strcmp(entries->list[middle].name, name);
        if (order == 0)
            return entries->list[middle].flags == flags ? &entries->list[middle] : NULL;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}
