"""What every replica of the webhook follows to answer about legacy pods, leader or not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from koordra.api.kinds import PODS
from koordra.controller.legacy.admission import PATHS, Admission
from koordra.controller.legacy.settings import LegacySettings
from koordra.controller.legacy.templates import Templates
from koordra.controller.legacy.translation import Translations
from koordra.controller.legacy.usage import QuotaWatch, Usage, counted_part
from koordra.controller.webhook.lookups import Lookups
from koordra.controller.webhook.review import AdmissionRequest, Answer
from koordra.errors import InvalidManifest
from koordra.kube import KubeClient
from koordra.metrics import Metrics
from koordra.process import spawn
from koordra.watch import WatchCache

PATIENCE: Final = 2.0
"""Seconds for which a review waits for the first lists, when it comes before the replica is ready."""
NOT_READY: Final = InvalidManifest("pods and quotas are not read yet; try again")


class LegacyWebhook:
    """Everything that answering needs, from watches. `paths` are for the webhook's server."""

    def __init__(
        self,
        client: KubeClient,
        settings: LegacySettings,
        lookups: Lookups,
        *,
        metrics: Metrics,
        patience: float = PATIENCE,
    ) -> None:
        pods = metrics.counter(
            "koordra_legacy_pods", "Legacy pods admitted or refused.", ("dialect", "outcome")
        )
        made = metrics.counter("koordra_legacy_templates", "Templates made or marked as used.", ("what",))
        usage = Usage(settings.compat, clock=time.monotonic)
        lookups.listen(usage.on_template)
        self._patience = patience
        self._pods = WatchCache(client, PODS, on_change=usage.on_pod, trim=counted_part)
        self._pause = threading.Event()
        self._quotas = QuotaWatch(client)
        templates = Templates(
            client,
            known=lookups.known_template,
            now=time.time,
            grace=settings.grace,
            count=lambda what: made.labels(what).inc(),
        )
        self._admission = Admission(
            settings.compat,
            lookups,
            templates,
            usage,
            self._quotas.of,
            Translations(settings.compat),
            count=lambda dialect, outcome: pods.labels(dialect, outcome).inc(),
        )

    def paths(self) -> Mapping[str, Callable[[AdmissionRequest], Answer]]:
        return {path: partial(self._answer, in_native=native) for path, native in PATHS.items()}

    def _answer(self, asked: AdmissionRequest, *, in_native: bool) -> Answer:
        ends = time.monotonic() + self._patience
        while not self.is_synced():
            if time.monotonic() >= ends:
                return Answer((NOT_READY,), code=503, reason="ServiceUnavailable")
            self._pause.wait(0.05)
        return self._admission(asked, in_native)

    def start(self, stop: threading.Event) -> None:
        spawn(lambda: self._pods.run(stop), name="legacy-watch-pods")
        self._quotas.start(stop)

    def is_synced(self) -> bool:
        """Every pod of the first list is counted too, and not only listed: a quota would have room that is taken."""
        return self._pods.wait_synced(0) and self._quotas.is_synced()
