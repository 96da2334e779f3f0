/* Two files by which the driver's user-space part learns of cards, as NVIDIA's container toolkit makes them:
 *
 *     /proc/driver/nvidia/params      ModifyDeviceFiles: 0, else nvidia-smi and CUDA, as root, make the nodes of every card of the
 *                                     node. The kernel's file cannot be written, and no runtime mounts anything into /proc: a copy
 *                                     is bound over it, made from the container's own /proc, which has the node's driver, on the
 *                                     container's file system, whose SELinux label and users it then has
 *     /etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf
 *                                     EGLVisibleDGPUDevices: a bit for the minor number of each card that has a node in /dev
 *
 * Neither is a barrier: what a container may open is for its device rules to say. */
#include "cards.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "beneath.h"
#include "bind.h"
#include "fail.h"

enum { PARAMETERS_MOST = 64 << 10, NODES_MOST = 1 << 14, BITS = 64 };

static const char parameters_folder[] = "/proc/driver/nvidia", parameters[] = "params", copy[] = ".koordra-params", parameters_shown[] = "/proc/driver/nvidia/params";
static const char profiles[] = "/etc/nvidia/nvidia-application-profiles-rc.d", profile[] = "10-container.conf";

static void make_no_nodes(int root)
{
    static const char wanted[] = "ModifyDeviceFiles: 1";
    size_t length;
    char *text = read_file(root, parameters_shown, PARAMETERS_MOST, &length), *line = text;
    while (line && (strncmp(line, wanted, sizeof wanted - 1) != 0 || (line[sizeof wanted - 1] && line[sizeof wanted - 1] != '\n')))
        line = (line = strchr(line, '\n')) ? line + 1 : NULL;
    if (line) {
        line[sizeof wanted - 2] = '0';
        int etc = folder_to_write(root, "/etc"), there = open_beneath(root, parameters_folder, O_PATH | O_DIRECTORY);
        replace_file(etc, copy, text, length, parameters_shown);
        bind_read_only(root, "/proc", etc, copy, there, parameters, parameters_shown);
        close(there);
        close(etc);
    }
    free(text);
}

/* The minor number of a card's node; -1: it is something else. */
static int card_number(int folder, const char *name)
{
    struct stat is;
    if (strncmp(name, "nvidia", 6) != 0 || !name[6] || name[6 + strspn(name + 6, "0123456789")] ||
        fstatat(folder, name, &is, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISCHR(is.st_mode))
        return -1;
    return (int)minor(is.st_rdev);
}

static void list_for_drawing(int root, uint64_t mask)
{
    char text[160];
    int folder = folder_of_root(root, profiles);
    if (folder < 0) {
        warn("%s: %s; EGL and Vulkan may list cards that the container cannot open", profiles, strerror(errno));
        return;
    }
    int length = snprintf(text, sizeof text,
                          "{\"profiles\":[{\"name\":\"koordra\",\"settings\":[\"EGLVisibleDGPUDevices\",0x%llx]}],"
                          "\"rules\":[{\"pattern\":[],\"profile\":\"koordra\"}]}",
                          (unsigned long long)mask);
    replace_file(folder, profile, text, (size_t)length, profiles);
    close(folder);
}

void tell_cards(int root)
{
    uint64_t mask = 0;
    unsigned seen = 0, cards = 0;
    int folder = open_beneath(root, "/dev", O_RDONLY | O_DIRECTORY);
    DIR *nodes = folder >= 0 ? fdopendir(folder) : NULL;
    for (struct dirent *each; nodes && seen++ < NODES_MOST && (each = readdir(nodes));) {
        int number = card_number(folder, each->d_name);
        cards += number >= 0;
        mask |= number >= 0 && number < BITS ? UINT64_C(1) << number : 0;
    }
    if (nodes)
        closedir(nodes);
    if (cards)
        make_no_nodes(root);
    if (mask)
        list_for_drawing(root, mask);
}
