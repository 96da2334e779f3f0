/* A made-up container for the hook: a bundle, a root, and what a runtime mounts, in a mount namespace of the test's own. */
#ifndef KOORDRA_TEST_IMAGE_H
#define KOORDRA_TEST_IMAGE_H

#include "../harness.h"

#if defined(__x86_64__) && !defined(KOORDRA_IMAGES_OF_ARM64)
#define MACHINE EM_X86_64
#define TRIPLET "x86_64-linux-gnu"
#define PLATFORM "x86_64"
#define LOADER "/lib64/ld-linux-x86-64.so.2"
#else
#define MACHINE EM_AARCH64
#define TRIPLET "aarch64-linux-gnu"
#define PLATFORM "aarch64"
#define LOADER "/lib/ld-linux-aarch64.so.1"
#endif
#define LIBRARIES "/usr/lib/" TRIPLET
#define LIMITER "/usr/lib/koordra/limiter"
#define COMPAT "/usr/local/cuda/compat"

/* An image of Debian's kind with a loader, in `folder`/rootfs. */
void image_begin(void);

/* Files of the image, made with the folders above them. Paths are the container's. */
void put(const char *path, const char *text);
void put_link(const char *path, const char *target);
void put_folder(const char *path);
void put_library(const char *path, const char *soname);
/* With a note of whom it supports; NULL: without. */
void put_compat(const char *version, const char *note);

/* What the runtime mounts: a library of the driver, the limiter's folder, a volume that is `folder`/<name>. */
void mount_library(const char *path, const char *soname);
void mount_limiter(void);
void mount_volume(const char *path, const char *name);

/* The path in the test's own names. */
const char *outside(const char *path);
/* The file's text; NULL: there is none. The next call but three overwrites it. */
const char *text_of(const char *path);
bool mounted_at(const char *path);

/* Runs the hook (of KOORDRA_OUT, by KOORDRA_EMULATOR where that is set) with these arguments behind "container --folder LIBRARIES --folder /usr/lib64"; its exit status, and what it said in `said`. */
extern char said[4096];
int run_hook(const char *arguments);
#define HOOK(arguments)                                  \
    do {                                                 \
        if (run_hook(arguments) != 0) {                  \
            fprintf(stderr, "%s", said);                 \
            CHECK(!"the hook succeeds");                 \
        }                                                \
    } while (0)

/* How often the cache lists the name for this machine's programs; and the path that it lists first ("" for none). */
unsigned listed(const char *name);
const char *listed_first(const char *name);

/* Instead of the bundle's config and state. */
extern const char *state_text, *config_text;
/* Another environment for the hook, and what is done in its process before it starts. */
extern char **hook_environment;
extern void (*before_hook)(void);
/* Done with its process when it has its state; and the most memory that it had, in KiB. */
extern void (*with_hook)(pid_t hook);
extern long hook_memory;

#endif
