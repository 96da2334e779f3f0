#include "process_stat.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool process_stat(unsigned pid, struct process_stat *stat)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return false;
    text[length] = 0;
    char *field = strrchr(text, ')'); /* the name may hold anything, also parentheses */
    if (!field || field[1] != ' ')
        return false;
    stat->state = field[2];
    field += 2;
    for (int number = 4; number <= 23; number++) {
        field = strchr(field, ' ');
        if (!field)
            return false;
        field++;
        if (number == 20)
            stat->threads = strtoul(field, NULL, 10);
        else if (number == 22)
            stat->start_time = strtoull(field, NULL, 10);
        else if (number == 23)
            stat->memory = strtoull(field, NULL, 10);
    }
    return true;
}

uint64_t own_pid_namespace(void)
{
    char text[64];
    ssize_t length = readlink("/proc/self/ns/pid", text, sizeof text - 1);
    if (length <= 0)
        return 0;
    text[length] = 0;
    const char *number = strchr(text, '[');
    return number ? strtoull(number + 1, NULL, 10) : 0;
}
