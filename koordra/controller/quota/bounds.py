"""ResourceQuotas that bound devices under legacy names: they hold for rewritten pods too. Pure.

    hard["requests.nvidia.com/gpu"]      the name without `requests.` or `limits.`, as the dialect's claims
                                         amount to (compat.quota_charges)
    used                                 what the API server counts itself (pods that still carry the name:
                                         status.used) + what the namespace's rewritten pods add up to + what
                                         is being admitted now

A pod that would go above is refused in the words that Kubernetes has for it, and so is one that does not say
an amount that a quota bounds. A quota with scopes counts the pods that its scopes take in. koordra's own
names (koordra.io/gpu, koordra.io/gpu-memory, koordra.io/gpu-cores) are bounded in the same way and hold for
every dialect.

Pods beyond a quota get no devices, which makes the bound exact although the webhook has several replicas:

    two replicas admit the last card to a pod each, because neither's watch shows the other's pod yet
        ──> both pods are stored, held by their gate
        ──> the leader, which alone gives out devices, counts the namespace's pods: those that have devices
            first, then by age; whoever no longer fits gets none, with the reason (QuotaExceeded, on claim and
            pod)
        ──> members of a gang are counted next to each other, and where too few of them fit none takes
            anything: two gangs that have half of the bound each would wait for each other for ever
        ──> members that are made only after others have started are counted with these
        ──> a pod ends or the bound is raised: the next one gets its devices

Kubernetes' own ResourceQuota writes the quota at each admission, on condition that nobody else has, and so
refuses the second pod. Here the second pod waits instead; no admission waits for a write, and nobody needs
the right to change quotas. It holds however late a watch is: the leader gives a pod devices only after it has
counted it, and counts all that have some.

Nothing is taken from a pod that has its devices, also where a bound was lowered or came later. On native
nodes kube-scheduler gives out devices and knows nothing of these quotas: there the count only reports
(QuotaExceeded).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from koordra.api import objects
from koordra.api.objects import Fields, Object
from koordra.compat.quota_charges import Amounts, crosses_namespaces, is_in_bytes
from koordra.controller.allocation.reserved.quotas import Gangs
from koordra.errors import InvalidQuantity
from koordra.quantity import canonical, to_int

PREFIXES: Final = ("requests.", "limits.")


@dataclass(frozen=True, slots=True)
class Charge:
    """A pod and what its claims amount to: the pod for the scopes of quotas."""

    pod: Object
    amounts: Amounts


_CLAIM: Final = "claim "


def charge_name(claim: Fields) -> str:
    """As which a claim is charged by itself; no pod has such a name."""
    return f"{_CLAIM}{objects.uid(claim)}"


def claim_of(name: str) -> str:
    """The uid of the claim that is charged by this name; "" of a pod's."""
    return name.removeprefix(_CLAIM) if name.startswith(_CLAIM) else ""


class Bound(NamedTuple):
    """One line of a quota, `key`, on a resource; `used` is what the API server counts itself."""

    key: str
    name: str
    hard: int
    used: int


def bounded(quota: Fields) -> list[Bound]:
    """The lines on names that rewritten pods may be charged under."""
    found = []
    used = objects.status_of(quota).get("used") or {}
    for key, value in sorted((objects.spec_of(quota).get("hard") or {}).items()):
        prefix = next((prefix for prefix in PREFIXES if key.startswith(prefix)), "")
        name = key.removeprefix(prefix)
        if prefix and "/" in name:
            try:
                hard = to_int(value)
            except InvalidQuantity:
                continue
            found.append(Bound(key, name, hard, to_int(used.get(key, 0))))
    return found


CountOf = Callable[[Object, str], int]
"""(quota, name) -> what rewritten pods add up to in what the quota counts."""


def refusal(quotas: Iterable[Object], asking: Charge, counted: CountOf) -> str:
    """Why the pod may not be admitted beside the others; "" where it may."""
    for quota in quotas:
        if in_scope(quota, asking.pod):
            unsaid = {bound.name for bound in bounded(quota) if asking.amounts.get(bound.name, 0) is None}
            if unsaid:
                return f"failed quota: {objects.name(quota)}: must specify {','.join(sorted(unsaid))}"
            if over := exceeded(quota, asking, counted):
                return over
    return ""


def exceeded(quota: Object, asking: Charge, counted: CountOf) -> str:
    """In what the pod would go above the quota; "" where in nothing. Amounts that it does not say count
    nothing."""
    over: list[tuple[str, ...]] = []
    for key, name, hard, there in bounded(quota):
        now, more = there + counted(quota, name), asking.amounts.get(name) or 0
        if more and now + more > hard:
            over.append(tuple(f"{key}={_text(name, amount)}" for amount in (more, now, hard)))
    if not over:
        return ""
    requested, taken, limited = map(",".join, zip(*over, strict=True))
    return f"exceeded quota: {objects.name(quota)}, requested: {requested}, used: {taken}, limited: {limited}"


def overdrawn(quota: Object, counted: CountOf) -> str:
    """The lines that are gone beyond by what is there; "" where none is. Two replicas of the webhook may have
    let in one too many, or the bound was lowered: nothing is taken from anybody, nothing more is let in, and
    who has no devices yet gets none."""
    return "; ".join(
        f"{key}: {there + ours} used, {hard} allowed"
        for key, name, hard, there in bounded(quota)
        if (ours := counted(quota, name)) and there + ours > hard
    )


def used(quota: Object, counted: CountOf) -> str:
    """Each line with what is there."""
    return ", ".join(
        f"{key} {_text(name, there + counted(quota, name))} of {_text(name, hard)}"
        for key, name, hard, there in bounded(quota)
    )


def _text(name: str, amount: int) -> str:
    return canonical(amount) if is_in_bytes(name) else str(amount)


def is_scoped(quota: Fields) -> bool:
    spec = objects.spec_of(quota)
    return bool(spec.get("scopes") or spec.get("scopeSelector"))


def in_scope(quota: Fields, pod: Fields) -> bool:
    """Whether the quota counts the pod. A scope not known here counts it, which is the stricter side."""
    spec = objects.spec_of(quota)
    expressions = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return all(_in(str(scope), pod) for scope in spec.get("scopes") or ()) and all(
        _matches(one, pod) for one in expressions
    )


def _in(scope: str, pod: Fields) -> bool:
    spec = objects.spec_of(pod)
    ends = spec.get("activeDeadlineSeconds") is not None
    known = {
        "Terminating": ends,
        "NotTerminating": not ends,
        "PriorityClass": bool(spec.get("priorityClassName")),
        "CrossNamespacePodAffinity": crosses_namespaces(pod),
    }
    return known.get(scope, True)


def _matches(one: Fields, pod: Fields) -> bool:
    scope, operator, values = str(one.get("scopeName")), one.get("operator"), one.get("values") or ()
    inside = _in(scope, pod)
    if operator == "DoesNotExist":
        return not inside
    if scope == "PriorityClass" and operator in ("In", "NotIn"):
        return (objects.spec_of(pod).get("priorityClassName") in values) is (operator == "In")
    return inside


BEYOND: Final = (
    "the pod came together with others, or before the bound, and stands beyond it: {}; it gets its devices when others end, "
    "or when spec.hard of ResourceQuota {} is raised"
)
WITH_ITS_GANG: Final = "gang {} waits as a whole, since too few of its members fit: {}"


class ToCome(NamedTuple):
    """Members of gangs that are made later, those that ask alike together, by a name that no pod has."""

    charges: dict[str, Charge]
    gangs: dict[str, tuple[str, int, int]]


def to_come(charges: Mapping[str, Charge], gangs: Gangs) -> ToCome:
    """They start with those that are there, or nobody does: a gang of which a half has room in a quota would
    hold that and wait."""
    found = ToCome({}, {})
    for name, (gang, spare, number) in gangs.items():
        if number and name in charges:
            one = charges[name]
            called = f"{name}, {number} to come"
            more = {resource: (amount or 0) * number for resource, amount in one.amounts.items()}
            found.charges[called], found.gangs[called] = Charge(one.pod, more), (gang, spare, 0)
    return found


def beyond(
    quotas: Sequence[Object],
    charges: Mapping[str, Charge],
    *,
    served: Container[str],
    gangs: Gangs,
) -> dict[str, str]:
    """Name -> why the pod gets no devices. All are of one namespace; who cannot be given devices now is not
    among the charges, for nobody should wait for him. `served` have devices: nothing is taken from them, and
    they come first."""
    taken: Counter[tuple[str, str]] = Counter()
    in_turn: dict[tuple[str, str], list[str]] = {}  # a gang is as old as its oldest member
    for name in sorted(
        charges, key=lambda name: (str(charges[name].pod["metadata"].get("creationTimestamp") or ""), name)
    ):
        if name in served:
            _take(quotas, charges[name], taken)
        else:
            gang = gangs[name][0] if name in gangs else ""
            in_turn.setdefault((gang, "" if gang else name), []).append(name)

    def counted(quota: Object, name: str) -> int:
        return taken[objects.name(quota), name]

    held: dict[str, str] = {}
    for (gang, _), together in in_turn.items():
        before, found = taken.copy(), {}
        for name in together:
            for quota in quotas:
                why = in_scope(quota, charges[name].pod) and exceeded(quota, charges[name], counted)
                if why:
                    found[name] = BEYOND.format(why, objects.name(quota))
                    break
            else:
                _take(quotas, charges[name], taken)
        if gang and len(found) > gangs[together[0]][1]:
            taken, words = before, WITH_ITS_GANG.format(gang, next(iter(found.values())))
            found = dict.fromkeys(together, words)
        held.update(found)
    return held


def _take(quotas: Sequence[Object], charge: Charge, taken: Counter[tuple[str, str]]) -> None:
    for quota in quotas:
        if in_scope(quota, charge.pod):
            for name, amount in charge.amounts.items():
                taken[objects.name(quota), name] += amount or 0
