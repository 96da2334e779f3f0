/* The machine that the library pretends to see. */
#ifndef KOORDRA_NVML_MACHINE_H
#define KOORDRA_NVML_MACHINE_H

#include <stdbool.h>

#include "abi.h"

enum { GPUS_MAX = 32, PROFILES_MAX = 18, PLACEMENTS_MAX = 32, INSTANCES_MAX = 16, PEERS_MAX = 64, FIELDS_MAX = 16, TEXT_MAX = 96 };

struct link {
    bool active, to_switch;
    char peer[32];
};

/* One value of nvmlDeviceGetFieldValues. */
struct field {
    unsigned number;
    unsigned long long value;
};

struct profile {
    nvmlGpuInstanceProfileInfo_v2_t info;
    unsigned placement_count;
    nvmlGpuInstancePlacement_t placements[PLACEMENTS_MAX];
};

/* One GPU instance, with compute instances or without; a place of the array that has none has no GPU. */
struct gpu_instance {
    struct gpu *gpu;
    unsigned id, profile_id, start, size;
};

/* One compute instance, which is what a MIG device is: its address is the handle of both. A place of the array that has
 * none has no GPU. `profile` is NVML's id of it. */
struct instance {
    struct gpu *gpu;
    unsigned gpu_instance, compute_instance, profile_id, start, size, compute_slices, profile;
    char uuid[TEXT_MAX];
};

struct gpu {
    unsigned domain, bus, device, function;
    char bus_id[32], uuid[TEXT_MAX], name[TEXT_MAX];
    unsigned minor, architecture, major_capability, minor_capability;
    unsigned long long memory, reserved;
    unsigned cores;
    bool has_minor, has_mig, has_fabric;
    unsigned mig_current, mig_pending;
    struct link links[NVLINK_MAX];
    bool has_links;
    unsigned profile_count, peer_count;
    struct profile profiles[PROFILES_MAX];
    struct instance instances[INSTANCES_MAX];
    struct gpu_instance gpu_instances[INSTANCES_MAX];
    char peers[PEERS_MAX][32];
    unsigned char cluster[16];
    unsigned clique, fabric_state, fabric_health;
    unsigned field_count;
    struct field fields[FIELDS_MAX];
};

struct machine {
    char driver[TEXT_MAX];
    int cuda;
    unsigned gpu_count;
    struct gpu gpus[GPUS_MAX];
};

/* Reads the description; 0, or -1 where it is missing or a line is wrong (which is told on stderr). */
int machine_load(struct machine *machine);

/* The machine between init and shutdown, NULL otherwise. */
struct machine *machine_now(void);

/* GPU of a handle; NULL for a handle of a MIG device and for anything else. */
struct gpu *machine_gpu(const void *handle);

/* MIG device of a handle; NULL for anything else. */
struct instance *machine_instance(const void *handle);

/* GPU instance of a handle; NULL for anything else. */
struct gpu_instance *machine_gpu_instance(const void *handle);

/* The GPU instance with this id, NULL where there is none. */
struct gpu_instance *gpu_instance_of(struct gpu *gpu, unsigned id);

const struct profile *profile_of(const struct gpu *gpu, unsigned id);

/* A place for one more, NULL where all are taken. */
struct gpu_instance *gpu_instance_room(struct gpu *gpu);
struct instance *instance_room(struct gpu *gpu);

/* What MIG calls changed in earlier processes (instances.c). */
void instances_load(struct machine *machine);

/* The card's mode as it is now: a reset is another process's. */
void instances_mode(struct gpu *gpu);

#endif
