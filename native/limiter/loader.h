/* The loader's own functions, where this library has some of the same name in front of them. */
#ifndef KOORDRA_LOADER_H
#define KOORDRA_LOADER_H

/* dlopen, dlmopen, dlsym, dlvsym of the C library that this process has; NULL: there is none of that name. */
void *loader_function(const char *name);

#endif
