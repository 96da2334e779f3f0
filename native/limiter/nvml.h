/* What the two halves of the NVML in front share: who a device is to this container (nvml.c), whose its processes are
 * (nvml_processes.c). */
#ifndef KOORDRA_NVML_H
#define KOORDRA_NVML_H

#include "ledger.h"

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;

enum { NVML_SUCCESS = 0, NVML_ERROR_LIBRARY_NOT_FOUND = 12, NVML_ERROR_FUNCTION_NOT_FOUND = 13 };

/* The real function; one that answers with an error where there is none. */
void *nvml_real(const char *name);

/* The claims' shares of the device; none: the container may see it as it is. */
struct allowance nvml_shares(nvmlDevice_t device);

#endif
