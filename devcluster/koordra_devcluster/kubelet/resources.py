"""Preparing and unpreparing claims for pods: the kubelet's own checks, its batching and its reading of
answers.

Before a driver is called, the kubelet makes sure that the claim exists with the uid it knows, belongs to the
pod if it came from a template, is allocated, and is reserved for the pod. All claims of a pod for one driver
go into one request, and the answer must hold exactly one entry per claim. A claim that is prepared already is
not prepared again for the next pod; it is unprepared when its last local pod is gone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from koordra.api.objects import Object, key, metadata, name, pod_claim_names, spec_of, status_of, uid
from koordra.errors import NotFound, PrepareError
from koordra_devcluster.controllers.group_claims import RESOURCE, group_name, owning_group
from koordra_devcluster.kubelet.claim_cache import ClaimCache, ClaimInfo, PreparedDevice
from koordra_devcluster.kubelet.drivers import DriverPlugin

GetClaim = Callable[[str, str], Object]
"""(namespace, name) -> claim from the API. Raises NotFound and other ApiErrors."""


class ResourceManager:
    """The claims of one node. Safe to call from several pods' threads: each claim has a lock of its own."""

    def __init__(
        self, cache: ClaimCache, *, get_claim: GetClaim, driver: Callable[[str], DriverPlugin]
    ) -> None:
        self._cache = cache
        self._get_claim = get_claim
        self._driver = driver
        self._lock = threading.Lock()

    def prepare(self, pod: Object) -> None:
        """Make every claim of the pod ready. Raises PrepareError and ApiError; whoever calls tries again."""
        wanted: dict[tuple[str, str], tuple[ClaimInfo, list[str]]] = {}
        for entry, claim_name in pod_claim_names(pod).items():
            info, drivers = self._checked(pod, entry, claim_name)
            wanted[(info.namespace, info.name)] = (info, drivers)
        with contextlib.ExitStack() as held:
            for _, (info, _drivers) in sorted(wanted.items(), key=lambda one: one[0]):
                held.enter_context(info.lock)
            missing = [(info, drivers) for info, drivers in wanted.values() if not info.prepared]
            batches: dict[str, list[ClaimInfo]] = {}
            for info, drivers in missing:
                for driver in drivers:
                    batches.setdefault(driver, []).append(info)
            for driver, batch in batches.items():
                self._prepare_batch(driver, batch)
            with self._lock:
                for info, _drivers in missing:
                    info.prepared = True
                self._cache.save()

    def unprepare(self, pod_uid: str) -> None:
        """Release the pod's claims; those without another local pod are unprepared. Raises PrepareError."""
        with self._lock:
            infos = sorted(self._cache.of_pod(pod_uid), key=lambda info: (info.namespace, info.name))
        with contextlib.ExitStack() as held:
            for info in infos:
                held.enter_context(info.lock)
            with self._lock:
                last = [info for info in infos if info.pods == [pod_uid]]
            batches: dict[str, list[ClaimInfo]] = {}
            for info in last:
                for driver in info.drivers:
                    batches.setdefault(driver, []).append(info)
            for driver, batch in batches.items():
                self._unprepare_batch(driver, batch)
            with self._lock:
                self._release(pod_uid, infos, last)

    def _release(self, pod_uid: str, infos: Sequence[ClaimInfo], unprepared: Sequence[ClaimInfo]) -> None:
        """A pod that joined an unprepared claim in the meantime keeps its entry, and has it prepared
        again."""
        for info in infos:
            info.pods = [pod for pod in info.pods if pod != pod_uid]
            if info in unprepared:
                info.prepared = False
                if not info.pods:
                    self._cache.remove(info)
        self._cache.save()

    def pods(self) -> set[str]:
        """uids of pods that still hold claims on this node."""
        with self._lock:
            return self._cache.pods()

    def cdi_devices(self, pod: Object, container: Object) -> list[str]:
        """CDI ids of the requests that a container references."""
        names = pod_claim_names(pod)
        found: list[str] = []
        with self._lock:
            for reference in (container.get("resources") or {}).get("claims") or ():
                info = self._cache.get(metadata(pod)["namespace"], names.get(reference["name"]) or "")
                if info is not None:
                    found += info.cdi_devices(reference.get("request"))
        return list(dict.fromkeys(found))

    def _checked(self, pod: Object, entry: str, claim_name: str | None) -> tuple[ClaimInfo, list[str]]:
        """The claim's entry in the cache and the drivers of its allocation. Raises PrepareError."""
        if claim_name is None:
            raise PrepareError(f"pod {key(pod)}: the ResourceClaim of {entry!r} has not been created yet")
        namespace = metadata(pod)["namespace"]
        try:
            claim = self._get_claim(namespace, claim_name)
        except NotFound as error:
            raise PrepareError(
                f"failed to fetch ResourceClaim {namespace}/{claim_name}: {error.message}"
            ) from error
        _check_owner(pod, entry, claim)
        allocation = status_of(claim).get("allocation")
        if allocation is None:
            raise PrepareError(f"ResourceClaim {key(claim)}: not allocated")
        if not any(_names(one, pod) for one in status_of(claim).get("reservedFor") or ()):
            raise PrepareError(
                f"pod {key(pod)} ({uid(pod)}) is not allowed to use resource claim {key(claim)} ({uid(claim)})"
            )
        drivers = _drivers(allocation)
        with self._lock:
            return self._joined(pod, claim, drivers), drivers

    def _joined(self, pod: Object, claim: Object, drivers: Sequence[str]) -> ClaimInfo:
        """The claim's entry with the pod among its users, on disk before any driver hears of it."""
        namespace, claim_name = metadata(claim)["namespace"], name(claim)
        info = self._cache.get(namespace, claim_name)
        if info is not None and info.uid != uid(claim):
            raise PrepareError(
                f"ResourceClaim {key(claim)}: the claim was deleted and created again while it is still prepared"
                f" (prepared {info.uid}, now {uid(claim)})"
            )
        if info is None:
            info = ClaimInfo(namespace, claim_name, uid(claim))
            self._cache.add(info)
        for driver in drivers:
            info.drivers.setdefault(driver, [])
        if uid(pod) not in info.pods:
            info.pods.append(uid(pod))
        self._cache.save()
        return info

    def _prepare_batch(self, driver: str, batch: Sequence[ClaimInfo]) -> None:
        answers = self._driver(driver).prepare([(info.namespace, info.name, info.uid) for info in batch])
        _check_answers("NodePrepareResources", answers, batch)
        for info in batch:
            answer = answers[info.uid]
            if answer.error:
                raise PrepareError(
                    f"NodePrepareResources failed for ResourceClaim {info.name}: {answer.error}"
                )
            info.drivers[driver] = [_device(device) for device in answer.devices]

    def _unprepare_batch(self, driver: str, batch: Sequence[ClaimInfo]) -> None:
        answers = self._driver(driver).unprepare([(info.namespace, info.name, info.uid) for info in batch])
        _check_answers("NodeUnprepareResources", answers, batch)
        for info in batch:
            if answers[info.uid].error:
                raise PrepareError(
                    f"NodeUnprepareResources failed for ResourceClaim {info.name}: {answers[info.uid].error}"
                )


def _names(consumer: Object, pod: Object) -> bool:
    """Whether an entry of reservedFor means the pod, or its group, whose uid no pod knows."""
    if consumer.get("resource") == RESOURCE:
        return bool(consumer.get("name")) and consumer.get("name") == group_name(pod)
    return bool(consumer.get("uid") == uid(pod))


def _drivers(allocation: Object) -> list[str]:
    results = (allocation.get("devices") or {}).get("results") or ()
    return list(dict.fromkeys(str(result["driver"]) for result in results))


def _check_owner(pod: Object, entry: str, claim: Object) -> None:
    """A claim made from a template serves the pod it was made for."""
    from_template = any(
        one["name"] == entry and one.get("resourceClaimTemplateName")
        for one in spec_of(pod).get("resourceClaims") or ()
    )
    owners = [one.get("uid") for one in metadata(claim).get("ownerReferences") or () if one.get("controller")]
    if from_template and uid(pod) not in owners and owning_group(claim, pod) is None:
        raise PrepareError(
            f"ResourceClaim {key(claim)} was not created for pod {key(pod)} (pod is not owner)"
        )


def _check_answers(method: str, answers: Mapping[str, Any], batch: Sequence[ClaimInfo]) -> None:
    """Exactly one entry per requested claim."""
    asked = {info.uid for info in batch}
    unknown = sorted(set(answers) - asked)
    if unknown:
        raise PrepareError(f"{method} returned result for unknown claim UID {unknown[0]}")
    if asked - set(answers):
        raise PrepareError(f"{method} skipped {len(asked - set(answers))} ResourceClaims")


def _device(device: Any) -> PreparedDevice:
    return PreparedDevice(
        pool=device.pool_name,
        device=device.device_name,
        requests=tuple(device.request_names),
        cdi_devices=tuple(device.cdi_device_ids),
        share_id=getattr(device, "share_id", "") or None,
    )
