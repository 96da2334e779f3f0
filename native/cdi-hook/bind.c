/* By descriptors alone: no path is looked up twice. Linux 5.12 makes the mount read-only before it is attached. Before, it is told
 * afterwards, no program of the container being there yet, by /proc/self/fd: that is the node's until the container has its root. */
#include "bind.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "beneath.h"
#include "fail.h"

/* Of <sys/mount.h>, which older C libraries do not let stand beside <linux/mount.h>. */
extern int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data);
enum { NOSUID_NODEV_NOEXEC = 2 | 4 | 8, READ_ONLY = 1, REMOUNT = 32, BIND = 4096, PRIVATE = 1 << 18 };

static void change(int descriptor, unsigned long flags, const char *shown)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    if (mount(NULL, path, NULL, flags, NULL) != 0)
        fail("the mount of %s cannot be changed in the container: %s", shown, strerror(errno));
}

static bool same(int one, int other)
{
    struct stat a, b;
    return fstat(one, &a) == 0 && fstat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Where a pod has a volume with Bidirectional propagation, a mount of the container may be shared with the node, where the bind
 * would stay. */
static void keep_from_the_node(int mount, const char *shown)
{
    if (is_mount(mount))
        change(mount, PRIVATE, shown);
}

void bind_read_only(int root, const char *above, int source, const char *name, int folder, const char *target, const char *shown)
{
    struct mount_attr read_only = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC};
    int over = open_beneath(folder, target, O_PATH | O_NOFOLLOW), holds = open_beneath(root, above, O_PATH | O_DIRECTORY);
    int tree = (int)syscall(SYS_open_tree, source, name, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW);
    if (over < 0 || tree < 0 || holds < 0)
        fail("%s cannot be bound in the container: %s", shown, strerror(errno));
    keep_from_the_node(holds, shown);
    keep_from_the_node(over, shown);
    bool early = syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &read_only, sizeof read_only) == 0;
    if (syscall(SYS_move_mount, tree, "", over, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) != 0)
        fail("%s cannot be bound in the container: %s", shown, strerror(errno));
    int bound = open_beneath(folder, target, O_PATH | O_NOFOLLOW);
    if (bound < 0 || !is_mount(bound) || !same(bound, tree))
        fail("%s is not what was bound in the container", shown);
    if (strcmp(name, target) != 0 && unlinkat(source, name, 0) != 0) /* not before: what has no name cannot be attached */
        fail("%s cannot be bound in the container: %s", shown, strerror(errno));
    if (!early)
        change(bound, REMOUNT | BIND | READ_ONLY | NOSUID_NODEV_NOEXEC, shown);
    close(bound);
    close(holds);
    close(over);
    close(tree);
}
