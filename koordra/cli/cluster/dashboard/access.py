"""Who may see the dashboard.

    on a loopback address   whoever reaches it: the user whose kubeconfig it is, or in a pod whom the API
                            server lets forward a port to it. Only under a name of this machine: a page from
                            elsewhere whose name suddenly means 127.0.0.1 reads nothing
    on any other            who brings a token that the API server knows, and may list Nodes, Pods and
                            ResourceClaims of all namespaces: `Authorization: Bearer TOKEN` as proxies send
                            it, X-Koordra-Authorization as for `koordra explain`, or a browser's own dialog,
                            with any name and the token as the password

The API server is asked about a token once in REMEMBERED seconds, and REVIEWS times a second about all.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import threading
import time
from collections.abc import Callable
from typing import Final

from koordra.api.tables import BoundedCache
from koordra.controller.explain.callers import authenticated, require, whole_cluster
from koordra.controller.explain.endpoint import LONGEST_TOKEN, REVIEWS, Bucket
from koordra.controller.explain.question import TOKEN_HEADER
from koordra.errors import ApiError, Forbidden
from koordra.kube.client import KubeClient

REMEMBERED: Final = 60.0
CHALLENGE: Final = 'Basic realm="koordra: any name, and a token as the password", charset="UTF-8"'

Header = Callable[[str], str | None]
"""A header's value by its name."""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_own_name(header: Header) -> None:
    """Raises Forbidden where the request was meant for another machine."""
    host = (header("Host") or "").strip()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if not is_loopback(name.lower()):
        raise Forbidden("asked for under a name that is not this machine's", code=403, reason="Forbidden")


class Tokens:
    """Thread-safe. `clock` is monotonic."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._lock = threading.Lock()
        self._reviews = Bucket.of(REVIEWS, 2 * REVIEWS, clock())
        self._until = BoundedCache[bytes, float](1024)
        """By the hash of a token that may see everything."""

    def require(self, header: Header) -> None:
        """Raises Forbidden, and ApiUnreachable."""
        token = token_of(header)
        known = hashlib.sha256(token.encode()).digest()
        with self._lock:
            if self._until.get(known, 0.0) > self._clock():
                return
            if not self._reviews.take(self._clock()):
                raise ApiError("too many tokens at once", code=429, reason="TooManyRequests")
        require(self._client, authenticated(self._client, token), whole_cluster())
        with self._lock:
            self._until[known] = self._clock() + REMEMBERED


def token_of(header: Header) -> str:
    """Raises Forbidden."""
    for name in (TOKEN_HEADER, "Authorization"):
        scheme, _, rest = (header(name) or "").partition(" ")
        token = rest.strip()
        if scheme.lower() == "basic":
            token = _password(token)
        elif scheme.lower() != "bearer":
            continue
        if token and len(token) <= LONGEST_TOKEN:
            return token
    raise Forbidden("a token of the cluster is needed", code=401, reason="Unauthorized")


def _password(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""
