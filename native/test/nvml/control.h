/* What is made to go wrong, read anew from the control file at every call. */
#ifndef KOORDRA_NVML_CONTROL_H
#define KOORDRA_NVML_CONTROL_H

#include "machine.h"

/* The error that this call answers for this GPU (NULL: not about a GPU); NVML_SUCCESS where it goes well. */
nvmlReturn_t control_error(const char *call, const struct gpu *gpu);

/* What a call answers that did what it was asked for. */
nvmlReturn_t control_late(void);

struct state {
    unsigned percent, milliwatts;
    unsigned long long reasons, bytes;
};

/* How the control file says that the GPU is; false where it says nothing. */
bool control_state(const struct gpu *gpu, struct state *state);

/* The n-th Xid of the control file, counted from 0; false where there are not so many yet. */
bool control_xid(unsigned number, char bus_id[32], unsigned long long *xid);

/* Answers from the caller's function where the control file, or the lack of nvmlInit, says so. */
#define FAIL_AS_TOLD(gpu)                                           \
    do {                                                            \
        nvmlReturn_t told = control_error(__func__, (gpu));         \
        if (told != NVML_SUCCESS)                                   \
            return told;                                            \
    } while (0)

#endif
