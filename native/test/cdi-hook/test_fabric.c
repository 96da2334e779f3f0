/* What NCCL reads of the network of a container's NICs, whatever its image says. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "image.h"

#define FABRIC "/run/koordra.io/fabric"
#define ONE FABRIC "/11111111-0000-4000-8000-000000000000/nccl.conf"
#define TWO FABRIC "/22222222-0000-4000-8000-000000000000/nccl.conf"
#define LINES "# Of the network\nNCCL_IB_TC=106\nNCCL_IB_SL=3\n"
#define JOIN "--fabric " FABRIC

static void mount_file(const char *path, const char *name, const char *text)
{
    char own[600];
    snprintf(own, sizeof own, "%s/%s", folder, name);
    FILE *file = fopen(own, "we");
    CHECK(file && fputs(text, file) >= 0 && fclose(file) == 0);
    put(path, "");
    CHECK(mount(own, outside(path), NULL, MS_BIND, NULL) == 0);
}

static void begin_fabric(void)
{
    image_begin();
    mount_file(ONE, "one", LINES);
}

/* The value that NCCL has for a variable which the environment does not set: of all lines of the files in their order the first.
 * "#" begins a comment, a line without "=" says nothing, ends of lines are the two machines' (NCCL 2.30, src/misc/param.cc). */
static const char *nccl_has(const char *variable, const char *const *files)
{
    static char value[256];
    for (; *files; files++) {
        char *rest = (char *)text_of(*files);
        for (char *line; rest && (line = strsep(&rest, "\n"));) {
            line[strcspn(line, "\r")] = 0;
            size_t length = strcspn(line, "=");
            if (line[0] != '#' && line[length] && length == strlen(variable) && strncmp(line, variable, length) == 0) {
                snprintf(value, sizeof value, "%s", line + length + 1);
                return value;
            }
        }
    }
    return "";
}

static const char *const old_nccl[] = {"/root/.nccl.conf", "/etc/nccl.conf", NULL}; /* and of today where NCCL_CONF_FILE is not set */
static const char *const named[] = {"/opt/site.conf", "/etc/nccl.conf", NULL};      /* NCCL_CONF_FILE=/opt/site.conf */

TEST(an_image_without_a_file_gets_one)
{
    begin_fabric();
    HOOK(JOIN);
    CHECK(strcmp(text_of("/etc/nccl.conf"), LINES) == 0);
    CHECK(!mounted_at("/etc/nccl.conf"));
}

TEST(the_class_comes_before_the_image_and_after_its_user)
{
    begin_fabric();
    put("/etc/nccl.conf", "NCCL_IB_TC=0\nNCCL_DEBUG=INFO");
    put("/root/.nccl.conf", "NCCL_IB_SL=7\n");
    put("/opt/site.conf", "NCCL_IB_SL=5\n");
    HOOK(JOIN);
    CHECK(strcmp(nccl_has("NCCL_IB_TC", old_nccl), "106") == 0);
    CHECK(strcmp(nccl_has("NCCL_DEBUG", old_nccl), "INFO") == 0);
    CHECK(strcmp(nccl_has("NCCL_IB_SL", old_nccl), "7") == 0);
    CHECK(strcmp(nccl_has("NCCL_IB_SL", named), "5") == 0);
    CHECK(strcmp(nccl_has("NCCL_IB_TC", named), "106") == 0);
}

TEST(odd_files_of_an_image_are_joined_byte_by_byte)
{
    begin_fabric();
    put("/etc/nccl.conf", "\r\nNCCL_DEBUG=WARN\r\nNCCL_IB_TC=0\r\n=\nno sign\n#\n\xef\xbb\xbfNCCL_X=1");
    HOOK(JOIN);
    CHECK(strcmp(text_of("/etc/nccl.conf"), LINES "\r\nNCCL_DEBUG=WARN\r\nNCCL_IB_TC=0\r\n=\nno sign\n#\n\xef\xbb\xbfNCCL_X=1") == 0);
    CHECK(strcmp(nccl_has("NCCL_DEBUG", old_nccl), "WARN") == 0);
    CHECK(strcmp(nccl_has("NCCL_IB_TC", old_nccl), "106") == 0);
}

TEST(several_claims_are_joined_once_whichever_hook_comes_first)
{
    image_begin();
    mount_file(TWO, "two", "NCCL_IB_TC=8\nNCCL_IB_PKEY=1\n");
    mount_file(ONE, "one", LINES);
    put("/etc/nccl.conf", "NCCL_DEBUG=INFO\n");
    HOOK(JOIN);
    HOOK(JOIN);
    CHECK(strcmp(text_of("/etc/nccl.conf"), LINES "NCCL_IB_TC=8\nNCCL_IB_PKEY=1\nNCCL_DEBUG=INFO\n") == 0);
}

TEST(who_has_no_such_claim_keeps_its_file)
{
    image_begin();
    put(ONE, LINES); /* an image cannot pretend to be told */
    put("/etc/nccl.conf", "NCCL_DEBUG=INFO\n");
    HOOK(JOIN);
    CHECK(strcmp(text_of("/etc/nccl.conf"), "NCCL_DEBUG=INFO\n") == 0);
}

TEST(a_link_of_the_image_is_read_inside_its_root_and_not_written_through)
{
    begin_fabric();
    char secret[600], link[700];
    snprintf(secret, sizeof secret, "%s/secret", folder);
    FILE *file = fopen(secret, "we");
    CHECK(file && fputs("NODE=1\n", file) >= 0 && fclose(file) == 0);
    snprintf(link, sizeof link, "../../../../../../..%s", secret);
    put_link("/etc/nccl.conf", link);
    HOOK(JOIN);
    CHECK(strcmp(text_of("/etc/nccl.conf"), LINES) == 0);

    begin_fabric();
    put("/opt/nccl.conf", "NCCL_DEBUG=INFO\n");
    put_link("/etc/nccl.conf", "/opt/nccl.conf");
    HOOK(JOIN);
    CHECK(strcmp(text_of("/etc/nccl.conf"), LINES "NCCL_DEBUG=INFO\n") == 0);
    CHECK(strcmp(text_of("/opt/nccl.conf"), "NCCL_DEBUG=INFO\n") == 0);
}

TEST(what_is_no_file_or_has_no_end_is_refused_in_words)
{
    begin_fabric();
    CHECK(mkfifo(outside("/etc/nccl.conf"), 0644) == 0);
    CHECK_EQUAL(run_hook(JOIN), 1);
    CHECK(strstr(said, "the image's /etc/nccl.conf cannot be read"));
    CHECK(unlink(outside("/etc/nccl.conf")) == 0);
    put("/etc/nccl.conf", "");
    CHECK(truncate(outside("/etc/nccl.conf"), (off_t)1 << 40) == 0);
    CHECK_EQUAL(run_hook(JOIN), 1);
    CHECK(strstr(said, "File too large") && strchr(said, '\n') == said + strlen(said) - 1);
    CHECK(unlink(outside("/etc/nccl.conf")) == 0 && mkdir(outside("/etc/nccl.conf"), 0755) == 0);
    CHECK_EQUAL(run_hook(JOIN), 1);
}

TEST(a_volume_of_the_pod_is_joined_and_stays_as_it_is)
{
    begin_fabric();
    mount_file("/etc/nccl.conf", "volume", "NCCL_DEBUG=INFO\n");
    HOOK(JOIN);
    HOOK(JOIN);
    CHECK(strcmp(text_of("/etc/nccl.conf"), LINES "NCCL_DEBUG=INFO\n") == 0);
    CHECK(umount2(outside("/etc/nccl.conf"), 0) == 0);
    CHECK(strcmp(text_of("/etc/nccl.conf"), "NCCL_DEBUG=INFO\n") == 0);
}
