/* Asking dlsym for a function of the loader that this library has too would find ourselves, and RTLD_NEXT does not work in a
 * library that was not loaded at the start; so it is found in the loader's own tables. */
#include "loader.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct symbols {
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const ElfW(Word) * hash;
    ElfW(Addr) base;
};

static ElfW(Addr) located(ElfW(Addr) base, ElfW(Addr) value)
{
    return value < base ? base + value : value; /* glibc relocates these entries, others do not */
}

static struct symbols symbols_of(const struct link_map *map)
{
    struct symbols found = {.base = map->l_addr};
    for (const ElfW(Dyn) *entry = map->l_ld; entry && entry->d_tag != DT_NULL; entry++) {
        uintptr_t at = located(map->l_addr, entry->d_un.d_ptr);
        if (entry->d_tag == DT_SYMTAB)
            found.symbols = (const ElfW(Sym) *)at;
        else if (entry->d_tag == DT_STRTAB)
            found.strings = (const char *)at;
        else if (entry->d_tag == DT_GNU_HASH)
            found.gnu_hash = (const uint32_t *)at;
        else if (entry->d_tag == DT_HASH)
            found.hash = (const ElfW(Word) *)at;
    }
    return found;
}

/* How many symbols there are: said by the old hash table, or the end of the last chain of the new one. */
static uint32_t symbol_count(const struct symbols *from)
{
    if (from->hash)
        return from->hash[1];
    if (!from->gnu_hash)
        return 0;
    uint32_t buckets = from->gnu_hash[0], first = from->gnu_hash[1], bloom = from->gnu_hash[2], last = 0;
    const uint32_t *bucket = from->gnu_hash + 4 + bloom * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
    for (uint32_t at = 0; at < buckets; at++)
        last = bucket[at] > last ? bucket[at] : last;
    if (last < first)
        return first;
    while (!(chain[last - first] & 1))
        last++;
    return last + 1;
}

static void *defined_in(const struct symbols *from, const char *name)
{
    for (uint32_t at = 0, count = symbol_count(from); at < count && from->symbols && from->strings; at++) {
        const ElfW(Sym) *symbol = &from->symbols[at];
        if (symbol->st_shndx != SHN_UNDEF && symbol->st_value && strcmp(from->strings + symbol->st_name, name) == 0)
            return (void *)(from->base + symbol->st_value);
    }
    return NULL;
}

static bool is_loader(const char *path)
{
    const char *file = strrchr(path, '/');
    file = file ? file + 1 : path;
    return strncmp(file, "libdl.so", 8) == 0 || strncmp(file, "libc.so", 7) == 0 || strncmp(file, "libdl-", 6) == 0 || strncmp(file, "libc-", 5) == 0;
}

/* glibc before 2.34 has them in libdl; a later one has a libdl with the old versions of nothing in it. */
void *loader_function(const char *name)
{
    for (const struct link_map *map = _r_debug.r_map; map; map = map->l_next) {
        if (!map->l_name || !is_loader(map->l_name))
            continue;
        struct symbols symbols = symbols_of(map);
        void *found = defined_in(&symbols, name);
        if (found)
            return found;
    }
    return NULL;
}
