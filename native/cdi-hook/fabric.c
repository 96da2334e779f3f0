/* NCCL sets variables from files, and never one that is set already: so the first to say a thing is believed (NCCL,
 * src/misc/param.cc):
 *
 *     the environment
 *     the file that NCCL_CONF_FILE names (NCCL 2.23 and later), or else .nccl.conf in the home folder
 *     /etc/nccl.conf
 *
 * Whose home folder it is shows only when the program runs, and NCCL_CONF_FILE would take that file's place. So the claims' lines
 * stand in /etc/nccl.conf, before those of the image: what a user sets stays, wherever, and every NCCL reads it. An image's bytes
 * are copied as they are. */
#include "fabric.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "beneath.h"
#include "bind.h"
#include "fail.h"

enum { CLAIMS_MOST = 256, CLAIM_FILE_MOST = 64 << 10, FILE_MOST = 1 << 20, PATH_LONGEST = 1024 };

static const char name[] = "nccl.conf", beside[] = ".koordra-nccl.conf", shown[] = "/etc/nccl.conf";

struct text {
    char *bytes;
    size_t length;
};

static void append(struct text *text, const char *bytes, size_t length)
{
    text->bytes = realloc(text->bytes, text->length + length + 1);
    if (!text->bytes)
        fail("%s: no memory", shown);
    memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
}

/* What the runtime mounted for one claim; an image cannot pretend to be given it. */
static void append_claim(int root, const char *folder, const char *claim, struct text *text)
{
    char path[PATH_LONGEST];
    size_t length;
    if (snprintf(path, sizeof path, "%s/%s/%s", folder, claim, name) >= (int)sizeof path)
        return;
    int file = open_beneath(root, path, O_PATH);
    bool mounted = file >= 0 && is_mount(file);
    if (file >= 0)
        close(file);
    char *lines = mounted ? read_file(root, path, CLAIM_FILE_MOST, &length) : NULL;
    if (mounted && !lines)
        fail("%s cannot be read in the container: %s", path, strerror(errno));
    if (lines)
        append(text, lines, length);
    free(lines);
}

/* Of all claims of the container, in the order of their names: whichever claim's hook comes first, the result is one. */
static struct text lines_of_claims(int root, const char *folder)
{
    struct text text = {NULL, 0};
    char *claims[CLAIMS_MOST];
    size_t count = names_of(root, folder, "*", claims, CLAIMS_MOST);
    for (size_t at = 0; at < count; at++) {
        append_claim(root, folder, claims[at], &text);
        free(claims[at]);
    }
    return text;
}

void fabric_join(int root, const char *folder)
{
    struct text text = lines_of_claims(root, folder);
    if (!text.length)
        return;
    size_t ours = text.length, length = 0;
    char *images = read_file(root, shown, FILE_MOST, &length);
    if (!images && errno != ENOENT)
        fail("the image's %s cannot be read, to join it with what is said of the network of the container's NICs: %s", shown, strerror(errno));
    bool joined = images && length >= ours && memcmp(images, text.bytes, ours) == 0; /* by the hook of another claim */
    if (!joined) {
        if (images)
            append(&text, images, length);
        int etc = folder_to_write(root, "/etc"), there = open_beneath(etc, name, O_PATH | O_NOFOLLOW);
        if (there >= 0 && is_mount(there)) {
            /* A volume of the pod, which may be other pods' too: what is joined stands in front of it. */
            replace_file(etc, beside, text.bytes, text.length, shown);
            bind_read_only(root, "/", etc, beside, etc, name, shown);
        } else {
            replace_file(etc, name, text.bytes, text.length, shown);
        }
        if (there >= 0)
            close(there);
        close(etc);
    }
    free(images);
    free(text.bytes);
}
