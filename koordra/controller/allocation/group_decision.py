"""One group of waiting pods: all of its claims get a place, or none does. Pure.

    the whole group fits                           allocate every claim
    not so, but it has several pods                the most urgent pod that fits alone is served; the claims
                                                   it shares then pin the others, who are planned beside it
    not so, and it holds claims that nobody uses   give those back: waiting while holding could lock two
                                                   pods against each other
    otherwise                                      wait, with the allocator's reasons

Input that cannot be meant (an unknown class, CEL that does not compile, misspelt parameters) ends in reasons
for this group alone, as does an error inside the allocator: one bad claim must not keep the others waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from koordra.allocator.reasons import Cause, Reason
from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.cache.groups import Group
from koordra.controller.cache.pod_claims import PodClaims
from koordra.controller.claims import Owner
from koordra.controller.placer import GroupPlacement, waits_for_others

MOST_CONSUMERS = 256
"""Pods that one claim can be reserved for (resource.k8s.io ReservedFor)."""

Ask = Callable[[Group], GroupPlacement]
"""The best place for a group, or why there is none (placer.Placer.place)."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Allocations to be written, or reasons why claims wait, and then allocated claims to `give_back`."""

    placement: GroupPlacement
    give_back: tuple[Object, ...] = ()


def decide(group: Group, *, ask: Ask, users: Mapping[str, Sequence[Object]]) -> Decision:
    """What to do about one group; see the module's docstring. `users`: claim key -> pods that use it."""
    whole = ask(group)
    if whole.allocations:
        return Decision(whole)
    if len(group.members) > 1:
        for member in group.members:
            alone = ask(Group((member,)))
            if alone.allocations:
                return Decision(alone)
    return Decision(whole, unused(group, users))


def unused(group: Group, users: Mapping[str, Sequence[Object]]) -> tuple[Object, ...]:
    """Allocated claims of the group that nobody uses and no pod outside the group waits for."""
    inside = {objects.uid(pod) for pod in group.pods}
    found = {
        objects.key(claim): claim
        for member in group.members
        for claim in member.ours
        if claims_of.is_allocated(claim)
        and not claims_of.reserved_for(claim)
        and not claims_of.is_immediate(claim)
        and {objects.uid(pod) for pod in users.get(objects.key(claim), ())} <= inside
    }
    return tuple(found[key] for key in sorted(found))


def unplannable(member: PodClaims, classes: Mapping[str, Object]) -> dict[str, tuple[Reason, ...]]:
    """Reasons for the claims of a pod of which one cannot be allocated by anybody: a class that does not
    exist, or two drivers in one claim. Its other claims wait for that one."""
    if not member.refused:
        return {}
    waiting = {objects.key(claim): () for claim in member.pending}
    return waits_for_others(
        {**waiting, **{objects.key(claim): (_why(claim, owner, classes),) for claim, owner in member.refused}}
    )


def _why(claim: Object, owner: Owner, classes: Mapping[str, Object]) -> Reason:
    where = objects.describe(claim)
    named = claims_of.class_names(claim)
    if owner is Owner.UNKNOWN:
        missing = [name for name in named if name not in classes]
        known = (
            ", ".join(sorted(name for name in classes if claims_of.is_koordra_class(classes[name]))) or "none"
        )
        text = (
            f"{where}: spec.devices.requests: DeviceClass {', '.join(missing)} does not exist; "
            f"create it, or use one of koordra's ({known})"
        )
        return Reason(None, None, None, Cause.SELECTOR_MISMATCH.value, text)
    foreign = [name for name in named if not claims_of.is_koordra_class(classes[name])]
    text = (
        f"{where}: spec.devices.requests: DeviceClass {', '.join(foreign)} is not koordra's, "
        "and one claim has one allocator; "
        "move those requests into a claim of their own in the same pod"
    )
    return Reason(None, None, None, Cause.FOREIGN_DRIVER.value, text)
