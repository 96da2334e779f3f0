/* Reads single values out of JSON that others wrote: no tree, no recursion of the caller's depth, nothing kept. */
#ifndef KOORDRA_HOOK_JSON_H
#define KOORDRA_HOOK_JSON_H

#include <stdbool.h>
#include <stddef.h>

/* A value: where it starts in its document, and the document's end. `at` NULL: there is none. */
struct json {
    const char *at, *end;
};

/* The document itself; one that is not whole and right (or nested more than 64 deep) has no values. */
struct json json_document(const char *text, size_t length);

/* The last member of that name of an object (as Go reads repeated names). */
struct json json_member(struct json object, const char *name);

/* The first element of an array; the one after an element. */
struct json json_first(struct json array);
struct json json_next(struct json element);

/* A string, its escapes resolved, with a NUL at the end; false: not a string, or it has a NUL, or does not fit. */
bool json_text(struct json value, char *text, size_t size);

/* A whole number that is not negative; false: another value. */
bool json_number(struct json value, unsigned long *number);

#endif
