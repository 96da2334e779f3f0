"""Whether one device can serve one request, leaving aside what else is being allocated.

A verdict is static for a node: gates, selectors of class and request, node selection, taints, foreign drivers, and the
amounts that the request would take. It is found when it is first asked for, since a selector that fails on a device is an
error only if the search gets to that device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

from koordra.allocator import features as gates
from koordra.allocator.devices.capacity import Demand, Unmet, demand_of
from koordra.allocator.devices.inventory import PublishedDevice
from koordra.allocator.features import Features
from koordra.allocator.reasons import Cause
from koordra.allocator.request.requests import RequestAlternative
from koordra.api import names
from koordra.api.devices import NO_EXECUTE, NO_SCHEDULE, Taint
from koordra.api.opaque.isolation import published_policy
from koordra.cel.selectors import DeviceFacts, matches
from koordra.errors import SelectorError


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """`demand` is set for a device that fits; otherwise `cause` and `detail` say why not.

    `error`: upstream ends there. `of_class`: the class's selectors match. `short_of`: the capacity that is too small at all.
    """

    demand: Demand | None = None
    cause: Cause | None = None
    detail: str = ""
    error: bool = False
    of_class: bool = True
    short_of: tuple[str, Decimal] | None = None


def judge(wanted: RequestAlternative, offered: PublishedDevice, *, features: Features) -> Verdict:
    """The static verdict, clauses in upstream's order."""
    return selected(wanted, offered, features=features) or admitted(wanted, offered, features=features)


def selected(wanted: RequestAlternative, offered: PublishedDevice, *, features: Features) -> Verdict | None:
    """Why the selectors leave the device out; None where they do not. The same for all requests with these selectors."""
    if (
        offered.device.binding_conditions
        and not {gates.BINDING_CONDITIONS, gates.DEVICE_STATUS} <= features.on
    ):
        return Verdict(
            cause=Cause.FEATURE_DISABLED,
            detail=f"binding conditions need the gate {gates.BINDING_CONDITIONS}",
        )
    for owner, expressions, facts in (
        (f"class {wanted.device_class.name}", wanted.device_class.selectors, offered.class_facts),
        ("selector", wanted.spec.selectors, offered.facts),
    ):
        for index, expression in enumerate(expressions):
            failed = _selector(expression, facts, owner=owner, index=index)
            if failed is not None:
                return replace(failed, of_class=owner == "selector")
    return None


def admitted(wanted: RequestAlternative, offered: PublishedDevice, *, features: Features) -> Verdict:
    """The verdict on a device that the selectors choose."""
    if not offered.here:
        return Verdict(
            cause=Cause.NODE_UNSUITABLE, detail="the device's own node selection leaves this node out"
        )
    if wanted.own_driver_only and offered.id.driver != names.DRIVER:
        return Verdict(
            cause=Cause.FOREIGN_DRIVER,
            detail=f"driver {offered.id.driver}: the claim asks for {names.DRIVER} devices and cannot be mixed",
        )
    demand = (
        Demand({})
        if gates.CONSUMABLE_CAPACITY not in features
        else demand_of(
            wanted.spec,
            offered.device,
            driver=offered.id.driver,
            fractional=gates.FRACTIONAL_RANGE in features,
            percent=wanted.percent,
            whole=wanted.whole,
        )
    )
    if isinstance(demand, Unmet):
        return Verdict(cause=Cause.INSUFFICIENT_CAPACITY, detail=demand.detail, short_of=demand.short_of)
    if offered.device.consumes_counters and gates.PARTITIONABLE_DEVICES not in features:
        return Verdict(
            demand,
            cause=Cause.FEATURE_DISABLED,
            detail=f"the device consumes counters, which needs the gate {gates.PARTITIONABLE_DEVICES}",
        )
    refused = _isolation(wanted, offered, demand)
    if refused is not None:
        return Verdict(demand, cause=Cause.BACKEND_UNAVAILABLE, detail=refused)
    if gates.DEVICE_TAINTS in features:
        for taint in offered.taints:
            if taint.effect in (NO_SCHEDULE, NO_EXECUTE) and not _tolerated(taint, wanted):
                unhealthy = taint.key.startswith(names.UNHEALTHY_TAINT)
                cause = Cause.DEVICE_UNHEALTHY if unhealthy else Cause.TAINTED
                return Verdict(demand, cause=cause, detail=_taint_text(taint))
    return Verdict(demand)


def _isolation(wanted: RequestAlternative, offered: PublishedDevice, demand: Demand) -> str | None:
    """Why the policy of the device's node, or of the class, does not let the request have the device."""
    if offered.id.driver != names.DRIVER or wanted.spec.admin_access:
        return None
    policy = published_policy(offered.plain)
    if policy is None:
        return None
    share = bool(demand.amounts) and all(
        demand.amounts[name] < offered.device.capacity[name].value
        for name in (names.CAPACITY_MEMORY, names.CAPACITY_SLOTS)
        if name in demand.amounts
    )
    return wanted.isolation.refusal(policy, share=share)


def _selector(expression: str, facts: DeviceFacts, *, owner: str, index: int) -> Verdict | None:
    shown = " ".join(expression.split())
    try:
        if matches(expression, facts):
            return None
    except SelectorError as error:
        place = f"selector #{index}" if owner == "selector" else f"{owner}: selector #{index}"
        return Verdict(cause=Cause.SELECTOR_ERROR, detail=f"{place}: {error.problem}", error=True)
    return Verdict(cause=Cause.SELECTOR_MISMATCH, detail=f"{owner} {shown}: {_values(expression, facts)}")


def _values(expression: str, facts: DeviceFacts) -> str:
    """The values of what the expression names, which is why it did not match."""
    found = [f"driver is {facts.driver}"] if "device.driver" in expression else []
    for table in (facts.attributes, facts.capacity):
        for qualified, entry in sorted(table.items()):
            name = qualified.rpartition("/")[2]
            if f".{name}" in expression or f'"{name}"' in expression or f"'{name}'" in expression:
                shown = getattr(entry, "spelled", None) or str(entry)
                found.append(f"{name} is {shown}")
    return ", ".join(found) or "it has no such attribute"


def _tolerated(taint: Taint, wanted: RequestAlternative) -> bool:
    """A held device is in use, whatever the request says: no toleration makes it free."""
    return taint.key != names.HELD_TAINT and any(
        toleration.tolerates(taint) for toleration in wanted.spec.tolerations
    )


def _taint_text(taint: Taint) -> str:
    if taint.key == names.HELD_TAINT:
        holder = f" ({taint.value})" if taint.value else ""
        return f"taint {taint}: the node still uses it for a claim that is gone{holder}"
    return f"taint {taint} is not tolerated by the request"
