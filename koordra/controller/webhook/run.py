"""The webhook in one call: look-ups, keys, server, and a round every ten seconds (in the first minute, every two).

    round: keys brought up to date ──> server uses them ──> caBundle injected (self-signed only)

A round that fails is logged and repeated; the server goes on with the keys it has. It is ready once it serves with a
certificate and its look-ups are listed.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from koordra.controller.legacy.admission import LegacyWebhook
from koordra.controller.legacy.settings import LegacySettings
from koordra.controller.webhook.handlers import paths
from koordra.controller.webhook.lookups import Lookups
from koordra.controller.webhook.secret import Served, inject, refresh_files, refresh_secret
from koordra.controller.webhook.server import WebhookServer
from koordra.errors import ApiError, InvalidInput, NodeError
from koordra.kube import KubeClient
from koordra.logs import get_logger
from koordra.metrics import Metrics, parse_address
from koordra.process import spawn

log = get_logger(__name__)

PERIOD: Final = 10.0
RETRY: Final = 2.0
YOUNG: Final = 60.0
"""Seconds in which the configurations, which are applied along with the controller, may still be on their way."""
SECRET_NAME: Final = "koordra-webhook-tls"
SERVICE_NAME: Final = "koordra-webhook"
SWITCH: Final = 0.0005
"""Seconds for which a thread keeps the interpreter while another waits for it (Python's default is 0.005). A review reads, locks and
writes, and after each waits for a pass of the controller beside it: at the default these waits are most of a slow review."""


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """`address` host:port, empty: no webhook. `certificates`: a directory with tls.crt and tls.key that somebody else
    keeps current (cert-manager); None: self-signed in the Secret koordra-webhook-tls. `host`: what the API server calls
    besides the Service, for clusters where the webhook runs outside."""

    address: str = ""
    namespace: str = "koordra-system"
    certificates: Path | None = None
    host: str = ""


def start_webhook(
    client: KubeClient,
    settings: WebhookSettings,
    *,
    metrics: Metrics,
    stop: threading.Event,
    legacy: LegacySettings | None = None,
) -> WebhookServer | None:
    """Start serving; None without an address. Ends with `stop`. Raises InvalidInput for a bad address.

    Every replica calls this, leader or not. With `legacy` it rewrites legacy pods too. The server is the caller's to ask for its `port` and `is_ready`.
    """
    if not settings.address:
        return None
    sys.setswitchinterval(SWITCH)
    lookups = Lookups(client)
    rewriting = LegacyWebhook(client, legacy, lookups, metrics=metrics) if legacy else None
    has_keys = threading.Event()
    server = WebhookServer(
        parse_address(settings.address),
        paths(lookups) | (rewriting.paths() if rewriting else {}),
        metrics=metrics,
        ready=lambda: has_keys.is_set() and lookups.is_synced() and (not rewriting or rewriting.is_synced()),
    )
    lookups.start(stop)
    if rewriting:
        rewriting.start(stop)
    base = f"{SERVICE_NAME}.{settings.namespace}"
    names = (f"{base}.svc", base, f"{base}.svc.cluster.local", *([settings.host] if settings.host else []))

    def refresh(trusted: bytes) -> Served:
        if settings.certificates:
            return refresh_files(settings.certificates)
        return refresh_secret(
            client, settings.namespace, SECRET_NAME, names, now=datetime.now(UTC), trusted=trusted
        )

    def rounds() -> None:
        trusted, settled, started = b"", False, time.monotonic()
        while not stop.is_set():
            if not settled and server.is_ready():
                gc.freeze()  # what was listed stays: the collector need not stop reviews to look through it
                settled = True
            pause = PERIOD if settled and time.monotonic() >= started + YOUNG else RETRY
            try:
                served = refresh(trusted)
                server.use(served.pair)
                if not has_keys.is_set():
                    server.start()
                    has_keys.set()
                    log.info("webhook_serving", port=server.port)
                if not served.bundle or inject(client, served.bundle, legacy=legacy is not None):
                    trusted = served.bundle
            except (ApiError, NodeError, InvalidInput) as error:
                log.warning("webhook_keys_failed", error=str(error), again_in=RETRY)
                pause = RETRY
            stop.wait(pause)
        if has_keys.is_set():
            server.close()

    spawn(rounds, name="webhook-keys")
    return server
