/* What /proc tells of processes of our own namespace. */
#ifndef KOORDRA_PROCESS_STAT_H
#define KOORDRA_PROCESS_STAT_H

#include <stdbool.h>
#include <stdint.h>

/* `memory` is 0 once it has none: it ended, but may have descriptors open still. */
struct process_stat {
    char state;
    unsigned long threads;
    uint64_t start_time, memory;
};

/* False where it cannot be read. */
bool process_stat(unsigned pid, struct process_stat *stat);

/* Inode of this process's pid namespace; 0 where it cannot be told. */
uint64_t own_pid_namespace(void);

#endif
