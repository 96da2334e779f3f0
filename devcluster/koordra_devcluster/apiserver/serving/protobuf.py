"""Bodies in Kubernetes' own protobuf encoding, as far as kubectl sends them: `create namespace`, `create
serviceaccount`, `create token`, `drain` (Eviction, DeleteOptions).

    k8s\\0 | runtime.Unknown{1: TypeMeta{1: apiVersion, 2: kind}, 2: raw object}

Of the object only metadata and deletion options are read; kinds whose other fields matter are refused, since
everything else that kubectl does with objects of its own goes out as JSON. Field numbers: k8s.io/apimachinery
pkg/apis/meta/v1/generated.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from koordra.api.objects import Object
from koordra_devcluster.apiserver.status import Refusal, bad_request

CONTENT_TYPE: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_ONLY_METADATA: Final = frozenset({"Namespace", "ServiceAccount"})

Field = tuple[int, int | bytes]
"""(number, value): an integer for varints, bytes for everything with a length."""


def decode(body: bytes) -> Object:
    """The object of a body. Raises Refusal 400 for broken bytes and 415 for kinds that are not understood."""
    if not body.startswith(_MAGIC):
        raise bad_request(
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
        )
    try:
        unknown = dict(_fields(body[len(_MAGIC) :]))
        type_meta = dict(_fields(_bytes(unknown.get(1, b""))))
        kind, raw = _text(type_meta.get(2, b"")), _bytes(unknown.get(2, b""))
        obj: Object = {"apiVersion": _text(type_meta.get(1, b"")), "kind": kind}
        if kind in _ONLY_METADATA:
            return obj | {"metadata": _metadata(dict(_fields(raw)).get(1, b""))}
        if kind == "Eviction":
            parts = dict(_fields(raw))
            options = _deletion_options(_bytes(parts.get(2, b"")))
            return obj | {"metadata": _metadata(parts.get(1, b"")), "deleteOptions": options}
        if kind == "TokenRequest":
            return obj | {"spec": _token_request(_bytes(dict(_fields(raw)).get(2, b"")))}
        if kind == "DeleteOptions":
            return obj | _deletion_options(raw)
    except (IndexError, TypeError, UnicodeDecodeError) as error:
        raise bad_request(f"error decoding protobuf: {error}") from error
    raise Refusal(
        415, "UnsupportedMediaType", f"the development cluster takes {kind} as application/json only"
    )


def _metadata(encoded: int | bytes) -> Object:
    names = {1: "name", 2: "generateName", 3: "namespace"}
    maps = {11: "labels", 12: "annotations"}
    found: dict[str, Any] = {}
    for number, value in _fields(_bytes(encoded)):
        if number in names and value:
            found[names[number]] = _text(value)
        elif number in maps:
            entry = dict(_fields(_bytes(value)))
            found.setdefault(maps[number], {})[_text(entry.get(1, b""))] = _text(entry.get(2, b""))
    return found


def _token_request(encoded: bytes) -> Object:
    """Lifetime and binding; audiences do not matter here."""
    found: Object = {}
    for number, value in _fields(encoded):
        if number == 4:
            found["expirationSeconds"] = value
        elif number == 3 and (parts := dict(_fields(_bytes(value)))):
            names = {1: "kind", 2: "apiVersion", 3: "name", 4: "uid"}
            found["boundObjectRef"] = {names[one]: _text(part) for one, part in parts.items() if one in names}
    return found


def _deletion_options(encoded: bytes) -> Object:
    found: Object = {}
    for number, value in _fields(encoded):
        if number == 1:
            found["gracePeriodSeconds"] = value
        elif number == 2:
            preconditions = dict(_fields(_bytes(value)))
            found["preconditions"] = {
                name: _text(preconditions[one])
                for one, name in ((1, "uid"), (2, "resourceVersion"))
                if one in preconditions
            }
        elif number == 4:
            found["propagationPolicy"] = _text(value)
        elif number == 5:
            found.setdefault("dryRun", []).append(_text(value))
    return found


def _fields(data: bytes) -> Iterator[Field]:
    """The fields of a message in order. Raises IndexError when it is cut off."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value - (1 << 64) if value >> 63 else value
        elif wire == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise IndexError("message is cut off")
            yield key >> 3, data[at : at + length]
            at += length
        else:
            at += 8 if wire == 1 else 4


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise TypeError("a number where a message is expected")
    return value


def _text(value: int | bytes) -> str:
    return _bytes(value).decode()
