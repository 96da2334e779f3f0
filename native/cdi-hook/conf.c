/* ld.so.conf as ldconfig reads it (glibc elf/ldconfig.c): a folder a line, "#" begins a comment, "include" takes patterns, which
 * are relative to the file, "hwcap" is of the past. Wildcards are taken in the last part of a pattern, where everybody has them. */
#include "conf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "beneath.h"

#if defined(__x86_64__)
#define TRIPLET "x86_64-linux-gnu"
#elif defined(__aarch64__)
#define TRIPLET "aarch64-linux-gnu"
#else
#error "no GPU driver for this processor"
#endif

enum { FILE_MOST = 256 << 10, FILES_MOST = 256 /* and so deep, at the most */, PATH_LONGEST = 1024 };

/* A loader's own folders: Debian's kind, then the others', which do not exist, or have nothing else, in an image of Debian's. */
static const char *const defaults[] = {
    "/lib/" TRIPLET, "/usr/lib/" TRIPLET, "/lib64", "/usr/lib64", "/lib", "/usr/lib",
};

void folders_add(struct folders *folders, const char *path)
{
    for (unsigned at = 0; at < folders->count; at++)
        if (strcmp(folders->paths[at], path) == 0)
            return;
    char *copy = folders->count < FOLDERS_MOST ? strdup(path) : NULL;
    if (copy)
        folders->paths[folders->count++] = copy;
}

static void read_conf(int root, const char *path, struct folders *folders, unsigned *files);

static void include(int root, const char *pattern, struct folders *folders, unsigned *files)
{
    char folder[PATH_LONGEST], path[2 * PATH_LONGEST];
    const char *last = strrchr(pattern, '/');
    char *names[FILES_MOST];
    if (!strpbrk(pattern, "*?[")) {
        read_conf(root, pattern, folders, files);
        return;
    }
    snprintf(folder, sizeof folder, "%.*s", (int)(last - pattern), pattern);
    size_t count = names_of(root, folder[0] ? folder : "/", last + 1, names, FILES_MOST);
    for (size_t at = 0; at < count; at++) {
        if (snprintf(path, sizeof path, "%s/%s", folder, names[at]) < (int)sizeof path)
            read_conf(root, path, folders, files);
        free(names[at]);
    }
}

/* One line without its comment and the space around it. */
static void take_line(int root, const char *path, char *line, struct folders *folders, unsigned *files)
{
    static const char space[] = " \t\r\f\v";
    char pattern[PATH_LONGEST];
    if (strncmp(line, "include", 7) == 0 && line[7] && strchr(space, line[7])) {
        for (char *rest = line + 7, *each; (each = strtok_r(rest, space, &rest));) {
            int above = (int)(strrchr(path, '/') - path);
            int length = each[0] == '/' ? snprintf(pattern, sizeof pattern, "%s", each) : snprintf(pattern, sizeof pattern, "%.*s/%s", above, path, each);
            if (length < (int)sizeof pattern)
                include(root, pattern, folders, files);
        }
        return;
    }
    line[strcspn(line, "=")] = 0; /* "folder=libc6", of long ago */
    size_t length = strlen(line);
    while (length > 1 && (strchr(space, line[length - 1]) || line[length - 1] == '/'))
        line[--length] = 0;
    if (line[0] == '/' && length < PATH_LONGEST)
        folders_add(folders, line);
}

static void read_conf(int root, const char *path, struct folders *folders, unsigned *files)
{
    size_t length;
    char *text = (*files)++ < FILES_MOST ? read_file(root, path, FILE_MOST, &length) : NULL;
    for (char *rest = text, *line; rest && (line = strsep(&rest, "\n"));) {
        line[strcspn(line, "#")] = 0;
        take_line(root, path, line + strspn(line, " \t\r\f\v"), folders, files);
    }
    free(text);
}

void folders_configured(int root, struct folders *folders)
{
    unsigned files = 0;
    read_conf(root, "/etc/ld.so.conf", folders, &files);
    for (unsigned at = 0; at < sizeof defaults / sizeof defaults[0]; at++)
        folders_add(folders, defaults[at]);
}
