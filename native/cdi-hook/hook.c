/* koordra-cdi-hook: makes an image's loader find the driver that the runtime has mounted, nothing get past the limiter by accident,
 * and NCCL read what is said of the container's NICs.
 *
 *     koordra-cdi-hook container [--folder F...] [--link TARGET::PATH...] [--compat HOST_VERSION] [--limiter FOLDER]
 *                                [--preloaded FILE] [--fabric FOLDER]
 *
 * The runtime calls it as CDI's createContainer hook: in the container's namespaces, all mounts made, the container's own programs
 * not started, its OCI state on standard input. The arguments are the node's, the same for every claim; what is to be done is told
 * by what is mounted. So several claims of one container have it called several times, in any order, with the same result. A
 * container that has neither card nor driver (of a claim's other request) is left alone.
 *
 *     fabric     /etc/nccl.conf, for a container with NICs (fabric.c)
 *     cards      what the driver's programs think there is (cards.c)
 *     links      --link, and those that ldconfig would make
 *     compat     the image's newer driver, where it is newer (compat.c)
 *     limiter    /etc/ld.so.preload (limiter.c); with --preloaded the runtime has mounted one of another limit's
 *     cache      /etc/ld.so.cache (cache.c), /etc/ld-musl-*.path (musl.c)
 *
 * It is statically linked, ignores its environment, executes nothing, mounts nothing but what it has just written, keeps nothing
 * open, and ends after TIME_MOST seconds. Whatever it cannot do keeps the container from starting, with one line on stderr: a
 * container without its cache would find another driver, or none, long after it has started. */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "beneath.h"
#include "cache.h"
#include "cards.h"
#include "compat.h"
#include "container.h"
#include "fabric.h"
#include "fail.h"
#include "limiter.h"
#include "links.h"
#include "musl.h"

enum { TIME_MOST = 60, MEMORY_MOST = 256 << 20, LINKS_MOST = 256 };

struct arguments {
    struct folders folders;
    const char *links[LINKS_MOST];
    unsigned link_count;
    const char *host_version, *limiter, *preloaded, *fabric;
};

static void too_late(int number)
{
    (void)number;
    static const char text[] = "koordra-cdi-hook: the container's root did not answer in time\n";
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _exit(2);
    _exit(1);
}

static void set_bounds(void)
{
    clearenv();
    umask(022);
    if (chdir("/") != 0)
        fail("/ cannot be entered");
#ifndef __SANITIZE_ADDRESS__ /* which takes terabytes, of addresses */
    struct rlimit memory = {MEMORY_MOST, MEMORY_MOST};
    setrlimit(RLIMIT_AS, &memory);
#endif
    sigset_t none;
    sigemptyset(&none);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGALRM, too_late);
    sigprocmask(SIG_SETMASK, &none, NULL); /* or a runtime that blocks the signal had it wait for ever */
    alarm(TIME_MOST);
}

static void parse(int count, char **given, struct arguments *arguments)
{
    if (count < 2 || strcmp(given[1], "container") != 0)
        fail("it is called as: koordra-cdi-hook container [--folder F...] [--link TARGET::PATH...] [--compat HOST_VERSION] "
             "[--limiter FOLDER] [--preloaded FILE] [--fabric FOLDER]");
    for (int at = 2; at < count; at += 2) {
        const char *option = given[at], *value = at + 1 < count ? given[at + 1] : "";
        bool is_path = value[0] == '/';
        if (strcmp(option, "--folder") == 0 && is_path)
            folders_add(&arguments->folders, value);
        else if (strcmp(option, "--link") == 0 && value[0] && arguments->link_count < LINKS_MOST)
            arguments->links[arguments->link_count++] = value;
        else if (strcmp(option, "--compat") == 0 && value[0])
            arguments->host_version = value;
        else if (strcmp(option, "--limiter") == 0 && is_path)
            arguments->limiter = value;
        else if (strcmp(option, "--preloaded") == 0 && is_path)
            arguments->preloaded = value;
        else if (strcmp(option, "--fabric") == 0 && is_path)
            arguments->fabric = value;
        else
            fail("%s %s: an unknown option, too many of it, or not its value", option, value);
    }
}

/* What all below rests on, tried on the node's own root; ends the program where the kernel cannot. */
static void require_kernel(void)
{
    int root = open_beneath(AT_FDCWD, "/", O_PATH);
    is_mount(root);
    close(root);
}

int main(int count, char **given)
{
    static struct arguments arguments;
    char preloaded[4096], compat[256];
    set_bounds();
    require_kernel(); /* first, so that the plugin learns of it when it installs this, and not every container */
    parse(count, given, &arguments);
    int root = container_root(preloaded, sizeof preloaded);
    if (arguments.fabric)
        fabric_join(root, arguments.fabric);
    tell_cards(root);
    bool limited = arguments.limiter && limit_mounted(root, arguments.limiter);
    bool limited_by_other = arguments.preloaded && limit_mounted(root, arguments.preloaded);
    if (!limited && !limited_by_other && !any_mounted(root, &arguments.folders))
        return 0;
    if (limited || limited_by_other)
        limiter_refuse(root, preloaded);
    for (unsigned at = 0; at < arguments.link_count; at++)
        make_told_link(root, arguments.links[at]);
    make_soname_links(root, &arguments.folders);
    bool newer = arguments.host_version && compat_wanted(root, arguments.host_version, compat, sizeof compat);
    if (newer)
        compat_remember(root);
    if (limited)
        limiter_enforce(root, arguments.limiter, newer ? compat : NULL);
    if (has_musl(root))
        musl_path_write(root, &arguments.folders);
    if (has_glibc(root) || !has_musl(root))
        cache_write(root, &arguments.folders, newer, limited);
    return 0;
}
