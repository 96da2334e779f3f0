"""How many requests the first lists of a cluster of ten thousand nodes are, counted on a server that makes
its pages as they are asked for. (That one page at most is held whole is shown in test_kube.)"""

from __future__ import annotations

import io
import json
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
import urllib3

from koordra.api.objects import Object
from koordra.controller.cache.changes import NEEDED, Informers
from koordra.kube.client import PAGE, KubeClient

NODES: Final = 10_000
SIZES: Final[Mapping[str, int]] = {
    "nodes": NODES,
    "resourceslices": NODES,
    "resourceclaims": 2 * NODES,
    "pods": 3 * NODES,
    "persistentvolumeclaims": NODES,
    "namespaces": 1000,
}
"""The other kinds have no objects, or are not served."""


class LargeServer:
    """Lists by page; a watch ends at once and sets `stop` once every kind is watched."""

    def __init__(self, stop: threading.Event) -> None:
        self.lists: Counter[str] = Counter()
        self.probes: Counter[str] = Counter()
        self._watched: set[str] = set()
        self._stop = stop
        self._lock = threading.Lock()

    def request(self, _method: str, url: str, **_: Any) -> urllib3.HTTPResponse:
        parts = urlsplit(url)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        plural = parts.path.rpartition("/")[2]
        with self._lock:
            return self._answered(plural, query)

    def _answered(self, plural: str, query: Mapping[str, str]) -> urllib3.HTTPResponse:
        if plural not in SIZES and plural not in ("deviceclasses", "devicetaintrules", "persistentvolumes"):
            return _response(404, {"message": "no such kind"})
        if "watch" in query:
            self._watched.add(plural)
            if {kind.plural for kind in NEEDED} <= self._watched:
                self._stop.set()
            return _response(200, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}})
        limit, start = int(query["limit"]), int(query.get("continue", 0))
        (self.probes if limit == 1 else self.lists)[plural] += 1
        end = min(start + limit, SIZES.get(plural, 0))
        metadata = {"resourceVersion": "7"} | ({"continue": str(end)} if end < SIZES.get(plural, 0) else {})
        return _response(
            200, {"metadata": metadata, "items": [_item(number) for number in range(start, end)]}
        )


def _item(number: int) -> Object:
    return {"metadata": {"name": f"o{number}", "namespace": "a", "uid": str(number), "resourceVersion": "5"}}


def _response(status: int, body: Object) -> urllib3.HTTPResponse:
    data = json.dumps(body).encode() + b"\n"
    return urllib3.HTTPResponse(io.BytesIO(data), status=status, preload_content=False)


def client(server: LargeServer) -> KubeClient:
    return KubeClient("http://x", server, dict, timeout=5.0, user_agent="u")  # type: ignore[arg-type]


@pytest.mark.long
def test_a_leader_s_term_begins_with_a_request_for_each_page_and_kind() -> None:
    stop = threading.Event()
    server = LargeServer(stop)
    Informers(client(server), changed=[], stop=stop, listeners={}).start()
    pages = {plural: -(-size // PAGE) for plural, size in SIZES.items()}
    assert {plural: server.lists[plural] for plural in pages} == pages
    assert all(number == 1 for number in server.probes.values())
    assert server.lists.total() + server.probes.total() <= sum(pages.values()) + 12
