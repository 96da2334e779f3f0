"""URLs in CEL, read as Go reads them, which is how Kubernetes does.

    url("https://h/p?q=1")  getScheme, getHost, getHostname, getPort, getEscapedPath, getQuery

A URL is absolute, or a path from the root. What cannot be read is a ValueError: a run-time error in
Kubernetes.

Source: k8s.io/apiserver/pkg/cel/library/urls.go, Go's net/url.
"""

from __future__ import annotations

import ipaddress
import json
import re
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

_UNRESERVED: Final = "A-Za-z0-9\\-._~"
_IN_HOST: Final = re.compile(rf"[{_UNRESERVED}!$&'()*+,;=:\[\]<>\"]")
_IN_PATH: Final = re.compile(rf"[{_UNRESERVED}$&+,/:;=@]")
_KEPT_IN_PATH: Final = re.compile(rf"(?:[{_UNRESERVED}!$&'()*+,;=:@\[\]/]|%)*")
_IN_USER: Final = re.compile(rf"[{_UNRESERVED}$&+,;=]")
_IN_FRAGMENT: Final = re.compile(rf"[{_UNRESERVED}$&+,/:;=?@!()*]")
_KEPT_IN_FRAGMENT: Final = re.compile(rf"(?:[{_UNRESERVED}!$&'()*+,;=:@\[\]/?]|%)*")
_USERINFO: Final = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
_PORT: Final = re.compile(r"(?::[0-9]*)?", re.ASCII)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+\-.]*:", re.ASCII)


class Url(NamedTuple):
    """The parts as they are read out. `opaque`: there is a scheme and no slash behind it; `user` is escaped,
    with its `@`."""

    scheme: str = ""
    opaque: str = ""
    user: str = ""
    host: str = ""
    omit_host: bool = False
    path: str = ""
    query: str = ""
    force_query: bool = False
    fragment: str = ""

    @property
    def hostname(self) -> str:
        host = self._split()[0]
        return host[1:-1] if host.startswith("[") and host.endswith("]") else host

    @property
    def port(self) -> str:
        return self._split()[1]

    def _split(self) -> tuple[str, str]:
        host, colon, port = self.host.rpartition(":")
        return (host, port) if colon and _PORT.fullmatch(f":{port}") else (self.host, "")

    def parameters(self) -> dict[str, list[str]]:
        """The query; what cannot be read of it is left out."""
        found: dict[str, list[str]] = {}
        for pair in self.query.split("&"):
            name, _, value = pair.partition("=")
            if not pair or ";" in pair or not (_escapes_are_whole(name) and _escapes_are_whole(value)):
                continue
            found.setdefault(_unescaped(name.replace("+", " ")), []).append(
                _unescaped(value.replace("+", " "))
            )
        return found


@lru_cache(maxsize=512)
def read_url(text: str) -> Url:
    """Checked as a request's, then read with its fragment."""
    address, _, fragment = text.partition("#")
    try:
        _parsed(text, request=True)
        url = _parsed(address, request=False)
        if not _escapes_are_whole(fragment):
            raise ValueError("invalid URL escape")
    except ValueError as error:
        raise ValueError(f"URL parse error during conversion from string: {text!r}: {error}") from error
    kept = _KEPT_IN_FRAGMENT.fullmatch(fragment)
    return url._replace(fragment=fragment if kept else _escaped(_unescaped(fragment), _IN_FRAGMENT))


def url_exactly(url: Url) -> str:
    """The URL as one text from which all its parts come back: its own form would not always be read the same
    again."""
    return json.dumps(url)


def url_from(text: str) -> Url:
    """What `url_exactly` wrote."""
    return Url(*json.loads(text))


def is_url(text: str) -> bool:
    try:
        _parsed(text, request=True)
    except ValueError:
        return False
    return True


def _parsed(text: str, *, request: bool) -> Url:
    if any(ord(each) < 0x20 or ord(each) == 0x7F for each in text):
        raise ValueError("invalid control character in URL")
    if not text and request:
        raise ValueError("empty url")
    if text == "*":
        return Url(path="*")
    if text.startswith(":"):
        raise ValueError("missing protocol scheme")
    found = _SCHEME.match(text)
    scheme, rest = (found.group()[:-1].lower(), text[found.end() :]) if found else ("", text)
    force = rest.endswith("?") and rest.count("?") == 1
    rest, _, query = rest.partition("?")
    if not rest.startswith("/"):
        if scheme:
            return Url(scheme=scheme, opaque=rest, query=query, force_query=force)
        if request:
            raise ValueError("invalid URI for request")
        if ":" in rest.partition("/")[0]:
            raise ValueError("first path segment in URL cannot contain colon")
    user = host = ""
    omit = False
    if (scheme or (not request and not rest.startswith("///"))) and rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path
        user, host = _authority(authority, scheme)
    elif scheme and rest.startswith("/"):
        omit = True
    if not _escapes_are_whole(rest):
        raise ValueError("invalid URL escape")
    path = rest if _KEPT_IN_PATH.fullmatch(rest) else _escaped(_unescaped(rest), _IN_PATH)
    return Url(scheme=scheme, user=user, host=host, omit_host=omit, path=path, query=query, force_query=force)


def _authority(authority: str, scheme: str) -> tuple[str, str]:
    userinfo, at, host = authority.rpartition("@")
    if host.rfind("[") > 0:
        raise ValueError("invalid IP-literal")
    if host.startswith("["):
        host = _bracketed(host)
    else:
        if ":" in host:
            port = host[host.index(":") if scheme in ("http", "https") else host.rindex(":") :]
            if not _PORT.fullmatch(port):
                raise ValueError(f"invalid port {port!r} after host")
        host = _unescaped_host(host)
    if not at:
        return "", host
    if not _USERINFO.fullmatch(userinfo) or not _escapes_are_whole(userinfo):
        raise ValueError("invalid userinfo")
    parts = [_escaped(_unescaped(part), _IN_USER) for part in userinfo.split(":", 1)]
    return ":".join(parts) + "@", host


def _bracketed(host: str) -> str:
    literal, closed, port = host[1:].rpartition("]")
    if not closed:
        raise ValueError("missing ']' in host")
    if not _PORT.fullmatch(port):
        raise ValueError(f"invalid port {port!r} after host")
    plain, zoned, zone = literal.partition("%25")
    plain = _unescaped_host(plain)
    if zoned:
        if not _escapes_are_whole(zone) or not zone:
            raise ValueError("invalid URL escape")
        zone = "%" + _unescaped(zone)
        if any(ord(each) < 0x80 and each != " " and not _IN_HOST.fullmatch(each) for each in zone[1:]):
            raise ValueError("invalid character in host name")
    try:
        ipaddress.IPv6Address(plain)
    except ValueError as error:
        raise ValueError("invalid host") from error
    return f"[{plain}{zone}]{port}"


def _unescaped_host(host: str) -> str:
    """In a host only what is not ASCII may be escaped, and only some characters may stand there."""
    if not _escapes_are_whole(host) or any(
        int(code, 16) < 0x80 and code != "25" for code in re.findall(r"%(..)", host)
    ):
        raise ValueError("invalid URL escape")
    if any(ord(each) < 0x80 and not _IN_HOST.fullmatch(each) for each in re.sub(r"%..", "", host)):
        raise ValueError("invalid character in host name")
    return _unescaped(host)


def _escapes_are_whole(text: str) -> bool:
    return re.fullmatch(r"(?:[^%]|%[0-9A-Fa-f]{2})*", text, re.DOTALL | re.ASCII) is not None


def _unescaped(text: str) -> str:
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape")


def _escaped(text: str, kept: re.Pattern[str]) -> str:
    return "".join(
        each
        if kept.fullmatch(each)
        else "".join(f"%{byte:02X}" for byte in each.encode("utf-8", "surrogateescape"))
        for each in text
    )
