"""One API server: state file, first objects, HTTP, kubeconfig.

Whoever starts it a second time on the same directory gets the same token, the same port where it is still
free, and all objects, so that clients only have to reconnect.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from koordra.api import kinds
from koordra.api.objects import Object
from koordra.errors import ClusterError
from koordra.kube.validation.classes import CompileCel
from koordra_devcluster.apiserver.fields.decoding import WriteOptions
from koordra_devcluster.apiserver.resources import BY_PATH, PRIORITY_CLASSES, Served
from koordra_devcluster.apiserver.serving.audit import Audit
from koordra_devcluster.apiserver.serving.http import HttpServer
from koordra_devcluster.apiserver.serving.routes import Api
from koordra_devcluster.apiserver.serving.users import Tokens
from koordra_devcluster.apiserver.status import Refusal
from koordra_devcluster.apiserver.storage.registry import Registry, utc_now
from koordra_devcluster.apiserver.storage.store import Store
from koordra_devcluster.apiserver.storage.strategies import PRIORITIES
from koordra_devcluster.apiserver.validation.cel import accept_cel

NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease", "koordra-system")
USER: Final = "developer"
EVENT_LIFETIME: Final = timedelta(hours=1)


class ApiServer:
    """`directory` holds the state (`apiserver.db`); `compile_cel` answers why a CEL expression does not
    compile, or None.

    `audit`: a file for who asked for what. `gates`: feature gates that are off by default and on here."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        compile_cel: CompileCel = accept_cel,
        audit: Path | None = None,
        gates: frozenset[str] = frozenset(),
    ) -> None:
        self.store = Store(directory / "apiserver.db")
        self.registry = Registry(self.store, compile_cel=compile_cel, gates=gates)
        self.token = self.store.setting("token", secrets.token_urlsafe(24))
        create_first_objects(self.registry)
        self._audit = Audit(audit) if audit else None
        self._http = self._listen(port)
        self.store.set("port", str(self._http.port))

    def _listen(self, port: int) -> HttpServer:
        api = Api(self.registry, tokens=Tokens(self.token, now=utc_now), audit=self._audit)
        if port == 0:
            try:
                return HttpServer(api, int(self.store.setting("port", "0")))
            except ClusterError:
                pass
        return HttpServer(api, port)

    @property
    def url(self) -> str:
        return self._http.url

    def start(self) -> None:
        self._http.start()

    def close(self) -> None:
        """Stops answering; the state stays."""
        self._http.close()
        self.store.close()
        if self._audit is not None:
            self._audit.close()

    def write_kubeconfig(self, path: Path) -> None:
        """A kubeconfig with the bearer token, mode 0600, replaced in one step."""
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".kubeconfig-")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(kubeconfig(self.url, self.token), file, indent=2)
                file.write("\n")
            Path(temporary).replace(path)
        except OSError as error:
            Path(temporary).unlink(missing_ok=True)
            raise ClusterError(f"{path}: the kubeconfig cannot be written: {error.strerror}") from error

    def expire_events(self, stop: threading.Event, period: float = 60.0) -> None:
        """Removes Events after an hour, as a real server does, until `stop`."""
        served = BY_PATH[("", "v1", "events")]
        while not stop.wait(period):
            self.registry.delete_collection(served, None, _is_expired, {})


def kubeconfig(url: str, token: str) -> Object:
    """The kubeconfig document (JSON is YAML).

    kubectl sends bearer tokens over TLS only, and the standard library cannot make a certificate; so the
    token also stands in the URL as a password, which every HTTP client sends. It never leaves the loopback
    interface.
    """
    name = "koordra-devcluster"
    scheme, _, address = url.partition("://")
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": f"{scheme}://{USER}:{token}@{address}"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": USER}}],
        "users": [{"name": USER, "user": {"token": token}}],
    }


def create_first_objects(registry: Registry) -> None:
    """What every cluster has: namespaces with their ServiceAccounts, the system's priority classes."""
    for namespace in NAMESPACES:
        _create(registry, BY_PATH[("", "v1", kinds.NAMESPACES.plural)], "", namespace)
        _create(registry, BY_PATH[("", "v1", kinds.SERVICE_ACCOUNTS.plural)], namespace, "default")
    for priority_class, value in PRIORITIES.items():
        served = BY_PATH[(PRIORITY_CLASSES.group, PRIORITY_CLASSES.version, PRIORITY_CLASSES.plural)]
        _create(registry, served, "", priority_class, value=value)


def _create(registry: Registry, served: Served, namespace: str, name: str, **body: object) -> None:
    try:
        registry.create(served, namespace, {"metadata": {"name": name}, **body}, WriteOptions())
    except Refusal as refusal:
        if refusal.reason != "AlreadyExists":
            raise


def _is_expired(event: Object) -> bool:
    seen = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(seen) < datetime.now(UTC) - EVENT_LIFETIME
