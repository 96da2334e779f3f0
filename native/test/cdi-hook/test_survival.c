/* The hook where things end early, or are many: killed at any moment, a full disk, a great many libraries, little memory. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "image.h"

#define PARAMETERS "/proc/driver/nvidia/params"
#define PROFILE "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
#define ALL "--link libcuda.so.1::" LIBRARIES "/libcuda.so --compat 580.95.05 --limiter " LIMITER

static const char *const made[] = {"/etc/ld.so.cache", "/etc/ld.so.preload", PROFILE, PARAMETERS, "/etc/ld.so.conf.d/000-koordra.conf"};
enum { MADE = sizeof made / sizeof made[0] };

static void begin_all(void)
{
    image_begin();
    put("/dev/nvidia0", "");
    CHECK(unlink(outside("/dev/nvidia0")) == 0 && mknod(outside("/dev/nvidia0"), S_IFCHR | 0666, makedev(195, 0)) == 0);
    put(PARAMETERS, "ModifyDeviceFiles: 1\n");
    put("/etc/ld.so.preload", "/opt/libjemalloc.so\n");
    put_compat("590.44.01", NULL);
    put_library("/usr/lib/libz.so.1.3", "libz.so.1");
    mount_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1");
    mount_library(LIBRARIES "/libnvidia-nvvm70.so.4.1", "libnvidia-nvvm70.so.4");
    mount_limiter();
}

/* What the hook has made, as one text, in memory of the test's processes. */
static void describe(char *text, size_t size)
{
    char command[1400], *end = text;
    for (unsigned at = 0; at < MADE; at++) {
        int file = open(outside(made[at]), O_RDONLY | O_CLOEXEC);
        ssize_t length = file >= 0 ? read(file, end, size - (size_t)(end - text)) : -1;
        CHECK(length >= 0 && close(file) == 0);
        end += length;
    }
    snprintf(command, sizeof command, "cd %s && find . -printf '%%p %%y %%m %%l\\n' | sort; grep -c ' %s' /proc/self/mountinfo", outside(""), outside("/"));
    FILE *output = popen(command, "r");
    CHECK(output);
    end += fread(end, 1, size - (size_t)(end - text) - 1, output);
    CHECK(pclose(output) == 0 && end > text);
    *end = 0;
}

static unsigned calls;

static void count_calls(pid_t hook)
{
    int status;
    CHECK(waitpid(hook, &status, 0) == hook && WIFSTOPPED(status)); /* it is execve's */
    for (unsigned call = 0; call < calls; call++) {
        if (ptrace(PTRACE_SYSCALL, hook, NULL, NULL) != 0 || waitpid(hook, &status, 0) != hook || !WIFSTOPPED(status))
            _exit(2); /* it ended before */
    }
    CHECK(kill(hook, SIGKILL) == 0);
}

static void be_traced(void)
{
    CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
}

/* A process of the test, as each image has a mount namespace of its own. `killed_at`: entries and ends of system calls; 0: never. */
static int try(unsigned killed_at, char *expected, size_t size)
{
    pid_t process = fork();
    if (process == 0) {
        static char found[1 << 18];
        begin_all();
        if (killed_at) {
            calls = killed_at;
            before_hook = be_traced;
            with_hook = count_calls;
            CHECK_EQUAL(run_hook(ALL), 128 + SIGKILL);
            before_hook = NULL;
            with_hook = NULL;
        }
        HOOK(ALL);
        describe(killed_at ? found : expected, killed_at ? sizeof found : size);
        if (killed_at && strcmp(found, expected) != 0) {
            fprintf(stderr, "killed at %u:\n%s\nand not\n%s\n", killed_at, strchr(found, '.'), strchr(expected, '.'));
            _exit(1);
        }
        _exit(0);
    }
    return status_of(process);
}

TEST(killed_at_any_moment_and_run_again_it_makes_the_same)
{
    enum { SIZE = 1 << 18, STEP = 7 };
    char *expected = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(expected != MAP_FAILED);
    CHECK_EQUAL(try(0, expected, SIZE), 0);
    unsigned killed_at = 1;
    for (int status; (status = try(killed_at, expected, SIZE)) != 2; killed_at += STEP)
        CHECK_EQUAL(status, 0);
    CHECK(killed_at > 100);
}

static unsigned leftovers(const char *path)
{
    unsigned found = 0;
    DIR *folder_of = opendir(outside(path));
    CHECK(folder_of);
    for (struct dirent *each; (each = readdir(folder_of));)
        found += strncmp(each->d_name, ".koordra", 8) == 0;
    closedir(folder_of);
    return found;
}

TEST(a_full_disk_is_said_and_nothing_half_written_stays)
{
    begin_all();
    state_text = "";
    run_hook(""); /* writes the bundle's configuration, which lies on the same disk here */
    state_text = NULL;
    CHECK(mount(NULL, folder, NULL, MS_REMOUNT, "size=1m") == 0);
    char block[4096] = "";
    int file = open(outside("/filler"), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    while (write(file, block, sizeof block) > 0)
        continue;
    CHECK(errno == ENOSPC && close(file) == 0);
    CHECK_EQUAL(run_hook(ALL), 1);
    CHECK(strstr(said, "No space left on device") && strchr(said, '\n') == said + strlen(said) - 1);
    CHECK_EQUAL(leftovers("/etc"), 0);
    CHECK(unlink(outside("/filler")) == 0);
    HOOK(ALL);
}

TEST(a_folder_in_place_of_a_file_is_said)
{
    for (const char *const *each = (const char *const[]){"/etc/ld.so.cache", "/etc/ld.so.preload", PROFILE, NULL}; *each; each++) {
        pid_t process = fork();
        if (process == 0) {
            begin_all();
            unlink(outside(*each));
            put_folder(*each);
            CHECK_EQUAL(run_hook(ALL), 1);
            CHECK(strstr(said, "cannot be") && strchr(said, '\n') == said + strlen(said) - 1);
            CHECK_EQUAL(leftovers("/etc"), 0);
            _exit(0);
        }
        CHECK_EQUAL(status_of(process), 0);
    }
}

TEST(an_etc_that_leads_nowhere_or_in_circles_is_said)
{
    char command[1400];
    begin_all();
    snprintf(command, sizeof command, "rm -rf %s", outside("/etc"));
    CHECK(system(command) == 0);
    for (const char *const *each = (const char *const[]){"etc", "/none", "/dev/nvidia0", NULL}; *each; each++) {
        put_link("/etc", *each);
        CHECK_EQUAL(run_hook(ALL), 1);
        CHECK(strstr(said, "/etc") && strchr(said, '\n') == said + strlen(said) - 1);
    }
}

/* A hundred thousand libraries are read in 40 MiB, which are the container's: the hook runs in its cgroup. */
TEST(a_hundred_thousand_libraries_fit_into_a_small_container)
{
    begin_all();
    bool sanitized = getenv("KOORDRA_SANITIZED") != NULL;
    HOOK(ALL);
    CHECK(sanitized || hook_memory < 8 << 10);
    put_library("/usr/lib/libreal.so.1", "libreal.so.1");
    char name[64];
    for (unsigned number = 0; number < 100000; number++) {
        snprintf(name, sizeof name, LIBRARIES "/libmany%06u.so.1", number);
        CHECK(symlink("/usr/lib/libreal.so.1", outside(name)) == 0);
    }
    HOOK(ALL);
    CHECK(sanitized || hook_memory < 40 << 10);
    CHECK(strcmp(listed_first("libcuda.so.1"), LIBRARIES "/libcuda.so.1") == 0);
    CHECK(strcmp(listed_first("libz.so.1"), "/usr/lib/libz.so.1.3") == 0);
    CHECK(strstr(text_of("/etc/ld.so.preload"), LIMITER));
}

TEST(names_that_are_no_names_of_libraries_are_passed_by)
{
    begin_all();
    put("/etc/ld.so.conf", "/opt/a\001b\n/opt/\xff\n/opt/new\r\n");
    for (const char *const *each = (const char *const[]){"/usr/lib/libnew\nline.so.1", "/usr/lib/libtab\t.so.1", "/usr/lib/lib\xff.so.1", "/opt/a\001b/libodd.so.1", NULL}; *each; each++)
        put_library(*each, "libodd.so.1");
    put_library("/usr/lib/libfine.so.1", "libnew\nline.so.1");
    HOOK(ALL);
    CHECK_EQUAL(listed("libnew\nline.so.1") + listed("libtab\t.so.1") + listed("lib\xff.so.1"), 0);
    CHECK_EQUAL(listed("libcuda.so.1"), 1);
}
