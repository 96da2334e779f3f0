#include "musl.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "beneath.h"

#if defined(__x86_64__)
#define PROCESSOR "x86_64"
static const char *const glibc[] = {"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-x86-64.so.2"};
#else
#define PROCESSOR "aarch64"
static const char *const glibc[] = {"/lib/ld-linux-aarch64.so.1", "/lib64/ld-linux-aarch64.so.1"};
#endif

enum { FILE_MOST = 64 << 10, LOADER_MOST = 16 << 20 };
static const char path_file[] = "ld-musl-" PROCESSOR ".path";

static bool is_there(int root, const char *path)
{
    int file = open_beneath(root, path, O_PATH);
    if (file >= 0)
        close(file);
    return file >= 0;
}

bool has_musl(int root)
{
    return is_there(root, "/lib/ld-musl-" PROCESSOR ".so.1");
}

/* gcompat puts a starter of musl's loader in the place of glibc's; glibc's own defines what its libraries alone may use. */
static bool is_glibc(int root, const char *path)
{
    static const char version[] = "GLIBC_PRIVATE";
    size_t length;
    char *loader = read_file(root, path, LOADER_MOST, &length);
    bool found = loader && memmem(loader, length, version, sizeof version - 1);
    free(loader);
    return found;
}

bool has_glibc(int root)
{
    return is_glibc(root, glibc[0]) || is_glibc(root, glibc[1]);
}

/* Folders are separated by newlines or colons. */
static bool lists(const char *text, const char *folder)
{
    size_t length = strlen(folder);
    for (const char *at = text; (at = strstr(at, folder)); at += length)
        if ((at == text || strchr(":\n", at[-1])) && (!at[length] || strchr(":\n", at[length])))
            return true;
    return false;
}

void musl_path_write(int root, const struct folders *ours)
{
    size_t length;
    char *there = read_file(root, "/etc/ld-musl-" PROCESSOR ".path", FILE_MOST, &length);
    const char *before = there ? there : "/lib:/usr/local/lib:/usr/lib";
    size_t room = strlen(before) + 2;
    for (unsigned at = 0; at < ours->count; at++)
        room += strlen(ours->paths[at]) + 1;
    char *text = malloc(room);
    if (!text)
        return;
    size_t end = (size_t)sprintf(text, "%s", before);
    for (unsigned at = 0; at < ours->count; at++)
        if (!lists(before, ours->paths[at]))
            end += (size_t)sprintf(text + end, "%s%s", end && text[end - 1] != '\n' ? "\n" : "", ours->paths[at]);
    int etc = folder_to_write(root, "/etc");
    replace_file(etc, path_file, text, end, "/etc/ld-musl-" PROCESSOR ".path");
    close(etc);
    free(there);
    free(text);
}
