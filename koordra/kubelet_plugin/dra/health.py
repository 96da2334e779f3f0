"""The health of every device of the node, the feed of its changes, and its readers over gRPC.

`device_health` (pure) turns an inventory into one line per device that can be prepared:

    offered, no fault                HEALTHY
    offered, unhealthy taint         UNHEALTHY, with the taint's value (Xid 79, LinkDown)
    held by a claim, but no longer
    offered (fell off the bus)       UNHEALTHY, "gone"

`HealthFeed` keeps the newest list and wakes every stream that waits for it. A stream sends the list at once,
after each change, and at least every `REPEAT` seconds, well within the 30 s after which the kubelet considers
a report stale.

The reader is the kubelet: DRAResourceHealth in `v1` (1.37 and later) and `v1alpha1` (before), on the DRA
socket. The two differ in their name alone. The kubelet writes it to
`pod.status.containerStatuses[].allocatedResourcesStatus`.

Probes ask over HTTP (koordra.metrics) whether the plugin's own sockets answer. The check goes through the
socket files, since a plugin that lost them seems alive and is unreachable.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
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
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)
from koordra.api import names
from koordra.errors import KoordraError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory

REPEAT: Final = 10.0
FORGOTTEN_AFTER: Final = 30
"""Seconds after which the kubelet considers a device without a report unknown."""

_LONGEST_MESSAGE: Final = 1024


class Health(IntEnum):
    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    device: str
    health: Health
    message: str = ""


def device_health(inventory: NodeInventory, *, held: Iterable[str] = ()) -> tuple[DeviceHealth, ...]:
    """Every device of the node, by name. `held`: devices of prepared claims, offered or not."""
    found: dict[str, DeviceHealth] = {}
    for name, device in inventory.published.items():
        faults = [taint.value for taint in device.taints if taint.key == names.UNHEALTHY_TAINT]
        found[name] = DeviceHealth(name, Health.UNHEALTHY if faults else Health.HEALTHY, ", ".join(faults))
    for name in held:
        if name not in found:
            why = inventory.refusal(name) or "it is no longer offered"
            found[name] = DeviceHealth(name, Health.UNHEALTHY, why)
    return tuple(found[name] for name in sorted(found))


def held_devices(records: Callable[[], Iterable[ClaimRecord]]) -> list[str]:
    """The node's devices of prepared claims; none where these cannot be read, which is reported elsewhere."""
    try:
        return [device.device for record in records() for device in record.devices if not device.pool]
    except KoordraError:
        return []


class HealthFeed:
    """The newest list, for any number of streams. Safe to use from several threads."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._devices: tuple[DeviceHealth, ...] = ()
        self._version = 0
        self._closed = False

    def publish(self, devices: tuple[DeviceHealth, ...]) -> None:
        """Set the list; streams are woken if it differs from the last one."""
        with self._changed:
            if devices != self._devices or self._version == 0:
                self._devices = devices
                self._version += 1
                self._changed.notify_all()

    def close(self, *, closed: bool = True) -> None:
        """End all streams, so that a server can stop; `closed` False lets new ones begin."""
        with self._changed:
            self._closed = closed
            self._changed.notify_all()

    def wake(self) -> None:
        """Have every stream check whether its reader is gone."""
        with self._changed:
            self._changed.notify_all()

    def follow(
        self, listening: Callable[[], bool], *, repeat: float = REPEAT
    ) -> Iterator[tuple[tuple[DeviceHealth, ...], int]]:
        """(list, unix time) now, after each change and every `repeat` seconds, until nobody is `listening` or
        `close`.

        Yields nothing before the first list.
        """
        seen = 0
        while True:
            with self._changed:
                deadline = time.monotonic() + repeat
                while listening() and not self._closed and self._version == seen:
                    rest = deadline - time.monotonic()
                    if rest <= 0 and seen:
                        break
                    self._changed.wait(max(rest, 0.05))
                if self._closed or not listening():
                    return
                seen, devices = self._version, self._devices
            yield devices, int(self._clock())


HEALTH_VERSIONS: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""As registration names them, preferred first."""

MOST_STREAMS: Final = 6
"""Streams that may wait at a time: each keeps a thread, and calls must always find one."""

_ANSWER_WITHIN: Final = 5.0


@dataclass(frozen=True, slots=True)
class ResourceHealthService:
    feed: HealthFeed
    messages: Any
    pool: str
    places: threading.Semaphore

    def NodeWatchResources(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802  the service's name
        if not self.places.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many health streams are open")
        try:
            context.add_callback(self.feed.wake)
            for devices, now in self.feed.follow(context.is_active):
                yield self.messages.NodeWatchResourcesResponse(
                    devices=[
                        self.messages.DeviceHealth(
                            device=self.messages.DeviceIdentifier(
                                pool_name=self.pool, device_name=device.device
                            ),
                            health=int(device.health),
                            last_updated_time=now,
                            health_check_timeout_seconds=FORGOTTEN_AFTER,
                            message=device.message[:_LONGEST_MESSAGE],
                        )
                        for device in devices
                    ]
                )
        finally:
            self.places.release()


def add_health_services(feed: HealthFeed, server: Any, *, pool: str) -> None:
    """Puts DRAResourceHealth, both versions, onto a gRPC server. The streams that it may hold are the
    server's own."""
    places = threading.Semaphore(MOST_STREAMS)
    drahealth_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(
        ResourceHealthService(feed, drahealth_v1_pb2, pool, places), server
    )  # type: ignore[no-untyped-call]
    drahealth_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(
        ResourceHealthService(feed, drahealth_v1alpha1_pb2, pool, places), server
    )  # type: ignore[no-untyped-call]


def sockets_answer(registration: Path, dra: Path) -> bool:
    """Whether both of the plugin's sockets can be dialled and answer, as the kubelet would find out."""
    try:
        with grpc.insecure_channel(f"unix://{registration}") as channel:
            registry = pluginregistration_pb2_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            registry.GetInfo(pluginregistration_pb2.InfoRequest(), timeout=_ANSWER_WITHIN)
        with grpc.insecure_channel(f"unix://{dra}") as channel:
            plugin = dra_v1_pb2_grpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]
            plugin.NodePrepareResources(dra_v1_pb2.NodePrepareResourcesRequest(), timeout=_ANSWER_WITHIN)
    except grpc.RpcError:
        return False
    return True
