"""The health of every device of the node, and the feed of its changes to the kubelet.

`device_health` (pure) turns an inventory into one line per device that can be prepared:

    offered, no fault                HEALTHY
    offered, unhealthy taint         UNHEALTHY, with the taint's value (Xid 79, LinkDown)
    held by a claim, but no longer
    offered (fell off the bus)       UNHEALTHY, "gone"

`HealthFeed` keeps the newest list and wakes every stream that waits for it. A stream sends the list at once,
after each change, and at least every `REPEAT` seconds, well within the 30 s after which the kubelet considers
a report stale.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from koordra.api import names
from koordra.kubelet_plugin.publish.inventory import Inventory

REPEAT: Final = 10.0
FORGOTTEN_AFTER: Final = 30
"""Seconds after which the kubelet considers a device without a report unknown."""

_LONGEST_MESSAGE: Final = 1024


class Health(IntEnum):
    """Values of the protocol."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    device: str
    health: Health
    message: str = ""


def device_health(inventory: Inventory, *, held: Iterable[str] = ()) -> tuple[DeviceHealth, ...]:
    """Every device of the node, by name. `held`: devices of prepared claims, offered or not."""
    found: dict[str, DeviceHealth] = {}
    for name, device in inventory.published.items():
        faults = [taint.value for taint in device.taints if taint.key == names.UNHEALTHY_TAINT]
        found[name] = (
            DeviceHealth(name, Health.UNHEALTHY, ", ".join(faults)[:_LONGEST_MESSAGE])
            if faults
            else DeviceHealth(name, Health.HEALTHY)
        )
    for name in held:
        if name not in found:
            why = inventory.refusal(name) or "it is no longer offered"
            found[name] = DeviceHealth(name, Health.UNHEALTHY, why[:_LONGEST_MESSAGE])
    return tuple(found[name] for name in sorted(found))


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

    def reopen(self) -> None:
        with self._changed:
            self._closed = False

    def close(self) -> None:
        """End all streams, so that a server can stop."""
        with self._changed:
            self._closed = True
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
