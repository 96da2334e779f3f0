"""Where the webhook's keys are kept, and the webhook configurations that trust them.

    self-signed    a Secret that the replicas share is read, brought up to date (keys.wanted) and written back conditionally;
                   `caBundle` in the webhook configurations is the bundle of it, without which the API server trusts nobody
    files          tls.crt, tls.key and ca.crt in a directory, as a mounted Secret of cert-manager has them; read again when
                   they change, never written; caBundle is then cert-manager's business

`refresh` is called every ten seconds and returns the keys to serve with. `inject` changes only entries of koordra's own
configurations (that for legacy pods is installed by choice), and only when their bundle is another one. Each write is conditional
on the resourceVersion, since replicas write side by side.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from koordra.api.kinds import Kind
from koordra.api.objects import Object, resource_version
from koordra.controller.webhook import keys as keys_of
from koordra.controller.webhook.keys import Keys, Pair
from koordra.errors import Conflict, Invalid, NodeError, NotFound
from koordra.kube import KubeClient
from koordra.logs import get_logger

log = get_logger(__name__)

SECRETS: Final = Kind("", "v1", "secrets", "Secret", namespaced=True)


@dataclass(frozen=True, slots=True)
class Served:
    """What to serve with; `bundle` is what the API server must trust, empty where that is not our business."""

    pair: Pair
    bundle: bytes = b""


class SharedSecret:
    """Self-signed keys in a Secret. Raises ApiError from `refresh`; the caller tries again."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        names: Sequence[str],
        now: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._names = tuple(names)
        self._now = now

    def refresh(self, *, trusted: bytes) -> Served:
        """The keys to serve with now. `trusted`: the bundle that has been injected everywhere, as far as is known."""
        secret = self._read()
        present = keys_of.from_secret_data((secret or {}).get("data") or {})
        is_trusted = present is not None and present.bundle == trusted
        wanted = keys_of.wanted(present, self._names, now=self._now(), trusted=is_trusted)
        if wanted is not present:
            wanted = self._write(secret, wanted)
        return Served(wanted.serving, wanted.bundle)

    def _read(self) -> Object | None:
        try:
            return self._client.get(SECRETS, self._name, namespace=self._namespace)
        except NotFound:
            return None

    def _write(self, secret: Object | None, wanted: Keys) -> Keys:
        """Conditionally: whoever is second takes the keys of whoever was first."""
        data = keys_of.to_secret_data(wanted)
        try:
            if secret is None:
                self._client.create(SECRETS, self._new(data))
            else:
                self._client.update(SECRETS, {**secret, "data": data})
        except Conflict:
            first = keys_of.from_secret_data((self._read() or {}).get("data") or {})
            if first is None:
                raise
            return first
        log.info("webhook_keys_written", secret=f"{self._namespace}/{self._name}")
        return wanted

    def _new(self, data: dict[str, str]) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "type": "kubernetes.io/tls",
            "data": data,
        }


class Files:
    """Keys in a directory that somebody else keeps current."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def refresh(self, *, trusted: bytes) -> Served:
        """Raises NodeError where the files cannot be read."""
        del trusted
        try:
            pair = Pair(
                (self._directory / "tls.crt").read_bytes(), (self._directory / "tls.key").read_bytes()
            )
        except OSError as error:
            raise NodeError(
                f"{error.filename}: the webhook's certificate cannot be read: {error.strerror}"
            ) from error
        return Served(pair)


Source = SharedSecret | Files


_GROUP: Final = "admissionregistration.k8s.io"
CONFIGURATIONS: Final = (
    Kind(_GROUP, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", namespaced=False),
    Kind(_GROUP, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False),
)
NAME: Final = "koordra"
"""Of both configurations."""
LEGACY: Final = "koordra-legacy"
"""Of the mutating configuration for legacy pods."""


def inject(client: KubeClient, bundle: bytes, *, legacy: bool = False) -> bool:
    """True once all configurations that exist carry the bundle. Raises ApiError."""
    encoded = base64.b64encode(bundle).decode()
    wanted = [(kind, NAME) for kind in CONFIGURATIONS] + ([(CONFIGURATIONS[0], LEGACY)] if legacy else [])
    carried = [
        _inject(client, kind, name, encoded) for kind, name in wanted
    ]  # all, also when the first failed
    return all(carried)


def _inject(client: KubeClient, kind: Kind, name: str, bundle: str) -> bool:
    try:
        found = client.get(kind, name)
    except NotFound:
        return True
    steps = [
        {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle}
        for index, entry in enumerate(found.get("webhooks") or ())
        if (entry.get("clientConfig") or {}).get("caBundle") != bundle
    ]
    if not steps:
        return True
    unchanged = {"op": "test", "path": "/metadata/resourceVersion", "value": resource_version(found)}
    try:
        client.patch(kind, name, [unchanged, *steps], content_type="application/json-patch+json")
    except (Conflict, Invalid):  # somebody else was quicker: a failed `test` is a 422
        return False
    log.info("ca_bundle_injected", configuration=f"{kind}/{name}", entries=len(steps))
    return True
