/* What a shared library says of itself, read in its file without loading it; every offset in it is the image's word, and bounded. */
#ifndef KOORDRA_HOOK_ELF_H
#define KOORDRA_HOOK_ELF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SONAME_SIZE = 256 };

/* `flags` as the loader's cache has them for a library of this class and machine. `soname` "" where it has none. */
struct library {
    int32_t flags;
    char soname[SONAME_SIZE];
};

/* False: not a shared library of a machine whose libraries such a cache lists. */
bool elf_library(int file, struct library *library);

/* The text of a note section, of the owner and the name that are asked for, with a NUL behind it; false: there is none. */
bool elf_note(int file, const char *section, const char *owner, char *text, size_t size);

#endif
