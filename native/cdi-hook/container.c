/* The runtime writes the container's state to standard input: {"bundle": "/run/...", ...}. The bundle's config.json says where the
 * root is, relative to the bundle or absolute. Both are the runtime's, not the image's, and still are read within bounds. */
#include "container.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "beneath.h"
#include "fail.h"
#include "json.h"

enum { STATE_MOST = 1 << 20, CONFIG_MOST = 8 << 20, PATH_LONGEST = 4096 };

static struct json read_config(const char *bundle)
{
    char path[PATH_LONGEST + 16];
    size_t length;
    snprintf(path, sizeof path, "%s/config.json", bundle);
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0)
        fail("%s cannot be read: %s%s", path, strerror(errno),
             errno == EACCES ? "; in a pod with hostUsers: false the folders above it must let the container's root pass (o+x)" : "");
    char *text = read_all(file, CONFIG_MOST, &length);
    close(file);
    struct json config = text ? json_document(text, length) : (struct json){NULL, NULL};
    if (!config.at)
        fail("%s is not the JSON of a container, or too long", path);
    return config;
}

static void find_preloaded(struct json config, char *preloaded, unsigned size)
{
    static const char name[] = "LD_PRELOAD=";
    preloaded[0] = 0;
    struct json variables = json_member(json_member(config, "process"), "env");
    char text[PATH_LONGEST];
    for (struct json each = json_first(variables); each.at; each = json_next(each))
        if (json_text(each, text, sizeof text) && strncmp(text, name, sizeof name - 1) == 0)
            snprintf(preloaded, size, "%s", text + sizeof name - 1);
}

int container_root(char *preloaded, unsigned size)
{
    char bundle[PATH_LONGEST], given[PATH_LONGEST], path[2 * PATH_LONGEST + 2];
    size_t length;
    char *text = read_all(STDIN_FILENO, STATE_MOST, &length);
    struct json state = text ? json_document(text, length) : (struct json){NULL, NULL};
    if (!json_text(json_member(state, "bundle"), bundle, sizeof bundle) || bundle[0] != '/')
        fail("standard input is not the OCI state of a container: it names no bundle");
    struct json config = read_config(bundle);
    if (!json_text(json_member(json_member(config, "root"), "path"), given, sizeof given) || !given[0])
        fail("%s/config.json names no root", bundle);
    snprintf(path, sizeof path, "%s%s%s", given[0] == '/' ? "" : bundle, given[0] == '/' ? "" : "/", given);
    int root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        fail("the container's root %s cannot be opened: %s", path, strerror(errno));
    struct stat found, host;
    if (fstat(root, &found) != 0 || stat("/", &host) != 0 || (found.st_dev == host.st_dev && found.st_ino == host.st_ino))
        fail("the container's root %s is the node's own: not touched", path);
    find_preloaded(config, preloaded, size);
    return root;
}
