/* Whatever path a program opens the driver by, it gets the limiter; and a newer driver of the image stands behind it. */
#include <dlfcn.h>
#include <errno.h>
#include <sys/stat.h>

#include "../harness.h"

#if defined(__x86_64__)
#define PLATFORM "x86_64"
#else
#define PLATFORM "aarch64"
#endif

static char front[400];

/* The limiter's folder of a container, as the hook finds it. */
static void mount_front(void)
{
    char target[600];
    snprintf(front, sizeof front, "%s/front", folder);
    CHECK(mkdir(front, 0755) == 0 && setenv("KOORDRA_FRONT_FOLDER", front, 1) == 0);
    snprintf(target, sizeof target, "%s/" PLATFORM, front);
    CHECK(mkdir(target, 0755) == 0);
    strcat(target, "/libcuda.so.1");
    Dl_info ours;
    CHECK(dladdr((void *)(uintptr_t)cuInit, &ours) && symlink(ours.dli_fname, target) == 0);
}

static const char *driver_path(void)
{
    static char path[400];
    snprintf(path, sizeof path, "%s/libcuda.so.1", getenv("KOORDRA_DRIVER_FOLDER"));
    return path;
}

TEST(the_path_of_a_driver_opens_the_limiter)
{
    begin(.limit = GIB, .no_context = true);
    mount_front();
    void *opened = dlopen(driver_path(), RTLD_NOW | RTLD_LOCAL);
    CHECK(opened && dlsym(opened, "cuMemAlloc_v2") == dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
    CHECK(dlopen("/no/such/folder/libcuda.so", RTLD_NOW) == opened && dlopen("libcuda.so.999.1", RTLD_NOW) == opened);
    CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) == opened);
}

TEST(another_namespace_gets_a_limiter_of_its_own)
{
    begin(.limit = GIB, .no_context = true);
    mount_front();
    if (SANITIZED)
        return;
    void *opened = dlmopen(LM_ID_NEWLM, driver_path(), RTLD_NOW | RTLD_LOCAL);
    CHECK(opened && dlsym(opened, "koordra_limiter_version"));
    CHECK(dlsym(opened, "cuMemAlloc_v2") != dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
}

TEST(other_libraries_are_opened_as_they_were)
{
    begin(.limit = GIB, .no_context = true);
    mount_front();
    CHECK(dlopen(NULL, RTLD_NOW));
    CHECK(dlopen("libcudadebugger.so.1", RTLD_NOW) == NULL && strstr(dlerror(), "libcudadebugger.so.1"));
    CHECK(dlopen("libm.so.6", RTLD_NOW));
}

TEST(without_the_nodes_mounts_paths_mean_what_they_say)
{
    begin(.limit = GIB, .no_context = true);
    void *opened = dlopen(driver_path(), RTLD_NOW | RTLD_LOCAL);
    CHECK(opened && dlsym(opened, "cuMemAlloc_v2") != dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
}

TEST(a_newer_driver_of_the_image_is_the_one_behind)
{
    char newer[400], command[1200];
    CUdeviceptr pointer;
    snprintf(newer, sizeof newer, "%s/newer", folder);
    snprintf(command, sizeof command, "mkdir %s && cp %s %s/libcuda.so.1", newer, driver_path(), newer);
    CHECK(system(command) == 0 && setenv("KOORDRA_NEWER_FOLDER", newer, 1) == 0);
    begin(.limit = GIB);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&pointer, MIB));
    bool loaded = false;
    char line[600];
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps)) {
        loaded = loaded || strstr(line, newer);
        CHECK(!strstr(line, driver_path()));
    }
    CHECK(maps && fclose(maps) == 0 && loaded);
}
