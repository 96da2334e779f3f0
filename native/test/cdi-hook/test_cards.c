/* What the driver's programs are told of cards: that they make no nodes of them, and which of them EGL may list. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "image.h"

#define PARAMETERS "/proc/driver/nvidia/params"
#define PROFILE "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
#define LINES(files) "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: " files "\nDeviceFileMode: 438\nRegistryDwords: \"\"\n"

static void put_node(const char *path, unsigned number)
{
    put(path, "");
    CHECK(unlink(outside(path)) == 0 && mknod(outside(path), S_IFCHR | 0666, makedev(195, number)) == 0);
}

static void begin_card(void)
{
    image_begin();
    put_node("/dev/nvidia0", 0);
}

/* The container's /proc is a mount of its own, in which the driver has its folder. */
static void mount_proc(const char *text)
{
    put_folder("/proc");
    CHECK(mount("proc", outside("/proc"), "tmpfs", 0, NULL) == 0);
    put(PARAMETERS, text);
}

TEST(programs_of_the_driver_are_told_to_make_no_nodes)
{
    begin_card();
    mount_proc(LINES("1"));
    HOOK("");
    HOOK(""); /* of another claim */
    CHECK(strcmp(text_of(PARAMETERS), LINES("0")) == 0);
    CHECK(open(outside(PARAMETERS), O_WRONLY | O_CLOEXEC) < 0 && errno == EROFS);
    CHECK(unlink(outside(PARAMETERS)) != 0 && errno == EBUSY);
    CHECK(access(outside("/etc/.koordra-params"), F_OK) != 0); /* nor by another way */
    CHECK(umount2(outside(PARAMETERS), 0) == 0 && !mounted_at(PARAMETERS)); /* once */
    CHECK(strcmp(text_of(PARAMETERS), LINES("1")) == 0);
}

/* A file that the kernel makes when it is read has no length: here a process's command line, of one line. */
TEST(a_file_of_the_kernels_is_read_to_its_end)
{
    begin_card();
    mount_proc("");
    pid_t process = fork();
    if (process == 0) {
        execl("/bin/sleep", "ModifyDeviceFiles: 1", "100", NULL);
        _exit(127);
    }
    char line[64], found[8] = "";
    snprintf(line, sizeof line, "/proc/%d/cmdline", process);
    while (found[0] != 'M') {
        int file = open(line, O_RDONLY | O_CLOEXEC);
        CHECK(file >= 0 && read(file, found, 1) >= 0 && close(file) == 0);
    }
    CHECK(mount(line, outside(PARAMETERS), NULL, MS_BIND, NULL) == 0);
    HOOK("");
    CHECK(strcmp(text_of(PARAMETERS), "ModifyDeviceFiles: 0") == 0);
    CHECK(kill(process, SIGKILL) == 0);
}

TEST(parameters_that_say_something_else_stay)
{
    begin_card();
    HOOK(""); /* no driver in /proc, and no /proc */
    CHECK(access(outside("/proc"), F_OK) != 0);
    mount_proc("");
    for (const char *const *each = (const char *const[]){LINES("0"), LINES("11"), LINES(" 1"), "  " LINES("1 "), "", "ModifyDeviceFiles: ", NULL}; *each; each++) {
        put(PARAMETERS, *each);
        HOOK("");
        CHECK(!mounted_at(PARAMETERS));
    }
    put(PARAMETERS, "ModifyDeviceFiles: 1");
    HOOK("");
    CHECK(strcmp(text_of(PARAMETERS), "ModifyDeviceFiles: 0") == 0);
}

TEST(what_stands_in_place_of_the_parameters_does_no_harm)
{
    begin_card();
    mount_proc("");
    char command[1400];
    CHECK(truncate(outside(PARAMETERS), (off_t)1 << 40) == 0);
    HOOK("");
    CHECK(unlink(outside(PARAMETERS)) == 0 && mkfifo(outside(PARAMETERS), 0644) == 0);
    HOOK("");
    put_link(PARAMETERS, "/etc/passwd"); /* the node's has no such line; the container's is left alone as well */
    put("/etc/passwd", "x");
    HOOK("");
    CHECK(strcmp(text_of("/etc/passwd"), "x") == 0);
    snprintf(command, sizeof command, "rm -rf %s && ln -s / %s", outside("/proc/driver"), outside("/proc/driver"));
    CHECK(system(command) == 0);
    put("/nvidia/params", LINES("1"));
    HOOK("");
    CHECK(mounted_at("/nvidia/params"));
}

TEST(the_parameters_do_not_come_to_the_node)
{
    begin_card();
    mount_proc(LINES("1"));
    char node[512];
    snprintf(node, sizeof node, "%s/node", folder);
    CHECK(mkdir(node, 0755) == 0 && mount(NULL, outside("/proc"), NULL, MS_SHARED, NULL) == 0 && mount(outside("/proc"), node, NULL, MS_BIND, NULL) == 0);
    HOOK("");
    struct statx is;
    strcat(node, "/driver/nvidia/params");
    CHECK(mounted_at(PARAMETERS));
    CHECK(statx(AT_FDCWD, node, AT_SYMLINK_NOFOLLOW, 0, &is) == 0 && !(is.stx_attributes & STATX_ATTR_MOUNT_ROOT));
}

/* Where a mount lies there already, that is what the bind lies on. */
TEST(a_shared_mount_in_place_of_the_parameters_is_left_to_the_node)
{
    begin_card();
    mount_proc(LINES("1"));
    char node[512];
    snprintf(node, sizeof node, "%s/node", folder);
    FILE *file = fopen(node, "we");
    CHECK(file && fclose(file) == 0);
    CHECK(mount(outside(PARAMETERS), outside(PARAMETERS), NULL, MS_BIND, NULL) == 0 && mount(NULL, outside(PARAMETERS), NULL, MS_SHARED, NULL) == 0);
    CHECK(mount(outside(PARAMETERS), node, NULL, MS_BIND, NULL) == 0);
    HOOK("");
    char text[64] = "";
    file = fopen(node, "re");
    CHECK(file && fread(text, 1, sizeof text - 1, file) > 0 && fclose(file) == 0 && strstr(text, "ModifyDeviceFiles: 1"));
    CHECK(strcmp(text_of(PARAMETERS), LINES("0")) == 0);
}

TEST(egl_lists_the_containers_own_cards)
{
    image_begin();
    mount_proc(LINES("1"));
    put_node("/dev/nvidiactl", 255);
    put_node("/dev/nvidia-uvm", 0);
    put_node("/dev/nvidia5x", 5);
    put("/dev/nvidia6", "");
    put_link("/dev/nvidia7", "nvidiactl");
    HOOK("");
    CHECK(!text_of(PROFILE) && !mounted_at(PARAMETERS)); /* a container without a card, of a claim that has one */
    put_node("/dev/nvidia70", 70); /* past the mask */
    HOOK("");
    CHECK(!text_of(PROFILE) && mounted_at(PARAMETERS));
    put_node("/dev/nvidia0", 0);
    put_node("/dev/nvidia12", 9); /* by its number, not its name */
    put_node("/dev/nvidia63", 63);
    put_link(PROFILE, "/dev/null");
    HOOK("");
    CHECK(strcmp(text_of(PROFILE), "{\"profiles\":[{\"name\":\"koordra\",\"settings\":[\"EGLVisibleDGPUDevices\",0x8000000000000201]}],"
                                   "\"rules\":[{\"pattern\":[],\"profile\":\"koordra\"}]}") == 0);
    struct stat is;
    CHECK(lstat(outside(PROFILE), &is) == 0 && S_ISREG(is.st_mode) && (is.st_mode & 0777) == 0644);
}

TEST(whatever_lies_in_the_place_of_the_profile_is_left_alone)
{
    begin_card();
    put("/etc/nvidia", "a file");
    HOOK("");
    CHECK(strstr(said, "EGL and Vulkan may list cards"));
    put_link("/etc/nvidia", "/none");
    HOOK("");
    CHECK(strstr(said, "EGL and Vulkan may list cards"));
    CHECK(unlink(outside("/etc/nvidia")) == 0);
    mount_volume("/etc/nvidia", "licence");
    HOOK("");
    CHECK(strstr(said, "EGL and Vulkan may list cards") && !text_of(PROFILE));
}
