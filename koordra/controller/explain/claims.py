"""One claim: why it waits, or why its devices are these and how they are kept from others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from koordra.allocator.devices.gpu_nic_distance import level_of
from koordra.allocator.devices.inventory import PublishedDevice
from koordra.allocator.explain.telling import lines
from koordra.allocator.reasons import Reason
from koordra.allocator.request.claim_validation import memory_in_doubt
from koordra.api import names, objects
from koordra.api.allocation import Allocation, DeviceResult
from koordra.api.claims import ResourceClaim
from koordra.api.devices import DeviceID
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.cache import pod_index
from koordra.controller.cache.groups import Group
from koordra.controller.cache.immediate_claims import NONE
from koordra.controller.cache.placeholders import NAMESPACE
from koordra.controller.cache.pod_index import PodClaims
from koordra.controller.claims import Owner
from koordra.controller.explain.isolation import isolation_of, resized_of
from koordra.controller.explain.view import ClusterView
from koordra.errors import InvalidManifest, KoordraError
from koordra.placement.request.claim_groups import ClaimGroup
from koordra.placement.why_here import Judged, WhyHere, why_here


def claim_entry(view: ClusterView, claim: Object) -> Object:
    """`status`: Fits, DoesNotFit or Undecided while it waits; Allocated, InUse or Ending; Foreign where it is
    not koordra's to allocate. `told`: the reasons in lines."""
    key = objects.key(claim)
    named = {
        "namespace": objects.namespace(claim),
        "name": objects.name(claim),
        "uid": objects.uid(claim),
        "pods": [objects.name(pod) for pod in view.cache.pod_index.users.get(key, ())],
        **({"doubts": asked} if (asked := doubts(claim)) else {}),
    }
    if (planned := view.planned.get(key)) is not None:
        return {**named, **_outcome("Fits", planned.node, planned.level)}
    if claims_of.is_allocated(claim):
        if not claims_of.holds_koordra_devices(claim):
            return {**named, **_outcome("Foreign"), "waits": "another driver has allocated it"}
        return {**named, **_allocated(view, claim)}
    if claims_of.owner(claim, view.cache.classes) is Owner.FOREIGN:
        text = "its DeviceClasses are not koordra's: another driver allocates it"
        return {**named, **_outcome("Foreign"), "waits": text}
    return {**named, **_waiting(view, claim)}


def _outcome(
    status: str, node: str | None = None, level: str | None = None, reasons: Iterable[Reason] = ()
) -> Object:
    told = tuple(reasons)
    return {
        "status": status,
        "node": node,
        "level": level,
        "reasons": [reason.to_dict() for reason in told],
        "told": lines(told),
    }


# waiting


def _waiting(view: ClusterView, claim: Object) -> Object:
    """What the next pass decides, or what devices alone allow, with what the claim waits for besides."""
    key, waits = objects.key(claim), ""
    found = view.forecast(key)
    if found is None:
        waits = waits_for(view, key)
        found = view.placer.place(Group((), claim), {})
    placed = key in found.allocations
    status = "Fits" if placed else "Undecided" if found.undecided else "DoesNotFit"
    level = found.levels.get(key) if placed else None
    outcome = _outcome(status, found.node if placed else None, level, found.reasons.get(key, ()))
    waits = "; ".join(filter(None, [waits, _asked_for(view, key)]))
    return {**outcome, **({"waits": waits} if waits else {})}


def _asked_for(view: ClusterView, key: str) -> str:
    """The new node that an autoscaler is asked for, for this claim."""
    for ask in view.asks:
        if key in ask.claims:
            node = (
                f"node {ask.node} came, and has not published its devices" if ask.node else "no node came yet"
            )
            return f"a new node of group {ask.group} is asked for ({node}; pod {NAMESPACE}/{ask.name})"
    return ""


def waits_for(view: ClusterView, key: str) -> str:
    """Why no pass plans the claim although it has no devices."""
    pods = view.cache.pod_index
    using = pods.users.get(key, ())
    if not using:
        grants = view.cache.claim_index.grants.get(key.partition("/")[0], NONE)
        return grants.refused.get(key) or "no pod uses the claim yet; it is placed together with its pod"
    if in_gang := waits_for_gang(view, key):
        return in_gang
    return "; ".join(filter(None, (_pod_waits_for(view, pod) for pod in using[:3])))


def waits_for_gang(view: ClusterView, key: str) -> str:
    """Of a claim of a gang's member; empty for any other."""
    for pod in view.cache.pod_index.users.get(key, ()):
        if gang := view.gang_of(pod):
            return f"pod {objects.key(pod)} is a member of gang {gang.key}, which is placed as a whole"
    return ""


def doubts(claim: Fields) -> list[str]:
    """Amounts that can hardly be meant, as questions."""
    try:
        requests = ResourceClaim.from_dict(claim).requests
    except InvalidManifest:
        return []
    asked = [(f"request {one.name}", each) for one in requests for each in one.alternatives]
    amounts = [(where, *said) for where, each in asked for said in sorted(each.capacity_spelled.items())]
    found = (f"{where}: {text}" for where, *said in amounts if (text := memory_in_doubt(*said)))
    return list(dict.fromkeys(found))


def _pod_waits_for(view: ClusterView, pod: Object) -> str:
    name, uid = f"pod {objects.key(pod)}", objects.uid(pod)
    if view.beyond_quota.get(uid):
        return f"{name} is beyond its quota: {view.beyond_quota[uid]}"
    others = [gate for gate in pod_index.gates(pod) if gate != names.JOINT_GATE]
    if others:
        return f"{name} is held by the scheduling gate {', '.join(others)} of somebody else"
    keys = view.cache.pod_index.entries[uid].keys if uid in view.cache.pod_index.entries else ()
    if lacking := [key for key in keys if key not in view.cache.claims]:
        return f"{name} names ResourceClaim {', '.join(lacking)}, which does not exist"
    return f"{name} cannot be planned yet: see its other claims" if len(keys) > 1 else ""


# allocated


def _allocated(view: ClusterView, claim: Object) -> Object:
    status = "Ending" if objects.is_deleting(claim) else "Allocated"
    if status == "Allocated" and claims_of.reserved_for(claim):
        status = "InUse"
    node = claims_of.node_of(claim)
    devices = published(view, claims_of.pools(claim), node=node)
    return {
        **_outcome(status, node, nearness_of(claim, devices)),
        "devices": [dict(result) for result in claims_of.results(claim)],
        "isolation": isolation_of(claim, devices),
        **({"resized": found} if (found := resized_of(claim, view.cache.holds.values())) else {}),
        "placement": None if node is None else _placement(view, claim, node),
    }


def nearness_of(claim: Object, devices: Mapping[DeviceID, PublishedDevice]) -> str | None:
    """The worst level between a GPU of the claim and its NIC."""
    allocation = Allocation.of_claim(claim)
    given = [] if allocation is None else allocation.results
    return level_of([devices[one.device].plain for one in given if one.device in devices])


def published(
    view: ClusterView, pools: Iterable[str], *, node: str | None = None
) -> dict[DeviceID, PublishedDevice]:
    """The devices of koordra's that the engine knows in these pools: those of nodes, and what this node sees
    of those that are on none."""
    wanted = {(names.DRIVER, pool) for pool in pools}
    seen_by = dict.fromkeys([*(pool for _, pool in sorted(wanted)), *([node] if node else [])])
    return {
        one.id: one
        for info in filter(None, map(view.placer.nodes.get, seen_by))
        for found in info.pools
        if found.id in wanted
        for one in found.devices
    }


def _placement(view: ClusterView, claim: Object, node: str) -> Object | None:
    """Why it is here: with the claims that its pods have on the node, as if they were placed now."""
    together = _together(view, claim, node)
    try:
        parsed = tuple(map(ResourceClaim.from_dict, together))
        members = tuple(_pods(view, together))
        chosen: dict[tuple[int, str], list[DeviceID]] = {}
        for position, one in enumerate(together):
            for result in _results(one):
                chosen.setdefault((position, result.request), []).append(result.device)
        group = ClaimGroup(parsed, tuple(one.pod for one in members))
        found = why_here(
            view.placer.engine, group, node, chosen, excluded=view.excluded(Group(members)) if members else {}
        )
    except KoordraError as error:
        return {"judged": False, "problem": str(error)}
    return _why(found)


def _why(found: WhyHere) -> Object:
    return {
        "judged": found.here is not None,
        "terms": found.here and dict(found.here.terms),
        **_scoring(found.here),
        "next": _next(found.other),
        "decidedBy": found.decided_by or None,
        "nextIsBetter": found.other_is_better,
        "reasons": [reason.to_dict() for reason in found.reasons],
        "told": lines(found.reasons),
    }


def _next(other: Judged | None) -> Object | None:
    return None if other is None else {"node": other.node, "terms": dict(other.terms), **_scoring(other)}


def _scoring(judged: Judged | None) -> Object:
    """How full the node is by what the operator weighs."""
    if judged is None or judged.parts is None:
        return {}
    return {"scoring": {"cost": judged.cost.scoring, "full": dict(judged.parts)}}


def _results(claim: Fields) -> Sequence[DeviceResult]:
    allocation = Allocation.of_claim(claim)
    return (
        () if allocation is None else [one for one in allocation.results if one.device.driver == names.DRIVER]
    )


def _together(view: ClusterView, claim: Object, node: str) -> list[Object]:
    """The claim and what else its pods have on the node, by key: they were placed together."""
    found = {objects.key(claim): claim}
    for member in _pods(view, [claim]):
        for one in member.ours:
            if claims_of.node_of(one) == node:
                found[objects.key(one)] = one
    return [found[key] for key in sorted(found)]


def _pods(view: ClusterView, claims: Iterable[Object]) -> list[PodClaims]:
    pods = view.cache.pod_index
    uids = {objects.uid(pod) for claim in claims for pod in pods.users.get(objects.key(claim), ())}
    return pods.members(uids)
