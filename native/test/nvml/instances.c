/* Making and removing MIG instances, and the mode of a card.
 *
 * What was changed is kept in the file KOORDRA_FAKE_NVML_STATE, a line for each change, so that it outlives the process as
 * it does in a driver; a card that is reset, or a machine that is started anew, is one whose file was removed.
 *
 *   mode 0 1 1                       GPU (place in the description), current and pending mode
 *   gi 0 7 19 4 1                    GPU, id, profile, start, size
 *   ci 0 7 0 1 20 MIG-...            GPU, GPU instance, id, slices, profile, UUID
 *   ci-gone 0 7 0                    gi-gone 0 7
 */
#include "control.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* NVML's ids of compute instance profiles are no indices here, so that whoever mixes them up is found out. */
enum { FIRST_ID = 20, PART_PROFILES = 8, WHOLE_1 = 7, AMPERE = 7 };
static const unsigned SLICES[PART_PROFILES] = {1, 2, 3, 4, 7, 8, 6, 1};

static void keep(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void keep(const char *format, ...)
{
    const char *path = getenv("KOORDRA_FAKE_NVML_STATE");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    va_list arguments;
    va_start(arguments, format);
    if (file >= 0) {
        vdprintf(file, format, arguments);
        close(file);
    }
    va_end(arguments);
}

static unsigned place_of(const struct gpu *gpu)
{
    return (unsigned)(gpu - machine_now()->gpus);
}

static struct instance *part_of(struct gpu *gpu, unsigned gpu_instance, unsigned id)
{
    for (unsigned number = 0; number < INSTANCES_MAX; number++) {
        struct instance *each = &gpu->instances[number];
        if (each->gpu && each->gpu_instance == gpu_instance && each->compute_instance == id)
            return each;
    }
    return NULL;
}

static void forget(struct gpu *gpu, unsigned gpu_instance, unsigned id)
{
    struct instance *gone = part_of(gpu, gpu_instance, id);
    if (gone)
        memset(gone, 0, sizeof *gone);
}

static void part_made(struct gpu_instance *whole, unsigned id, unsigned slices, unsigned profile, const char *uuid)
{
    struct instance *made = instance_room(whole->gpu);
    *made = (struct instance){whole->gpu, whole->id, id, whole->profile_id, whole->start, whole->size, slices, profile, ""};
    snprintf(made->uuid, sizeof made->uuid, "%s", uuid);
}

static void load_line(struct machine *machine, const char *line)
{
    char word[16], uuid[TEXT_MAX];
    unsigned at, id, third, fourth, fifth;
    if (sscanf(line, "%15s %u %u", word, &at, &id) != 3 || at >= machine->gpu_count)
        return;
    struct gpu *gpu = &machine->gpus[at];
    struct gpu_instance *whole = gpu_instance_of(gpu, id), *room = gpu_instance_room(gpu);
    if (!strcmp(word, "mode") && sscanf(line, "%*s %*u %*u %u", &third) == 1)
        gpu->mig_current = id, gpu->mig_pending = third;
    else if (!strcmp(word, "gi") && room && sscanf(line, "%*s %*u %*u %u %u %u", &third, &fourth, &fifth) == 3)
        *room = (struct gpu_instance){gpu, id, third, fourth, fifth};
    else if (!strcmp(word, "ci") && whole && sscanf(line, "%*s %*u %*u %u %u %u %95s", &third, &fourth, &fifth, uuid) == 4)
        part_made(whole, third, fourth, fifth, uuid);
    else if (!strcmp(word, "ci-gone") && sscanf(line, "%*s %*u %*u %u", &third) == 1)
        forget(gpu, id, third);
    else if (!strcmp(word, "gi-gone") && whole)
        memset(whole, 0, sizeof *whole);
}

void instances_load(struct machine *machine)
{
    const char *path = getenv("KOORDRA_FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[256];
    while (file && fgets(line, sizeof line, file))
        load_line(machine, line);
    if (file)
        fclose(file);
}

void instances_mode(struct gpu *gpu)
{
    const char *path = getenv("KOORDRA_FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[256];
    unsigned at, current, pending;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "mode %u %u %u", &at, &current, &pending) == 3 && at == place_of(gpu))
            gpu->mig_current = current, gpu->mig_pending = pending;
    if (file)
        fclose(file);
}

static unsigned most(const struct gpu *gpu, size_t field)
{
    unsigned found = 0;
    for (unsigned index = 0; index < gpu->profile_count; index++) {
        const nvmlGpuInstanceProfileInfo_v2_t *info = &gpu->profiles[index].info;
        unsigned all = info->instances * *(const unsigned *)((const char *)info + field);
        found = all > found ? all : found;
    }
    return found;
}

static bool is_free(struct gpu *gpu, const struct profile *asked, const nvmlGpuInstancePlacement_t *place)
{
    static const size_t counted[] = {
        offsetof(nvmlGpuInstanceProfileInfo_v2_t, slices),       offsetof(nvmlGpuInstanceProfileInfo_v2_t, copy_engines),
        offsetof(nvmlGpuInstanceProfileInfo_v2_t, decoders),     offsetof(nvmlGpuInstanceProfileInfo_v2_t, encoders),
        offsetof(nvmlGpuInstanceProfileInfo_v2_t, jpeg_engines), offsetof(nvmlGpuInstanceProfileInfo_v2_t, ofa_engines),
    };
    unsigned same = 0;
    for (unsigned number = 0; number < INSTANCES_MAX; number++) {
        const struct gpu_instance *each = &gpu->gpu_instances[number];
        if (each->gpu && each->start < place->start + place->size && place->start < each->start + each->size)
            return false;
        same += each->gpu && each->profile_id == asked->info.id;
    }
    for (unsigned index = 0; index < sizeof counted / sizeof *counted; index++) {
        unsigned sum = *(const unsigned *)((const char *)&asked->info + counted[index]);
        for (unsigned number = 0; number < INSTANCES_MAX; number++) {
            const struct gpu_instance *each = &gpu->gpu_instances[number];
            const struct profile *profile = each->gpu ? profile_of(gpu, each->profile_id) : NULL;
            sum += profile ? *(const unsigned *)((const char *)&profile->info + counted[index]) : 0;
        }
        if (sum > most(gpu, counted[index]))
            return false;
    }
    return same < asked->info.instances;
}

/* Ids come from a range of each size: on a card of eight memory slices 0, 1-2, 3-6, 7-14. */
static unsigned free_id(struct gpu *gpu, unsigned size)
{
    unsigned slices = 0;
    for (unsigned index = 0; index < gpu->profile_count; index++)
        for (unsigned number = 0; number < gpu->profiles[index].placement_count; number++) {
            const nvmlGpuInstancePlacement_t *each = &gpu->profiles[index].placements[number];
            slices = each->start + each->size > slices ? each->start + each->size : slices;
        }
    unsigned id = slices / size - 1;
    while (gpu_instance_of(gpu, id))
        id++;
    return id;
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(void *device, unsigned id, const nvmlGpuInstancePlacement_t *place, void **made)
{
    struct gpu *gpu = machine_gpu(device);
    FAIL_AS_TOLD(gpu);
    if (!gpu || !place)
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct profile *profile = profile_of(gpu, id);
    if (!gpu->mig_current || !profile)
        return NVML_ERROR_NOT_SUPPORTED;
    bool legal = false;
    for (unsigned number = 0; number < profile->placement_count; number++)
        legal |= profile->placements[number].start == place->start && profile->placements[number].size == place->size;
    if (!legal)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct gpu_instance *room = gpu_instance_room(gpu);
    if (!room || !is_free(gpu, profile, place))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    *room = (struct gpu_instance){gpu, free_id(gpu, place->size), id, place->start, place->size};
    keep("gi %u %u %u %u %u\n", place_of(gpu), room->id, id, place->start, place->size);
    *made = room;
    return control_late();
}

nvmlReturn_t nvmlGpuInstanceDestroy(void *handle)
{
    struct gpu_instance *gone = machine_gpu_instance(handle);
    FAIL_AS_TOLD(gone ? gone->gpu : NULL);
    if (!gone)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned number = 0; number < INSTANCES_MAX; number++)
        if (gone->gpu->instances[number].gpu && gone->gpu->instances[number].gpu_instance == gone->id)
            return NVML_ERROR_IN_USE;
    keep("gi-gone %u %u\n", place_of(gone->gpu), gone->id);
    memset(gone, 0, sizeof *gone);
    return control_late();
}

nvmlReturn_t nvmlDeviceGetGpuInstances(void *device, unsigned id, void **found, unsigned *count)
{
    struct gpu *gpu = machine_gpu(device);
    FAIL_AS_TOLD(gpu);
    if (!gpu || !profile_of(gpu, id))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!gpu->mig_current)
        return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    for (unsigned number = 0; number < INSTANCES_MAX; number++)
        if (gpu->gpu_instances[number].gpu && gpu->gpu_instances[number].profile_id == id)
            found[(*count)++] = &gpu->gpu_instances[number];
    return NVML_SUCCESS;
}

/* Multiprocessors of a compute instance: of one slice with twice the memory only the profile made for it has all. */
static unsigned multiprocessors(const struct profile *whole, unsigned index)
{
    unsigned all = whole->info.multiprocessors, slices = whole->info.slices;
    bool wide = slices == 1 && whole->placement_count && whole->placements[0].size > 1 && whole->info.instances < 7;
    return index == WHOLE_1 || !wide ? all * SLICES[index] / slices : all - all / 4;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(void *handle, unsigned index, unsigned engines,
                                                           nvmlComputeInstanceProfileInfo_v2_t *info)
{
    struct gpu_instance *whole = machine_gpu_instance(handle);
    FAIL_AS_TOLD(whole ? whole->gpu : NULL);
    if (!whole || index >= PART_PROFILES || engines)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != (sizeof *info | 2U << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct profile *profile = profile_of(whole->gpu, whole->profile_id);
    if (!profile || SLICES[index] > profile->info.slices || (index == WHOLE_1 && profile->info.slices > 1))
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlComputeInstanceProfileInfo_v2_t){
        .version = info->version,
        .id = FIRST_ID + index,
        .slices = SLICES[index],
        .instances = profile->info.slices / SLICES[index],
        .multiprocessors = multiprocessors(profile, index),
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(void *handle, unsigned id, void **made)
{
    struct gpu_instance *whole = machine_gpu_instance(handle);
    FAIL_AS_TOLD(whole ? whole->gpu : NULL);
    const struct profile *profile = whole ? profile_of(whole->gpu, whole->profile_id) : NULL;
    if (!whole || id < FIRST_ID || id >= FIRST_ID + PART_PROFILES)
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned slices = SLICES[id - FIRST_ID], number = 0;
    for (unsigned index = 0; index < INSTANCES_MAX; index++)
        if (whole->gpu->instances[index].gpu && whole->gpu->instances[index].gpu_instance == whole->id)
            slices += whole->gpu->instances[index].compute_slices;
    while (part_of(whole->gpu, whole->id, number))
        number++;
    if (!profile || slices > profile->info.slices || !instance_room(whole->gpu))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    char uuid[TEXT_MAX];
    unsigned char random[16] = {0};
    int source = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (source < 0 || read(source, random, sizeof random) != sizeof random)
        return NVML_ERROR_UNKNOWN;
    close(source);
    int used = snprintf(uuid, sizeof uuid, "MIG-");
    for (unsigned at = 0; at < sizeof random; at++)
        used += snprintf(uuid + used, sizeof uuid - (size_t)used, at == 4 || at == 6 || at == 8 || at == 10 ? "-%02x" : "%02x", random[at]);
    part_made(whole, number, SLICES[id - FIRST_ID], id, uuid);
    keep("ci %u %u %u %u %u %s\n", place_of(whole->gpu), whole->id, number, SLICES[id - FIRST_ID], id, uuid);
    *made = part_of(whole->gpu, whole->id, number);
    return control_late();
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(void *handle, nvmlComputeInstanceInfo_t *info)
{
    struct instance *part = machine_instance(handle);
    FAIL_AS_TOLD(part ? part->gpu : NULL);
    if (!part)
        return NVML_ERROR_INVALID_ARGUMENT;
    *info = (nvmlComputeInstanceInfo_t){part, gpu_instance_of(part->gpu, part->gpu_instance), part->compute_instance, part->profile, 0, part->compute_slices};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(void *handle, unsigned id, void **found, unsigned *count)
{
    struct gpu_instance *whole = machine_gpu_instance(handle);
    FAIL_AS_TOLD(whole ? whole->gpu : NULL);
    if (!whole || id < FIRST_ID || id >= FIRST_ID + PART_PROFILES)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    for (unsigned number = 0; number < INSTANCES_MAX; number++) {
        struct instance *each = &whole->gpu->instances[number];
        if (each->gpu && each->gpu_instance == whole->id && each->profile == id)
            found[(*count)++] = each;
    }
    return NVML_SUCCESS;
}

static bool has_process(const char *uuid)
{
    const char *path = getenv("KOORDRA_FAKE_NVML_CONTROL");
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[256], whose[TEXT_MAX];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file))
        found = sscanf(line, "process %95s", whose) == 1 && !strcasecmp(whose, uuid);
    if (file)
        fclose(file);
    return found;
}

nvmlReturn_t nvmlComputeInstanceDestroy(void *handle)
{
    struct instance *part = machine_instance(handle);
    FAIL_AS_TOLD(part ? part->gpu : NULL);
    if (!part)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (has_process(part->uuid))
        return NVML_ERROR_IN_USE;
    keep("ci-gone %u %u %u\n", place_of(part->gpu), part->gpu_instance, part->compute_instance);
    memset(part, 0, sizeof *part);
    return control_late();
}

/* Success with another status than NVML_SUCCESS has not switched: the mode is pending. */
nvmlReturn_t nvmlDeviceSetMigMode(void *device, unsigned mode, nvmlReturn_t *status)
{
    struct gpu *gpu = machine_gpu(device);
    FAIL_AS_TOLD(gpu);
    if (!gpu || mode > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!gpu->has_mig)
        return NVML_ERROR_NOT_SUPPORTED;
    bool used = has_process(gpu->uuid);
    for (unsigned number = 0; number < INSTANCES_MAX; number++)
        used |= gpu->gpu_instances[number].gpu != NULL;
    gpu->mig_pending = mode;
    *status = used ? NVML_ERROR_IN_USE : gpu->architecture <= AMPERE && gpu->mig_current != mode ? NVML_ERROR_RESET_REQUIRED : NVML_SUCCESS;
    if (*status == NVML_SUCCESS)
        gpu->mig_current = mode;
    keep("mode %u %u %u\n", place_of(gpu), gpu->mig_current, gpu->mig_pending);
    return control_late();
}
