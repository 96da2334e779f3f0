/* What other limiters get wrong, for tests that must fail on it. In the library that is shipped every DEFECT is the constant 0;
 * only the build for native/test (-DKOORDRA_DEFECTS) asks the environment which one is switched on. */
#ifndef KOORDRA_DEFECT_H
#define KOORDRA_DEFECT_H

#ifdef KOORDRA_DEFECTS
#include <stdlib.h>
#include <string.h>

static inline int defect_is_on(const char *name)
{
    const char *chosen = getenv("KOORDRA_DEFECT");
    return chosen && strcmp(chosen, name) == 0;
}
#define DEFECT(name) defect_is_on(#name)
#else
#define DEFECT(name) 0
#endif

#endif
