"""Annotations that other programs read from pods, in the words of the stack that a pod was written for.

    pod, its claims, the published devices ──> what each container has
                                           ──> the dialect's annotations (koordra.compat) ──> the pod

What a pod has is read from the status of its claims and the published devices; nothing that stands in
annotations is read back. Nothing that a user may write counts, but for the unit in which the pod's dialect
counts memory (an annotation of the claim): a unit that cannot be read is GiB.

Dialects whose schedulers left nothing that is known to be read have none. What those stacks wrote for their
own node programs to act on (`vgpu-devices-to-allocate`) is not written. Times are those of the allocation, so
that the same allocation is the same text.

Written on pods that came through the shim (annotation koordra.io/dialect), that are bound, and whose claims
are all allocated. What stands there and differs is replaced: a user's forgery too. A pod is looked at again
when it, one of its claims or the published devices have changed. One patch for a pod, conditional on its uid;
what the API server refuses is logged once and not tried again for that pod (a policy may reserve
Koordinator's annotation for its scheduler).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from koordra.api import names, objects
from koordra.api.kinds import PODS, RESOURCE_SLICES
from koordra.api.objects import Fields, Object
from koordra.api.pods import containers
from koordra.compat.dialect.allocation import DIALECT_LABEL, Allocated, Device, unit_of
from koordra.compat.dialects import dialect_named
from koordra.compat.normalized_request import GIB
from koordra.controller import claims as claims_of
from koordra.controller.cache.changes import ChangeQueue
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.pod_index import PodEntry
from koordra.controller.reconcile.reconcile_loop import PERIOD, run_passes
from koordra.controller.resource_class.elastic.cards import (
    attribute,
    consumed,
    containers_using,
    memory_of_device,
    published_devices,
)
from koordra.controller.resource_class.elastic.claims import place_of
from koordra.errors import ApiError, ApiUnreachable, Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra.logs import get_logger
from koordra.process.lifecycle import spawn

log = get_logger(__name__)

Devices = Mapping[tuple[str, str], Device]
"""By pool and name."""


def wanted(pod: Object, claims: Sequence[Object], devices: Devices) -> dict[str, str]:
    """The annotations of a bound pod whose claims are all allocated; none for dialects that left none."""
    dialect = dialect_named(objects.annotations_of(pod).get(DIALECT_LABEL, ""))
    if dialect is None or dialect.allocation_annotations is None:
        return {}
    found = allocated(pod, claims, devices)
    return dialect.allocation_annotations(found) if found is not None and found.held else {}


def allocated(pod: Object, claims: Sequence[Object], devices: Devices) -> Allocated | None:
    """What the pod has; None while a device of it is not published."""
    held: list[Device] = []
    at, unit = 0, GIB
    for claim in claims:
        at = max(at, _unix((claims_of.allocation(claim) or {}).get("allocationTimestamp")))
        unit = unit_of(objects.annotations_of(claim)) or unit
        for result in claims_of.results(claim):
            if result.get("driver") != names.DRIVER:
                continue
            device = devices.get(place_of(result))
            if device is None:
                return None
            memory, share = consumed(result, names.CAPACITY_MEMORY), consumed(result, names.CAPACITY_SHARE)
            held.append(
                replace(
                    device,
                    containers=tuple(containers_using(pod, claim, str(result.get("request")))),
                    memory=device.total if memory is None else memory,
                    cores=consumed(result, names.CAPACITY_CORES) or 0,
                    share=100 if share is None else share,
                )
            )
    spec = objects.spec_of(pod)
    return Allocated(
        node=str(spec.get("nodeName") or ""),
        containers=tuple(str(entry.get("name")) for entry in containers(pod)),
        app=tuple(str(entry.get("name")) for entry in spec.get("containers") or ()),
        held=tuple(sorted(held, key=lambda one: (one.kind, one.minor, one.bus_id))),
        at=at,
        unit=unit,
    )


def devices_of(slices: Iterable[Object]) -> dict[tuple[str, str], Device]:
    """Every device that koordra's plugins publish, by pool and name."""
    raw = {place: device for place, _, device in published_devices(slices)}
    return {
        place: _device(device, raw.get((place[0], _text(device, "parent")))) for place, device in raw.items()
    }


def _device(device: Fields, parent: Fields | None) -> Device:
    kind = _text(device, "type")
    return Device(
        kind=kind,
        uuid=_text(device, "uuid"),
        minor=_minor(parent if kind == names.TYPE_MIG and parent else device),
        bus_id=_text(device, names.STANDARD_PCI_BUS_ID),
        parent_bus_id=_text(parent or {}, names.STANDARD_PCI_BUS_ID),
        parent_minor=_minor(parent or {}),
        total=memory_of_device(device),
    )


def _minor(device: Fields) -> int:
    """A card's minor; of a NIC the number in its RDMA device's name (mlx5_3 is 3), as Koordinator does."""
    found = attribute(device, "minor")
    if isinstance(found, int):
        return found
    tail = _text(device, "ibDevice").rpartition("_")[2]
    return int(tail) if tail.isdigit() else 0


def _text(device: Fields, name: str) -> str:
    return str(attribute(device, name) or "")


def _unix(text: object) -> int:
    try:
        return int(datetime.fromisoformat(str(text)).timestamp())
    except ValueError:
        return 0


GATHER: Final = 0.1


class PeerAnnotations:
    """Follows a cache of its own. Not thread-safe."""

    def __init__(self, client: KubeClient, source: ChangeQueue, *, may_write: Callable[[], bool]) -> None:
        self._client = client
        self._source = source
        self._may_write = may_write
        self._cache = ClusterCache()
        self._stale: set[str] = self._cache.pod_index.follow()
        self._cache.listen(RESOURCE_SLICES, self._on_slice)

    def _on_slice(self, _key: str, before: Object | None, now: Object | None) -> None:
        for entry in (before, now):
            pool = str((objects.spec_of(entry or {}).get("pool") or {}).get("name"))
            for held in self._cache.claim_index.of_pool(pool):
                using = self._cache.pod_index.users.get(objects.key(held.claim), ())
                self._stale |= {objects.uid(pod) for pod in using}

    def sync(self) -> int:
        """One pass over the pods that have changed; how many were written. Raises ApiUnreachable."""
        self._cache.apply(self._source.changes())
        written = 0
        for uid in sorted(self._stale):
            entry = self._cache.pod_index.entries.get(uid)
            claims = self._claims(entry) if entry is not None and _is_served(entry.pod) else None
            if entry is not None and claims is not None:
                if not self._may_write():
                    break
                pools = {pool for claim in claims for pool in claims_of.pools(claim)}
                slices = [one for pool in pools for one in self._cache.slice_index.of_pool(pool)]
                written += self._write(entry.pod, wanted(entry.pod, claims, devices_of(slices)))
            self._stale.discard(uid)
        return written

    def _claims(self, entry: PodEntry) -> list[Object] | None:
        """The pod's claims with devices of koordra's; None while one of its claims is not there or not
        allocated."""
        if len(entry.keys) < len(objects.pod_claim_names(entry.pod)):
            return None
        found = [self._cache.claims.get(key) for key in entry.keys]
        if any(claim is None or not claims_of.is_allocated(claim) for claim in found):
            return None
        return [claim for claim in found if claim is not None and claims_of.holds_koordra_devices(claim)]

    def _write(self, pod: Object, annotations: Mapping[str, str]) -> bool:
        there = objects.annotations_of(pod)
        if all(there.get(key) == value for key, value in annotations.items()):
            return False
        body = {"metadata": {"uid": objects.uid(pod), "annotations": dict(annotations)}}
        try:
            self._client.patch(PODS, objects.name(pod), body, namespace=objects.namespace(pod))
        except (NotFound, Conflict):
            return False
        except ApiUnreachable:
            raise
        except ApiError as error:
            log.warning("peer_annotations_refused", pod=objects.key(pod), error=str(error))
            return False
        log.info("peer_annotations_written", pod=objects.key(pod), annotations=sorted(annotations))
        return True


def start_peer_annotations(
    writer: PeerAnnotations, *, changed: threading.Event, stop: threading.Event
) -> threading.Thread:
    """Passes until `stop`, in a thread of its own: after any change, and every half minute."""

    def one_pass() -> float:
        writer.sync()
        return PERIOD

    run = partial(run_passes, one_pass, name="peer-annotations", gather=GATHER, changed=changed, stop=stop)
    return spawn(run, name="peer-annotations", until=stop)


def _is_served(pod: Object) -> bool:
    return (
        DIALECT_LABEL in objects.annotations_of(pod)
        and bool(objects.spec_of(pod).get("nodeName"))
        and not objects.pod_is_finished(pod)
        and not objects.is_deleting(pod)
    )
