"""Who asked for what, one JSON line a request: the verbs a component really uses, to compare with its
RBAC."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

from koordra_devcluster.apiserver.access.rbac import Access
from koordra_devcluster.apiserver.serving.users import User


class Audit:
    """Appends to a file; lines are whole, whoever writes them."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()

    def write(self, access: Access, user: User, headers: Mapping[str, str], code: int) -> None:
        line = {
            "user": user.name,
            "userAgent": headers.get("user-agent", ""),
            "verb": access.verb,
            "group": access.group,
            "resource": access.resource,
            "namespace": access.namespace,
            "name": access.name,
            "code": code,
        }
        with self._lock:
            if not self._file.closed:  # a request that is still under way when the server ends
                self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        with self._lock:
            self._file.close()
