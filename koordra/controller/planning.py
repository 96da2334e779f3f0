"""One group of waiting pods through the allocator: all of its claims get a place, or none does. Pure.

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

import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from koordra.allocator.reasons import Cause, Reason
from koordra.api import objects
from koordra.api.objects import Object
from koordra.controller import claims as claims_of
from koordra.controller.claims import Owner
from koordra.controller.snapshot import Cluster, Group, PodClaims, is_bound, is_living, shown_to_allocator
from koordra.errors import InvalidInput, KoordraError, SelectorError

Excluded = Mapping[str, Mapping[str, str]]
"""`namespace/pod` -> node -> why the pod must stay off it."""


class Plan(Protocol):
    """What the allocator answers; koordra.allocator.Plan is one."""

    @property
    def allocations(self) -> Mapping[str, Mapping[str, Any]]: ...

    @property
    def unsatisfiable(self) -> Mapping[str, Sequence[Reason]]: ...

    @property
    def undecided(self) -> Mapping[str, Sequence[Reason]]: ...

    @property
    def levels(self) -> Mapping[str, str | None]: ...


class Planner(Protocol):
    """`koordra.allocator.plan`. Raises PlanError or InvalidInput for input that cannot be meant."""

    def __call__(
        self, objects: Iterable[Any], *, exclude: Excluded | None = None, report_errors: bool = False
    ) -> Plan: ...


@dataclass(frozen=True, slots=True)
class Decision:
    """Exactly one of the first three says something; `reasons` are for claims (by key) that wait.

    `undecided`: the search ran out of budget; it is tried again even if nothing changes.
    """

    allocations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reasons: Mapping[str, tuple[Reason, ...]] = field(default_factory=dict)
    give_back: tuple[Object, ...] = ()
    levels: Mapping[str, str | None] = field(default_factory=dict)
    undecided: bool = False
    broken: str = ""


def decide(
    group: Group, cluster: Cluster, *, slices: Sequence[Object], planner: Planner, exclude: Excluded
) -> Decision:
    """What to do about one group; see the module's docstring. `slices` from snapshot.joint_slices."""

    def ask(some: Group) -> Decision:
        return _ask(some, shown_to_allocator(some, cluster, slices), planner=planner, exclude=exclude)

    whole = ask(group)
    if whole.allocations:
        return whole
    if len(group.members) > 1:
        for member in group.members:
            alone = ask(Group((member,)))
            if alone.allocations:
                return alone
    held = held_in_vain(group, cluster)
    return Decision(give_back=held, reasons=whole.reasons) if held else whole


def held_in_vain(group: Group, cluster: Cluster) -> tuple[Object, ...]:
    """Allocated claims of the group that nobody uses and no pod outside the group waits for."""
    inside = {objects.uid(pod) for pod in group.pods}
    users = claims_of.consumers(cluster.pods)
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


def orphans(cluster: Cluster) -> list[Object]:
    """Allocated claims of koordra's that were never reserved and that no living pod uses or owns.

    kube-controller-manager leaves those alone. Claims that are being deleted are its business, as are those
    it still has to free after their last pod; Immediate claims are allocated without a pod.
    """
    users = claims_of.consumers(cluster.pods)
    living = {objects.uid(pod) for pod in cluster.pods if is_living(pod)}
    return [
        claim
        for claim in cluster.claims
        if claims_of.is_allocated(claim)
        and claims_of.holds_koordra_devices(claim)
        and not claims_of.is_immediate(claim)
        and not claims_of.reserved_for(claim)
        and not objects.is_deleting(claim)
        and not users.get(objects.key(claim))
        and not living.intersection(claims_of.owner_uids(claim))
    ]


def torn_apart(member: PodClaims) -> tuple[Object, ...]:
    """Unreserved claims of a pod to give back because its claims are pinned to different nodes, where it can
    never run.

    It happens when a shared claim moved on with another pod. Claims beside one that is reserved stay.
    """
    if is_bound(member.pod):
        return ()
    pinned = [(claim, node) for claim in member.ours if (node := claims_of.node_of(claim)) is not None]
    if len({node for _, node in pinned}) < 2:
        return ()
    settled = {node for claim, node in pinned if claims_of.reserved_for(claim)}
    return tuple(claim for claim, node in pinned if not claims_of.reserved_for(claim) and settled != {node})


def _ask(group: Group, shown: Sequence[Object], *, planner: Planner, exclude: Excluded) -> Decision:
    keys = [objects.key(claim) for claim in group.pending]
    pods = {objects.key(pod) for pod in group.pods}
    try:
        kept_off = {pod: nodes for pod, nodes in exclude.items() if pod in pods}
        found = planner(shown, exclude=kept_off, report_errors=True)
    except KoordraError as error:
        return _refused(keys, error)
    except Exception as error:  # noqa: BLE001 (a defect met by one claim must not stop the others)
        text = f"{type(error).__name__} inside the allocator: {error}"
        reason = Reason(None, None, None, "InternalError", f"{text}; please report it")
        return Decision(reasons=dict.fromkeys(keys, (reason,)), broken=traceback.format_exc())
    if keys and all(key in found.allocations for key in keys):
        return Decision(
            allocations={key: found.allocations[key] for key in keys},
            levels={key: found.levels.get(key) for key in keys},
        )
    reasons = {key: tuple(found.unsatisfiable.get(key) or found.undecided.get(key) or ()) for key in keys}
    undecided = not found.undecided.keys().isdisjoint(keys)
    return Decision(reasons=_spread(reasons), undecided=undecided)


def _refused(keys: Iterable[str], error: KoordraError) -> Decision:
    """The allocator's own reason where the error carries one; otherwise the nearest word for it."""
    own = getattr(error, "reason", None)
    if isinstance(own, Reason):
        reason = own
    else:
        word = Cause.SELECTOR_ERROR if isinstance(error, SelectorError) else Cause.CONSTRAINT_VIOLATED
        reason = Reason(
            None,
            None,
            None,
            (word if isinstance(error, InvalidInput) else Cause.POOL_INCOMPLETE).value,
            str(error),
        )
    named = getattr(error, "claim", None)
    concerned = [key for key in keys if key == named] or list(keys)
    return Decision(reasons=_spread({key: (reason,) if key in concerned else () for key in keys}))


def _spread(reasons: Mapping[str, tuple[Reason, ...]]) -> dict[str, tuple[Reason, ...]]:
    """A claim without reasons of its own waits for its neighbours in the pod: it says so and names them."""
    stuck = sorted(key for key, given in reasons.items() if given)
    waits = Reason(
        None,
        None,
        None,
        Cause.NODE_UNSUITABLE.value,
        f"waits for {', '.join(stuck) or 'the other claims of its pod'}",
    )
    return {key: given or (waits,) for key, given in reasons.items()}


def unplannable(member: PodClaims, classes: Mapping[str, Object]) -> dict[str, tuple[Reason, ...]]:
    """Reasons for the claims of a pod of which one cannot be allocated by anybody: a class that does not
    exist, or two drivers in one claim. Its other claims wait for that one."""
    if not member.refused:
        return {}
    waiting = {objects.key(claim): () for claim in member.pending}
    return _spread(
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
