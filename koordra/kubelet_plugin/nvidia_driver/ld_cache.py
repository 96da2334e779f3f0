"""Reading an ld.so.cache: which file a loader takes for a library's name.

Source: glibc elf/cache.c and sysdeps/generic/dl-cache.h. The format of glibc 2.32 and later starts with the
magic; before that an old table comes first, and offsets count from the new header all the same.
"""

from __future__ import annotations

import struct
from typing import Final

_MAGIC: Final = b"glibc-ld.so.cache1.1"
_HEADER: Final = 48
_ENTRY: Final = struct.Struct("=iIIIQ")
_WORD_SIZE_64: Final = frozenset({0x0300, 0x0A00})
"""Architecture bits of an entry's flags: x86-64 and AArch64; other words of an x86-64 cache are 32-bit
libraries."""


def cached_libraries(cache: bytes) -> list[tuple[str, str]]:
    """(soname, path) of the 64-bit libraries in an ld.so.cache; nothing for bytes that are not one."""
    start = cache.find(_MAGIC)
    if start < 0 or len(cache) < start + _HEADER:
        return []
    body = cache[start:]
    count = struct.unpack_from("=I", body, len(_MAGIC))[0]
    found = []
    for index in range(min(count, (len(body) - _HEADER) // _ENTRY.size)):
        flags, key, value, _, _ = _ENTRY.unpack_from(body, _HEADER + index * _ENTRY.size)
        name, path = _string(body, key), _string(body, value)
        if flags & 0xFF00 in _WORD_SIZE_64 and name and path.startswith("/"):
            found.append((name, path))
    return found


def _string(body: bytes, offset: int) -> str:
    end = body.find(b"\0", offset)
    return body[offset:end].decode(errors="replace") if 0 < offset < end else ""
