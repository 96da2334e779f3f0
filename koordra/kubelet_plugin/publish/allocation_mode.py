"""The node's half of a change between joint and native allocation (docs/allocation-modes.md). No device is
ever in both.

The state of a change is in the API, so a plugin that was killed continues it:

    allocator of the published devices   what is published next
    ----------------------------------   -----------------------------------------------------------------
    no devices at all, or as wanted      what is wanted
    of the other mode, or partly `none`  all of them with `none` and the quarantine taint, in a new generation
    `none`, in one whole generation      the same, until the controller has confirmed the generation and
                                         WINDOW is over; then what is wanted

- The controller confirms with the Node's annotation `koordra.io/quarantine-seen`: the generation that it has
  seen. A quarantine starts above every published generation, so that the confirmation of an earlier change
  never counts.
- kube-scheduler confirms nothing; WINDOW is the time in which an earlier decision must have been written. It
  starts when this process sees the quarantine published.
- The kubelet deletes all slices when it starts. So the last allocator is also kept in a file beside the
  checkpoint, written before the slices are. One that cannot be read may say either: with no slices there, the
  devices go through a quarantine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.kubelet_plugin.publish.slice_content import generation_of, with_devices
from koordra.logs import get_logger
from koordra.node_state.disk import Disk
from koordra.node_state.strict_json import load

log = get_logger(__name__)

WINDOW: Final = 60.0
"""Seconds after which a scheduling decision from before the quarantine has been written, or never will be."""
FILE: Final = "allocator.json"
MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class ModeStep:
    """What to publish now: the devices in `quarantine` or as they are wanted; a new generation is at least
    `min_generation`. `recheck_after`: seconds after which the answer may change without an event; None if it
    does not."""

    quarantine: bool = False
    min_generation: int = 0
    recheck_after: float | None = None


class AllocationModeChange:
    """Of one node, whose plugin's state is below `state`. Not thread-safe."""

    def __init__(
        self,
        state: Path,
        *,
        disk: Disk,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = state / FILE
        self._disk = disk
        self._clock = clock
        self._since: float | None = None
        self._generation = 0

    def next_step(self, wanted: Sequence[Object], *, there: Sequence[Object], node: Object) -> ModeStep:
        """What to publish next. `wanted` are the slices of the wanted mode, `there` those in the API."""
        target, published = _allocators(wanted), _allocators(there)
        if not target:
            return ModeStep()
        before = published or self._last()
        if published == target or (before <= target and self._since is None):
            self._since = None
            self._remember(target)
            return ModeStep()
        if published != {names.ALLOCATOR_NOBODY} or not _whole(there):
            log.info(
                "mode_change_begins", node=objects.name(node), before=sorted(before), wanted=sorted(target)
            )
            self._since = None
            return ModeStep(quarantine=True, min_generation=_confirmed(node) + 1)
        return self._in_quarantine(target, there=there, node=node)

    def _in_quarantine(self, target: frozenset[str], *, there: Sequence[Object], node: Object) -> ModeStep:
        if self._since is None:
            self._since, self._generation = self._clock(), generation_of(there[0])
        rest = self._since + WINDOW - self._clock()
        if rest > 0:
            return ModeStep(quarantine=True, recheck_after=rest)
        if _confirmed(node) < self._generation:
            return ModeStep(quarantine=True)
        log.info("mode_change_ends", node=objects.name(node), allocator=sorted(target))
        self._since = None
        self._remember(target)
        return ModeStep()

    def _last(self) -> frozenset[str]:
        """Empty where there is no file, nobody's where it cannot be read: nothing is wanted to be that."""
        try:
            data = self._disk.read(self._path)
            return frozenset() if data is None else frozenset({str(load(data)["allocator"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("allocation_mode_unreadable", path=str(self._path), error=str(error))
            return frozenset({names.ALLOCATOR_NOBODY})

    def _remember(self, target: frozenset[str]) -> None:
        try:
            if self._last() != target:
                self._disk.replace(
                    self._path, json.dumps({"allocator": min(target)}).encode() + b"\n", mode=MODE
                )
        except OSError as error:
            # The file matters only if the slices vanish too while the mode changes.
            log.error("allocation_mode_not_saved", path=str(self._path), error=str(error))


def quarantined(slices: Sequence[Object]) -> list[Object]:
    """The slices with devices that no allocator gives out."""

    def withheld(device: Object) -> Object:
        return {
            **device,
            "attributes": {**device["attributes"], names.ATTR_ALLOCATOR: {"string": names.ALLOCATOR_NOBODY}},
            "taints": [
                {"key": names.QUARANTINE_TAINT, "effect": "NoSchedule"},
                *[taint for taint in device.get("taints") or () if taint["key"] != names.JOINT_TAINT],
            ][:16],
        }

    return with_devices(slices, withheld)


def _allocators(slices: Sequence[Object]) -> frozenset[str]:
    return frozenset(
        str(((device.get("attributes") or {}).get(names.ATTR_ALLOCATOR) or {}).get("string") or "")
        for one in slices
        for device in one["spec"].get("devices") or ()
    )


def _whole(slices: Sequence[Object]) -> bool:
    pools = [one["spec"]["pool"] for one in slices]
    counts = {(pool["generation"], pool["resourceSliceCount"]) for pool in pools}
    return len(counts) == 1 and pools[0]["resourceSliceCount"] == len(pools)


def _confirmed(node: Object) -> int:
    """The generation that the controller has confirmed, 0 for none."""
    text = str(objects.annotations_of(node).get(names.QUARANTINE_SEEN, ""))
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0
