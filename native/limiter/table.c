/* Open addressing, linear probing, removal by shifting back: no tombstones, so a long life does not slow it down.
 * A shard doubles when it is three quarters full; that is the only time that memory is asked for. */
#include "table.h"

#include <string.h>
#include <sys/mman.h>

enum { FIRST_SIZE = 128 };

static uint64_t mixed(enum space space, uint64_t key)
{
    uint64_t x = key ^ ((uint64_t)space << 56);
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 29;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ (x >> 32);
}

static struct shard *shard_of(struct table *table, uint64_t hash)
{
    return &table->shards[hash >> 58];
}

_Static_assert(SHARDS == 64, "the shard is the top six bits of the hash");

static uint32_t find(const struct shard *shard, enum space space, uint64_t key, uint64_t hash)
{
    uint32_t at = (uint32_t)hash & (shard->size - 1);
    while (shard->records[at].space != SPACE_NONE &&
           (shard->records[at].key != key || shard->records[at].space != space))
        at = (at + 1) & (shard->size - 1);
    return at;
}

static bool grow(struct shard *shard)
{
    uint32_t size = shard->size ? shard->size * 2 : FIRST_SIZE;
    size_t bytes = (size_t)size * sizeof(struct record);
    struct record *records = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (records == MAP_FAILED)
        return false;
    struct shard bigger = {.size = size, .records = records};
    for (uint32_t at = 0; at < shard->size; at++) {
        const struct record *old = &shard->records[at];
        if (old->space != SPACE_NONE)
            records[find(&bigger, old->space, old->key, mixed(old->space, old->key))] = *old;
    }
    if (shard->records)
        munmap(shard->records, (size_t)shard->size * sizeof(struct record));
    shard->records = records;
    shard->size = size;
    return true;
}

static void remove_at(struct shard *shard, uint32_t hole)
{
    uint32_t mask = shard->size - 1, at = hole;
    for (;;) {
        at = (at + 1) & mask;
        const struct record *next = &shard->records[at];
        if (next->space == SPACE_NONE)
            break;
        uint32_t home = (uint32_t)mixed(next->space, next->key) & mask;
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            shard->records[hole] = *next;
            hole = at;
        }
    }
    memset(&shard->records[hole], 0, sizeof shard->records[hole]);
    shard->used--;
}

bool table_put(struct table *table, const struct record *record, struct record *replaced)
{
    uint64_t hash = mixed(record->space, record->key);
    struct shard *shard = shard_of(table, hash);
    pthread_mutex_lock(&shard->lock);
    bool room = (uint64_t)(shard->used + 1) * 4 <= (uint64_t)shard->size * 3 || grow(shard);
    if (room) {
        uint32_t at = find(shard, record->space, record->key, hash);
        *replaced = shard->records[at];
        shard->used += replaced->space == SPACE_NONE;
        shard->records[at] = *record;
    }
    pthread_mutex_unlock(&shard->lock);
    return room;
}

static bool look_up(struct table *table, enum space space, uint64_t key, struct record *record, bool take)
{
    uint64_t hash = mixed(space, key);
    struct shard *shard = shard_of(table, hash);
    bool found = false;
    pthread_mutex_lock(&shard->lock);
    if (shard->size) {
        uint32_t at = find(shard, space, key, hash);
        found = shard->records[at].space != SPACE_NONE;
        if (found) {
            *record = shard->records[at];
            if (take)
                remove_at(shard, at);
        }
    }
    pthread_mutex_unlock(&shard->lock);
    return found;
}

bool table_get(struct table *table, enum space space, uint64_t key, struct record *record)
{
    return look_up(table, space, key, record, false);
}

bool table_take(struct table *table, enum space space, uint64_t key, struct record *record)
{
    return look_up(table, space, key, record, true);
}

void table_sweep(struct table *table, bool (*each)(const struct record *record, void *context), void *context)
{
    for (unsigned number = 0; number < SHARDS; number++) {
        struct shard *shard = &table->shards[number];
        pthread_mutex_lock(&shard->lock);
        for (uint32_t at = 0; at < shard->size;) {
            if (shard->records[at].space != SPACE_NONE && each(&shard->records[at], context))
                remove_at(shard, at); /* another record may have moved here: look again */
            else
                at++;
        }
        pthread_mutex_unlock(&shard->lock);
    }
}
