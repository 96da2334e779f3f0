"""Pods and claims that wait and are in no group: told why, and counted as what waits (`waiting_groups`).

a claim that nobody can allocate        its DeviceClass does not exist, or it mixes two drivers
a claim that is full                    as many pods have it as `status.reservedFor` can name
a claim that is not there               of a pod that the gate holds, so that kube-scheduler is silent; after
                                        LACKS_FOR seconds, since claims come a moment after their pods
devices without a pod are refused       while no pod uses the claim; with one it waits like any other
a quota is full                         the words are the quota's
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from koordra.allocator.explain.telling import headline, waiting_for_others
from koordra.allocator.reasons import Cause, Reason, reason_of
from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.api.tables import DueKeys, set_or_drop
from koordra.controller import claims as claims_of
from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.cache import pod_index
from koordra.controller.cache.pod_index import PodClaims, PodEntry
from koordra.controller.claims import Owner
from koordra.controller.reporting.claim_events import CLAIM_MISSING
from koordra.placement.request.claim_groups import MAX_CONSUMERS

LACKS_FOR: Final = 10.0
_APART: Final = "unplanned/"
"""Before the uid of a pod, or the key of a claim, that waits and is in no group."""


def created(obj: Object) -> str:
    return str(objects.metadata(obj).get("creationTimestamp") or "")


def why_full(claim: Object, users: Sequence[Object]) -> str:
    return (
        f"{objects.describe(claim)} is used by {len(users)} pods, and a claim can be reserved for {MAX_CONSUMERS}; "
        "give some of them a claim of their own"
    )


class Unplanned:
    """Not thread-safe."""

    def __init__(self, context: PassContext) -> None:
        self._context = context
        self._lacking: dict[str, float] = {}
        """Pods by uid that lack claims, and when that is told."""
        self._due = DueKeys()
        self._refused: dict[str, str] = {}
        """Claims that may not have devices without a pod, by key, and why not."""
        self._keys = set[str]()
        """Claims that were touched, or whose pods were."""
        context.cache.pod_index.on_touch.append(self._on_pod)
        context.cache.claim_index.on_touch.append(lambda key, _before, _now: self._keys.add(key))

    def _on_pod(self, _uid: str, before: PodEntry | None, now: PodEntry | None) -> None:
        for entry in (before, now):
            self._keys.update(entry.keys if entry is not None else ())

    # pods

    def look_at(self, uid: str) -> None:
        """The pod has changed: it waits for nothing that was told before, and perhaps for claims."""
        self._context.waiting.drop(f"{_APART}{uid}")
        entry = self._context.cache.pod_index.entries.get(uid)
        lacks = entry is not None and entry.claims is None and _is_held(entry.pod)
        if lacks and uid not in self._lacking:
            self._lacking[uid] = self._context.clock() + LACKS_FOR
        elif not lacks and self._lacking.pop(uid, None) is not None:
            self._context.events.forget(uid)
        if lacks:
            self._due.add(self._lacking[uid], uid)

    def waits(self, pod: Object, why: str) -> None:
        self._context.waiting.put(f"{_APART}{objects.uid(pod)}", why, created(pod))

    def tell_lacking(self) -> None:
        """Pods that have lacked claims for long enough."""
        cache = self._context.cache
        for uid in self._due.pop(self._context.clock()) & self._lacking.keys():
            pod = cache.pod_index.entries[uid].pod
            if lacking := claims_of.lacking(pod, cache.claims):
                text = f"pod {objects.key(pod)} lacks ResourceClaim {', '.join(lacking)}"
                self._context.events.lacking(pod, message=text)
                self.waits(pod, CLAIM_MISSING)
        self._context.wake(self._due.next)

    def tell_unplannable(self, member: PodClaims) -> None:
        """Claims of which one cannot be allocated by anybody; the others of the pod wait for that one."""
        cache = self._context.cache
        reasons: dict[str, tuple[Reason, ...]] = {objects.key(claim): () for claim in member.pending}
        for claim, owner in member.refused:
            reasons[objects.key(claim)] = (_unplannable(claim, owner, cache.classes),)
        told = waiting_for_others(reasons)
        for key, given in told.items():
            self._context.events.waiting(cache.claims[key], filter(None, (member.pod,)), given)
        if member.pod:
            self.waits(member.pod, headline([reason for given in told.values() for reason in given]))

    def tell_full(self, claim: Object, member: PodClaims) -> None:
        text = why_full(claim, self._context.users()[objects.key(claim)])
        self._context.events.pinned(claim, member.pod, (reason_of(Cause.RESERVED_FOR_FULL, text),))
        self.waits(member.pod, Cause.RESERVED_FOR_FULL)

    # claims without a pod

    def tell_refused(self) -> None:
        """Claims that may not have devices without a pod."""
        cache = self._context.cache
        changed = cache.claim_index.refusals_changed()
        for key, why in changed.items():
            set_or_drop(self._refused, key, why)
            if why and not claims_of.is_allocated(cache.claims[key]):
                reason = reason_of(Cause.IMMEDIATE_REFUSED, why)
                self._context.events.waiting(cache.claims[key], (), (reason,))
        for key in changed.keys() | (self._keys & self._refused.keys()):
            claim = cache.claims.get(key)
            waits = claim is not None and key in self._refused and not claims_of.is_allocated(claim)
            if claim is not None and waits and not self._context.users().get(key):
                self._context.waiting.put(f"{_APART}{key}", Cause.IMMEDIATE_REFUSED, created(claim))
            else:
                self._context.waiting.drop(f"{_APART}{key}")
        self._keys.clear()


def _is_held(pod: Object) -> bool:
    """By koordra's gate alone."""
    return pod_index.is_living(pod) and pod_index.gates(pod) == [names.JOINT_GATE]


def _unplannable(claim: Object, owner: Owner, classes: Mapping[str, Object]) -> Reason:
    """A class that does not exist, or two drivers in one claim."""
    where, named = f"{objects.describe(claim)}: spec.devices.requests", claims_of.class_names(claim)
    if owner is Owner.UNKNOWN:
        missing = ", ".join(name for name in named if name not in classes)
        known = sorted(name for name in classes if claims_of.is_koordra_class(classes[name]))
        text = (
            f"{where}: DeviceClass {missing} does not exist; "
            f"create it, or use one of koordra's ({', '.join(known) or 'none'})"
        )
        return reason_of(Cause.SELECTOR_MISMATCH, text)
    foreign = ", ".join(name for name in named if not claims_of.is_koordra_class(classes[name]))
    text = (
        f"{where}: DeviceClass {foreign} is not koordra's, and one claim has one allocator; "
        "move those requests into a claim of their own in the same pod"
    )
    return reason_of(Cause.FOREIGN_DRIVER, text)
