/* A program that finds the driver in one of the ways that programs do, with the limiter preloaded. */
#include <dlfcn.h>

#include "../harness.h"

typedef CUresult (*allocate)(CUdeviceptr *, size_t);

static allocate find(const char *way)
{
    if (strcmp(way, "linked") == 0)
        return cuMemAlloc_v2;
    if (strcmp(way, "next") == 0)
        return (allocate)dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(handle);
    if (strcmp(way, "opened") == 0)
        return (allocate)dlsym(handle, "cuMemAlloc_v2");
    void *function = NULL;
    int status = 9;
    CUresult (*ask)(const char *, void **, int, uint64_t, int *) = (CUresult(*)(const char *, void **, int, uint64_t, int *))dlsym(handle, "cuGetProcAddress_v2");
    OK(ask("cuMemAlloc", &function, 12000, 0, &status));
    CHECK_EQUAL(status, 0);
    return (allocate)function;
}

int main(int count, char **arguments)
{
    CUdeviceptr pointer;
    snprintf(folder, sizeof folder, "%s", getenv("KOORDRA_TEST_FOLDER"));
    CHECK(count == 2);
    /* What is not the driver's is found as ever, also what depends on who asks. */
    CHECK(dlsym(RTLD_DEFAULT, "getpid") == (void *)getpid && dlsym(RTLD_NEXT, "malloc"));
    CHECK(dlsym(RTLD_DEFAULT, "no_such_thing") == NULL);
    begin(.limit = GIB);
    allocate found = find(arguments[1]);
    CHECK(found);
    CHECK_EQUAL(found(&pointer, 2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(found(&pointer, GIB));
    check_books();
    return 0;
}
