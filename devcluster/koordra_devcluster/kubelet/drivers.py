"""DRA drivers that are connected to this kubelet, and the gRPC calls to them.

A driver may be registered twice during an update of its DaemonSet; the newest registration whose connection
works is used. v1.DRAPlugin is preferred to v1beta1.DRAPlugin. When the last connection of a driver is gone
for 30 s (`wipe_after`), its ResourceSlices of this node are deleted; a driver that comes back in time keeps
them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import grpc

from koordra._proto.dra import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc
from koordra.errors import ApiError, PrepareError
from koordra.logs import get_logger

log = get_logger(__name__)

V1: Final = "v1.DRAPlugin"
V1BETA1: Final = "v1beta1.DRAPlugin"
CALL_TIMEOUT: Final = 45.0
WIPE_AFTER: Final = 30.0
WIPE_RETRY: Final = 1.0

ClaimReference = tuple[str, str, str]
"""(namespace, name, uid)."""


class DriverPlugin(Protocol):
    """What the kubelet asks of a driver; answers are the protobuf messages, by claim uid."""

    def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Any]: ...
    def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Any]: ...


@dataclass(slots=True)
class DriverConnection:
    """One registered endpoint of one driver."""

    driver: str
    endpoint: str
    channel: grpc.Channel
    messages: Any
    stub: Any
    timeout: float = CALL_TIMEOUT
    connected: bool = True

    def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Any]:
        """Raises PrepareError when the driver does not answer."""
        request = self.messages.NodePrepareResourcesRequest(claims=self._claims(claims))
        return self._call(self.stub.NodePrepareResources, request)

    def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Any]:
        """Raises PrepareError when the driver does not answer."""
        request = self.messages.NodeUnprepareResourcesRequest(claims=self._claims(claims))
        return self._call(self.stub.NodeUnprepareResources, request)

    def _claims(self, claims: Sequence[ClaimReference]) -> list[Any]:
        return [
            self.messages.Claim(namespace=namespace, name=name, uid=uid) for namespace, name, uid in claims
        ]

    def _call(self, method: Any, request: Any) -> Mapping[str, Any]:
        try:
            answer = method(request, timeout=self.timeout)
        except grpc.RpcError as error:
            raise PrepareError(f"driver {self.driver}: {error.code().name}: {error.details()}") from error
        return dict(answer.claims)


def connect(
    driver: str, endpoint: str, versions: Sequence[str], *, timeout: float = CALL_TIMEOUT
) -> DriverConnection:
    """Raises PrepareError when the driver speaks no version that the kubelet knows."""
    channel = grpc.insecure_channel(
        f"unix:{endpoint}",
        options=[
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_reconnect_backoff_ms", 2000),
            ("grpc.initial_reconnect_backoff_ms", 200),
        ],
    )
    stub: Any
    if V1 in versions:
        stub = dra_v1_pb2_grpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]
        return DriverConnection(driver, endpoint, channel, dra_v1_pb2, stub, timeout)
    if V1BETA1 in versions:
        stub = dra_v1beta1_pb2_grpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]
        return DriverConnection(driver, endpoint, channel, dra_v1beta1_pb2, stub, timeout)
    channel.close()
    raise PrepareError(f"driver {driver}: none of the versions {list(versions)} is supported")


@dataclass(slots=True)
class Drivers:
    """All registered endpoints. `on_connected(driver)` wakes pods that wait for it; `wipe(driver)` deletes
    its slices."""

    on_connected: Callable[[str], None]
    wipe: Callable[[str], None]
    wipe_after: float = WIPE_AFTER
    call_timeout: float = CALL_TIMEOUT
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _connections: list[DriverConnection] = field(default_factory=list)
    _timers: dict[str, threading.Timer] = field(default_factory=dict)
    _closed: bool = False

    def get(self, driver: str) -> DriverPlugin:
        """The newest connected endpoint, or the newest of all. Raises PrepareError where there is none."""
        with self._lock:
            known = [one for one in self._connections if one.driver == driver]
        if not known:
            raise PrepareError(f"DRA driver {driver} is not registered")
        return next((one for one in reversed(known) if one.connected), known[-1])

    def add(self, driver: str, endpoint: str, versions: Sequence[str]) -> None:
        """A registration. Raises PrepareError for an endpoint that is registered already, or no common
        version."""
        with self._lock:
            if any(one.driver == driver and one.endpoint == endpoint for one in self._connections):
                raise PrepareError(f"endpoint {endpoint} already registered for DRA driver plugin {driver}")
            connection = connect(driver, endpoint, versions, timeout=self.call_timeout)
            self._connections.append(connection)
            self._stop_wipe(driver)
        connection.channel.subscribe(
            lambda state: self._state_changed(connection, state), try_to_connect=True
        )
        log.info("driver_registered", driver=driver, endpoint=endpoint)
        self.on_connected(driver)

    def remove(self, driver: str, endpoint: str) -> None:
        """The registration socket has gone."""
        with self._lock:
            gone = [one for one in self._connections if one.driver == driver and one.endpoint == endpoint]
            self._connections = [one for one in self._connections if one not in gone]
            self._start_wipe_if_alone(driver)
        for connection in gone:
            connection.channel.close()
            log.info("driver_deregistered", driver=driver, endpoint=endpoint)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for timer in self._timers.values():
                timer.cancel()
            connections, self._connections = self._connections, []
        # Not under the lock: closing waits for callbacks, and those take it.
        for connection in connections:
            connection.channel.close()

    def _state_changed(self, connection: DriverConnection, state: grpc.ChannelConnectivity) -> None:
        was, connection.connected = connection.connected, state == grpc.ChannelConnectivity.READY
        with self._lock:
            if connection not in self._connections:
                return
            if connection.connected:
                self._stop_wipe(connection.driver)
            else:
                self._start_wipe_if_alone(connection.driver)
        if connection.connected and not was:
            self.on_connected(connection.driver)

    def _start_wipe_if_alone(self, driver: str, after: float | None = None) -> None:
        if (
            self._closed
            or driver in self._timers
            or any(one.connected for one in self._connections if one.driver == driver)
        ):
            return
        seconds = self.wipe_after if after is None else after
        timer = self._timers[driver] = threading.Timer(seconds, self._wipe, (driver,))
        timer.daemon = True
        timer.start()

    def _stop_wipe(self, driver: str) -> None:
        timer = self._timers.pop(driver, None)
        if timer is not None:
            timer.cancel()

    def _wipe(self, driver: str) -> None:
        with self._lock:
            if self._timers.pop(driver, None) is None:
                return
        try:
            self.wipe(driver)
            log.info("driver_slices_wiped", driver=driver)
        except ApiError as error:
            log.warning("driver_slices_not_wiped", driver=driver, error=str(error))
            with self._lock:
                self._start_wipe_if_alone(driver, WIPE_RETRY)
