"""Keeps the node's ResourceSlices in the API equal to what discovery found.

The kubelet deletes all slices of its node when it starts, and those of a driver that is gone for 30 s, so the
plugin watches its own slices and publishes again. All slices of the pool carry the same generation:

    the slices in the API are the wanted ones, in one generation ──> nothing to do
    otherwise: generation = highest seen + 1; write every wanted slice, then delete the ones no longer wanted

A consumer ignores a pool whose newest generation is incomplete, so it never mixes two states. Slice names are
fixed (resource_slices.py), so two instances of the plugin overwrite each other's slices with the same content
instead of duplicating them; where an update changes the content, a pause after each write keeps the two from
racing until the old one ends.

The watches of slices and Node tell of every change, so a comparison that they show to hold still asks nothing
of the API server: at rest ten thousand nodes cost it ten thousand quiet watches and no request.

An API server silently drops fields whose feature gate is off. Its answer is compared with what was sent; a
dropped field is logged with the gate to turn on, and the answer is remembered, so that the difference does
not cause another write. The Node owns its slices.

During a change of the allocation mode the devices are published with allocator `none` (allocation_mode.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra.kube.watch import WatchCache
from koordra.kubelet_plugin.publish.allocation_mode import AllocationModeChange, ModeStep, quarantined
from koordra.kubelet_plugin.publish.slice_content import generation_of, same_content
from koordra.logs import get_logger
from koordra.process.wakeable import Pause, Wakeable

log = get_logger(__name__)

GATES: Final[Mapping[str, str]] = {
    "allowMultipleAllocations": "DRAConsumableCapacity",
    "requestPolicy": "DRAConsumableCapacity",
    "consumesCounters": "DRAPartitionableDevices",
    "sharedCounters": "DRAPartitionableDevices",
    "taints": "DRADeviceTaints",
}
"""Field of a slice -> the feature gate without which the API server drops it."""

INTERVAL: Final = 60.0
BuildSlices = Callable[[Object, int], Sequence[Object]]
"""The wanted slices, from the Node object and a generation."""


def own_slices_selector(node: str) -> str:
    return f"spec.driver={names.DRIVER},spec.nodeName={node}"


class Publisher(Wakeable):
    """Publishes for one node.

    `written` is called after each publication, `in_order` whenever the API holds what it should. In seconds:
    INTERVAL without an event, `settle` after a write.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        node: str,
        build: BuildSlices,
        written: Callable[[], None] = lambda: None,
        in_order: Callable[[], None] = lambda: None,
        mode_change: AllocationModeChange | None = None,
    ) -> None:
        super().__init__()
        self._client = client
        self._node = node
        self._build = build
        self._when_written, self._when_in_order = written, in_order
        self._mode_change = mode_change
        self._recheck_after: float | None = None
        self._generation = 0
        self._stored: dict[str, tuple[Object, Object]] = {}
        self._dropped: set[str] = set()
        self._seen_node: Object | None = None
        self._seen_slices = WatchCache(
            client,
            kinds.RESOURCE_SLICES,
            field_selector=own_slices_selector(node),
            on_change=lambda _event, _slice: self.wake(),
            trim=lambda slice_: {"metadata": slice_["metadata"]},
        )
        self._in_order: tuple[dict[str, str], Sequence[Object]] | None = None
        """The slices, by name and version, that were found to be the wanted ones, and these."""

    def follow(self, stop: threading.Event) -> None:
        """Watch the node's own slices."""
        self._seen_slices.start(stop)

    def see_node(self, node: Object) -> None:
        self._seen_node = node
        self.wake()

    gather = 0.05
    failed = "slices_not_published"
    settle = 1.0

    def step(self) -> Pause:
        """At every wake, and at least every INTERVAL; a write is given time to settle."""
        written = self.sync()
        if written:
            self._when_written()
        self._when_in_order()
        rest = INTERVAL if self._recheck_after is None else min(INTERVAL, self._recheck_after)
        at_least = self.settle if written else 0.0
        return Pause(at_least, at_least + rest)

    def sync(self) -> bool:
        """Make the API hold the wanted slices; True if something was written. Raises ApiError."""
        if self._is_in_order():
            return False
        self._in_order = None
        node = self._client.get(kinds.NODES, self._node)
        existing, _ = self._client.list(kinds.RESOURCE_SLICES, field_selector=own_slices_selector(self._node))
        wanted = self._build(node, self._generation)
        step = (
            self._mode_change.next_step(wanted, there=existing, node=node)
            if self._mode_change
            else ModeStep()
        )
        self._recheck_after = step.recheck_after
        shown = quarantined if step.quarantine else list[Object]
        wanted = shown(wanted)
        as_sent = []
        for obj in existing:
            # The slice as it was sent, if the API still holds the server's answer to that.
            sent, answered = self._stored.get(objects.name(obj), ({}, {}))
            as_sent.append({**obj, "spec": sent} if obj["spec"] == answered else obj)
        self._generation = max([self._generation, *map(generation_of, existing)])
        if same_content(as_sent, wanted):
            if step == ModeStep():
                self._in_order = _versions(existing), wanted
            return False
        generation = max(self._generation + 1, step.min_generation)
        wanted = shown(self._build(node, generation))
        current = {objects.name(obj): obj for obj in existing}
        for slice_ in wanted:
            self._write(slice_, current.get(objects.name(slice_)))
        self._generation = generation
        for name in sorted(current.keys() - {objects.name(slice_) for slice_ in wanted}):
            self._delete(current[name])
        log.info(
            "slices_published",
            node=self._node,
            generation=generation,
            slices=len(wanted),
            devices=sum(len(slice_["spec"].get("devices", ())) for slice_ in wanted),
        )
        return True

    def _is_in_order(self) -> bool:
        """Whether the watches show what the last comparison found in order, and the same is wanted now."""
        if self._in_order is None or self._seen_node is None or not self._seen_slices.wait_synced(0):
            return False
        versions, wanted = self._in_order
        return versions == _versions(self._seen_slices.objects()) and same_content(
            wanted, self._build(self._seen_node, self._generation)
        )

    def _write(self, wanted: Object, current: Object | None) -> None:
        """Raises Conflict where another instance of the node was quicker; the next round sees its slice."""
        if current is None:
            answered = self._client.create(kinds.RESOURCE_SLICES, wanted)
        else:
            answered = self._client.update(
                kinds.RESOURCE_SLICES,
                {
                    **wanted,
                    "metadata": {**wanted["metadata"], "resourceVersion": objects.resource_version(current)},
                },
            )
        self._stored[objects.name(wanted)] = (wanted["spec"], answered.get("spec") or {})
        dropped = set(missing_fields(wanted["spec"], answered.get("spec")))
        for field in sorted(dropped - self._dropped):
            gate = GATES.get(field)
            log.error(
                "slice_field_dropped",
                slice=objects.name(wanted),
                field=field,
                remedy=f"turn on the feature gate {gate}" if gate else "update the API server",
            )
        self._dropped |= dropped

    def _delete(self, obj: Object) -> None:
        try:
            self._client.delete(kinds.RESOURCE_SLICES, objects.name(obj), uid=objects.uid(obj) or None)
        except NotFound:
            log.debug("slice_gone_already", slice=objects.name(obj))


def _versions(slices: Iterable[Object]) -> dict[str, str]:
    return {objects.name(obj): objects.resource_version(obj) for obj in slices}


def missing_fields(sent: Any, answered: Any) -> Iterator[str]:
    """Names of fields that were sent and are not in the answer, at any depth. Values may be normalised."""
    if isinstance(sent, Mapping):
        for field, value in sent.items():
            if not isinstance(answered, Mapping) or field not in answered:
                if value not in ({}, [], "", 0, False, None):
                    yield str(field)
            else:
                yield from missing_fields(value, answered[field])
    elif isinstance(sent, list) and isinstance(answered, list):
        for item, kept in zip(sent, answered, strict=False):
            yield from missing_fields(item, kept)
