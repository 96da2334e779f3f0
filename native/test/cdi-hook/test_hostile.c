/* The hook is root on the node, in a folder that its tenant has filled. Names of CVEs: what NVIDIA's hooks were led to do. */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "image.h"

#define OWN_LINK "--link libcuda.so.1::" LIBRARIES "/libcuda.so"
#define LIMITED OWN_LINK " --compat 580.95.05 --limiter " LIMITER

static void begin_driver(void)
{
    image_begin();
    mount_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1");
}

/* A folder of the node beside the container's root, which must stay as it is. */
static char node[300];

static void make_node(void)
{
    snprintf(node, sizeof node, "%s/node", folder);
    CHECK(mkdir(node, 0755) == 0);
}

static unsigned files_of_node(void)
{
    char command[400], count[16] = "";
    snprintf(command, sizeof command, "find %s | wc -l", node);
    FILE *output = popen(command, "r");
    CHECK(output && fgets(count, sizeof count, output) && pclose(output) == 0);
    return (unsigned)atoi(count) - 1;
}

static unsigned mounts(void)
{
    unsigned count = 0;
    char line[4096];
    FILE *table = fopen("/proc/self/mountinfo", "re");
    while (table && fgets(line, sizeof line, table))
        count += strstr(line, folder) != NULL; /* others may lose theirs meanwhile */
    CHECK(table && fclose(table) == 0);
    return count;
}

TEST(links_out_of_the_root_stay_in_it_cve_2025_23359)
{
    image_begin();
    make_node();
    for (const char *const *each = (const char *const[]){"/etc", "/usr/lib64", "/usr/local/cuda", NULL}; *each; each++) {
        char target[400];
        put_folder("/usr/local");
        char command[1400];
        snprintf(command, sizeof command, "rm -rf %s", outside(*each));
        CHECK(system(command) == 0);
        snprintf(target, sizeof target, "../../../../../../../..%s", node);
        put_link(*each, strcmp(*each, "/etc") == 0 ? node : target);
    }
    mount_library(LIBRARIES "/libcuda.so.1", "libcuda.so.1");
    mount_limiter();
    /* `node` does not exist below the root, so nothing can be written there: said, and nothing is done outside. */
    run_hook(LIMITED);
    CHECK_EQUAL(files_of_node(), 0);
    char below[400];
    snprintf(below, sizeof below, "%s/x", node);
    put(below, "");
    HOOK(LIMITED);
    CHECK_EQUAL(files_of_node(), 0);
    snprintf(below, sizeof below, "%s/ld.so.cache", node);
    CHECK(text_of(below)); /* that is where its /etc leads */
}

TEST(a_compat_folder_that_is_the_nodes_mounts_nothing_cve_2024_0132)
{
    begin_driver();
    make_node();
    char path[400];
    snprintf(path, sizeof path, "%s/libcuda.so.999.1", node);
    FILE *file = fopen(path, "we");
    CHECK(file && fclose(file) == 0);
    put_link(COMPAT, node);
    unsigned before = mounts();
    HOOK("--compat 580.95.05");
    CHECK_EQUAL(mounts(), before);
    CHECK_EQUAL(listed("libcuda.so.1"), 1);
    CHECK(!text_of("/etc/ld.so.conf.d/000-koordra.conf"));
    put_link(COMPAT, "/proc/self/root"); /* nor by a link of the kernel's own */
    HOOK("--compat 580.95.05");
    CHECK_EQUAL(mounts(), before);
}

TEST(links_in_place_of_the_files_are_replaced_cve_2025_23267)
{
    begin_driver();
    mount_limiter();
    make_node();
    char target[400];
    snprintf(target, sizeof target, "%s/victim", node);
    FILE *file = fopen(target, "we");
    CHECK(file && fputs("untouched", file) > 0 && fclose(file) == 0);
    put_link("/etc/ld.so.cache", target);
    put_link("/etc/ld.so.preload", "/none");
    put_link(LIBRARIES "/libcuda.so", target);
    HOOK(LIMITED);
    CHECK_EQUAL(files_of_node(), 1);
    char text[32] = "";
    file = fopen(target, "re");
    CHECK(file && fgets(text, sizeof text, file) && fclose(file) == 0 && strcmp(text, "untouched") == 0);
    struct stat is;
    CHECK(lstat(outside("/etc/ld.so.cache"), &is) == 0 && S_ISREG(is.st_mode));
    CHECK(lstat(outside("/etc/ld.so.preload"), &is) == 0 && S_ISREG(is.st_mode));
    CHECK(readlink(outside(LIBRARIES "/libcuda.so"), text, sizeof text - 1) == 12);
}

/* Another container of the tenant shares a volume with this one, and exchanges folders for links while the hook looks. */
static _Atomic bool racing;

static void *exchange(void *unused)
{
    char one[1024], other[1024];
    snprintf(one, sizeof one, "%s", outside("/opt/raced"));
    snprintf(other, sizeof other, "%s", outside("/opt/link"));
    while (racing)
        syscall(SYS_renameat2, AT_FDCWD, one, AT_FDCWD, other, 2 /* RENAME_EXCHANGE */);
    return unused;
}

TEST(a_race_wins_nothing_cve_2024_0132)
{
    begin_driver();
    make_node();
    pthread_t thread;
    put_folder("/opt/raced/etc");
    put_folder("/opt/raced/libraries");
    char target[400];
    snprintf(target, sizeof target, "../../../../../..%s", node);
    put_link("/opt/link", target);
    char below[400];
    snprintf(below, sizeof below, "%s/etc", node);
    CHECK(mkdir(below, 0755) == 0);
    char command[1400];
    snprintf(command, sizeof command, "rm -rf %s", outside("/etc"));
    CHECK(system(command) == 0);
    put_link("/etc", "/opt/raced/etc");
    racing = true;
    CHECK(pthread_create(&thread, NULL, exchange, NULL) == 0);
    unsigned wrote = 0;
    for (unsigned attempt = 0; attempt < 200; attempt++)
        wrote += run_hook("--link libcuda.so.1::/opt/raced/libraries/libcuda.so") == 0;
    racing = false;
    pthread_join(thread, NULL);
    CHECK_EQUAL(files_of_node(), 1); /* its folder etc */
    CHECK(wrote > 0);                /* the race was one: the folder was there, too */
}

TEST(a_volume_of_the_pod_is_not_written)
{
    begin_driver();
    mount_volume("/etc", "volume");
    CHECK_EQUAL(run_hook(""), 1);
    CHECK(strstr(said, "/etc is on a volume of the pod"));
    char path[300];
    snprintf(path, sizeof path, "%s/volume/ld.so.cache", folder);
    CHECK(access(path, F_OK) != 0);
}

TEST(the_environment_changes_nothing_cve_2025_23266)
{
    begin_driver();
    put("/evil.so", "");
    char copy[1200];
    /* A library that would make itself known, in the folder where runc leaves the hook, as the exploit did. */
    snprintf(copy, sizeof copy, "echo 'int creat(const char *, unsigned); __attribute__((constructor)) static void f(void) { creat(\"%s/pwned\", 420); }' | "
             "cc -shared -fPIC -x c - -o %s", folder, outside("/evil.so"));
    CHECK(system(copy) == 0);
    static char *environment[] = {"LD_PRELOAD=./evil.so", "LD_LIBRARY_PATH=.", "LD_AUDIT=./evil.so", "GCONV_PATH=.", NULL};
    hook_environment = environment;
    if (getenv("KOORDRA_SANITIZED"))
        return; /* which is not static */
    HOOK("");
    snprintf(copy, sizeof copy, "%s/pwned", folder);
    CHECK(access(copy, F_OK) != 0);
    /* The same library does act on a program that is not static. */
    snprintf(copy, sizeof copy, "LD_PRELOAD=%s /bin/true", outside("/evil.so"));
    CHECK(system(copy) == 0);
    snprintf(copy, sizeof copy, "%s/pwned", folder);
    CHECK(access(copy, F_OK) == 0);
}

static void forbid(int number, unsigned answer)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, answer),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {4, program};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

static void without_openat2(void)
{
    forbid(SYS_openat2, SECCOMP_RET_ERRNO | ENOSYS);
}

TEST(a_kernel_without_openat2_is_said)
{
    begin_driver();
    before_hook = without_openat2;
    CHECK_EQUAL(run_hook("--unknown x"), 1);
    CHECK(strstr(said, "no openat2")); /* before anything else, as the plugin calls it without arguments */
}

static void without_mount_setattr(void)
{
    forbid(SYS_mount_setattr, SECCOMP_RET_ERRNO | ENOSYS);
}

TEST(before_linux_5_12_the_preload_is_read_only_too)
{
    begin_driver();
    mount_limiter();
    before_hook = without_mount_setattr;
    HOOK(LIMITED);
    CHECK(open(outside("/etc/ld.so.preload"), O_WRONLY | O_CLOEXEC) < 0 && errno == EROFS);
}

static void without_children(void)
{
    forbid(SYS_clone, SECCOMP_RET_KILL_PROCESS);
}

TEST(nothing_of_the_image_is_executed)
{
    begin_driver();
    put("/sbin/ldconfig", "#!/bin/sh\ntouch /pwned\n");
    CHECK(chmod(outside("/sbin/ldconfig"), 0755) == 0);
    before_hook = without_children; /* it execs nothing itself either: it goes on to answer */
    HOOK(OWN_LINK);
    CHECK(!text_of("/pwned"));
    CHECK_EQUAL(listed("libcuda.so.1"), 1);
}

static void without_a_clock(void)
{
#ifdef SYS_alarm
    forbid(SYS_alarm, SECCOMP_RET_KILL_PROCESS);
#else
    forbid(SYS_setitimer, SECCOMP_RET_KILL_PROCESS);
#endif
}

static void with_signals_blocked(void)
{
    sigset_t all;
    sigfillset(&all);
    CHECK(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
}

/* A file system that never answers would keep the runtime for ever. */
static void time_passes(pid_t hook)
{
    CHECK(usleep(200000) == 0 && kill(hook, SIGALRM) == 0);
}

static void hold_state(void)
{
    int ends[2];
    with_signals_blocked();
    CHECK(pipe(ends) == 0 && dup2(ends[0], 0) == 0 && fcntl(ends[1], F_SETFD, 0) == 0); /* whose end never comes */
}

TEST(it_ends_in_time_whatever_the_runtime_blocks)
{
    begin_driver();
    before_hook = without_a_clock;
    CHECK_EQUAL(run_hook(""), 128 + SIGSYS); /* it does set one */
    before_hook = hold_state;
    with_hook = time_passes;
    CHECK_EQUAL(run_hook(""), 1);
    CHECK(strstr(said, "did not answer in time"));
}

TEST(pipes_devices_and_folders_in_place_of_files_are_passed_by)
{
    begin_driver();
    put_folder("/opt/a");
    CHECK(mkfifo(outside("/etc/ld.so.conf.d/pipe.conf"), 0644) == 0);
    CHECK(mkfifo(outside("/usr/lib/libpipe.so.1"), 0644) == 0);
    CHECK(mknod(outside("/usr/lib/libtty.so.1"), S_IFCHR | 0666, 5 << 8) == 0);
    CHECK(mkdir(outside("/usr/lib/libfolder.so.1"), 0755) == 0);
    put_link("/usr/lib/libloop.so.1", "libloop.so.1");
    put_link("/usr/lib/libkernel.so.1", "/proc/self/exe");
    put_library("/usr/lib/libgood.so.1", "libgood.so.1");
    HOOK("");
    CHECK_EQUAL(listed("libgood.so.1"), 1);
    CHECK_EQUAL(listed("libpipe.so.1") + listed("libtty.so.1") + listed("libfolder.so.1") + listed("libloop.so.1"), 0);
}

TEST(configuration_without_end_ends)
{
    begin_driver();
    put("/etc/ld.so.conf", "include /etc/ld.so.conf\ninclude /etc/ld.so.conf.d/*.conf\n");
    char name[64];
    for (unsigned number = 0; number < 400; number++) {
        snprintf(name, sizeof name, "/etc/ld.so.conf.d/%03u.conf", number);
        put(name, "include *.conf\n/opt/x\n");
    }
    CHECK(truncate(outside("/etc/ld.so.conf.d/000.conf"), (off_t)1 << 40) == 0);
    HOOK("");
    CHECK_EQUAL(listed("libcuda.so.1"), 1);
}

TEST(a_great_many_libraries_stay_within_bounds)
{
    begin_driver();
    put_library("/usr/lib/libreal.so.1", "libreal.so.1");
    char name[64];
    for (unsigned number = 0; number < 20000; number++) {
        snprintf(name, sizeof name, "/usr/lib/libmany%05u.so.1", number);
        CHECK(symlink("libreal.so.1", outside(name)) == 0);
    }
    HOOK("");
    CHECK_EQUAL(listed("libcuda.so.1"), 1);
}

/* Every byte of a library, one after the other, another one: nothing that the file says leads out of it. */
TEST(a_damaged_library_does_no_harm)
{
    begin_driver();
    put_compat("590.44.01", "{\"Driver\":[580]}");
    const char *path = outside(COMPAT "/libcuda.so.590.44.01");
    int file = open(path, O_RDWR | O_CLOEXEC);
    CHECK(file >= 0);
    srand(18);
    for (unsigned round = 0; round < 300; round++) {
        unsigned char old[4], new[4] = {(unsigned char)rand(), 0xff, 0xff, (unsigned char)(rand() % 2 * 0x7f)};
        off_t at = rand() % 700;
        CHECK(pread(file, old, 4, at) == 4 && pwrite(file, new, 4, at) == 4);
        HOOK("--compat 580.95.05");
        CHECK(listed("libcuda.so.1") >= 1);
        CHECK(pwrite(file, old, 4, at) == 4);
    }
}

TEST(only_a_containers_state_is_accepted)
{
    begin_driver();
    const char *const wrong[] = {"", "{", "[]", "{\"bundle\": 1}", "{\"bundle\": \"relative\"}", "{\"bundle\": \"/none\"}", "{\"bundle\": \"/a\\u0000b\"}", NULL};
    for (const char *const *each = wrong; *each; each++) {
        state_text = *each;
        CHECK_EQUAL(run_hook(""), 1);
        CHECK(strchr(said, '\n') == said + strlen(said) - 1);
    }
    static char deep[1 << 17], long_one[(1 << 20) + 100];
    memset(deep, '[', sizeof deep - 1);
    memset(long_one, ' ', sizeof long_one - 1);
    state_text = deep;
    CHECK_EQUAL(run_hook(""), 1);
    state_text = long_one;
    CHECK_EQUAL(run_hook(""), 1);
    state_text = NULL;
    const char *const roots[] = {"{}", "{\"root\": {\"path\": \"\"}}", "{\"root\": {\"path\": \"/\"}}", "{\"root\": {\"path\": \"../../../../../../..\"}}", "{\"root\": {\"path\": \"none\"}}", NULL};
    for (const char *const *each = roots; *each; each++) {
        config_text = *each;
        CHECK_EQUAL(run_hook(""), 1);
    }
    CHECK(!text_of("/etc/ld.so.cache"));
    config_text = "{\"root\": {\"path\": \"none\", \"path\": \"roo\\u0074fs\"}}"; /* of repeated names the last one counts, as Go reads them */
    HOOK("");
}

TEST(wrong_arguments_are_said)
{
    begin_driver();
    for (const char *const *each = (const char *const[]){"--folder relative", "--unknown x", "--link x", "--link x::relative", "--compat", NULL}; *each; each++) {
        CHECK_EQUAL(run_hook(*each), 1);
        CHECK(strstr(said, "koordra-cdi-hook: ") == said);
    }
}

TEST(what_an_image_is_called_makes_no_second_line)
{
    begin_driver();
    CHECK(rmdir(outside("/etc/ld.so.conf.d")) == 0 && unlink(outside("/etc/ld.so.conf")) == 0 && rmdir(outside("/etc")) == 0);
    put("/etc", "a file");
    CHECK_EQUAL(run_hook(""), 1);
    CHECK(strstr(said, "/etc cannot be opened in the container: Not a directory\n"));
    config_text = "{\"root\": {\"path\": \"a\\nroot: \\u001b[31m\"}}";
    CHECK_EQUAL(run_hook(""), 1);
    CHECK(strstr(said, "a?root: ?[31m") && strchr(said, '\n') == said + strlen(said) - 1);
}

TEST(a_root_that_cannot_be_written_keeps_the_container_from_starting)
{
    begin_driver();
    CHECK(mount(NULL, outside(""), NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) == 0);
    CHECK_EQUAL(run_hook(""), 1);
    CHECK(strstr(said, "/etc/ld.so.cache cannot be written in the container: Read-only file system"));
}

/* A pod with hostUsers: false: the hook is the container's root, which is nobody on the node. */
static void in_own_users(void (*inside)(void))
{
    int ready[2], mapped[2];
    char letter = 0, path[64], command[600];
    snprintf(command, sizeof command, "find %s -xdev -exec chown -h 100000:100000 {} + 2>/dev/null", outside(""));
    CHECK(system(command) >= 0); /* what is mounted read-only stays root's */
    CHECK(pipe(ready) == 0 && pipe(mapped) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0);
        CHECK(write(ready[1], "r", 1) == 1 && read(mapped[0], &letter, 1) == 1);
        CHECK(setgid(0) == 0 && setuid(0) == 0);
        inside();
        _exit(0);
    }
    CHECK(read(ready[0], &letter, 1) == 1);
    for (const char *const *each = (const char *const[]){"gid_map", "uid_map", NULL}; *each; each++) {
        snprintf(path, sizeof path, "/proc/%d/%s", child, *each);
        int map = open(path, O_WRONLY | O_CLOEXEC);
        CHECK(map >= 0 && write(map, "0 100000 65536", 14) == 14 && close(map) == 0);
    }
    CHECK(write(mapped[1], "m", 1) == 1);
    CHECK_EQUAL(status_of(child), 0);
}

static void limited_and_good(void)
{
    /* The root is a mount of this namespace's own, as runc makes it. */
    CHECK(mount(outside(""), outside(""), NULL, MS_BIND | MS_REC, NULL) == 0);
    HOOK(LIMITED);
    CHECK(mounted_at("/etc/ld.so.preload"));
}

static void bundle_out_of_reach(void)
{
    CHECK(mount(outside(""), outside(""), NULL, MS_BIND | MS_REC, NULL) == 0);
    CHECK_EQUAL(run_hook(LIMITED), 1);
    CHECK(strstr(said, "hostUsers: false"));
}

TEST(a_container_with_users_of_its_own_is_served)
{
    begin_driver();
    mount_limiter();
    HOOK(""); /* writes config.json, which is the node's */
    CHECK(unlink(outside("/etc/ld.so.cache")) == 0);
    char config[300];
    snprintf(config, sizeof config, "%s/config.json", folder);
    CHECK(chmod(folder, 0777) == 0 && chmod(config, 0666) == 0);
    in_own_users(limited_and_good);
    CHECK(text_of("/etc/ld.so.cache"));
    CHECK(chmod(config, 0622) == 0);
    in_own_users(bundle_out_of_reach);
}
