"""The runtime side of NRI: accepts plugins on a unix socket, tells them of pods and containers, collects what
they ask for.

    accept (one at a time) ─> RegisterPlugin ─> Configure ─> Synchronize ─> events, by the plugins' indices

Failing is as in real runtimes: a plugin that does not answer within the request timeout, or whose connection
breaks, is dropped and the operation goes on **without** it; a plugin that answers with an error fails the
operation and stays. With `required_plugins` a container is not created when one of them was not asked.

Events go out as the dedicated RPCs of NRI 0.12 and, where the plugin says UNIMPLEMENTED, as StateChange;
`dedicated=False` is an older runtime that knows StateChange only.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from koordra._proto.nri import nri_pb2
from koordra.errors import NRIError, RemoteError
from koordra.logs import get_logger
from koordra_devcluster.container_runtime.nri_merge import Collected
from koordra_devcluster.container_runtime.nri_wire import (
    UNIMPLEMENTED,
    Client,
    PluginClosed,
    PluginTimeout,
    Server,
    Trunk,
)

log = get_logger(__name__)

PLUGIN: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME: Final = "nri.pkg.api.v1alpha1.Runtime"
RUNTIME_NAME: Final = "koordra-devcluster"
RUNTIME_VERSION: Final = "v0.0.0"
ALL_EVENTS: Final = (1 << 14) - 1
OLD_EVENTS: Final = (1 << 11) - 1
_NAME = re.compile(r"[A-Za-z0-9_.+-]+")

Inventory = Callable[[], tuple[list[nri_pb2.PodSandbox], list[nri_pb2.Container]]]
Updater = Callable[[nri_pb2.ContainerUpdate], bool]
"""Applies a plugin's update to a container; False when there is no such container."""


@dataclass(frozen=True, slots=True)
class NriSettings:
    """Timeouts in seconds, longer than those of real runtimes (5 and 2): a whole cluster shares one machine,
    which may be busy. `version`: the NRI version told to plugins ("" before 0.12)."""

    registration_timeout: float = 30.0
    request_timeout: float = 30.0
    dedicated: bool = True
    version: str = "v0.12.0"
    required_plugins: Sequence[str] = ()


@dataclass(slots=True)
class _Plugin:
    """One connection. `name` and `index` are known once it has registered; `by_state_change`: methods it does
    not have."""

    trunk: Trunk | None = None
    client: Client | None = None
    name: str = ""
    index: str = ""
    events: int = 0
    by_state_change: set[str] = field(default_factory=set)
    closed: bool = False
    registered: threading.Event = field(default_factory=threading.Event)

    @property
    def id(self) -> str:
        return f"{self.index}-{self.name}"

    def wants(self, event: int) -> bool:
        return bool(self.events & (1 << (event - 1)))


class NriRuntime:
    """`inventory` gives the pods and containers for Synchronize; `update` applies container updates that
    plugins ask for."""

    def __init__(
        self, path: Path, *, inventory: Inventory, update: Updater, settings: NriSettings | None = None
    ) -> None:
        self.path = path
        self.settings = settings or NriSettings()
        self._inventory = inventory
        self._update = update
        self._lock = threading.RLock()
        self._plugins: list[_Plugin] = []
        self._listener: socket.socket | None = None

    def start(self) -> None:
        """Listen. A leftover socket of an earlier run is replaced."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(self.path))
        except OSError as error:
            raise NRIError(f"{self.path}: the NRI socket cannot be made: {error}") from error
        self._listener.listen(8)
        threading.Thread(target=self._accept, name="nri-accept", daemon=True).start()

    def close(self) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        self.path.unlink(missing_ok=True)
        for plugin in list(self._plugins):
            self._drop(plugin, "the runtime ends")

    def plugins(self) -> list[str]:
        """`90-koordra`, in the order they are asked."""
        with self._lock:
            return [plugin.id for plugin in self._plugins]

    # --- registration ---

    def _accept(self) -> None:
        listener = self._listener
        while listener is not None:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                self._register(connection)
            except NRIError as error:
                log.warning("nri_plugin_refused", error=str(error))

    def _register(self, connection: socket.socket) -> None:
        plugin = _Plugin()
        trunk = plugin.trunk = Trunk(connection, lambda reason: self._closed(plugin, reason))
        plugin.client = Client(trunk)
        server = Server(trunk, lambda service, method, payload: self._serve(plugin, service, method, payload))
        for part in (trunk, plugin.client, server):
            part.start()
        if not plugin.registered.wait(self.settings.registration_timeout):
            trunk.close("registration timed out")
            raise NRIError("plugin registration timed out")
        try:
            self._configure(plugin)
            with self._lock:
                self._synchronize(plugin)
                if not plugin.closed:
                    self._plugins = sorted([*self._plugins, plugin], key=lambda one: one.index)
        except NRIError:
            trunk.close("registration failed")
            raise
        log.info("nri_plugin_registered", plugin=plugin.id, events=f"{plugin.events:#x}")

    def _serve(self, plugin: _Plugin, service: str, method: str, payload: bytes) -> bytes:
        if service == RUNTIME and method == "RegisterPlugin":
            request = nri_pb2.RegisterPluginRequest.FromString(payload)
            if _NAME.fullmatch(request.plugin_name) is None:
                raise RemoteError(2, f"invalid plugin name {request.plugin_name!r}")
            if re.fullmatch("[0-9]{2}", request.plugin_idx) is None:
                raise RemoteError(2, f"invalid plugin index {request.plugin_idx!r}")
            plugin.name, plugin.index = request.plugin_name, request.plugin_idx
            plugin.registered.set()
            return nri_pb2.Empty().SerializeToString()
        if service == RUNTIME and method == "UpdateContainers":
            asked = nri_pb2.UpdateContainersRequest.FromString(payload)
            with self._lock:
                failed = [one for one in asked.update if not self._update(one) and not one.ignore_failure]
            return nri_pb2.UpdateContainersResponse(failed=failed).SerializeToString()
        raise RemoteError(UNIMPLEMENTED, f"/{service}/{method}")

    def _configure(self, plugin: _Plugin) -> None:
        request = nri_pb2.ConfigureRequest(
            runtime_name=RUNTIME_NAME,
            runtime_version=RUNTIME_VERSION,
            registration_timeout=int(self.settings.registration_timeout * 1000),
            request_timeout=int(self.settings.request_timeout * 1000),
            NRI_version=self.settings.version,
        )
        valid = ALL_EVENTS if self.settings.dedicated else OLD_EVENTS
        answer = nri_pb2.ConfigureResponse.FromString(self._call(plugin, "Configure", request))
        plugin.events = answer.events or valid
        if plugin.events & ~valid:
            raise NRIError(f"plugin {plugin.id}: invalid plugin events {plugin.events:#x}")

    def _synchronize(self, plugin: _Plugin) -> None:
        pods, containers = self._inventory()
        request = nri_pb2.SynchronizeRequest(pods=pods, containers=containers)
        answer = nri_pb2.SynchronizeResponse.FromString(self._call(plugin, "Synchronize", request))
        for update in answer.update:
            self._update(update)

    # --- events ---

    def pod_event(self, method: str, pod: nri_pb2.PodSandbox) -> None:
        """RunPodSandbox, StopPodSandbox, RemovePodSandbox. Raises RemoteError when a plugin refuses."""
        self._broadcast(method, pod, None)

    def container_event(self, method: str, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> None:
        """PostCreateContainer, StartContainer, PostStartContainer, StopContainer, RemoveContainer."""
        self._broadcast(method, pod, container)

    def create_container(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> Collected:
        """Ask every plugin, merge, validate. Raises NRIError: the container must not be created."""
        with self._lock:
            pristine = nri_pb2.Container()
            pristine.CopyFrom(container)
            collected = Collected(container)
            consulted: list[_Plugin] = []
            for plugin in list(self._plugins):
                consulted.append(plugin)
                if plugin.wants(nri_pb2.CREATE_CONTAINER):
                    request = nri_pb2.CreateContainerRequest(pod=pod, container=collected.container)
                    answer = self._ask(plugin, "CreateContainer", request)
                    if answer is not None:
                        collected.add(plugin.id, nri_pb2.CreateContainerResponse.FromString(answer))
            self._check_required(consulted)
            self._validate(pod, pristine, collected, consulted)
            for update in collected.updates:
                if not self._update(update) and not update.ignore_failure:
                    raise NRIError(f"container update of {update.container_id} failed: no such container")
            return collected

    def _check_required(self, consulted: Sequence[_Plugin]) -> None:
        missing = sorted(set(self.settings.required_plugins) - {plugin.name for plugin in consulted})
        if missing:
            raise NRIError(f"validation failed: required NRI plugin {missing[0]!r} was not consulted")

    def _validate(
        self,
        pod: nri_pb2.PodSandbox,
        pristine: nri_pb2.Container,
        collected: Collected,
        consulted: Sequence[_Plugin],
    ) -> None:
        request = nri_pb2.ValidateContainerAdjustmentRequest(
            pod=pod,
            container=pristine,
            adjust=collected.adjust,
            update=collected.updates,
            owners=collected.owning_plugins(),
            plugins=[nri_pb2.PluginInstance(name=plugin.name, index=plugin.index) for plugin in consulted],
        )
        for plugin in consulted:
            if not plugin.closed and plugin.wants(nri_pb2.VALIDATE_CONTAINER_ADJUSTMENT):
                answer = nri_pb2.ValidateContainerAdjustmentResponse.FromString(
                    self._call(plugin, "ValidateContainerAdjustment", request)
                )
                if answer.reject:
                    raise NRIError(
                        f"validator {plugin.id} rejected container adjustment, reason: {answer.reason}"
                    )

    def _broadcast(self, method: str, pod: nri_pb2.PodSandbox, container: nri_pb2.Container | None) -> None:
        event = _EVENT_OF[method]
        request = getattr(nri_pb2, f"{method}Request")(pod=pod)
        if container is not None:
            request.container.CopyFrom(container)
        change = nri_pb2.StateChangeEvent(event=event, pod=pod, container=container)
        with self._lock:
            for plugin in list(self._plugins):
                if not plugin.wants(event):
                    continue
                if method == "StopContainer":
                    self._stop_container(plugin, request)
                else:
                    self._notify(plugin, method, request, change)

    def _stop_container(self, plugin: _Plugin, request: Any) -> None:
        answer = self._ask(plugin, "StopContainer", request)
        if answer is not None:
            for update in nri_pb2.StopContainerResponse.FromString(answer).update:
                self._update(update)

    def _notify(self, plugin: _Plugin, method: str, request: Any, change: nri_pb2.StateChangeEvent) -> None:
        if self.settings.dedicated and method not in plugin.by_state_change:
            try:
                self._ask(plugin, method, request)
                return
            except RemoteError as error:
                if error.code != UNIMPLEMENTED:
                    raise
                plugin.by_state_change.add(method)
        self._ask(plugin, "StateChange", change)

    # --- calls ---

    def _ask(self, plugin: _Plugin, method: str, request: Any) -> bytes | None:
        """The answer; None when the plugin is lost, which does not stop the operation. Raises RemoteError."""
        try:
            return self._call(plugin, method, request)
        except (PluginTimeout, PluginClosed) as error:
            log.warning("nri_plugin_lost", plugin=plugin.id, method=method, error=str(error))
            self._drop(plugin, str(error))
            return None

    def _call(self, plugin: _Plugin, method: str, request: Any) -> bytes:
        if plugin.client is None:
            raise PluginClosed("not connected")
        return plugin.client.call(PLUGIN, method, request.SerializeToString(), self.settings.request_timeout)

    def _drop(self, plugin: _Plugin, reason: str) -> None:
        if plugin.trunk is not None:
            plugin.trunk.close(reason)

    def _closed(self, plugin: _Plugin, reason: str) -> None:
        """From the trunk: whatever ended it, the plugin is no longer asked."""
        plugin.closed = True
        self._plugins = [one for one in self._plugins if one is not plugin]
        log.info("nri_plugin_gone", plugin=plugin.id, reason=reason)


_EVENT_OF: Final = {
    "RunPodSandbox": nri_pb2.RUN_POD_SANDBOX,
    "StopPodSandbox": nri_pb2.STOP_POD_SANDBOX,
    "RemovePodSandbox": nri_pb2.REMOVE_POD_SANDBOX,
    "PostCreateContainer": nri_pb2.POST_CREATE_CONTAINER,
    "StartContainer": nri_pb2.START_CONTAINER,
    "PostStartContainer": nri_pb2.POST_START_CONTAINER,
    "StopContainer": nri_pb2.STOP_CONTAINER,
    "RemoveContainer": nri_pb2.REMOVE_CONTAINER,
}
