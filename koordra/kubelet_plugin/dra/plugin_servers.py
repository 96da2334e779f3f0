"""The plugin's two servers, as the kubelet meets them: the DRA socket with calls and health, and then the
registration socket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Final

from koordra.kubelet_plugin.dra import dra_service
from koordra.kubelet_plugin.dra.health import HealthFeed, add_health_services, sockets_answer
from koordra.kubelet_plugin.dra.plugin_metrics import PluginMetrics
from koordra.kubelet_plugin.dra.sockets import PluginSockets, SocketServer, remove_abandoned
from koordra.kubelet_plugin.settings import Settings
from koordra.process.metrics_server import Shared

GRACE: Final = 20.0
"""Seconds for calls in progress at the stop (the kubelet waits 45 s for an answer)."""


class PluginServers:
    def __init__(self, settings: Settings, calls: dra_service.Calls, metrics: PluginMetrics) -> None:
        self._settings, restored = settings, metrics.sockets_restored.inc
        self._sockets = sockets = PluginSockets.below(settings.kubelet_root, pod_uid=settings.pod_uid)
        self.feed = HealthFeed()

        def add(server: object) -> None:
            self.feed.close(closed=False)
            dra_service.add_services(calls, server)
            add_health_services(self.feed, server, pool=settings.node)

        self._dra = SocketServer(
            sockets.dra, add, workers=dra_service.CALLS_AT_ONCE, restored=restored, stopping=self.feed.close
        )
        self._registration = SocketServer(
            sockets.registration,
            partial(dra_service.add_registration, sockets.dra),
            workers=2,
            restored=restored,
        )
        self.answers = Shared(partial(sockets_answer, sockets.registration, sockets.dra))
        """Whether the sockets can be dialled and answer, for probes."""

    def owned(self, stop: threading.Event) -> AbstractContextManager[bool]:
        """Whether this instance has the sockets' paths to itself, while the context lasts."""
        return self._sockets.owned(self._settings.paths.state, stop)

    @contextmanager
    def serving(self, *, before_stop: Callable[[], object]) -> Iterator[str]:
        """The path of the DRA socket, once both serve. Raises NodeError."""
        self._dra.start()
        try:
            self._registration.start()
            remove_abandoned(self._settings.kubelet_root, self._settings.paths.state)
            yield str(self._dra.path)
        finally:
            before_stop()
            self._registration.stop(grace=1.0)
            self._dra.stop(grace=GRACE)

    @property
    def checks(self) -> list[Callable[[], object]]:
        """Bind again what has vanished; each raises NodeError."""
        return [self._dra.ensure, self._registration.ensure]
