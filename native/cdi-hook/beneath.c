#include "beneath.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fail.h"

#ifndef STATX_ATTR_MOUNT_ROOT
#define STATX_ATTR_MOUNT_ROOT 0x2000
#endif

enum { PATH_LONGEST = 4096 };

static int open_resolved(int root, const char *path, int flags, uint64_t resolve)
{
    struct open_how how = {.flags = (uint64_t)flags | O_CLOEXEC, .resolve = resolve | RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    long found = -1;
    /* EAGAIN: something was renamed while the kernel looked, so it cannot be sure to be below the root. */
    for (int tries = 0; tries < 128; tries++) {
        found = syscall(SYS_openat2, root, path, &how, sizeof how);
        if (found >= 0 || (errno != EAGAIN && errno != EINTR))
            break;
    }
    if (found < 0 && errno == ENOSYS)
        fail("this node's kernel has no openat2 (Linux 5.6 and later have), without which an image could lead the hook out of its root");
    return (int)found;
}

int open_beneath(int root, const char *path, int flags)
{
    return open_resolved(root, path, flags, 0);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

size_t names_of(int root, const char *folder, const char *pattern, char **names, size_t most)
{
    size_t count = 0;
    int opened = open_beneath(root, folder, O_RDONLY | O_DIRECTORY);
    DIR *entries = opened >= 0 ? fdopendir(opened) : NULL;
    for (struct dirent *entry; entries && count < most && (entry = readdir(entries));)
        if (entry->d_name[0] != '.' && fnmatch(pattern, entry->d_name, 0) == 0 && (names[count] = strdup(entry->d_name)))
            count++;
    if (entries)
        closedir(entries);
    qsort(names, count, sizeof names[0], by_name);
    return count;
}

int open_file(int folder, const char *path, struct stat *is)
{
    struct stat before;
    int at = open_resolved(folder, path, O_PATH, 0);
    if (at < 0)
        return -1;
    int looked = fstat(at, &before);
    close(at);
    if (looked != 0)
        return -1;
    if (!S_ISREG(before.st_mode)) {
        errno = EINVAL;
        return -1;
    }
    int file = open_resolved(folder, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (file >= 0 && (fstat(file, is) != 0 || !S_ISREG(is->st_mode) || is->st_ino != before.st_ino || is->st_dev != before.st_dev)) {
        close(file);
        errno = EINVAL; /* exchanged between the two */
        return -1;
    }
    return file;
}

char *read_all(int file, size_t most, size_t *length)
{
    char *data = malloc(most + 1);
    ssize_t got = data ? 1 : -1;
    *length = 0;
    while (got > 0 && *length <= most) {
        got = read(file, data + *length, most + 1 - *length);
        if (got < 0 && errno == EINTR)
            got = 1;
        else if (got > 0)
            *length += (size_t)got;
    }
    if (got < 0 || *length > most) {
        if (got >= 0)
            errno = EFBIG;
        free(data);
        return NULL;
    }
    data[*length] = 0;
    return data;
}

char *read_file(int folder, const char *path, size_t most, size_t *length)
{
    struct stat is;
    int file = open_file(folder, path, &is);
    char *data = file >= 0 ? read_all(file, most, length) : NULL;
    int error = errno;
    if (file >= 0)
        close(file);
    errno = error;
    return data;
}

bool is_mount(int descriptor)
{
    struct statx is;
    if (syscall(SYS_statx, descriptor, "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, 0, &is) != 0)
        return false;
    if (!(is.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT))
        fail("this node's kernel does not tell what is a mount (Linux 5.8 and later do)");
    return (is.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

/* The path's folders from the top, made where they are missing; the last one. */
static int make_folders(int root, const char *path)
{
    char part[PATH_LONGEST];
    int above = open_resolved(root, "/", O_PATH | O_DIRECTORY, RESOLVE_NO_XDEV);
    for (const char *name = path + 1, *end; above >= 0 && *name; name = *end ? end + 1 : end) {
        end = strchrnul(name, '/');
        snprintf(part, sizeof part, "%.*s", (int)(end - path), path);
        int here = open_resolved(root, part, O_RDONLY | O_DIRECTORY, RESOLVE_NO_XDEV);
        if (here < 0 && errno == ENOENT) {
            snprintf(part, sizeof part, "%.*s", (int)(end - name), name);
            if (mkdirat(above, part, 0755) != 0 && errno != EEXIST)
                fail("%s: the folder %s cannot be made in the container: %s", path, part, strerror(errno));
            snprintf(part, sizeof part, "%.*s", (int)(end - path), path);
            here = open_resolved(root, part, O_RDONLY | O_DIRECTORY, RESOLVE_NO_XDEV);
        }
        int error = errno;
        close(above);
        errno = error;
        above = here;
    }
    return above;
}

int folder_of_root(int root, const char *path)
{
    int folder = open_resolved(root, path, O_RDONLY | O_DIRECTORY, RESOLVE_NO_XDEV);
    return folder < 0 && errno == ENOENT ? make_folders(root, path) : folder;
}

int folder_to_write(int root, const char *path)
{
    int folder = folder_of_root(root, path);
    if (folder < 0 && errno == EXDEV)
        fail("%s is on a volume of the pod, where this hook writes nothing; mount the volume elsewhere", path);
    if (folder < 0)
        fail("%s cannot be opened in the container: %s", path, strerror(errno));
    return folder;
}

void replace_file(int folder, const char *name, const void *data, size_t length, const char *shown)
{
    static const char temporary[] = ".koordra";
    unlinkat(folder, temporary, 0); /* of a hook that was killed: no other is at work in this container */
    int file = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (file < 0)
        fail("%s cannot be written in the container: %s", shown, strerror(errno));
    const char *rest = data;
    size_t left = length;
    while (left > 0) {
        ssize_t done = write(file, rest, left);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            break;
        rest += done;
        left -= (size_t)done;
    }
    if (left == 0 && fchmod(file, 0644) == 0 && close(file) == 0 && renameat(folder, temporary, folder, name) == 0)
        return;
    int error = errno;
    unlinkat(folder, temporary, 0);
    fail("%s cannot be written in the container: %s", shown, strerror(error));
}

void make_link(int folder, const char *name, const char *target, const char *shown)
{
    char there[PATH_LONGEST];
    if (symlinkat(target, folder, name) == 0)
        return;
    int error = errno;
    ssize_t length = error == EEXIST ? readlinkat(folder, name, there, sizeof there - 1) : -1;
    if (error == EEXIST && length < 0)
        return; /* a file or a mount: what it is called is what is wanted, and it is there */
    if (length >= 0) {
        there[length] = 0;
        if (strcmp(there, target) == 0)
            return;
        if (unlinkat(folder, name, 0) == 0 && symlinkat(target, folder, name) == 0)
            return;
        error = errno;
    }
    fail("the link %s cannot be made in the container: %s", shown, strerror(error));
}
