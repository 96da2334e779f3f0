#include "fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

static void say(const char *format, va_list arguments)
{
    static const char prefix[] = "koordra-cdi-hook: ";
    char text[1024];
    int length = snprintf(text, sizeof text, "%s", prefix);
    length += vsnprintf(text + length, sizeof text - (size_t)length - 1, format, arguments);
    if (length > (int)sizeof text - 2)
        length = (int)sizeof text - 2;
    for (int at = 0; at < length; at++)
        if ((unsigned char)text[at] < 0x20 || text[at] == 0x7f)
            text[at] = '?';
    text[length++] = '\n';
    if (write(STDERR_FILENO, text, (size_t)length) < 0)
        return; /* nobody listens */
}

_Noreturn void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    _exit(1);
}

void warn(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
}
