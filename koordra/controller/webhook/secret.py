"""Where the webhook's keys are kept, and the webhook configurations that trust them.

    self-signed    a Secret that the replicas share is read, brought up to date (keys.wanted) and written back conditionally;
                   `caBundle` in the webhook configurations is the bundle of it, without which the API server trusts nobody
    files          tls.crt, tls.key and ca.crt in a directory, as a mounted Secret of cert-manager has them; read again when
                   they change, never written; caBundle is then cert-manager's business

One of both is asked every ten seconds for the keys to serve with. `inject` changes only entries of koordra's own
configurations (that for legacy pods is installed by choice), and only when their bundle is another one. Each write is conditional
on the resourceVersion, since replicas write side by side.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
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


def refresh_files(directory: Path) -> Served:
    """Keys in a directory that somebody else keeps current. Raises NodeError where they cannot be read."""
    try:
        return Served(Pair((directory / "tls.crt").read_bytes(), (directory / "tls.key").read_bytes()))
    except OSError as error:
        raise NodeError(
            f"{error.filename}: the webhook's certificate cannot be read: {error.strerror}"
        ) from error


def refresh_secret(
    client: KubeClient, namespace: str, name: str, names: Sequence[str], *, now: datetime, trusted: bytes
) -> Served:
    """The self-signed keys to serve with now. `trusted`: the bundle that has been injected everywhere, as far as is known. Replicas
    write conditionally: whoever is second takes the keys of whoever was first. Raises ApiError."""

    def read() -> tuple[Object | None, Keys | None]:
        try:
            secret = client.get(SECRETS, name, namespace=namespace)
        except NotFound:
            return None, None
        return secret, keys_of.from_secret_data(secret.get("data") or {})

    secret, present = read()
    wanted = keys_of.wanted(
        present, names, now=now, trusted=present is not None and present.bundle == trusted
    )
    if wanted is not present:
        data = keys_of.to_secret_data(wanted)
        try:
            if secret is None:
                client.create(
                    SECRETS,
                    {
                        "apiVersion": "v1",
                        "kind": "Secret",
                        "metadata": {"name": name, "namespace": namespace},
                        "type": "kubernetes.io/tls",
                        "data": data,
                    },
                )
            else:
                client.update(SECRETS, {**secret, "data": data})
            log.info("webhook_keys_written", secret=f"{namespace}/{name}")
        except Conflict:
            first = read()[1]
            if first is None:
                raise
            wanted = first
    return Served(wanted.serving, wanted.bundle)


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
    carried = [_inject(client, kind, name, encoded) for kind, name in wanted]  # all, also when one failed
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
