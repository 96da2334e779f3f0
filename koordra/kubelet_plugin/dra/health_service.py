"""Health over gRPC, for two readers.

- The kubelet: DRAResourceHealth in `v1` (1.37 and later) and `v1alpha1` (before), on the DRA socket. The two
  differ in their name alone. The kubelet writes it to
  `pod.status.containerStatuses[].allocatedResourcesStatus`.
- Probes: `grpc.health.v1.Health`, on the DRA socket and, with `--health-address`, on a TCP port for the
  kubelet's grpc probes. It reports SERVING if the plugin's own sockets answer; the check goes through the
  socket files, since a plugin that lost them seems alive and is unreachable.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc

from koordra._proto.dra import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    drahealth_v1_pb2,
    drahealth_v1_pb2_grpc,
    drahealth_v1alpha1_pb2,
    drahealth_v1alpha1_pb2_grpc,
    grpc_health_v1_pb2,
    grpc_health_v1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)
from koordra.errors import InvalidInput
from koordra.kubelet_plugin.status.health import FORGOTTEN_AFTER, HealthFeed
from koordra.metrics import parse_address

HEALTH_VERSIONS: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""As registration names them, preferred first."""

MOST_STREAMS: Final = 6
"""Streams that may wait at a time, of the server's 16 threads: Prepare must always find one."""

_WATCH_EVERY: Final = 5.0
_Status = grpc_health_v1_pb2.HealthCheckResponse


class ResourceHealthService:
    """One version of DRAResourceHealth. `messages` is the generated module of the version."""

    def __init__(self, feed: HealthFeed, messages: Any, *, pool: str, places: threading.Semaphore) -> None:
        self._feed = feed
        self._messages = messages
        self._pool = pool
        self._places = places

    def NodeWatchResources(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802  the service's name
        del request
        if not self._places.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many health streams are open")
        try:
            context.add_callback(self._feed.wake)
            for devices, now in self._feed.follow(context.is_active):
                yield self._messages.NodeWatchResourcesResponse(
                    devices=[
                        self._messages.DeviceHealth(
                            device=self._messages.DeviceIdentifier(
                                pool_name=self._pool, device_name=device.device
                            ),
                            health=int(device.health),
                            last_updated_time=now,
                            health_check_timeout_seconds=FORGOTTEN_AFTER,
                            message=device.message,
                        )
                        for device in devices
                    ]
                )
        finally:
            self._places.release()


class ProbeService:
    """grpc.health.v1.Health. `serving` is asked anew each time."""

    def __init__(self, serving: Callable[[], bool], *, stop: threading.Event | None = None) -> None:
        self._serving = serving
        self._stop = stop or threading.Event()

    def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        if not _known(request.service):
            context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r}")
        return _Status(status=_Status.SERVING if self._serving() else _Status.NOT_SERVING)

    def Watch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        reported = None
        while context.is_active():
            status = _Status.SERVICE_UNKNOWN
            if _known(request.service):
                status = _Status.SERVING if self._serving() else _Status.NOT_SERVING
            if status != reported:
                reported = status
                yield _Status(status=status)
            if self._stop.wait(_WATCH_EVERY):
                return


def _known(service: str) -> bool:
    return service in {"", "liveness", "readiness", *HEALTH_VERSIONS, "v1.DRAPlugin", "v1beta1.DRAPlugin"}


def add_health_services(feed: HealthFeed, server: Any, *, pool: str) -> None:
    """Puts DRAResourceHealth, both versions, onto a gRPC server. The streams that it may hold are the server's own."""
    places = threading.Semaphore(MOST_STREAMS)
    v1 = ResourceHealthService(feed, drahealth_v1_pb2, pool=pool, places=places)
    drahealth_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(v1, server)  # type: ignore[no-untyped-call]
    alpha = ResourceHealthService(feed, drahealth_v1alpha1_pb2, pool=pool, places=places)
    drahealth_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(alpha, server)  # type: ignore[no-untyped-call]


def sockets_answer(registration: Path, dra: Path, *, timeout: float = 5.0) -> bool:
    """Whether both of the plugin's sockets can be dialled and answer, as the kubelet would find out."""
    try:
        with grpc.insecure_channel(f"unix://{registration}") as channel:
            stub = pluginregistration_pb2_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            stub.GetInfo(pluginregistration_pb2.InfoRequest(), timeout=timeout)
        with grpc.insecure_channel(f"unix://{dra}") as channel:
            plugin = dra_v1_pb2_grpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]
            plugin.NodePrepareResources(dra_v1_pb2.NodePrepareResourcesRequest(), timeout=timeout)
    except grpc.RpcError:
        return False
    return True


class ProbeServer:
    """grpc.health.v1.Health on a TCP address; `port` is the real one where 0 was asked for."""

    def __init__(self, address: str, serving: Callable[[], bool]) -> None:
        host, port = parse_address(address)
        self._stop = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(4, thread_name_prefix="probe"))
        service = ProbeService(serving, stop=self._stop)
        grpc_health_v1_pb2_grpc.add_HealthServicer_to_server(service, self._server)  # type: ignore[no-untyped-call]
        try:
            self.port: int = self._server.add_insecure_port(f"{_bindable(host)}:{port}")
        except RuntimeError as error:
            raise InvalidInput(f"health address {address!r} cannot be listened on: {error}") from error
        self._server.start()

    def close(self) -> None:
        self._stop.set()
        self._server.stop(0.5).wait()


def _bindable(host: str) -> str:
    """A host as gRPC writes it; none means every address."""
    return f"[{host}]" if ":" in host else host or "0.0.0.0"
