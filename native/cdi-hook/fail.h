/* The one way in which this program ends without success: a line on stderr, which the runtime shows in the pod's events. */
#ifndef KOORDRA_HOOK_FAIL_H
#define KOORDRA_HOOK_FAIL_H

/* "koordra-cdi-hook: <the text>", control characters replaced (names are the image's), then exit status 1. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same line, and the program goes on. */
void warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
