/* Reading the description: one fact a line, every fact belonging to the last "gpu" line before it.
 *
 *   driver 550.54.15
 *   cuda 12040
 *   gpu 00000000:0F:00.0
 *   uuid GPU-...                 minor 0                   name NVIDIA H100 80GB HBM3
 *   memory 85520809984           architecture 9            compute 9 0
 *   mig 1 1                      current and pending mode
 *   profile 0 19 1g.10gb 9984 1 7 1 1 0 1 0     number, id, name, MiB, slices, most, engines: copy dec enc jpeg ofa, and
 *                              multiprocessors (may be left out)
 *   placement 0 1                of the last profile: start, size
 *   instance 7 0 19 4 1 1 MIG-.. GPU instance, compute instance, profile, start, size, compute slices, UUID
 *   link 0 switch 00000000:1A:00.0     link number, what it leads to (switch | gpu), where
 *   peer 00000000:2D:00.0        a GPU with peer access
 *   fabric 00112233-... 1 3 0    cluster, clique, state (3 is completed), health mask (may be left out)
 *   cores 16896                  CUDA cores of the card
 *   reserved 578813952           of the memory, what the driver keeps for itself
 *   fields 230 0 144 1           number and value of each of NVML's fields that the GPU has
 */
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void text_copy(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from);
}

static int read_cluster(const char *text, unsigned char cluster[16])
{
    unsigned count = 0;
    for (; *text && count < 16; text++) {
        unsigned byte;
        if (*text == '-')
            continue;
        if (sscanf(text, "%2x", &byte) != 1)
            return -1;
        cluster[count++] = (unsigned char)byte;
        text++;
    }
    return count == 16 ? 0 : -1;
}

static int read_gpu(struct machine *machine, const char *rest)
{
    if (machine->gpu_count == GPUS_MAX)
        return -1;
    struct gpu *gpu = &machine->gpus[machine->gpu_count];
    memset(gpu, 0, sizeof *gpu);
    if (sscanf(rest, "%x:%x:%x.%x", &gpu->domain, &gpu->bus, &gpu->device, &gpu->function) != 4)
        return -1;
    text_copy(gpu->bus_id, sizeof gpu->bus_id, rest);
    machine->gpu_count++;
    return 0;
}

static int read_profile(struct gpu *gpu, const char *rest)
{
    unsigned number;
    char name[32];
    nvmlGpuInstanceProfileInfo_v2_t info = {0};
    if (sscanf(rest, "%u %u %31s %llu %u %u %u %u %u %u %u %u", &number, &info.id, name, &info.memory_mib, &info.slices,
               &info.instances, &info.copy_engines, &info.decoders, &info.encoders, &info.jpeg_engines,
               &info.ofa_engines, &info.multiprocessors) < 11 ||
        number >= PROFILES_MAX)
        return -1;
    snprintf(info.name, sizeof info.name, "MIG %s", name);
    info.version = number; /* where it stands in the list; replaced by the caller's version when it is asked for */
    gpu->profiles[gpu->profile_count] = (struct profile){.info = info};
    gpu->profile_count++;
    return 0;
}

static int read_placement(struct gpu *gpu, const char *rest)
{
    if (!gpu->profile_count)
        return -1;
    struct profile *profile = &gpu->profiles[gpu->profile_count - 1];
    if (profile->placement_count == PLACEMENTS_MAX)
        return -1;
    nvmlGpuInstancePlacement_t *place = &profile->placements[profile->placement_count++];
    return sscanf(rest, "%u %u", &place->start, &place->size) == 2 ? 0 : -1;
}

struct gpu_instance *gpu_instance_of(struct gpu *gpu, unsigned id)
{
    for (unsigned number = 0; number < INSTANCES_MAX; number++)
        if (gpu->gpu_instances[number].gpu && gpu->gpu_instances[number].id == id)
            return &gpu->gpu_instances[number];
    return NULL;
}

struct gpu_instance *gpu_instance_room(struct gpu *gpu)
{
    for (unsigned number = 0; number < INSTANCES_MAX; number++)
        if (!gpu->gpu_instances[number].gpu)
            return &gpu->gpu_instances[number];
    return NULL;
}

struct instance *instance_room(struct gpu *gpu)
{
    for (unsigned number = 0; number < INSTANCES_MAX; number++)
        if (!gpu->instances[number].gpu)
            return &gpu->instances[number];
    return NULL;
}

static int read_instance(struct gpu *gpu, const char *rest)
{
    struct instance *made = instance_room(gpu);
    if (!made || sscanf(rest, "%u %u %u %u %u %u %95s", &made->gpu_instance, &made->compute_instance, &made->profile_id,
                        &made->start, &made->size, &made->compute_slices, made->uuid) != 7)
        return -1;
    made->gpu = gpu;
    struct gpu_instance *whole = gpu_instance_of(gpu, made->gpu_instance);
    if (!whole && (whole = gpu_instance_room(gpu)))
        *whole = (struct gpu_instance){gpu, made->gpu_instance, made->profile_id, made->start, made->size};
    return whole ? 0 : -1;
}

static int read_link(struct gpu *gpu, const char *rest)
{
    unsigned number;
    char kind[8], peer[32];
    if (sscanf(rest, "%u %7s %31s", &number, kind, peer) != 3 || number >= NVLINK_MAX)
        return -1;
    struct link *made = &gpu->links[number];
    made->active = true;
    made->to_switch = strcmp(kind, "switch") == 0;
    text_copy(made->peer, sizeof made->peer, peer);
    gpu->has_links = true;
    return 0;
}

static int read_fabric(struct gpu *gpu, const char *rest)
{
    char cluster[40];
    if (sscanf(rest, "%39s %u %u %u", cluster, &gpu->clique, &gpu->fabric_state, &gpu->fabric_health) < 3)
        return -1;
    gpu->has_fabric = true;
    return read_cluster(cluster, gpu->cluster);
}

static int read_fields(struct gpu *gpu, const char *rest)
{
    int used;
    struct field field;
    for (; sscanf(rest, "%u %llu%n", &field.number, &field.value, &used) == 2; rest += used) {
        if (gpu->field_count == FIELDS_MAX)
            return -1;
        gpu->fields[gpu->field_count++] = field;
    }
    return *rest ? -1 : 0;
}

static int read_gpu_fact(struct gpu *gpu, const char *word, const char *rest)
{
    if (!strcmp(word, "uuid"))
        return text_copy(gpu->uuid, sizeof gpu->uuid, rest), 0;
    if (!strcmp(word, "name"))
        return text_copy(gpu->name, sizeof gpu->name, rest), 0;
    if (!strcmp(word, "minor"))
        return gpu->has_minor = true, sscanf(rest, "%u", &gpu->minor) == 1 ? 0 : -1;
    if (!strcmp(word, "memory"))
        return sscanf(rest, "%llu", &gpu->memory) == 1 ? 0 : -1;
    if (!strcmp(word, "architecture"))
        return sscanf(rest, "%u", &gpu->architecture) == 1 ? 0 : -1;
    if (!strcmp(word, "compute"))
        return sscanf(rest, "%u %u", &gpu->major_capability, &gpu->minor_capability) == 2 ? 0 : -1;
    if (!strcmp(word, "mig"))
        return gpu->has_mig = true, sscanf(rest, "%u %u", &gpu->mig_current, &gpu->mig_pending) == 2 ? 0 : -1;
    if (!strcmp(word, "profile"))
        return gpu->profile_count < PROFILES_MAX ? read_profile(gpu, rest) : -1;
    if (!strcmp(word, "placement"))
        return read_placement(gpu, rest);
    if (!strcmp(word, "instance"))
        return read_instance(gpu, rest);
    if (!strcmp(word, "link"))
        return read_link(gpu, rest);
    if (!strcmp(word, "fabric"))
        return read_fabric(gpu, rest);
    if (!strcmp(word, "cores"))
        return sscanf(rest, "%u", &gpu->cores) == 1 ? 0 : -1;
    if (!strcmp(word, "reserved"))
        return sscanf(rest, "%llu", &gpu->reserved) == 1 ? 0 : -1;
    if (!strcmp(word, "fields"))
        return read_fields(gpu, rest);
    if (!strcmp(word, "peer") && gpu->peer_count < PEERS_MAX)
        return text_copy(gpu->peers[gpu->peer_count++], sizeof gpu->peers[0], rest), 0;
    return -1;
}

static int read_line(struct machine *machine, char *line)
{
    line[strcspn(line, "\n")] = '\0';
    char *rest = line + strcspn(line, " ");
    if (*rest)
        *rest++ = '\0';
    if (!*line || *line == '#')
        return 0;
    if (!strcmp(line, "driver"))
        return text_copy(machine->driver, sizeof machine->driver, rest), 0;
    if (!strcmp(line, "cuda"))
        return sscanf(rest, "%d", &machine->cuda) == 1 ? 0 : -1;
    if (!strcmp(line, "gpu"))
        return read_gpu(machine, rest);
    return machine->gpu_count ? read_gpu_fact(&machine->gpus[machine->gpu_count - 1], line, rest) : -1;
}

int machine_load(struct machine *machine)
{
    const char *path = getenv("KOORDRA_FAKE_NVML_MACHINE");
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[512];
    int result = 0;
    if (!file)
        return -1;
    memset(machine, 0, sizeof *machine);
    for (unsigned number = 1; !result && fgets(line, sizeof line, file); number++) {
        result = read_line(machine, line);
        if (result)
            fprintf(stderr, "fake libnvidia-ml: %s:%u: not understood: %s\n", path, number, line);
    }
    fclose(file);
    return result;
}
