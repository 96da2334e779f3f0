#include "links.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "beneath.h"
#include "fail.h"
#include "library_folder.h"

enum { PATH_LONGEST = 1024 };

bool any_mounted(int root, const struct folders *folders)
{
    bool found = false;
    for (unsigned at = 0; at < folders->count && !found; at++) {
        struct entries entries = libraries_of(root, folders->paths[at], MOUNTED_LIBRARIES);
        found = entries.count > 0;
        libraries_free(entries);
    }
    return found;
}

/* /dev is the runtime's own for each container. Where the pod has the node's there, its links are there already: -1. */
static int device_folder(int root)
{
    struct stat container, node;
    int found = open_beneath(root, "/dev", O_RDONLY | O_DIRECTORY);
    if (found < 0 || fstat(found, &container) != 0 || stat("/dev", &node) != 0)
        fail("/dev cannot be opened in the container");
    if (container.st_dev != node.st_dev)
        return found;
    close(found);
    return -1;
}

void make_told_link(int root, const char *told)
{
    char target[PATH_LONGEST];
    const char *cut = strstr(told, "::"), *path = cut ? cut + 2 : "", *name = strrchr(path, '/');
    if (!cut || cut == told || (size_t)(cut - told) >= sizeof target || path[0] != '/' || !name || !name[1] || strlen(path) >= PATH_LONGEST)
        fail("--link %s: it has to be TARGET::/PATH", told);
    snprintf(target, sizeof target, "%.*s", (int)(cut - told), told);
    char above[PATH_LONGEST];
    snprintf(above, sizeof above, "%.*s", name == path ? 1 : (int)(name - path), path);
    bool of_device = strncmp(path, "/dev/", 5) == 0;
    int from = of_device ? device_folder(root) : root;
    if (from < 0)
        return;
    int folder = folder_to_write(from, of_device ? above + 4 : above);
    make_link(folder, name + 1, target, path);
    close(folder);
    if (of_device)
        close(from);
}

void make_soname_links(int root, const struct folders *folders)
{
    for (unsigned at = 0; at < folders->count; at++) {
        struct entries entries = libraries_of(root, folders->paths[at], MOUNTED_LIBRARIES);
        int folder = -1;
        for (size_t number = 0; number < entries.count; number++) {
            const struct entry *each = &entries.list[number];
            const char *soname = each->soname;
            if (each->link || !soname[0] || strchr(soname, '/') || library_named(&entries, soname, each->flags))
                continue;
            if (folder < 0)
                folder = folder_to_write(root, folders->paths[at]);
            make_link(folder, soname, each->name, soname);
        }
        if (folder >= 0)
            close(folder);
        libraries_free(entries);
    }
}
