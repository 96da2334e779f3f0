#include "elf.h"

#include <elf.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum {
    HEADERS_MOST = 128,
    SECTIONS_MOST = 4096,
    DYNAMIC_MOST = 1024,
    FLAG_LIBC6 = 0x0003,
    FLAG_X8664 = 0x0300,
    FLAG_X32 = 0x0800,
    FLAG_ARM_HARD = 0x0900,
    FLAG_AARCH64 = 0x0a00,
    FLAG_ARM_SOFT = 0x0b00,
};

static bool read_at(int file, uint64_t offset, void *data, size_t length)
{
    return offset < INT64_MAX - length && pread(file, data, length, (off_t)offset) == (ssize_t)length;
}

/* Text up to its NUL, or as much as there is. */
static bool read_text(int file, uint64_t offset, char *text, size_t size)
{
    ssize_t got = offset < INT64_MAX - size ? pread(file, text, size - 1, (off_t)offset) : -1;
    if (got <= 0)
        return false;
    text[got] = 0;
    return strlen(text) < size - 1;
}

/* Both classes in the fields of the larger one. */
struct file {
    int descriptor;
    bool wide;
    Elf64_Ehdr header;
};

static bool open_elf(int descriptor, struct file *file)
{
    Elf32_Ehdr narrow;
    file->descriptor = descriptor;
    if (!read_at(descriptor, 0, &narrow, sizeof narrow) || memcmp(narrow.e_ident, ELFMAG, SELFMAG) != 0 || narrow.e_ident[EI_DATA] != ELFDATA2LSB)
        return false;
    file->wide = narrow.e_ident[EI_CLASS] == ELFCLASS64;
    if (file->wide)
        return read_at(descriptor, 0, &file->header, sizeof file->header);
    file->header = (Elf64_Ehdr){.e_type = narrow.e_type,
                                .e_machine = narrow.e_machine,
                                .e_phoff = narrow.e_phoff,
                                .e_shoff = narrow.e_shoff,
                                .e_flags = narrow.e_flags,
                                .e_phnum = narrow.e_phnum,
                                .e_shnum = narrow.e_shnum,
                                .e_shstrndx = narrow.e_shstrndx};
    return narrow.e_ident[EI_CLASS] == ELFCLASS32;
}

static bool segment(const struct file *file, unsigned number, Elf64_Phdr *found)
{
    Elf32_Phdr narrow;
    if (file->wide)
        return read_at(file->descriptor, file->header.e_phoff + number * sizeof *found, found, sizeof *found);
    if (!read_at(file->descriptor, file->header.e_phoff + number * sizeof narrow, &narrow, sizeof narrow))
        return false;
    *found = (Elf64_Phdr){.p_type = narrow.p_type, .p_offset = narrow.p_offset, .p_vaddr = narrow.p_vaddr, .p_filesz = narrow.p_filesz};
    return true;
}

static bool section(const struct file *file, unsigned number, Elf64_Shdr *found)
{
    Elf32_Shdr narrow;
    if (file->wide)
        return read_at(file->descriptor, file->header.e_shoff + number * sizeof *found, found, sizeof *found);
    if (!read_at(file->descriptor, file->header.e_shoff + number * sizeof narrow, &narrow, sizeof narrow))
        return false;
    *found = (Elf64_Shdr){.sh_name = narrow.sh_name,
                          .sh_type = narrow.sh_type,
                          .sh_offset = narrow.sh_offset,
                          .sh_size = narrow.sh_size,
                          .sh_addralign = narrow.sh_addralign};
    return true;
}

/* What ldconfig writes (glibc sysdeps/unix/sysv/linux/{x86_64,arm,aarch64}/readelflib.c). */
static bool flags_of(const struct file *file, int32_t *flags)
{
    switch (file->header.e_machine) {
    case EM_X86_64: *flags = FLAG_LIBC6 | (file->wide ? FLAG_X8664 : FLAG_X32); return true;
    case EM_386: *flags = FLAG_LIBC6; return !file->wide;
    case EM_AARCH64: *flags = FLAG_LIBC6 | FLAG_AARCH64; return file->wide;
    case EM_ARM:
        *flags = FLAG_LIBC6 | (file->header.e_flags & EF_ARM_ABI_FLOAT_HARD ? FLAG_ARM_HARD : file->header.e_flags & EF_ARM_ABI_FLOAT_SOFT ? FLAG_ARM_SOFT : 0);
        return !file->wide;
    default: return false;
    }
}

/* Where an address of the loaded library is in its file. */
static bool in_file(const struct file *file, uint64_t address, uint64_t *offset)
{
    Elf64_Phdr each;
    for (unsigned number = 0; number < file->header.e_phnum && number < HEADERS_MOST && segment(file, number, &each); number++)
        if (each.p_type == PT_LOAD && address >= each.p_vaddr && address - each.p_vaddr < each.p_filesz) {
            *offset = each.p_offset + (address - each.p_vaddr);
            return true;
        }
    return false;
}

static bool dynamic(const struct file *file, Elf64_Phdr *found)
{
    for (unsigned number = 0; number < file->header.e_phnum && number < HEADERS_MOST; number++)
        if (!segment(file, number, found) || found->p_type == PT_DYNAMIC)
            return found->p_type == PT_DYNAMIC;
    return false;
}

static void find_soname(const struct file *file, const Elf64_Phdr *table, char soname[SONAME_SIZE])
{
    uint64_t strings = 0, name = 0, offset;
    bool named = false;
    size_t size = file->wide ? sizeof(Elf64_Dyn) : sizeof(Elf32_Dyn);
    for (unsigned number = 0; number < DYNAMIC_MOST && number < table->p_filesz / size; number++) {
        Elf64_Dyn entry;
        Elf32_Dyn narrow;
        if (!read_at(file->descriptor, table->p_offset + number * size, file->wide ? (void *)&entry : (void *)&narrow, size))
            return;
        if (!file->wide)
            entry = (Elf64_Dyn){.d_tag = narrow.d_tag, .d_un.d_val = narrow.d_un.d_val};
        if (entry.d_tag == DT_NULL)
            break;
        if (entry.d_tag == DT_STRTAB)
            strings = entry.d_un.d_val;
        if (entry.d_tag == DT_SONAME) {
            name = entry.d_un.d_val;
            named = true;
        }
    }
    if (!named || !in_file(file, strings, &offset) || !read_text(file->descriptor, offset + name, soname, SONAME_SIZE))
        soname[0] = 0;
}

bool elf_library(int descriptor, struct library *library)
{
    struct file file;
    Elf64_Phdr table = {.p_type = PT_NULL};
    library->soname[0] = 0;
    if (!open_elf(descriptor, &file) || file.header.e_type != ET_DYN || !flags_of(&file, &library->flags) || !dynamic(&file, &table))
        return false;
    find_soname(&file, &table, library->soname);
    return true;
}

bool elf_note(int descriptor, const char *name, const char *owner, char *text, size_t size)
{
    struct file file;
    Elf64_Shdr names, each;
    if (!open_elf(descriptor, &file) || !section(&file, file.header.e_shstrndx, &names))
        return false;
    for (unsigned number = 0; number < file.header.e_shnum && number < SECTIONS_MOST && section(&file, number, &each); number++) {
        char called[64], of[64];
        Elf64_Nhdr note;
        /* A longer name is cut, and then another one. */
        ssize_t got = pread(descriptor, called, sizeof called - 1, (off_t)((names.sh_offset + each.sh_name) & INT64_MAX));
        called[got > 0 ? got : 0] = 0;
        if (each.sh_type != SHT_NOTE || strcmp(called, name) != 0 || !read_at(descriptor, each.sh_offset, &note, sizeof note))
            continue;
        uint64_t align = each.sh_addralign > 4 ? 8 : 4;
        if (note.n_namesz >= sizeof of || note.n_descsz == 0 || note.n_descsz >= size || !read_at(descriptor, each.sh_offset + sizeof note, of, note.n_namesz))
            return false;
        of[note.n_namesz] = 0;
        if (strcmp(of, owner) != 0 ||
            !read_at(descriptor, each.sh_offset + sizeof note + ((note.n_namesz + align - 1) & ~(align - 1)), text, note.n_descsz))
            return false;
        text[note.n_descsz] = 0;
        return true;
    }
    return false;
}
