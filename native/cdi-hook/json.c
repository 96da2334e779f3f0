#include "json.h"

#include <string.h>

enum { DEEPEST = 64 };

static const char *after_space(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
        at++;
    return at;
}

/* Behind the string that starts at `at`; NULL: it is none. */
static const char *after_string(const char *at, const char *end)
{
    if (at >= end || *at != '"')
        return NULL;
    for (at++; at < end; at++) {
        if (*at == '"')
            return at + 1;
        if ((unsigned char)*at < 0x20)
            return NULL;
        if (*at == '\\')
            at++;
    }
    return NULL;
}

static const char *after_word(const char *at, const char *end)
{
    const char *start = at;
    while (at < end && *at && strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzE", *at))
        at++;
    return at > start ? at : NULL;
}

/* Behind the value that starts at `at`, without recursion; NULL: it is none. */
static const char *after_value(const char *at, const char *end)
{
    char open[DEEPEST];
    unsigned depth = 0;
    for (;;) {
        at = after_space(at, end);
        if (at >= end)
            return NULL;
        if (*at == '{' || *at == '[') {
            char closing = *at == '{' ? '}' : ']';
            at = after_space(at + 1, end);
            if (at < end && *at == closing) {
                at++;
            } else {
                if (depth == DEEPEST)
                    return NULL;
                open[depth++] = closing;
                if (closing == ']')
                    continue;
                goto name;
            }
        } else {
            at = *at == '"' ? after_string(at, end) : after_word(at, end);
            if (!at)
                return NULL;
        }
        for (;;) { /* behind a value */
            if (depth == 0)
                return at;
            at = after_space(at, end);
            if (at >= end)
                return NULL;
            if (*at == open[depth - 1]) {
                at++;
                depth--;
                continue;
            }
            if (*at++ != ',')
                return NULL;
            break;
        }
        if (open[depth - 1] == ']')
            continue;
    name:
        at = after_string(after_space(at, end), end);
        if (!at)
            return NULL;
        at = after_space(at, end);
        if (at >= end || *at++ != ':')
            return NULL;
    }
}

struct json json_document(const char *text, size_t length)
{
    const char *end = text + length, *start = after_space(text, end);
    const char *behind = after_value(start, end);
    if (!behind || after_space(behind, end) != end)
        return (struct json){NULL, NULL};
    return (struct json){start, end};
}

struct json json_member(struct json object, const char *name)
{
    struct json found = {NULL, NULL};
    if (!object.at || *object.at != '{')
        return found;
    const char *at = after_space(object.at + 1, object.end);
    while (at < object.end && *at == '"') {
        char text[64];
        struct json key = {at, object.end};
        at = after_space(after_string(at, object.end), object.end) + 1; /* the document was found right: a colon */
        at = after_space(at, object.end);
        if (json_text(key, text, sizeof text) && strcmp(text, name) == 0)
            found = (struct json){at, object.end};
        at = after_space(after_value(at, object.end), object.end);
        if (at < object.end && *at == ',')
            at = after_space(at + 1, object.end);
    }
    return found;
}

struct json json_first(struct json array)
{
    if (!array.at || *array.at != '[')
        return (struct json){NULL, NULL};
    const char *at = after_space(array.at + 1, array.end);
    return at < array.end && *at != ']' ? (struct json){at, array.end} : (struct json){NULL, NULL};
}

struct json json_next(struct json element)
{
    const char *at = after_space(after_value(element.at, element.end), element.end);
    if (at >= element.end || *at != ',')
        return (struct json){NULL, NULL};
    return (struct json){after_space(at + 1, element.end), element.end};
}

static int hexadecimal(const char *at, const char *end, unsigned *code)
{
    *code = 0;
    for (int digit = 0; digit < 4; digit++, at++) {
        const char *digits = "0123456789abcdef0123456789ABCDEF", *found = at < end && *at ? strchr(digits, *at) : NULL;
        if (!found)
            return 0;
        *code = *code * 16 + (unsigned)(found - digits) % 16;
    }
    return 1;
}

static size_t utf8(unsigned code, char bytes[4])
{
    if (code < 0x80) {
        bytes[0] = (char)code;
        return 1;
    }
    size_t count = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t at = count; at-- > 1; code >>= 6)
        bytes[at] = (char)(0x80 | (code & 0x3f));
    bytes[0] = (char)((0xf00 >> count) | code);
    return count;
}

bool json_text(struct json value, char *text, size_t size)
{
    if (!value.at || *value.at != '"')
        return false;
    const char *end = after_string(value.at, value.end);
    size_t length = 0;
    if (!end)
        return false;
    end--; /* the quote */
    for (const char *at = value.at + 1; at < end;) {
        char bytes[4] = {*at++};
        size_t count = 1;
        if (bytes[0] == '\\') {
            static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
            const char *found = strchr(escapes, *at);
            unsigned code = 0, low = 0;
            if (*at == 'u' && hexadecimal(at + 1, end, &code)) {
                at += 5;
                if (code >= 0xd800 && code < 0xdc00 && end - at >= 6 && at[0] == '\\' && at[1] == 'u' && hexadecimal(at + 2, end, &low) &&
                    low >= 0xdc00 && low < 0xe000) {
                    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                    at += 6;
                }
                count = utf8(code, bytes);
            } else if (found && *found) {
                bytes[0] = meant[found - escapes];
                at++;
            } else {
                return false;
            }
        }
        if (length + count >= size || bytes[0] == 0)
            return false;
        memcpy(text + length, bytes, count);
        length += count;
    }
    if (length >= size)
        return false;
    text[length] = 0;
    return true;
}

bool json_number(struct json value, unsigned long *number)
{
    const char *at = value.at;
    *number = 0;
    if (!at || *at < '0' || *at > '9')
        return false;
    for (; at < value.end && *at >= '0' && *at <= '9'; at++) {
        if (*number > 100000000)
            return false;
        *number = *number * 10 + (unsigned long)(*at - '0');
    }
    return at >= value.end || !strchr(".eE+-", *at);
}
