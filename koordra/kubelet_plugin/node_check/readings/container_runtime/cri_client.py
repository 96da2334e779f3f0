"""What a container runtime says of itself over its CRI socket: name, version, and the configuration that it
runs with, which may be older than its files.

Two calls of runtime.v1 without arguments worth a generated module: Version, and Status with `verbose`, whose
`info` has containerd's configuration as JSON under `config`. Source: cri-api runtime/v1/api.proto.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

_SERVICE: Final = "/runtime.v1.RuntimeService"
SECONDS: Final = 5.0
_VERBOSE: Final = b"\x08\x01"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class RuntimeAnswer:
    name: str
    version: str
    config: Mapping[str, Any] = field(default_factory=dict)


def ask_runtime(socket: Path, *, seconds: float = SECONDS) -> RuntimeAnswer | None:
    """None where nobody answers in time, or not as a runtime does."""
    channel = grpc.insecure_channel(f"unix:{socket}", options=[("grpc.enable_http_proxy", 0)])
    try:
        version = dict(_fields(_call(channel, "Version", b"", seconds)))
        name, number = version.get(2), version.get(3)
        if not isinstance(name, bytes) or not isinstance(number, bytes):
            return None
        return RuntimeAnswer(
            name=name.decode(errors="replace"),
            version=number.decode(errors="replace").removeprefix("v"),
            config=_config(_call(channel, "Status", _VERBOSE, seconds)),
        )
    except (grpc.RpcError, ValueError):
        return None
    finally:
        channel.close()


def _call(channel: grpc.Channel, method: str, request: bytes, seconds: float) -> bytes:
    call = channel.unary_unary(f"{_SERVICE}/{method}")
    return bytes(call(request, timeout=seconds))


def _config(status: bytes) -> Mapping[str, Any]:
    """The entry `config` of StatusResponse.info (field 2, a map); empty for a runtime that has none."""
    for number, entry in _fields(status):
        if number == 2 and isinstance(entry, bytes):
            pair = dict(_fields(entry))
            if pair.get(1) == b"config" and isinstance(text := pair.get(2), bytes):
                try:
                    found = json.loads(text)
                except (ValueError, RecursionError):
                    return {}
                return found if isinstance(found, dict) else {}
    return {}


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field on the wire. Raises ValueError for bytes that are no message."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + length > len(message):
            raise ValueError("a field ends after the message")
        yield tag >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("a number ends after the message")
