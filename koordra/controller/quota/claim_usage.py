"""The claims of a cluster as quotas count them, followed through watches.

A claim that was made for a rewritten pod of a template of ours is charged with its pod, since the pod is
admitted before: once for each entry of the pod, and only where it says what the template says. Of several
that claim to be made for one entry the first counts with the pod, and the others by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from koordra.api import names, objects
from koordra.api.objects import Fields, Object
from koordra.api.tables import KeySets
from koordra.compat.quota_charges import Amounts, canonical_spec, dialect_of
from koordra.compat.rewrite import template_name
from koordra.controller import claims as claims_of
from koordra.controller.quota.bounds import Charge
from koordra.controller.quota.claims import amounts_of, charge_of
from koordra.controller.quota.published import PublishedDevices
from koordra.controller.quota.usage import MALFORMED, QuotaUsage, legacy_entries
from koordra.logs import get_logger

log = get_logger(__name__)

Entry = tuple[str, str, str]
"""Namespace, uid of a pod, entry of its spec.resourceClaims."""


class ClaimUsage:
    """Listener of watches of claims and DeviceClasses. Thread-safe."""

    def __init__(self, usage: QuotaUsage, published: PublishedDevices) -> None:
        self._usage = usage
        self._published = published
        self._lock = usage.lock
        usage.on_charge = self._on_charge
        self._classes: dict[str, Object] = {}
        self._claims: dict[str, Object] = {}
        """By uid, as the watch has them."""
        self._of_class = KeySets()
        self._of_pod = KeySets()
        """Uids of claims, by the uid of the pod that they were made for."""
        self._covered: dict[Entry, str] = {}
        self._by_size = set[str]()
        """Claims that count by what nodes publish."""
        self._epoch = 0

    def on_claim(self, event: str, claim: Object, /) -> None:
        uid = objects.uid(claim)
        with self._lock:
            before = self._claims.get(uid)
            if event == "DELETED":
                if before is not None:
                    self._forget(uid, before)
                self._usage.on_claim(claim, None)
            elif before is not None:
                self._claims[uid] = claim  # counts as before, and what the watch has let go is not kept
            else:
                self._claims[uid] = claim
                self._of_class.move(uid, (), claims_of.class_names(claim))
                if entry := _made_for(claim):
                    self._of_pod.move(uid, (), (entry[1],))
                self._count(uid)

    def on_class(self, event: str, found: Object, /) -> None:
        name = objects.name(found)
        with self._lock:
            before = self._classes.pop(name, None)
            if event != "DELETED":
                self._classes[name] = found
            if before is None or objects.spec_of(before) != objects.spec_of(found) or event == "DELETED":
                for uid in sorted(self._of_class.get(name, ())):
                    self._count(uid)

    def _on_charge(self, pod: Object) -> None:
        """What was charged with the pod is charged by itself from now on, or the other way."""
        for uid in sorted(self._of_pod.get(objects.uid(pod), ())):
            self._count(uid)

    def amounts(self, spec: Fields) -> Amounts:
        """Of a claim with this spec. Raises one of MALFORMED."""
        with self._lock:
            return amounts_of({"spec": spec}, self._classes, self._published.largest)

    def charge(self, claim: Object) -> Charge | None:
        """What a claim that is being admitted is charged by itself; None where it counts nothing, or with
        its pod."""
        with self._lock:
            self._recount()
            return None if self._counts_with_pod(claim) else self._charge(claim)

    def unseen(self, claims: Iterable[Object]) -> dict[str, Charge]:
        """By uid, what those are charged that the watch has not shown."""
        with self._lock:
            self._recount()
            new = [claim for claim in claims if objects.uid(claim) not in self._claims]
            charges = {objects.uid(claim): self.charge(claim) for claim in new}
        return {uid: charge for uid, charge in charges.items() if charge}

    def recount(self) -> None:
        """Before anything is decided: nodes may publish others than before."""
        with self._lock:
            self._recount()

    def _recount(self) -> None:
        if self._epoch != self._published.epoch:
            self._epoch = self._published.epoch
            for uid in sorted(self._by_size):
                self._count(uid)

    def _count(self, uid: str) -> None:
        claim = self._claims[uid]
        charge = None if self._counts_with_pod(claim) else self._charge(claim)
        self._usage.on_claim(claim, charge)

    def _charge(self, claim: Object) -> Charge | None:
        asked = False

        def largest(of_class: Sequence[str], of_request: Sequence[str], percent: int = 100) -> int | None:
            nonlocal asked
            asked = True
            return self._published.largest(of_class, of_request, percent)

        try:
            found = charge_of(claim, self._classes, largest)
        except MALFORMED:
            log.warning("claim_not_countable", claim=objects.key(claim))
            return None
        uid = objects.uid(claim)
        if asked and uid in self._claims:
            self._by_size.add(uid)
        return found

    def _counts_with_pod(self, claim: Object) -> bool:
        entry, uid = _made_for(claim), objects.uid(claim)
        if entry is None:
            return False
        place, pod_uid, named, pod_name = entry
        pod = self._usage.charge_of_pod(place, pod_name)
        key = (place, pod_uid, named)
        is_so = (
            pod is not None
            and objects.uid(pod.pod) == pod_uid
            and _says(claim, legacy_entries(pod.pod).get(named))
        )
        if not is_so:
            if self._covered.get(key) == uid:
                del self._covered[key]
            return False
        first = self._covered.get(key)
        if first is None and uid in self._claims:
            self._covered[key] = uid
        return first in (None, uid)

    def _forget(self, uid: str, claim: Object) -> None:
        del self._claims[uid]
        self._by_size.discard(uid)
        self._of_class.move(uid, claims_of.class_names(claim), ())
        if entry := _made_for(claim):
            self._of_pod.move(uid, (entry[1],), ())
            key = entry[:3]
            if self._covered.get(key) == uid:
                del self._covered[key]
                for other in sorted(self._of_pod.get(entry[1], ())):
                    self._count(other)


def _made_for(claim: Fields) -> tuple[str, str, str, str] | None:
    """Namespace, uid of the pod, its entry, its name."""
    entry = objects.annotations_of(claim).get(names.POD_CLAIM_NAME)
    for owner in (objects.metadata(claim).get("ownerReferences") or ()) if entry else ():
        if owner.get("controller") and owner.get("kind") == "Pod":
            return objects.namespace(claim), str(owner.get("uid")), str(entry), str(owner.get("name"))
    return None


def _says(claim: Fields, template: str | None) -> bool:
    """Whether the claim is of that template of ours, by its content."""
    if not template:
        return False
    try:
        return template_name(dialect_of(template), canonical_spec(objects.spec_of(claim))) == template
    except MALFORMED:
        return False
