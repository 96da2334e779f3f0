/* The control file: one order a line. It is read at every call, so a test changes it while the library runs.
 *
 *   error nvmlDeviceGetUUID 15                      every GPU
 *   error nvmlDeviceGetUUID 15 00000000:0F:00.0     one GPU
 *   lost 00000000:0F:00.0                           every call about this GPU answers "GPU is lost"
 *   process GPU-... compute 4711 419430400          a process on the card (processes.c)
 *   state GPU-... 37 250500 36 1048576              how the card is: percent busy, milliwatts, reasons, bytes in use
 *   hang nvmlDeviceGetUtilizationRates              the call does not return for as long as the line is there
 *   fail 17 19                                      the seventeenth call of the process, as counted from its first
 *                                                   nvmlInit, answers 19 and does nothing
 *   late 17 10                                      it does what it is asked for, and answers 10
 *   kill 17                                         it is never made: the process ends by SIGKILL
 *   xid 00000000:0F:00.0 79                         append to deliver; each line is delivered once to an event set
 */
#include "control.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static FILE *control_open(void)
{
    const char *path = getenv("KOORDRA_FAKE_NVML_CONTROL");
    return path ? fopen(path, "re") : NULL;
}

static bool hangs(const char *call)
{
    FILE *file = control_open();
    char line[256], name[96];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file))
        found = sscanf(line, "hang %95s", name) == 1 && !strcmp(name, call);
    if (file)
        fclose(file);
    return found;
}

bool control_state(const struct gpu *gpu, struct state *state)
{
    FILE *file = control_open();
    char line[256], uuid[96];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file))
        found = sscanf(line, "state %95s %u %u %llu %llu", uuid, &state->percent, &state->milliwatts, &state->reasons, &state->bytes) == 5 &&
                !strcasecmp(uuid, gpu->uuid);
    if (file)
        fclose(file);
    return found;
}

static unsigned calls;

/* What an order of this word says of the call that is made now. */
static bool ordered(const char *word, int *code)
{
    FILE *file = control_open();
    char line[256], name[16];
    unsigned number;
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file))
        found = sscanf(line, "%15s %u %d", name, &number, code) >= 2 && !strcmp(name, word) && number == calls;
    if (file)
        fclose(file);
    return found;
}

nvmlReturn_t control_late(void)
{
    int code = NVML_SUCCESS;
    return ordered("late", &code) ? code : NVML_SUCCESS;
}

nvmlReturn_t control_error(const char *call, const struct gpu *gpu)
{
    nvmlReturn_t result = machine_now() || !strcmp(call, "nvmlInitWithFlags") ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    FILE *file = result == NVML_SUCCESS ? control_open() : NULL;
    char line[256], name[96], bus_id[32];
    int code;
    while (hangs(call))
        usleep(1000);
    calls++;
    if (ordered("kill", &code))
        raise(SIGKILL);
    if (ordered("fail", &code))
        result = code;
    while (file && fgets(line, sizeof line, file)) {
        int words = sscanf(line, "error %95s %d %31s", name, &code, bus_id);
        if (words >= 2 && !strcmp(name, call) && (words == 2 || (gpu && !strcmp(bus_id, gpu->bus_id))))
            result = code;
        if (gpu && sscanf(line, "lost %31s", bus_id) == 1 && !strcmp(bus_id, gpu->bus_id))
            result = NVML_ERROR_GPU_IS_LOST;
    }
    if (file)
        fclose(file);
    return result;
}

bool control_xid(unsigned number, char bus_id[32], unsigned long long *xid)
{
    FILE *file = control_open();
    char line[256];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file))
        if (sscanf(line, "xid %31s %llu", bus_id, xid) == 2)
            found = number-- == 0;
    if (file)
        fclose(file);
    return found;
}
