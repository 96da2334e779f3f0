"""Empties nodes whose GPU driver is to be free, for an upgrade: who holds a GPU there is evicted.

    plugin       GPUs get the taint koordra.io/driver-release=Evicting (nvidia_driver/release.py)
    here         pods with claims on such GPUs are evicted, gangs whole; budgets hold; who may not go now is
                 asked again
    plugin       no claim is prepared any more: Released
    here         the Node says so, in an annotation and an Event

The taint alone would keep new claims away. NoExecute would have the cluster delete the pods without regard to
PodDisruptionBudgets, one member of a gang at a time.

**Gangs.** Members are of use only together, so all of them are evicted, on whatever node they are, or none:
first it is worked out whether every budget that covers some of them lets so many go at once. A gang that is
just being started is let start first.

**Pods that nobody makes anew** (without a controller) are not evicted, as in `kubectl drain`: their owner is
told, and decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from koordra.api import names, objects
from koordra.api.kinds import RESOURCE_SLICES
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.allocation.eviction.disruption_budgets import refused_together
from koordra.controller.allocation.eviction.preemption import EvictedWith, Victim
from koordra.controller.allocation.pass_context import PassContext
from koordra.controller.allocation.writes import WriteOutcome
from koordra.controller.cache.pod_index import is_bound, is_living
from koordra.controller.cache.slice_index import is_ours, pool_name
from koordra.controller.reporting import claim_events
from koordra.logs import get_logger

log = get_logger(__name__)

ASK_AGAIN: Final = 10.0
"""Seconds after which the pods of a node that may not go, or do not end, are asked again."""

Place = tuple[str, str]
"""Pool and device."""


class DriverRelease:
    """Of all nodes. `together`: whom a pod, by uid, is evicted with. Not thread-safe."""

    def __init__(self, context: PassContext, together: Callable[[], EvictedWith]) -> None:
        self._context = context
        self._together = together
        self._emptied: dict[str, frozenset[Place]] = {}
        """By slice: the GPUs that are to be free."""
        self._untold: set[str] = set()
        """Nodes of which the annotation may be another than the taints say."""
        self._asked: dict[str, float] = {}
        """Pools, and when their pods may be asked again, also those that came in place of others: a shared
        claim that one pod keeps, or a toleration, brings them back to the node at once."""
        context.cache.listen(RESOURCE_SLICES, self._on_slice, replay=True)

    def _on_slice(self, key: str, before: Object | None, now: Object | None) -> None:
        shown = now is not None and is_ours(now)
        places = places_to_empty(now) if shown and now is not None else frozenset()
        if places:
            self._emptied[key] = places
        else:
            self._emptied.pop(key, None)
        if now is None or self._phase_before(before, now) != release_phase([now]):
            self._untold.update(pool_name(one) for one in (before, now) if one is not None and is_ours(one))

    def _phase_before(self, before: Object | None, now: Object) -> str | None:
        """What a slice that was there said; of a new one, what its node was told."""
        if before is not None:
            return release_phase([before])
        node = self._context.cache.nodes.get(pool_name(now))
        return None if node is None else objects.annotations_of(node).get(names.RELEASE_ANNOTATION, "")

    def step(self) -> None:
        """Ask those to go who hold what is to be free. Raises ApiUnreachable where no answer comes."""
        now = self._context.clock()
        self._asked = {pool: at for pool, at in self._asked.items() if at > now}
        places = frozenset[Place]().union(*self._emptied.values())
        due = {pool for pool, _ in places} - self._asked.keys()
        if due:
            self._asked.update(dict.fromkeys(due, now + ASK_AGAIN))
            for victim in self._victims(places, due):
                self._evict(victim)
        if places:
            self._context.wake(min(self._asked.values()))
        for name in sorted(self._untold):
            self._tell(name)

    def _tell(self, name: str) -> None:
        context, node = self._context, self._context.cache.nodes.get(name)
        phase = release_phase(context.cache.slice_index.of_pool(name))
        if node is not None and objects.annotations_of(node).get(names.RELEASE_ANNOTATION, "") != phase:
            written = context.settled(context.writer.annotate(node, names.RELEASE_ANNOTATION, phase or None))
            if written.ok:
                context.events.report(claim_events.driver_release(node, phase))
            elif written.outcome is WriteOutcome.REFUSED:
                log.warning("node_annotation_not_written", node=name, error=written.message)
        self._untold.discard(name)

    def _victims(self, places: frozenset[Place], pools: Iterable[str]) -> list[Victim]:
        """Pods that go together, each once."""
        together = self._together()
        found: dict[str, Victim] = {}
        for pool in sorted(pools):
            for entry in self._context.cache.claim_index.of_pool(pool):
                if places.isdisjoint(entry.places):
                    continue
                for pod in self._holders(entry.claim):
                    victim = together.get(objects.uid(pod), (pod,)) if is_bound(pod) else ()
                    living = tuple(filter(is_living, victim))
                    if living:
                        found[min(map(objects.uid, living))] = living
        return [found[uid] for uid in sorted(found)]

    def _holders(self, claim: Object) -> list[Object]:
        """The pods that it is reserved for: those that name it, and those for whose extended resources the
        scheduler made it. Where that is a PodGroup, all that name it."""
        pods, place = self._context.cache.pods, objects.namespace(claim)
        reserved = objects.status_of(claim).get("reservedFor") or ()
        if any(map(claims_of.is_pod_group, reserved)):
            return list(self._context.users().get(objects.key(claim), ()))
        found = [(one.get("uid"), pods.get(f"{place}/{one.get('name')}")) for one in reserved]
        return [pod for uid, pod in found if pod is not None and objects.uid(pod) == uid]

    def _evict(self, victim: Victim) -> None:
        context = self._context
        why = self._refusal(victim)
        if why:
            context.events.report(claim_events.driver_upgrade_waits(victim, why=why))
            return
        for pod in victim:
            written = context.writer.evict(pod)
            log.info(
                "pod_evicted_for_driver",
                pod=objects.key(pod),
                outcome=written.outcome.value,
                message=written.message,
            )
            if written.ok:
                context.events.report(claim_events.evicted_for_driver(pod))
            elif written.outcome is WriteOutcome.REFUSED:
                context.events.report(claim_events.driver_upgrade_waits((pod,), why=written.message))
                if pod is victim[0]:
                    return  # the gang stays whole
            elif written.outcome is not WriteOutcome.GONE:
                context.settled(written)

    def _refusal(self, victim: Victim) -> str:
        """Why they are not evicted now; empty where they are."""
        bare = [objects.key(pod) for pod in victim if not is_made_anew(pod)]
        if bare:
            return f"pod {bare[0]} has no controller that would make it anew: delete it, and it goes"
        return refused_together(victim, self._context.writer.api)


def places_to_empty(one: Fields) -> frozenset[Place]:
    """The devices of a slice whose holders are to go."""
    return frozenset(
        (pool_name(dict(one)), str(device.get("name")))
        for device in objects.spec_of(one).get("devices") or ()
        for taint in device.get("taints") or ()
        if taint.get("key") == names.RELEASE_TAINT and taint.get("value") == names.RELEASE_EVICTING
    )


def release_phase(slices: Iterable[Fields]) -> str:
    """How far the driver of a node is released, by its slices; empty where it is in use."""
    return next(
        (
            str(taint.get("value"))
            for one in slices
            for device in objects.spec_of(one).get("devices") or ()
            for taint in device.get("taints") or ()
            if taint.get("key") == names.RELEASE_TAINT
        ),
        "",
    )


def is_made_anew(pod: Fields) -> bool:
    return any(owner.get("controller") for owner in objects.metadata(pod).get("ownerReferences") or ())
