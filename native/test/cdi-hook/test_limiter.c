/* The memory limiter in front of everything. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "image.h"

#define LIMITED "--compat 580.95.05 --limiter " LIMITER
#define ANOTHER "/usr/local/vgpu/libvgpu.so"
#define OF_ANOTHER LIMITED " --preloaded " ANOTHER
#define OURS LIMITER "/$PLATFORM/libcuda.so.1\n" LIMITER "/$PLATFORM/libnvidia-ml.so.1\n"

static void begin_limited(void)
{
    image_begin();
    mount_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1");
    mount_limiter();
}

TEST(every_program_preloads_the_limiter_before_what_the_image_does)
{
    begin_limited();
    put("/etc/ld.so.preload", "# memory\n/opt/libjemalloc.so\n");
    HOOK(LIMITED);
    CHECK(strcmp(text_of("/etc/ld.so.preload"), OURS "# memory\n/opt/libjemalloc.so\n") == 0);
}

TEST(nothing_in_the_container_can_write_or_remove_the_preload)
{
    begin_limited();
    HOOK(LIMITED);
    const char *path = outside("/etc/ld.so.preload");
    CHECK(mounted_at("/etc/ld.so.preload"));
    CHECK(open(path, O_WRONLY | O_CLOEXEC) < 0 && errno == EROFS);
    CHECK(unlink(path) != 0 && errno == EBUSY);
    CHECK(rename(path, outside("/etc/other")) != 0 && errno == EBUSY);
}

TEST(the_limiter_is_enforced_wherever_it_is_mounted)
{
    image_begin();
    mount_limiter();
    HOOK(LIMITED);
    CHECK(strstr(text_of("/etc/ld.so.preload"), LIMITER));
}

TEST(a_share_lists_no_driver_but_the_mounted)
{
    begin_limited();
    put("/etc/ld.so.conf.d/cuda.conf", COMPAT "\n/opt/stubs\n");
    put_compat("575.57.08", NULL);
    put_link(COMPAT "/libcuda.so", "libcuda.so.1");
    put_library("/opt/stubs/libnvidia-ml.so", "libnvidia-ml.so.1");
    HOOK(LIMITED);
    CHECK_EQUAL(listed("libcuda.so.1"), 1);
    CHECK_EQUAL(listed("libcuda.so"), 0);
    CHECK_EQUAL(listed("libnvidia-ml.so") + listed("libnvidia-ml.so.1"), 0);
}

TEST(the_images_newer_driver_stands_behind_the_limiter)
{
    begin_limited();
    put_compat("590.44.01", NULL);
    put_library(COMPAT "/libnvidia-ptxjitcompiler.so.1", "libnvidia-ptxjitcompiler.so.1");
    HOOK(LIMITED);
    char target[128] = "";
    CHECK(readlink(outside("/usr/lib/koordra/compat/libcuda.so.1"), target, sizeof target - 1) > 0);
    CHECK(strcmp(target, COMPAT "/libcuda.so.590.44.01") == 0);
    CHECK(strcmp(listed_first("libcuda.so.1"), LIBRARIES "/libcuda.so.1") == 0);
    CHECK(strcmp(listed_first("libnvidia-ptxjitcompiler.so.1"), COMPAT "/libnvidia-ptxjitcompiler.so.1") == 0);
}

TEST(a_whole_card_gets_none_of_it)
{
    image_begin();
    mount_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1");
    put_library(LIMITER "/" PLATFORM "/libcuda.so.1", "libcuda.so.1"); /* an image cannot pretend to be limited */
    HOOK(LIMITED);
    CHECK(!text_of("/etc/ld.so.preload"));
}

TEST(the_hook_of_another_claim_without_a_limit_does_not_undo_it)
{
    begin_limited();
    put_library("/usr/lib/libcuda.so", NULL);
    HOOK(LIMITED);
    HOOK(LIMITED);
    CHECK(strcmp(text_of("/etc/ld.so.preload"), OURS) == 0);
    CHECK_EQUAL(listed("libcuda.so"), 0);
}

TEST(musl_with_a_share_is_refused_in_words)
{
    begin_limited();
    put("/lib/ld-musl-" PLATFORM ".so.1", "");
    HOOK(LIMITED);
    CHECK(strstr(said, "musl beside glibc"));
    CHECK(umount2(outside("/etc/ld.so.preload"), MNT_DETACH) == 0);
    put(LOADER, "gcompat: a program that starts musl's loader");
    CHECK_EQUAL(run_hook(LIMITED), 1);
    CHECK(strstr(said, "this image's C library is musl"));
    CHECK(unlink(outside(LOADER)) == 0);
    CHECK_EQUAL(run_hook(LIMITED), 1);
    CHECK(strstr(said, "this image's C library is musl") && strchr(said, '\n') == said + strlen(said) - 1);
}

/* HAMi's library, which the runtime has mounted as all else of it. */
TEST(musl_with_a_share_of_another_limit_is_refused_in_words)
{
    image_begin();
    mount_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1");
    put("/lib/ld-musl-" PLATFORM ".so.1", "");
    HOOK(OF_ANOTHER);
    CHECK(!said[0]); /* a whole card, and an image that has a library of that name: nobody is limited */
    put_library(ANOTHER, NULL);
    HOOK(OF_ANOTHER);
    CHECK(!said[0]);
    mount_library(ANOTHER, NULL);
    HOOK(OF_ANOTHER);
    CHECK(strstr(said, "musl beside glibc"));
    CHECK(!text_of("/etc/ld.so.preload")); /* it is the claim's to mount */
    CHECK(unlink(outside(LOADER)) == 0);
    CHECK_EQUAL(run_hook(OF_ANOTHER), 1);
    CHECK(strstr(said, "this image's C library is musl") && strchr(said, '\n') == said + strlen(said) - 1);
}

TEST(a_preloaded_driver_is_refused_with_a_share)
{
    begin_limited();
    config_text = "{\"root\": {\"path\": \"rootfs\"}, \"process\": {\"env\": [\"LD_PRELOAD=/usr/local/cuda/compat/libcuda.so.1\"]}}";
    CHECK_EQUAL(run_hook(LIMITED), 1);
    CHECK(strstr(said, "remove it from the pod or its image"));
    CHECK(!text_of("/etc/ld.so.preload"));
    HOOK(""); /* a whole card: whoever wants it so */
}

TEST(a_volume_in_place_of_the_preload_is_refused)
{
    begin_limited();
    put("/etc/ld.so.preload", "");
    put("/volume", "/opt/mine.so\n");
    CHECK(mount(outside("/volume"), outside("/etc/ld.so.preload"), NULL, MS_BIND, NULL) == 0);
    CHECK_EQUAL(run_hook(LIMITED), 1);
    CHECK(strstr(said, "is a volume of the pod"));
    CHECK(strcmp(text_of("/volume"), "/opt/mine.so\n") == 0);
}

TEST(a_missing_limiter_keeps_the_container_from_starting)
{
    begin_limited();
    CHECK(umount2(outside(LIMITER), 0) == 0);
    mount_volume(LIMITER, "empty");
    CHECK_EQUAL(run_hook(LIMITED), 1);
    CHECK(strstr(said, "is not in the container"));
}

/* A root that is shared with the node, as it is in a pod that has a volume with Bidirectional propagation. */
TEST(the_bind_does_not_come_to_the_node)
{
    begin_limited();
    char node[512];
    snprintf(node, sizeof node, "%s/node", folder);
    CHECK(mkdir(node, 0755) == 0 && mount(NULL, outside(""), NULL, MS_SHARED, NULL) == 0 && mount(outside(""), node, NULL, MS_BIND, NULL) == 0);
    HOOK(LIMITED);
    CHECK(mounted_at("/etc/ld.so.preload"));
    struct statx is;
    strcat(node, "/etc/ld.so.preload");
    CHECK(statx(AT_FDCWD, node, AT_SYMLINK_NOFOLLOW, 0, &is) == 0 && !(is.stx_attributes & STATX_ATTR_MOUNT_ROOT));
}
