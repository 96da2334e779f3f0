"""Talking to the API server of the development cluster without HTTP, and waiting for what its loops do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from koordra_devcluster.apiserver.requests import Request, Response
from koordra_devcluster.apiserver.serving.routes import Api
from koordra_devcluster.apiserver.storage.registry import Registry
from koordra_devcluster.apiserver.storage.store import Store
from tests.patience import PATIENCE

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


class Caller:
    """The API as a client sees it: (code, decoded body)."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.api = Api(Registry(store, now=lambda: NOW), now=lambda: NOW)
        for namespace in ("default", "kube-system"):
            self("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
            self("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Response:
        path, _, query = path.partition("?")
        pairs = dict(part.split("=", 1) for part in query.split("&") if part)
        data = b"" if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.api.handle(Request(method, path, pairs, named, data))

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        response = self.send(method, path, body, **headers)
        return response.code, json.loads(response.body)

    def ok(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The body of a successful answer."""
        code, answer = self(method, path, body, **headers)
        assert code < 300, answer
        return answer

    def refused(self, code: int, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The Status of an answer with that code."""
        got, answer = self(method, path, body, **headers)
        assert got == code, answer
        assert answer["kind"] == "Status"
        assert answer["code"] == code
        return answer

    def patch(self, path: str, patch: Any, content_type: str = "application/merge-patch+json") -> Any:
        return self.ok("PATCH", path, patch, content_type=content_type)


RESOURCE = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCE}/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"


def eventually(check: Callable[[], Any], *, within: float = PATIENCE) -> Any:
    """The first true result of `check`; fails with the last one."""
    deadline = time.monotonic() + within
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {within} s: {check.__name__}: {found!r}"
        time.sleep(0.02)
