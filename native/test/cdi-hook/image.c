#include "image.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

char folder[256], said[4096];
const char *state_text, *config_text;
char **hook_environment;
void (*before_hook)(void);
void (*with_hook)(pid_t hook);
long hook_memory;

static void write_file(const char *path, const void *data, size_t length)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    CHECK(file >= 0 && write(file, data, length) == (ssize_t)length && close(file) == 0);
}

const char *outside(const char *path)
{
    static char found[4][1024];
    static unsigned next;
    char *text = found[next++ % 4];
    snprintf(text, sizeof found[0], "%s/rootfs%s", folder, path);
    return text;
}

static void make_above(const char *path)
{
    char part[1024];
    snprintf(part, sizeof part, "%s", path);
    for (char *cut = part + strlen(folder); (cut = strchr(cut + 1, '/'));) {
        *cut = 0;
        CHECK(mkdir(part, 0755) == 0 || errno == EEXIST);
        *cut = '/';
    }
}

void put(const char *path, const char *text)
{
    make_above(outside(path));
    write_file(outside(path), text, strlen(text));
}

void put_link(const char *path, const char *target)
{
    make_above(outside(path));
    unlink(outside(path));
    CHECK(symlink(target, outside(path)) == 0);
}

void put_folder(const char *path)
{
    char below[1024];
    snprintf(below, sizeof below, "%s/x", outside(path));
    make_above(below);
}

/* As little as a library can be: one segment, a dynamic table, a SONAME; and a section with a note. */
static void write_library(const char *path, const char *soname, const char *note)
{
    struct {
        Elf64_Ehdr header;
        Elf64_Phdr segments[2];
        Elf64_Dyn dynamic[3];
        char strings[256];
        Elf64_Shdr sections[3];
        struct {
            Elf64_Nhdr header;
            char owner[20], text[256];
        } note;
        char names[64];
    } file = {
        .header = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                   .e_type = ET_DYN,
                   .e_machine = MACHINE,
                   .e_version = EV_CURRENT,
                   .e_ehsize = sizeof(Elf64_Ehdr),
                   .e_phentsize = sizeof(Elf64_Phdr),
                   .e_shentsize = sizeof(Elf64_Shdr),
                   .e_phnum = 2},
    };
    size_t base = (size_t)&file;
#define AT(field) ((size_t)&file.field - base)
    file.header.e_phoff = AT(segments);
    file.segments[0] = (Elf64_Phdr){.p_type = PT_LOAD, .p_flags = PF_R, .p_filesz = sizeof file, .p_memsz = sizeof file, .p_align = 4096};
    file.segments[1] = (Elf64_Phdr){.p_type = PT_DYNAMIC, .p_offset = AT(dynamic), .p_vaddr = AT(dynamic), .p_filesz = sizeof file.dynamic};
    file.dynamic[0] = (Elf64_Dyn){.d_tag = DT_STRTAB, .d_un.d_val = AT(strings)};
    if (soname)
        file.dynamic[1] = (Elf64_Dyn){.d_tag = DT_SONAME, .d_un.d_val = 1};
    snprintf(file.strings + 1, sizeof file.strings - 1, "%s", soname ? soname : "");
    if (note) {
        static const char section[] = ".note.cuda.fwd_compatibility", owner[] = "NVIDIA Corporation";
        file.header.e_shoff = AT(sections);
        file.header.e_shnum = 3;
        file.header.e_shstrndx = 1;
        memcpy(file.names + 1, section, sizeof section);
        memcpy(file.note.owner, owner, sizeof owner);
        memcpy(file.note.text, note, strlen(note));
        file.note.header = (Elf64_Nhdr){.n_namesz = sizeof owner, .n_descsz = (Elf64_Word)strlen(note), .n_type = 1};
        file.sections[1] = (Elf64_Shdr){.sh_type = SHT_STRTAB, .sh_offset = AT(names), .sh_size = sizeof file.names};
        file.sections[2] = (Elf64_Shdr){.sh_name = 1, .sh_type = SHT_NOTE, .sh_offset = AT(note), .sh_size = sizeof file.note, .sh_addralign = 4};
    }
    write_file(path, &file, sizeof file);
}

void put_library(const char *path, const char *soname)
{
    make_above(outside(path));
    write_library(outside(path), soname, NULL);
}

void put_compat(const char *version, const char *note)
{
    char path[256];
    snprintf(path, sizeof path, COMPAT "/libcuda.so.%s", version);
    make_above(outside(path));
    write_library(outside(path), "libcuda.so.1", note);
    put_link(COMPAT "/libcuda.so.1", strrchr(path, '/') + 1);
}

static void bind(const char *source, const char *target)
{
    CHECK(mount(source, target, NULL, MS_BIND, NULL) == 0);
    CHECK(mount(NULL, target, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) == 0);
}

static const char *own(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

void mount_library(const char *path, const char *soname)
{
    static unsigned number;
    char name[64];
    snprintf(name, sizeof name, "driver-%u", number++);
    write_library(own(name), soname, NULL);
    put(path, "");
    bind(own(name), outside(path));
}

void mount_limiter(void)
{
    char path[600];
    for (const char *const *each = (const char *const[]){"limiter", "limiter/" PLATFORM, NULL}; *each; each++)
        CHECK(mkdir(own(*each), 0755) == 0);
    snprintf(path, sizeof path, "%s/limiter/" PLATFORM "/libcuda.so.1", folder);
    write_library(path, "libcuda.so.1", NULL);
    put_folder(LIMITER);
    bind(own("limiter"), outside(LIMITER));
}

void mount_volume(const char *path, const char *name)
{
    mkdir(own(name), 0755);
    put_folder(path);
    CHECK(mount(own(name), outside(path), NULL, MS_BIND, NULL) == 0);
}

void image_begin(void)
{
    CHECK(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    CHECK(mount("root", folder, "tmpfs", 0, NULL) == 0);
    CHECK(chmod(folder, 0755) == 0);
    make_above(outside("/x"));
    CHECK(mount(outside(""), outside(""), NULL, MS_BIND, NULL) == 0);
    put_folder("/etc");
    put(LOADER, "GLIBC_PRIVATE");
    put("/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n");
    put_folder("/etc/ld.so.conf.d");
}

const char *text_of(const char *path)
{
    static char texts[4][1 << 16];
    static unsigned next;
    char *text = texts[next++ % 4];
    int file = open(outside(path), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return NULL;
    ssize_t length = read(file, text, sizeof texts[0] - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    return text;
}

bool mounted_at(const char *path)
{
    struct statx is;
    CHECK(statx(AT_FDCWD, outside(path), AT_SYMLINK_NOFOLLOW, 0, &is) == 0);
    return (is.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

static void start_hook(int in, int out, const char *arguments)
{
    static char words[4096];
    char *list[128] = {getenv("KOORDRA_EMULATOR"), NULL, "container", "--folder", LIBRARIES, "--folder", "/usr/lib64"}, program[512];
    unsigned count = 7;
    const char *built = getenv("KOORDRA_OUT");
    snprintf(program, sizeof program, "%s/cdi-hook/koordra-cdi-hook", built);
    snprintf(words, sizeof words, "%s", arguments);
    list[1] = program;
    for (char *rest = words, *word; (word = strtok_r(rest, " ", &rest)) && count < 127;)
        list[count++] = word;
    dup2(in, 0);
    dup2(out, 2);
    CHECK(chdir(outside("")) == 0); /* as runc does */
    if (before_hook)
        before_hook();
    char *none[] = {NULL};
    char **start = list[0] ? list : list + 1;
    execve(start[0], start, hook_environment ? hook_environment : none);
    _exit(127);
}

int status_of(pid_t process)
{
    int status;
    CHECK(waitpid(process, &status, 0) == process);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int run_hook(const char *arguments)
{
    char state[1024], config[1024];
    int in[2], out[2];
    snprintf(state, sizeof state, "{\"ociVersion\": \"1.2.0\", \"id\": \"c\", \"status\": \"creating\", \"bundle\": \"%s\", \"annotations\": {\"a\": \"}\\\"\"}}", folder);
    snprintf(config, sizeof config, "%s", config_text ? config_text : "{\"process\": {\"env\": [\"PATH=/bin\"]}, \"root\": {\"path\": \"rootfs\"}}");
    write_file(own("config.json"), config, strlen(config));
    const char *given = state_text ? state_text : state;
    CHECK(pipe(in) == 0 && pipe(out) == 0);
    pid_t hook = fork();
    if (hook == 0) {
        close(in[1]);
        start_hook(in[0], out[1], arguments);
    }
    close(in[0]);
    close(out[1]);
    signal(SIGPIPE, SIG_IGN);
    for (size_t left = strlen(given); left > 0;) {
        ssize_t done = write(in[1], given + strlen(given) - left, left);
        if (done <= 0)
            break;
        left -= (size_t)done;
    }
    close(in[1]);
    if (with_hook)
        with_hook(hook);
    size_t length = 0;
    for (ssize_t got; length < sizeof said - 1 && (got = read(out[0], said + length, sizeof said - 1 - length)) > 0;)
        length += (size_t)got;
    said[length] = 0;
    close(out[0]);
    int status = status_of(hook);
    struct rusage used;
    CHECK(getrusage(RUSAGE_CHILDREN, &used) == 0);
    hook_memory = used.ru_maxrss;
    if (status > 1)
        fprintf(stderr, "%s", said);
    return status;
}

/* The lines of the cache that have the name, as glibc's header says they are. */
static unsigned lines_of(const char *name, const char **first)
{
    static char cache[32 << 20];
    struct {
        char magic[20];
        uint32_t count, rest[6];
    } header;
    struct {
        int32_t flags;
        uint32_t name, path, os;
        uint64_t hwcap;
    } line;
    int file = open(outside("/etc/ld.so.cache"), O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    CHECK(read(file, cache, sizeof cache) > (ssize_t)sizeof header);
    close(file);
    memcpy(&header, cache, sizeof header);
    CHECK(memcmp(header.magic, "glibc-ld.so.cache1.1", 20) == 0);
    unsigned found = 0;
    for (uint32_t at = 0; at < header.count; at++) {
        memcpy(&line, cache + sizeof header + at * sizeof line, sizeof line);
        if (strcmp(cache + line.name, name) == 0 && found++ == 0)
            *first = cache + line.path;
    }
    return found;
}

unsigned listed(const char *name)
{
    const char *first;
    return lines_of(name, &first);
}

const char *listed_first(const char *name)
{
    const char *first = "";
    lines_of(name, &first);
    return first;
}
