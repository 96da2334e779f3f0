/* What the container's loader finds: links, the cache, the image's own newer driver. */
#include <sys/mount.h>
#include <sys/stat.h>

#include "image.h"

#define OWN_LINK "--link libcuda.so.1::" LIBRARIES "/libcuda.so"

TEST(the_driver_is_listed_with_its_links)
{
    image_begin();
    mount_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1");
    mount_library(LIBRARIES "/libnvidia-nvvm70.so.4.1", "libnvidia-nvvm70.so.4");
    mount_library(LIBRARIES "/libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1");
    mount_library(LIBRARIES "/libcuda.so.580.95.05", "libcuda.so.1");
    HOOK(OWN_LINK);
    CHECK(strcmp(listed_first("libcuda.so.1"), LIBRARIES "/libcuda.so.1") == 0);
    CHECK(strcmp(listed_first("libcuda.so"), LIBRARIES "/libcuda.so") == 0);
    CHECK(strcmp(listed_first("libnvidia-nvvm70.so.4"), LIBRARIES "/libnvidia-nvvm70.so.4") == 0);
    CHECK_EQUAL(listed("libcuda.so.580.95.05"), 0);
    CHECK_EQUAL(listed("libnvidia-opticalflow.so") + listed("libnvidia-opticalflow.so.1"), 2);
    char target[64] = "";
    CHECK(readlink(outside(LIBRARIES "/libnvidia-nvvm70.so.4"), target, sizeof target - 1) > 0);
    CHECK(strcmp(target, "libnvidia-nvvm70.so.4.1") == 0);
}

TEST(links_of_device_nodes_are_made_in_the_containers_own_dev)
{
    image_begin();
    mount_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1");
    put_folder("/dev");
    CHECK(mount("dev", outside("/dev"), "tmpfs", 0, NULL) == 0);
    HOOK("--link ../card0::/dev/dri/by-path/pci-0000:1f:00.0-card");
    char target[64] = "";
    CHECK(readlink(outside("/dev/dri/by-path/pci-0000:1f:00.0-card"), target, sizeof target - 1) > 0);
    CHECK(strcmp(target, "../card0") == 0);
    CHECK(umount2(outside("/dev"), 0) == 0 && mount("/dev", outside("/dev"), NULL, MS_BIND, NULL) == 0);
    HOOK("--link nowhere::/dev/koordra-test-link"); /* the node's own is left alone */
    CHECK(access("/dev/koordra-test-link", F_OK) != 0 && readlink("/dev/koordra-test-link", target, sizeof target) < 0);
}

TEST(an_image_without_any_configuration_gets_a_cache)
{
    image_begin();
    CHECK(unlink(outside("/etc/ld.so.conf")) == 0 && rmdir(outside("/etc/ld.so.conf.d")) == 0 && rmdir(outside("/etc")) == 0);
    mount_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1");
    HOOK("");
    CHECK_EQUAL(listed("libcuda.so.1"), 1);
}

TEST(a_container_without_a_driver_is_left_alone)
{
    image_begin();
    put_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1"); /* the image's, not mounted */
    HOOK(OWN_LINK);
    CHECK(!text_of("/etc/ld.so.cache"));
    CHECK(access(outside(LIBRARIES "/libcuda.so"), F_OK) != 0);
}

TEST(a_copy_of_the_driver_in_the_image_is_not_listed)
{
    image_begin();
    put("/etc/ld.so.conf.d/000_cuda.conf", "/opt/old\n");
    put_library("/opt/old/libcuda.so.1", "libcuda.so.1");
    put_library("/opt/old/glibc-hwcaps/x86-64-v2/libcuda.so.1", "libcuda.so.1");
    put_library("/opt/old/libnvidia-ml.so.1", "libnvidia-ml.so.1");
    mount_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1");
    mount_library("/usr/lib64/libcuda.so.1", "libcuda.so.1");
    HOOK("");
    CHECK_EQUAL(listed("libcuda.so.1"), 1);
    CHECK(strcmp(listed_first("libcuda.so.1"), LIBRARIES "/libcuda.so.1") == 0);
    CHECK(strcmp(listed_first("libnvidia-ml.so.1"), "/opt/old/libnvidia-ml.so.1") == 0); /* nothing of the driver's has this name */
}

TEST(the_images_own_libraries_stay_in_its_own_order)
{
    image_begin();
    put("/etc/ld.so.conf.d/b.conf", "# a comment\n  /opt/b  # another\n/opt/none\n");
    put("/etc/ld.so.conf.d/a.conf", "include ../more/*.list\nhwcap 1 nosegneg\n/opt/a=libc6\n");
    put("/etc/more/x.list", "/opt/x/\n");
    for (const char *const *each = (const char *const[]){"/opt/a", "/opt/b", "/opt/x", "/usr/lib", NULL}; *each; each++) {
        char path[64];
        snprintf(path, sizeof path, "%s/libsame.so.1", *each);
        put_library(path, "libsame.so.1");
        snprintf(path, sizeof path, "%s/libonly%c.so.10.2", *each, (*each)[5]);
        put_library(path, NULL);
    }
    put_library("/opt/a/glibc-hwcaps/x86-64-v3/libsame.so.1", "libsame.so.1");
    mount_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1");
    HOOK("");
    CHECK_EQUAL(listed("libsame.so.1"), 5);
    CHECK(strcmp(listed_first("libsame.so.1"), "/opt/a/glibc-hwcaps/x86-64-v3/libsame.so.1") == 0);
    CHECK(strcmp(listed_first("libonlyx.so.10.2"), "/opt/x/libonlyx.so.10.2") == 0);
    CHECK_EQUAL(listed("libonlya.so.10.2") + listed("libonlyb.so.10.2") + listed("libonlyl.so.10.2"), 3);
}

TEST(of_several_files_of_one_name_the_highest_is_listed)
{
    image_begin();
    put_library("/usr/lib/libmany.so.1.9", "libmany.so.1");
    put_library("/usr/lib/libmany.so.1.10", "libmany.so.1");
    mount_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1");
    HOOK("");
    CHECK_EQUAL(listed("libmany.so.1"), 1);
    CHECK(strcmp(listed_first("libmany.so.1"), "/usr/lib/libmany.so.1.10") == 0);
}

TEST(twice_is_as_once)
{
    image_begin();
    put("/etc/ld.so.preload", "/opt/libjemalloc.so");
    mount_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1");
    mount_limiter();
    put_compat("590.10", NULL);
    const char *all = OWN_LINK " --compat 580.95 --limiter " LIMITER, *without = OWN_LINK " --compat 580.95";
    HOOK(all);
    const char *cache = text_of("/etc/ld.so.cache"), *preload = text_of("/etc/ld.so.preload");
    HOOK(all);
    CHECK(strcmp(text_of("/etc/ld.so.cache"), cache) == 0 && strcmp(text_of("/etc/ld.so.preload"), preload) == 0);
    CHECK(strcmp(without, all) != 0);
}

/* What the toolkit's rule says of a node's 580.95.05. */
static const char *const compat_cases[][3] = {
    {"590.44.01", NULL, "yes"},
    {"580.126.09", NULL, "no"},
    {"575.57.08", NULL, "no"},
    {"1000.1", NULL, "yes"},
    {"590.44.01", "{\"Format\":1,\"CUDA Version\":\"13.1\",\"Driver\":[535,580],\"Device\":[]}", "yes"},
    {"580.126.09", "{\"Driver\":[580]}", "yes"},
    {"580.95.05", "{\"Driver\":[580]}", "no"},
    {"580.65.06", "{\"Driver\":[580]}", "no"},
    {"590.44.01", "{\"Driver\":[535,550,570]}", "no"},
    {"590.44.01", "{\"Driver\":[]}", "no"},
    {"590.44.01", "not JSON", "no"},
};

TEST(the_images_newer_driver_is_used_by_the_toolkits_rule)
{
    image_begin();
    mount_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1");
    for (unsigned at = 0; at < sizeof compat_cases / sizeof compat_cases[0]; at++) {
        char path[128];
        put_compat(compat_cases[at][0], compat_cases[at][1]);
        put_library(COMPAT "/libnvidia-ptxjitcompiler.so.1", "libnvidia-ptxjitcompiler.so.1");
        HOOK("--compat 580.95.05");
        bool used = strcmp(listed_first("libcuda.so.1"), COMPAT "/libcuda.so.1") == 0;
        if (used != (compat_cases[at][2][0] == 'y'))
            fprintf(stderr, "%s with note %s\n", compat_cases[at][0], compat_cases[at][1]);
        CHECK(used == (compat_cases[at][2][0] == 'y'));
        CHECK_EQUAL(listed("libcuda.so.1"), 1);
        CHECK_EQUAL(listed("libnvidia-ptxjitcompiler.so.1"), used);
        CHECK((text_of("/etc/ld.so.conf.d/000-koordra.conf") != NULL) == used);
        unlink(outside("/etc/ld.so.conf.d/000-koordra.conf"));
        snprintf(path, sizeof path, COMPAT "/libcuda.so.%s", compat_cases[at][0]);
        CHECK(unlink(outside(path)) == 0);
    }
}

TEST(of_several_newer_drivers_none_is_used)
{
    image_begin();
    mount_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1");
    put_compat("590.44.01", NULL);
    put_compat("595.10", NULL);
    HOOK("--compat 580.95.05");
    CHECK(strcmp(listed_first("libcuda.so.1"), LIBRARIES "/libcuda.so.1") == 0);
}

TEST(musl_is_told_the_folders)
{
    image_begin();
    put("/lib/ld-musl-" PLATFORM ".so.1", "");
    CHECK(unlink(outside(LOADER)) == 0);
    mount_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1");
    HOOK("");
    const char *expected = "/lib:/usr/local/lib:/usr/lib\n" LIBRARIES "\n/usr/lib64";
    CHECK(strcmp(text_of("/etc/ld-musl-" PLATFORM ".path"), expected) == 0);
    CHECK(!text_of("/etc/ld.so.cache"));
    HOOK("");
    CHECK(strcmp(text_of("/etc/ld-musl-" PLATFORM ".path"), expected) == 0);
}

/* ldconfig and the loader read the cache as they would their own. */
TEST(ldconfig_prints_what_was_written)
{
    if (access("/sbin/ldconfig", X_OK) != 0) {
        fprintf(stderr, "no ldconfig here to compare with\n");
        return;
    }
    char command[700], line[512];
    unsigned lines = 0;
    bool found = false, better = false;
    image_begin();
    put_library("/usr/lib/libz.so.1.3", "libz.so.1");
    put_library("/usr/lib/glibc-hwcaps/x86-64-v3/libz.so.1.3", "libz.so.1");
    put_library("/usr/lib/glibc-hwcaps/x86-64-v2/libz.so.1.3", "libz.so.1");
    mount_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1");
    HOOK(OWN_LINK);
    snprintf(command, sizeof command, "/sbin/ldconfig -p -C %s 2>&1", outside("/etc/ld.so.cache"));
    FILE *output = popen(command, "r");
    while (output && fgets(line, sizeof line, output)) {
        lines++;
        found = found || (strstr(line, "libcuda.so.1 (libc6,") && strstr(line, "=> " LIBRARIES "/libcuda.so.1\n"));
        better = better || (strstr(line, "libz.so.1 (") && strstr(line, "hwcap: \"x86-64-v3\") => /usr/lib/glibc-hwcaps/x86-64-v3/libz.so.1.3"));
    }
    CHECK(output && pclose(output) == 0 && found && better);
    CHECK(lines >= 6);
}
