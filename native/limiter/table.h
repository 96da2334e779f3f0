/* What this process has allocated: a hash map in shards, each with a lock of its own, on memory straight from the kernel. */
#ifndef KOORDRA_TABLE_H
#define KOORDRA_TABLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* What a key is a handle of; the same number may be several things. */
enum space { SPACE_NONE, SPACE_POINTER, SPACE_HOST, SPACE_ARRAY, SPACE_HANDLE, SPACE_MAPPING, SPACE_POOL, SPACE_EXEC, SPACE_EXTERNAL, SPACE_CONTEXT };

struct record {
    uint64_t key;
    uint64_t bytes;   /* charged */
    uint64_t context; /* the memory goes when this context goes; 0: it does not */
    uint64_t more;    /* pool number, object number, key of an export; by space */
    uint8_t space, kind;
    uint16_t device;
    uint32_t count;
};

enum { SHARDS = 64 };

struct shard {
    pthread_mutex_t lock;
    uint32_t used, size; /* size is a power of two; 0: nothing allocated yet */
    struct record *records;
};

/* All zero bytes are an empty table. */
struct table {
    struct shard shards[SHARDS];
};

/* False: no memory. A record of the same key is replaced and told (`replaced->space` is SPACE_NONE where there was none): the
 * driver has given the number out again, so what it stood for is gone. */
bool table_put(struct table *table, const struct record *record, struct record *replaced);

bool table_get(struct table *table, enum space space, uint64_t key, struct record *record);

/* Removes it. */
bool table_take(struct table *table, enum space space, uint64_t key, struct record *record);

/* Calls `each` for every record, one shard locked at a time; what it answers true for is removed. `each` must not call back. */
void table_sweep(struct table *table, bool (*each)(const struct record *record, void *context), void *context);

#endif
