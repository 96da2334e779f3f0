/* What processes do on a GPU, as the driver samples it: of the fake driver's machine (KOORDRA_FAKE_CUDA), whose cards are known by
 * their UUID, and on its clock. */
#include "control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "../driver/world.h"

typedef struct {
    unsigned pid;
    unsigned long long at; /* microseconds */
    unsigned sm, memory, encoder, decoder;
} nvmlProcessUtilizationSample_t;

typedef struct {
    unsigned long long at;
    unsigned pid, sm, memory, encoder, decoder, jpeg, ofa;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct {
    unsigned version, count;
    unsigned long long since;
    nvmlProcessUtilizationInfo_v1_t *processes;
} nvmlProcessesUtilizationInfo_v1_t;

static struct world_card *card_of(struct world *world, const char *uuid)
{
    for (unsigned number = 0; number < world->card_count; number++) {
        const uint8_t *id = world->cards[number].uuid;
        char text[48] = "GPU-";
        for (unsigned at = 0; at < 16; at++)
            snprintf(text + strlen(text), 6, "%s%02x", at == 4 || at == 6 || at == 8 || at == 10 ? "-" : "", id[at]);
        if (strcasecmp(text, uuid) == 0)
            return &world->cards[number];
    }
    return NULL;
}

/* The newest sample of each process since then; how many. */
static unsigned newest(struct world_card *card, unsigned long long since, struct world_sample found[WORLD_SAMPLES])
{
    unsigned count = 0, kept = card->sample_count < WORLD_SAMPLES ? card->sample_count : WORLD_SAMPLES;
    for (unsigned back = 1; back <= kept; back++) {
        const struct world_sample *sample = &card->samples[(card->sample_count - back) % WORLD_SAMPLES];
        bool known = sample->at / 1000 <= since;
        for (unsigned at = 0; at < count && !known; at++)
            known = found[at].pid == sample->pid;
        if (!known)
            found[count++] = *sample;
    }
    return count;
}

static nvmlReturn_t samples_of(struct gpu *gpu, unsigned long long since, struct world_sample found[WORLD_SAMPLES], unsigned *count)
{
    static struct world *world;
    const char *folder = getenv("KOORDRA_FAKE_CUDA");
    if (!world && folder)
        world = world_open(folder);
    struct world_card *card = world ? card_of(world, gpu->uuid) : NULL;
    if (!card)
        return NVML_ERROR_NOT_SUPPORTED;
    world_lock(world);
    scheduler_run(world);
    *count = newest(card, since, found);
    world_unlock(world);
    return *count ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(void *device, nvmlProcessUtilizationSample_t *samples, unsigned *count, unsigned long long since)
{
    struct world_sample found[WORLD_SAMPLES];
    unsigned number = 0;
    struct gpu *gpu = machine_gpu(device);
    FAIL_AS_TOLD(gpu);
    if (!gpu || !count)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = samples_of(gpu, since, found, &number);
    bool room = samples && *count >= number;
    *count = number;
    if (result != NVML_SUCCESS || !room)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned at = 0; at < number; at++)
        samples[at] = (nvmlProcessUtilizationSample_t){.pid = found[at].pid, .at = found[at].at / 1000, .sm = found[at].percent};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(void *device, nvmlProcessesUtilizationInfo_v1_t *info)
{
    struct world_sample found[WORLD_SAMPLES];
    unsigned number = 0;
    struct gpu *gpu = machine_gpu(device);
    FAIL_AS_TOLD(gpu);
    if (!gpu || !info)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != (sizeof *info | 1u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = samples_of(gpu, info->since, found, &number);
    bool room = info->processes && info->count >= number;
    info->count = number;
    if (result != NVML_SUCCESS || !room)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned at = 0; at < number; at++)
        info->processes[at] = (nvmlProcessUtilizationInfo_v1_t){.at = found[at].at / 1000, .pid = found[at].pid, .sm = found[at].percent};
    return NVML_SUCCESS;
}
