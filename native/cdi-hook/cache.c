/* The cache is written anew from the container's own configuration, as ldconfig would, with the driver first; nothing is executed,
 * so an image needs no ldconfig, and one that has a false one does not get to run it. First wins:
 *
 *     1  the image's newer driver, where it is to be used (compat.h)
 *     2  what the runtime mounted into the folders that we were told: a name that is there is listed once, so neither a copy of the
 *        driver in the image nor one in its glibc-hwcaps folders comes before it
 *     3  everything else, in the order of ld.so.conf and the loader's own folders
 *
 * The format is glibc's second ("glibc-ld.so.cache1.1", alone in the file), which every glibc since 2.2 reads: a header, entries in
 * descending order of their names (library_order), strings; offsets count from the header. Libraries of glibc-hwcaps folders come
 * before others of their name, with bit 62 of hwcap and the number of their folder in a table behind (an extension of glibc 2.33;
 * older loaders skip such entries). Sources: glibc elf/cache.c, sysdeps/generic/dl-cache.h. */
#include "cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "beneath.h"
#include "compat.h"
#include "fail.h"
#include "library_folder.h"

enum { LINES_MOST = 1 << 17, SUBFOLDERS_MOST = 64, PATH_LONGEST = 1024 };

struct header {
    char magic[20];
    uint32_t count, string_bytes;
    uint8_t flags, unused[3];
    uint32_t extension;
    uint32_t unused_too[3];
};

struct line_on_disk {
    int32_t flags;
    uint32_t name, path, os;
    uint64_t hwcap;
};

struct extension {
    uint32_t magic, count;
    uint32_t tag, flags, offset, size;
};

enum { LITTLE_ENDIAN_FILE = 2, TAG_HWCAPS = 1 };
static const uint32_t extension_magic = 0xeaa42174;
static const uint64_t hwcap_extension = UINT64_C(1) << 62;

enum rank { COMPAT, OURS, IMAGES };

struct line {
    char *name, *path;
    int32_t flags;
    int subfolder; /* of glibc-hwcaps; -1: none */
    enum rank rank;
    unsigned number;
};

struct cache {
    struct line *lines;
    unsigned count, room;
    char *subfolders[SUBFOLDERS_MOST];
    unsigned subfolder_count;
};

static void add(struct cache *cache, const char *name, const char *folder, const char *file, int32_t flags, int subfolder, enum rank rank)
{
    char path[PATH_LONGEST];
    if (cache->count == LINES_MOST || snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path)
        return;
    if (cache->count == cache->room) {
        struct line *more = realloc(cache->lines, (cache->room = cache->room ? 2 * cache->room : 1024) * sizeof *more);
        if (!more)
            fail("the container has more libraries than this hook has memory for");
        cache->lines = more;
    }
    struct line line = {strdup(name), strdup(path), flags, subfolder, rank, cache->count};
    if (!line.name || !line.path)
        fail("the container has more libraries than this hook has memory for");
    cache->lines[cache->count++] = line;
}

/* For a SONAME that no file of the folder is called, its best file: not a link, else of the highest number. */
static int best_first(const void *a, const void *b)
{
    const struct entry *one = *(const struct entry *const *)a, *other = *(const struct entry *const *)b;
    int order = strcmp(one->soname, other->soname);
    if (order == 0)
        order = one->flags != other->flags ? (one->flags < other->flags ? -1 : 1) : one->link - other->link;
    return order ? order : library_order(other->name, one->name);
}

static void add_sonames(struct cache *cache, const struct entries *entries, const char *folder, enum rank rank)
{
    const struct entry **sorted = calloc(entries->count + 1, sizeof *sorted), *before = NULL;
    if (!sorted)
        fail("the container has more libraries than this hook has memory for");
    for (size_t at = 0; at < entries->count; at++)
        sorted[at] = &entries->list[at];
    qsort(sorted, entries->count, sizeof *sorted, best_first);
    for (size_t at = 0; at < entries->count; before = sorted[at++]) {
        const struct entry *library = sorted[at];
        bool best = !before || strcmp(before->soname, library->soname) != 0 || before->flags != library->flags;
        if (best && library->soname[0] && !library_named(entries, library->soname, library->flags))
            add(cache, library->soname, folder, sorted[at]->name, library->flags, -1, rank);
    }
    free(sorted);
}

static void add_folder(struct cache *cache, int root, const char *folder, enum libraries which, enum rank rank)
{
    struct entries entries = libraries_of(root, folder, which);
    for (size_t at = 0; at < entries.count; at++) {
        const struct entry *each = &entries.list[at];
        const char *soname = each->soname;
        /* ldconfig lists a file by its SONAME alone. The runtime mounts libcuda.so as a file, where an image would have a link;
         * a name with the driver's version is not listed: find_library takes the highest name that there is. */
        bool bare = which == MOUNTED_LIBRARIES && strcmp(strrchr(each->name, '.'), ".so") == 0;
        if (each->link || bare || !soname[0] || strcmp(soname, each->name) == 0)
            add(cache, each->name, folder, each->name, each->flags, -1, rank);
    }
    add_sonames(cache, &entries, folder, rank);
    libraries_free(entries);
}

static int subfolder_number(struct cache *cache, const char *name)
{
    for (unsigned at = 0; at < cache->subfolder_count; at++)
        if (strcmp(cache->subfolders[at], name) == 0)
            return (int)at;
    char *copy = cache->subfolder_count < SUBFOLDERS_MOST ? strdup(name) : NULL;
    if (!copy)
        return -1;
    cache->subfolders[cache->subfolder_count] = copy;
    return (int)cache->subfolder_count++;
}

static void add_subfolder(struct cache *cache, int root, const char *folder, const char *name)
{
    char path[PATH_LONGEST];
    if (snprintf(path, sizeof path, "%s/glibc-hwcaps/%s", folder, name) >= (int)sizeof path)
        return;
    struct entries entries = libraries_of(root, path, ALL_LIBRARIES);
    int number = entries.count ? subfolder_number(cache, name) : -1;
    for (size_t at = 0; number >= 0 && at < entries.count; at++) {
        const struct entry *each = &entries.list[at];
        add(cache, each->soname[0] ? each->soname : each->name, path, each->name, each->flags, number, IMAGES);
    }
    libraries_free(entries);
}

static void add_hwcaps(struct cache *cache, int root, const char *folder)
{
    char path[PATH_LONGEST];
    if (snprintf(path, sizeof path, "%s/glibc-hwcaps", folder) >= (int)sizeof path)
        return;
    int opened = open_beneath(root, path, O_RDONLY | O_DIRECTORY);
    DIR *names = opened >= 0 ? fdopendir(opened) : NULL;
    unsigned seen = 0;
    for (struct dirent *each; names && seen++ < SUBFOLDERS_MOST && (each = readdir(names));)
        if (each->d_name[0] != '.')
            add_subfolder(cache, root, folder, each->d_name);
    if (names)
        closedir(names);
}

/* The same folder under two names (/lib and /usr/lib) is listed once. */
static void add_configured(struct cache *cache, int root)
{
    static struct folders configured;
    static struct {
        dev_t device;
        ino_t inode;
    } seen[FOLDERS_MOST];
    unsigned count = 0;
    folders_configured(root, &configured);
    for (unsigned at = 0; at < configured.count; at++) {
        struct stat is;
        int folder = open_beneath(root, configured.paths[at], O_PATH | O_DIRECTORY);
        bool new = folder >= 0 && fstat(folder, &is) == 0;
        if (folder >= 0)
            close(folder);
        for (unsigned other = 0; new && other < count; other++)
            new = seen[other].device != is.st_dev || seen[other].inode != is.st_ino;
        if (!new)
            continue;
        seen[count].device = is.st_dev;
        seen[count++].inode = is.st_ino;
        add_hwcaps(cache, root, configured.paths[at]);
        add_folder(cache, root, configured.paths[at], ALL_LIBRARIES, IMAGES);
    }
}

static bool is_limited(const char *name)
{
    return strncmp(name, "libcuda.so", 10) == 0 || strncmp(name, "libnvidia-ml.so", 15) == 0;
}

static int by_precedence(const void *a, const void *b)
{
    const struct line *one = *(const struct line *const *)a, *other = *(const struct line *const *)b;
    int order = strcmp(one->name, other->name);
    if (order == 0 && one->flags != other->flags)
        order = one->flags < other->flags ? -1 : 1;
    return order ? order : one->number < other->number ? -1 : one->number > other->number;
}

static int by_identity(const void *a, const void *b)
{
    const struct line *one = *(const struct line *const *)a, *other = *(const struct line *const *)b;
    int order = strcmp(one->name, other->name);
    return order ? order : one->flags < other->flags ? -1 : one->flags > other->flags;
}

/* Of the lines of one name only the first stays, if it is one of the `leading`, which the image's come behind. */
static void drop_hidden(struct cache *cache, unsigned leading, bool limited)
{
    const struct line **first = calloc(leading + 1, sizeof *first);
    bool *hidden = calloc(cache->count + 1, sizeof *hidden);
    unsigned count = 0, distinct = 0, kept = 0;
    if (!first || !hidden)
        fail("the container has more libraries than this hook has memory for");
    for (unsigned at = 0; at < cache->count; at++)
        hidden[at] = limited && cache->lines[at].rank != OURS && is_limited(cache->lines[at].name);
    for (unsigned at = 0; at < leading; at++)
        if (!hidden[at])
            first[count++] = &cache->lines[at];
    qsort(first, count, sizeof *first, by_precedence);
    for (unsigned at = 0; at < count; at++)
        if (distinct == 0 || by_identity(&first[distinct - 1], &first[at]) != 0)
            first[distinct++] = first[at];
    for (unsigned at = 0; at < cache->count; at++) {
        const struct line *line = &cache->lines[at], *const *found = bsearch(&line, first, distinct, sizeof *first, by_identity);
        hidden[at] = hidden[at] || (found && *found != line);
    }
    for (unsigned at = 0; at < cache->count; at++)
        if (!hidden[at])
            cache->lines[kept++] = cache->lines[at];
    cache->count = kept;
    free(hidden);
    free(first);
}

static char *const *sorted_by;

static int by_loader(const void *a, const void *b)
{
    const struct line *one = a, *other = b;
    int order = library_order(other->name, one->name);
    if (order == 0)
        order = one->flags != other->flags ? (one->flags < other->flags ? 1 : -1) : 0;
    if (order == 0 && (one->subfolder < 0) != (other->subfolder < 0))
        order = one->subfolder < 0 ? 1 : -1;
    if (order == 0 && one->subfolder >= 0)
        order = strcmp(sorted_by[one->subfolder], sorted_by[other->subfolder]);
    return order ? order : one->number < other->number ? -1 : 1;
}

/* The table of subfolders is in order of their names, too; `places` gets where each is in it. */
static void place_subfolders(const struct cache *cache, unsigned places[SUBFOLDERS_MOST])
{
    for (unsigned at = 0; at < cache->subfolder_count; at++) {
        places[at] = 0;
        for (unsigned other = 0; other < cache->subfolder_count; other++)
            places[at] += strcmp(cache->subfolders[other], cache->subfolders[at]) < 0;
    }
}

static uint32_t put_text(char *data, size_t *end, const char *text)
{
    uint32_t at = (uint32_t)*end;
    size_t length = strlen(text) + 1;
    memcpy(data + at, text, length);
    *end += length;
    return at;
}

static void *encode(const struct cache *cache, size_t *length)
{
    size_t strings = sizeof(struct header) + cache->count * sizeof(struct line_on_disk), size = strings;
    unsigned places[SUBFOLDERS_MOST];
    for (unsigned at = 0; at < cache->count; at++)
        size += strlen(cache->lines[at].name) + strlen(cache->lines[at].path) + 2;
    for (unsigned at = 0; at < cache->subfolder_count; at++)
        size += strlen(cache->subfolders[at]) + 1 + sizeof(uint32_t);
    char *data = calloc(1, size + sizeof(struct extension) + 8);
    if (!data)
        fail("the container has more libraries than this hook has memory for");
    struct header *header = (struct header *)data;
    struct line_on_disk *lines = (struct line_on_disk *)(data + sizeof *header);
    memcpy(header->magic, "glibc-ld.so.cache1.1", sizeof header->magic);
    header->count = cache->count;
    header->flags = LITTLE_ENDIAN_FILE;
    place_subfolders(cache, places);
    *length = strings;
    for (unsigned at = 0; at < cache->count; at++) {
        const struct line *line = &cache->lines[at];
        lines[at].flags = line->flags;
        lines[at].name = put_text(data, length, line->name);
        lines[at].path = put_text(data, length, line->path);
        lines[at].hwcap = line->subfolder < 0 ? 0 : hwcap_extension | places[line->subfolder];
    }
    uint32_t names[SUBFOLDERS_MOST];
    for (unsigned at = 0; at < cache->subfolder_count; at++)
        names[places[at]] = put_text(data, length, cache->subfolders[at]);
    header->string_bytes = (uint32_t)(*length - strings);
    if (cache->subfolder_count) {
        size_t at = (*length + 3) & ~(size_t)3, bytes = cache->subfolder_count * sizeof names[0];
        struct extension extension = {extension_magic, 1, TAG_HWCAPS, 0, (uint32_t)(at + sizeof extension), (uint32_t)bytes};
        memcpy(data + at, &extension, sizeof extension);
        memcpy(data + at + sizeof extension, names, bytes);
        header->extension = (uint32_t)at;
        *length = at + sizeof extension + bytes;
    }
    return data;
}

void cache_write(int root, const struct folders *ours, bool compat, bool limited)
{
    struct cache cache = {.count = 0};
    if (compat)
        add_folder(&cache, root, COMPAT_FOLDER, ALL_LIBRARIES, COMPAT);
    for (unsigned at = 0; at < ours->count; at++)
        add_folder(&cache, root, ours->paths[at], MOUNTED_LIBRARIES, OURS);
    unsigned leading = cache.count;
    add_configured(&cache, root);
    drop_hidden(&cache, leading, limited);
    sorted_by = cache.subfolders;
    if (cache.count)
        qsort(cache.lines, cache.count, sizeof *cache.lines, by_loader);
    size_t length;
    void *data = encode(&cache, &length);
    int etc = folder_to_write(root, "/etc");
    replace_file(etc, "ld.so.cache", data, length, "/etc/ld.so.cache");
    close(etc);
}
