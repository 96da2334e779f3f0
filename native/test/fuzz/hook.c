/* What an image's files can make of the CDI hook's readers: JSON, libraries, ld.so.conf, and the cache that comes of them, with bytes
 * changed, left out and doubled. Arguments: rounds, a library to start from, first seed. The same arguments give the same bytes
 * again. Nothing may crash, run for ever, or write a cache in which a loader would lose its way. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../cdi-hook/beneath.h"
#include "../../cdi-hook/cache.h"
#include "../../cdi-hook/compat.h"
#include "../../cdi-hook/elf.h"
#include "../../cdi-hook/json.h"
#include "../../cdi-hook/library_folder.h"
#include "../harness.h"

enum { SIZE = 1 << 16 };

static uint64_t seed;
char folder[256];

static unsigned below(unsigned limit)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(seed >> 33) % limit;
}

/* Changes some of the bytes, mostly near the front and where `also` says. */
static size_t change(char *data, size_t length, size_t also)
{
    static const char telling[] = "\"\\{}[]:,\n\t /.#=*?\0\xff\x7f\x80" "0u";
    for (unsigned times = 1 + below(6); times > 0 && length > 8; times--) {
        size_t at = (below(3) ? also : 0) + below(below(4) ? 512 : (unsigned)length);
        at %= length;
        switch (below(4)) {
        case 0: data[at] = (char)below(256); break;
        case 1: data[at] = telling[below(sizeof telling - 1)]; break;
        case 2: /* left out */
            memmove(data + at, data + at + 1, length - at - 1);
            length--;
            break;
        default: /* doubled */
            if (length < SIZE - 1) {
                memmove(data + at + 1, data + at, length - at);
                length++;
            }
        }
    }
    return length;
}

static const char document[] = "{\"ociVersion\": \"1.2.0\", \"process\": {\"env\": [\"PATH=/bin\", \"LD_PRELOAD=/a \\u00e4\\ud83d\\ude00\"], \"n\": [1, -2.5e3, true, null, {}]},"
                               " \"root\": {\"path\": \"rootfs\", \"readonly\": false}, \"mounts\": [[], [[\"a\"]]], \"Driver\": [535, 580]}";

static void read_json(void)
{
    char text[SIZE], value[256];
    unsigned long number;
    memcpy(text, document, sizeof document);
    size_t length = change(text, sizeof document - 1, below(sizeof document));
    char *exact = malloc(length ? length : 1); /* so that a sanitizer sees the byte behind it */
    CHECK(exact);
    memcpy(exact, text, length);
    struct json found = json_document(exact, length), process = json_member(found, "process");
    json_text(json_member(json_member(found, "root"), "path"), value, 1 + below(sizeof value));
    for (struct json each = json_first(json_member(process, "env")); each.at; each = json_next(each))
        json_text(each, value, 1 + below(sizeof value));
    for (struct json each = json_first(json_member(found, "Driver")); each.at; each = json_next(each))
        json_number(each, &number);
    free(exact);
}

static char original[SIZE];
static size_t original_length;

static void put(int root, const char *path, const char *data, size_t length)
{
    int file = openat(root, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    CHECK(file >= 0 && write(file, data, length) == (ssize_t)length && close(file) == 0);
}

static void put_changed_library(int root, const char *path)
{
    static char data[SIZE];
    memcpy(data, original, original_length);
    size_t also = below(2) ? 0 : original_length / 2, length = change(data, original_length, also);
    put(root, path, data, length);
}

static void put_changed_configuration(int root)
{
    static const char text[] = "include /etc/ld.so.conf.d/*.conf\n/opt/a # b\n  /usr/lib/x\r\n/opt/c=libc6\nhwcap 1 x\ninclude a*.conf /etc/ld.so.conf [x\n";
    char data[SIZE];
    memcpy(data, text, sizeof text);
    put(root, "etc/ld.so.conf", data, change(data, sizeof text - 1, below(sizeof text)));
    memcpy(data, text, sizeof text);
    put(root, "etc/ld.so.conf.d/a.conf", data, change(data, sizeof text - 1, below(sizeof text)));
}

/* A loader searches by halves: every offset is in the file, and the names stand in its order. */
static void check_cache(int root)
{
    struct {
        char magic[20];
        uint32_t count, strings, rest[5];
    } header;
    struct {
        int32_t flags;
        uint32_t name, path, os;
        uint64_t hwcap;
    } line, before = {0};
    size_t length;
    char *data = read_file(root, "/etc/ld.so.cache", 16 << 20, &length);
    CHECK(data && length >= sizeof header);
    memcpy(&header, data, sizeof header);
    CHECK(sizeof header + header.count * sizeof line + header.strings <= length);
    for (uint32_t at = 0; at < header.count; at++, before = line) {
        memcpy(&line, data + sizeof header + at * sizeof line, sizeof line);
        CHECK(line.name < length && line.path < length && memchr(data + line.path, 0, length - line.path) && data[line.path] == '/');
        CHECK(at == 0 || library_order(data + before.name, data + line.name) >= 0);
    }
    free(data);
}

static void one_round(int root)
{
    static struct folders ours;
    char library[256], note[256];
    struct library found;
    struct stat is;
    for (unsigned times = 0; times < 8; times++)
        read_json();
    put_changed_library(root, "usr/lib/libone.so.1");
    put_changed_library(root, "usr/local/cuda/compat/libcuda.so.590.44");
    put_changed_configuration(root);
    int file = open_file(root, "/usr/lib/libone.so.1", &is);
    CHECK(file >= 0);
    elf_library(file, &found);
    elf_note(file, ".note.gnu.build-id", "GNU", note, 1 + below(sizeof note));
    close(file);
    bool newer = compat_wanted(root, below(2) ? "580.95.05" : "580", library, sizeof library);
    folders_add(&ours, "/usr/lib");
    cache_write(root, &ours, newer, below(2));
    check_cache(root);
}

int main(int count, char **arguments)
{
    unsigned rounds = count > 1 ? (unsigned)strtoul(arguments[1], NULL, 10) : 1000;
    uint64_t first = count > 3 ? strtoull(arguments[3], NULL, 10) : 1;
    int file = open(count > 2 ? arguments[2] : "/proc/self/exe", O_RDONLY | O_CLOEXEC), root;
    ssize_t got = read(file, original, SIZE / 2);
    CHECK(got > 64);
    original_length = (size_t)got;
    snprintf(folder, sizeof folder, "%s", getenv("KOORDRA_TEST_FOLDER"));
    CHECK((root = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0);
    for (const char *const *each = (const char *const[]){"etc", "etc/ld.so.conf.d", "usr", "usr/lib", "usr/local", "usr/local/cuda", "usr/local/cuda/compat", NULL}; *each; each++)
        CHECK(mkdirat(root, *each, 0755) == 0);
    for (uint64_t round = first; round < first + rounds; round++) {
        seed = round * 2654435761u + 1;
        alarm(30);
        if (round % 100 == 0)
            fprintf(stderr, "as of round %llu\n", (unsigned long long)round);
        one_round(root);
    }
    fprintf(stderr, "fuzzer: %u rounds\n", rounds);
    return 0;
}
