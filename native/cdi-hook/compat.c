/* The rule of NVIDIA's container toolkit (cmd/nvidia-cdi-hook/cudacompat), which images are made for:
 *
 *     exactly one /usr/local/cuda/compat/libcuda.so.X.Y[.Z]; none or several: the node's driver
 *     it has a note of whom it supports: the node's major version is in the note's list, and X.Y.Z is newer than the node's
 *     it has none: X is greater than the node's major version
 */
#include "compat.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "beneath.h"
#include "elf.h"
#include "json.h"

enum { ENTRIES_MOST = 4096, NOTE_SIZE = 4096 };

static const char stem[] = "libcuda.so.";

/* "X.Y" at least, digits and dots only. */
static bool is_version(const char *text)
{
    return text[strspn(text, "0123456789.")] == 0 && text[0] != '.' && strchr(text, '.') && strlen(text) < 64;
}

static int compared(const char *a, const char *b)
{
    for (;;) {
        char *after_a, *after_b;
        unsigned long one = strtoul(a, &after_a, 10), other = strtoul(b, &after_b, 10);
        if (one != other)
            return one < other ? -1 : 1;
        if (*after_a != '.' && *after_b != '.')
            return 0;
        a = *after_a == '.' ? after_a + 1 : "";
        b = *after_b == '.' ? after_b + 1 : "";
    }
}

/* The only library of the folder; false: there is none, or there are several. */
static bool only_library(int folder, char *library, unsigned size)
{
    DIR *entries = fdopendir(folder);
    unsigned found = 0, seen = 0;
    for (struct dirent *entry; entries && seen++ < ENTRIES_MOST && (entry = readdir(entries));) {
        if (strncmp(entry->d_name, stem, sizeof stem - 1) != 0 || !is_version(entry->d_name + sizeof stem - 1))
            continue;
        found++;
        snprintf(library, size, "%s", entry->d_name);
    }
    if (entries)
        closedir(entries);
    return found == 1;
}

bool compat_wanted(int root, const char *host_version, char *library, unsigned size)
{
    int folder = open_beneath(root, COMPAT_FOLDER, O_RDONLY | O_DIRECTORY);
    if (folder < 0 || !only_library(folder, library, size) || !is_version(host_version))
        return false;
    char path[512], note[NOTE_SIZE];
    struct stat is;
    snprintf(path, sizeof path, "%s/%s", COMPAT_FOLDER, library);
    int file = open_file(root, path, &is);
    if (file < 0)
        return false;
    const char *version = library + sizeof stem - 1;
    unsigned long host = strtoul(host_version, NULL, 10), supported;
    bool noted = elf_note(file, ".note.cuda.fwd_compatibility", "NVIDIA Corporation", note, sizeof note);
    close(file);
    if (!noted)
        return strtoul(version, NULL, 10) > host;
    struct json drivers = json_member(json_document(note, strlen(note)), "Driver");
    for (struct json each = json_first(drivers); each.at; each = json_next(each))
        if (json_number(each, &supported) && supported == host)
            return compared(version, host_version) > 0;
    return false;
}

void compat_remember(int root)
{
    static const char folder[] = "/etc/ld.so.conf.d";
    int there = open_beneath(root, folder, O_PATH | O_DIRECTORY);
    if (there < 0)
        return; /* nor an ldconfig that would read it */
    close(there);
    there = folder_to_write(root, folder);
    replace_file(there, "000-koordra.conf", COMPAT_FOLDER "\n", sizeof COMPAT_FOLDER, folder);
    close(there);
}
