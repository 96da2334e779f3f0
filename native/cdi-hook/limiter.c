/* A program's loader takes a library that it has loaded already for every later one of the same SONAME: before RPATH,
 * LD_LIBRARY_PATH, the cache and its folders. /etc/ld.so.preload is read by every dynamically linked program of glibc, set-user-id
 * ones too; so the limiter, whose SONAMEs are libcuda.so.1 and libnvidia-ml.so.1, is what they all get.
 *
 *     /usr/lib/koordra/limiter/$PLATFORM/libcuda.so.1         ours first: the loader puts its processor for $PLATFORM, so that a
 *     /usr/lib/koordra/limiter/$PLATFORM/libnvidia-ml.so.1    32-bit program gets one that it can load, and no line on its stderr
 *     <the image's own lines>
 *
 * The file is bound over itself, read-only: a program in the container can neither write nor remove it. Root there can still rename
 * /etc; that is no accident any more. */
#include "limiter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "beneath.h"
#include "bind.h"
#include "compat.h"
#include "fail.h"
#include "musl.h"

#if defined(__x86_64__)
#define PLATFORM "x86_64"
#else
#define PLATFORM "aarch64"
#endif

enum { FILE_MOST = 64 << 10 };

static const char preload[] = "ld.so.preload", shown[] = "/etc/ld.so.preload";
static const char driver_folder[] = "/usr/lib/koordra/compat";

bool limit_mounted(int root, const char *path)
{
    int found = open_beneath(root, path, O_PATH);
    if (found < 0)
        return false;
    bool mounted = is_mount(found);
    close(found);
    return mounted;
}

void limiter_refuse(int root, const char *preloaded)
{
    if (has_musl(root) && !has_glibc(root))
        fail("this image's C library is musl, which NVIDIA's driver and the memory limit of a GPU share do not work with; use an image with glibc");
    if (has_musl(root))
        warn("this image has musl beside glibc: programs of musl load the driver without the memory limit");
    if (strstr(preloaded, "libcuda.so"))
        fail("LD_PRELOAD=%s would load a CUDA driver before the memory limit of the GPU share; remove it from the pod or its image", preloaded);
}

/* The image's lines behind ours, unless they are ours already. */
static char *joined(const char *folder, const char *images)
{
    char *text = NULL;
    char ours[1024];
    int length = snprintf(ours, sizeof ours, "%s/$PLATFORM/libcuda.so.1\n%s/$PLATFORM/libnvidia-ml.so.1\n", folder, folder);
    if (length >= (int)sizeof ours)
        fail("--limiter %s: the path is too long", folder);
    if (strncmp(images, ours, (size_t)length) == 0)
        images += length;
    if (asprintf(&text, "%s%s", ours, images) < 0)
        fail("%s: no memory", shown);
    return text;
}

static void require_library(int root, const char *folder)
{
    char path[1024];
    struct stat is;
    snprintf(path, sizeof path, "%s/%s/libcuda.so.1", folder, PLATFORM);
    int file = open_file(root, path, &is);
    if (file < 0)
        fail("the memory limiter %s is not in the container: %s", path, strerror(errno));
    close(file);
}

static void stand_behind(int root, const char *compat)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", COMPAT_FOLDER, compat);
    int folder = folder_to_write(root, driver_folder);
    make_link(folder, "libcuda.so.1", path, driver_folder);
    close(folder);
}

void limiter_enforce(int root, const char *folder, const char *compat)
{
    size_t length;
    require_library(root, folder);
    if (compat)
        stand_behind(root, compat);
    char *images = read_file(root, shown, FILE_MOST, &length);
    if (!images && errno != ENOENT)
        fail("the image's %s cannot be read: %s", shown, strerror(errno));
    char *text = joined(folder, images ? images : "");
    int etc = folder_to_write(root, "/etc"), there = open_beneath(etc, preload, O_PATH | O_NOFOLLOW);
    if (there >= 0 && is_mount(there)) {
        /* By the hook of another claim of this container; or it is a volume, which is not joined behind the pod's back. */
        if (strcmp(text, images ? images : "") != 0)
            fail("%s is a volume of the pod: a container with a GPU share has one of its own; mount the volume elsewhere", shown);
    } else {
        replace_file(etc, preload, text, strlen(text), shown);
        bind_read_only(root, "/", etc, preload, etc, preload, shown);
    }
    if (there >= 0)
        close(there);
    close(etc);
    free(images);
    free(text);
}
