"""What the API server and its clients send each other: JSON documents, watches of one document a line, and
the Status that says no, as an error of errors.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import urllib3

from koordra import nesting
from koordra.api.objects import Fields, Object
from koordra.errors import ApiError, ApiUnreachable, Conflict, Forbidden, Gone, Invalid, NotFound
from koordra.logs import get_logger
from koordra.process.progress import resting

log = get_logger(__name__)

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
_VALUE: Final = re.compile(r"(Invalid value: )[\[{&].*[\]}]", re.DOTALL)

_ERRORS: Final[Mapping[int, type[ApiError]]] = {
    **dict.fromkeys((400, 413, 415, 422), Invalid),
    **dict.fromkeys((401, 403), Forbidden),
    404: NotFound,
    409: Conflict,
    410: Gone,
}


def encoded(body: Any) -> bytes:
    return _ENCODER.encode(body).encode()


def lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Watch events are one JSON document a line; chunks of the stream end anywhere."""
    rest, chunks = b"", response.stream(amt=65536, decode_content=True)
    while True:
        with resting():  # nothing may happen for long
            chunk = next(chunks, None)
        if chunk is None:
            return
        rest += chunk
        *whole, rest = rest.split(b"\n")
        yield from (line for line in whole if line.strip())


def retry_after(response: urllib3.BaseHTTPResponse) -> float:
    """Seconds; 0 where the server does not say, or names a date, as Kubernetes' never does."""
    said = response.headers.get("Retry-After", "")
    return float(said) if said.isascii() and said.isdigit() else 0.0


def decode(data: bytes) -> Object:
    try:
        document, is_cut = nesting.decoded(data)
    except ValueError as error:
        raise ApiUnreachable(f"the server's answer ({len(data)} bytes) is not JSON") from error
    if not isinstance(document, dict):
        raise ApiUnreachable(f"the server's answer ({len(data)} bytes) is not an object")
    if is_cut:
        log.warning("answer_nested_too_deeply", kind=document.get("kind"), levels=nesting.LEVELS)
    return document


def decode_status(data: bytes) -> Object:
    """The Status of an error; a proxy in between may have answered with plain text instead."""
    try:
        return decode(data)
    except ApiUnreachable:
        return {"message": data[:300].decode(errors="replace").strip()}


def status_error(code: int, status: Fields) -> ApiError:
    message, error = message_of(status), _ERRORS.get(code, ApiUnreachable)
    causes = causes_of(status)
    if code == 429:  # which disruption budget refuses an eviction, and why
        message = " ".join([message, *(str(cause.get("message")) for cause in causes)])
    if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        error = NotFound  # a 403, but nothing will ever be made there again
    return error(message, code=code, reason=str(status.get("reason", "")))


def causes_of(status: Fields) -> Sequence[Fields]:
    """Empty where a proxy's answer has another shape."""
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, Mapping) else None
    return [cause for cause in causes if isinstance(cause, Mapping)] if isinstance(causes, list) else []


def message_of(status: Fields) -> str:
    """The server repeats a whole value that it refuses (`Invalid value: {...}: field is immutable`); messages
    end in logs."""
    return _VALUE.sub(r"\1{...}", str(status.get("message") or "the API server gave no message"))
