"""Where the webhook's keys are kept, the webhook configurations that trust them, and a round every ten
seconds (in the first minute, every two; after failures, ever later).

    round: keys brought up to date ──> server uses them ──> caBundle injected (self-signed only)

    self-signed    a Secret that the replicas share is read, brought up to date (keys.wanted) and written back
                   conditionally; `caBundle` in the webhook configurations is the bundle of it, without which
                   the API server trusts nobody
    files          tls.crt, tls.key and ca.crt in a directory, as a mounted Secret of cert-manager has them;
                   read again when they change, never written; caBundle is then cert-manager's business

A round that fails is logged and repeated; the server goes on with the keys it has, and begins with the first.
`inject` changes only entries of koordra's own configurations (that for legacy pods is installed by choice),
and only when their bundle is another one. Each write is conditional on the resourceVersion, since replicas
write side by side.
"""

from __future__ import annotations

import base64
import gc
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from koordra.api.kinds import Kind
from koordra.api.objects import Object, resource_version
from koordra.controller.webhook import keys as keys_of
from koordra.controller.webhook.server import WebhookServer
from koordra.errors import ApiError, Conflict, Invalid, InvalidInput, NodeError, NotFound
from koordra.kube.client import KubeClient
from koordra.logs import get_logger
from koordra.process.backoff import Backoff
from koordra.process.lifecycle import count_failure
from koordra.process.progress import resting, watched

log = get_logger(__name__)

PERIOD: Final = 10.0
YOUNG_PERIOD: Final = 2.0
YOUNG: Final = 60.0
"""Seconds in which the configurations, which are applied along with the controller, may still be on their
way."""
SECRET_NAME: Final = "koordra-webhook-tls"
SERVICE_NAME: Final = "koordra-webhook"


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """`address` host:port, empty: no webhook. `certificates`: a directory with tls.crt and tls.key that
    somebody else keeps current (cert-manager); None: self-signed in the Secret koordra-webhook-tls. `host`:
    what the API server calls besides the Service, for clusters where the webhook runs outside.
    `percent_bounds`: templates get the most that their percentages may come to (quota/claims)."""

    address: str = ""
    namespace: str = "koordra-system"
    certificates: Path | None = None
    host: str = ""
    percent_bounds: bool = False


SECRETS: Final = Kind("", "v1", "secrets", "Secret")


@dataclass(frozen=True, slots=True)
class Served:
    """Certificate and key to serve with, PEM; `bundle` is what the API server must trust, empty where that is
    not our business."""

    pair: tuple[bytes, bytes]
    bundle: bytes = b""


def refresh_files(directory: Path) -> Served:
    """Keys in a directory that somebody else keeps current. Raises NodeError where they cannot be read."""
    try:
        return Served(((directory / "tls.crt").read_bytes(), (directory / "tls.key").read_bytes()))
    except OSError as error:
        raise NodeError(
            f"{error.filename}: the webhook's certificate cannot be read: {error.strerror}"
        ) from error


def refresh_secret(
    client: KubeClient, namespace: str, name: str, names: Sequence[str], *, now: datetime, trusted: bytes
) -> Served:
    """The self-signed keys to serve with now. `trusted`: the bundle that has been injected everywhere, as far
    as is known. Replicas write conditionally: whoever is second takes the keys of whoever was first. Raises
    ApiError."""

    secret: Object = {"metadata": {"name": name, "namespace": namespace}, "type": "kubernetes.io/tls"}
    with suppress(NotFound):
        secret = client.get(SECRETS, name, namespace=namespace)
    present = keys_of.from_secret_data(secret.get("data") or {})
    wanted = keys_of.wanted(
        present, names, now=now, trusted=present is not None and present.bundle == trusted
    )
    if wanted is not present:
        filled = {**SECRETS.type_meta, **secret, "data": keys_of.to_secret_data(wanted)}
        try:
            if resource_version(secret):
                client.update(SECRETS, filled)
            else:
                client.create(SECRETS, filled)
            log.info("webhook_keys_written", secret=f"{namespace}/{name}")
        except Conflict:
            first = keys_of.from_secret_data(client.get(SECRETS, name, namespace=namespace).get("data") or {})
            if first is None:
                raise
            wanted = first
    return Served(wanted.serving.to_pem(), wanted.bundle)


_GROUP: Final = "admissionregistration.k8s.io"
CONFIGURATIONS: Final = (
    Kind(_GROUP, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", namespaced=False),
    Kind(_GROUP, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False),
)
NAME: Final = "koordra"
"""Of both configurations."""
SHARES: Final = "koordra-shares"
"""Of the mutating configuration for what was recommended, where component profiler is installed."""
LEGACY: Final = "koordra-legacy"
"""Of the mutating configuration for legacy pods."""


def inject(client: KubeClient, bundle: bytes, *, legacy: bool = False) -> bool:
    """True once all configurations that exist carry the bundle. Raises ApiError."""
    encoded = base64.b64encode(bundle).decode()
    mutating = CONFIGURATIONS[0]
    wanted = [*((kind, NAME) for kind in CONFIGURATIONS), (mutating, SHARES)]
    wanted += [(mutating, LEGACY)] if legacy else []
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


@watched()
def rotate_keys(
    client: KubeClient,
    settings: WebhookSettings,
    server: WebhookServer,
    *,
    stop: threading.Event,
    legacy: bool,
) -> None:
    """Rounds until `stop`, with which `server` is closed. `legacy`: the configuration for legacy pods is to
    trust the keys too."""
    base = f"{SERVICE_NAME}.{settings.namespace}"
    names = (f"{base}.svc", base, f"{base}.svc.cluster.local", *([settings.host] if settings.host else []))

    def refresh(trusted: bytes) -> Served:
        if settings.certificates:
            return refresh_files(settings.certificates)
        return refresh_secret(
            client, settings.namespace, SECRET_NAME, names, now=datetime.now(UTC), trusted=trusted
        )

    trusted, serving, settled, started, backoff = b"", False, False, time.monotonic(), Backoff()
    while not stop.is_set():
        if serving and not settled and server.is_ready():
            gc.freeze()  # what was listed stays: the collector need not stop reviews to look through it
            settled = True
        pause = PERIOD if settled and time.monotonic() >= started + YOUNG else YOUNG_PERIOD
        try:
            served = refresh(trusted)
            server.use(*served.pair)
            if not serving:
                server.start()
                serving = True
                log.info("webhook_serving", port=server.port)
            if not served.bundle or inject(client, served.bundle, legacy=legacy):
                trusted = served.bundle
            backoff.reset()
        except Exception as error:  # a Secret that anybody has spoilt must not end the controller
            count_failure(error)
            expected = isinstance(error, (ApiError, NodeError, InvalidInput))
            defect = None if expected else error
            pause = backoff.next()
            log.warning("webhook_keys_failed", error=str(error), again_in=round(pause, 1), exc_info=defect)
        with resting():
            stop.wait(pause)
    if serving:
        server.close()
