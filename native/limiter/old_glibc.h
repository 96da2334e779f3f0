/* Binds to the oldest version of the functions that glibc has moved since, so that the library loads on glibc 2.17. */
#ifndef KOORDRA_OLD_GLIBC_H
#define KOORDRA_OLD_GLIBC_H

#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#endif

#ifdef __GLIBC__
__asm__(".symver pthread_mutex_trylock, pthread_mutex_trylock@" OLDEST);
#ifndef KOORDRA_PRELOAD
__asm__(".symver dlsym, dlsym@" OLDEST);
#endif
#endif

#endif
