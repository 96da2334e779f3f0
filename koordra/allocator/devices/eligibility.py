"""Whether one device can serve one request, leaving aside what else is being allocated.

A verdict is static for a node: gates, selectors of class and request, node selection, taints, foreign
drivers, and the amounts that the request would take. It is found when it is first asked for, since a selector
that fails on a device is an error only if the search gets to that device. Only `beside` depends on who else
has shares of the device.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from koordra.allocator import features as gates
from koordra.allocator.devices.capacity import Demand, ShortOf, Unmet, demand_of
from koordra.allocator.devices.gpu_compute import cores_for
from koordra.allocator.devices.inventory import PublishedDevice
from koordra.allocator.features import Features
from koordra.allocator.reasons import Cause
from koordra.allocator.request.requests import RequestAlternative
from koordra.api import names
from koordra.api.devices import Taint
from koordra.api.opaque.isolation import STRANGERS, IsolationPolicy, is_share, published_policy, strangers
from koordra.api.opaque.isolation_words import AUTO
from koordra.cel.selectors import DeviceFacts, matches, names_read_by
from koordra.errors import SelectorError
from koordra.spelling import meant

_MOST_NAMES: Final = 24
"""Names of attributes and capacities that a misspelt one is answered with."""


class Verdict(NamedTuple):
    """`demand` is set for a device that fits; otherwise `cause` and `clause` say why not, with the device's
    own `value`.

    `error`: upstream ends there. `of_class`: the class's selectors match. `short_of`: the capacity that is
    too small at all.
    """

    demand: Demand | None = None
    cause: Cause | None = None
    clause: str = ""
    value: str = ""
    error: bool = False
    of_class: bool = True
    short_of: ShortOf | None = None

    @property
    def detail(self) -> str:
        return f"{self.clause} {self.value}" if self.value else self.clause


def judge(wanted: RequestAlternative, offered: PublishedDevice, *, features: Features) -> Verdict:
    """The static verdict, clauses in upstream's order."""
    return selected(wanted, offered, features=features) or admitted(wanted, offered, features=features)


def selected(wanted: RequestAlternative, offered: PublishedDevice, *, features: Features) -> Verdict | None:
    """Why the selectors leave the device out; None where they do not. The same for all requests with these
    selectors."""
    if offered.device.binding_conditions and not {gates.BINDING_CONDITIONS, gates.DEVICE_STATUS} <= features:
        detail = f"binding conditions need the gate {gates.BINDING_CONDITIONS}"
        return Verdict(None, Cause.FEATURE_DISABLED, detail)
    chosen = (
        (f"class {wanted.device_class.name}", wanted.device_class.selectors, offered.class_facts),
        ("", wanted.spec.selectors, offered.facts),
    )
    for of, expressions, facts in chosen:
        for index, expression in enumerate(expressions):
            try:
                if matches(expression, facts):
                    continue
            except SelectorError as error:
                place = f"{of}: selector #{index}" if of else f"selector #{index}"
                detail = f"{place}: {error.problem}{_unknown_names(expression, facts)}"
                return Verdict(None, Cause.SELECTOR_ERROR, detail, error=True, of_class=not of)
            clause = f"{of or 'selector'} {' '.join(expression.split())}:"
            return Verdict(None, Cause.SELECTOR_MISMATCH, clause, _values(expression, facts), of_class=not of)
    return None


def admitted(wanted: RequestAlternative, offered: PublishedDevice, *, features: Features) -> Verdict:
    """The verdict on a device that the selectors choose."""
    if not offered.here:
        detail = "the device's own node selection leaves this node out"
        return Verdict(None, Cause.NODE_UNSUITABLE, detail)
    if wanted.own_driver_only and offered.id.driver != names.DRIVER:
        detail = f"driver {offered.id.driver}: the claim asks for {names.DRIVER} devices and cannot be mixed"
        return Verdict(None, Cause.FOREIGN_DRIVER, detail)
    cores = None
    if wanted.compute is not None and offered.plain.get(names.ATTR_TYPE) in names.GPU_TYPES:
        cores = cores_for(*wanted.compute, offered.plain)
    if isinstance(cores, str):
        return Verdict(None, Cause.EXCEEDS_DEVICE, cores)
    demand = (
        Demand({})
        if gates.CONSUMABLE_CAPACITY not in features
        else demand_of(
            wanted.spec,
            offered.device,
            driver=offered.id.driver,
            fractional=gates.FRACTIONAL_RANGE in features,
            memory_percent=wanted.memory_percent,
            cores=cores,
            whole=wanted.whole,
        )
    )
    if isinstance(demand, Unmet):
        return Verdict(None, Cause.EXCEEDS_DEVICE, demand.detail, short_of=demand.short_of)
    if offered.device.consumes_counters and gates.PARTITIONABLE_DEVICES not in features:
        detail = f"the device consumes counters, which needs the gate {gates.PARTITIONABLE_DEVICES}"
        return Verdict(demand, Cause.FEATURE_DISABLED, detail)
    refused = _isolation(wanted, offered, demand)
    if refused is not None:
        return Verdict(demand, Cause.BACKEND_UNAVAILABLE, refused)
    if gates.DEVICE_TAINTS in features:
        for taint in offered.taints:
            tolerations = () if taint.key in _NOT_TO_BE_TOLERATED else wanted.spec.tolerations
            if taint.keeps_out and not any(one.tolerates(taint) for one in tolerations):
                return Verdict(demand, _cause_of(taint), *_taint_text(taint))
    return Verdict(demand)


def beside(
    wanted: RequestAlternative,
    offered: PublishedDevice,
    demand: Demand,
    *,
    namespace: str,
    others: Collection[str],
) -> Verdict:
    """The verdict on a device that serves the request by itself, is for claims of one namespace
    (`devices_kept_apart`), and has shares of claims of these."""
    word = isolation_of(wanted, offered, demand)
    found = strangers(word, namespace, others, shared=False) if word else ""
    return Verdict(demand, Cause.ALREADY_ALLOCATED, STRANGERS, found) if found else Verdict(demand)


def isolation_of(wanted: RequestAlternative, offered: PublishedDevice, demand: Demand) -> str | None:
    """What keeps what the request would have of the device; None where nothing is published of it."""
    policy = _policy(wanted, offered)
    return None if policy is None else wanted.isolation.on(policy, share=_is_share(offered, demand))


def _isolation(wanted: RequestAlternative, offered: PublishedDevice, demand: Demand) -> str | None:
    """Why the policy of the device's node, or of the class, does not let the request have the device."""
    policy = _policy(wanted, offered)
    if policy is None:
        return None
    instance = offered.plain.get(names.ATTR_TYPE) == names.TYPE_MIG
    refused = wanted.isolation.refusal(policy, share=_is_share(offered, demand), instance=instance)
    return None if refused is None else str(refused)


def chosen_isolation(wanted: RequestAlternative, offered: PublishedDevice, demand: Demand) -> str | None:
    """What `Auto` is for a share of this device; None where nothing is left to it."""
    policy = _policy(wanted, offered)
    if policy is None or wanted.isolation.wanted != AUTO or not _is_share(offered, demand):
        return None
    return wanted.isolation.on(policy, share=True)


def _policy(wanted: RequestAlternative, offered: PublishedDevice) -> IsolationPolicy | None:
    if offered.id.driver != names.DRIVER or wanted.spec.admin_access:
        return None
    return published_policy(offered.plain)


def _is_share(offered: PublishedDevice, demand: Demand) -> bool:
    return bool(demand.amounts) and is_share(demand.amounts, offered.device.capacity)


_NOT_TO_BE_TOLERATED: Final = frozenset({names.HELD_TAINT, names.RELEASE_TAINT, names.MIG_MODE_TAINT})
"""A held device is in use, whatever a request says, and one of the other MIG mode is not there. The pods of a
device whose driver is to be free are evicted: a request that tolerated it would have its pod evicted again
and again."""


def _cause_of(taint: Taint) -> Cause:
    if taint.key.startswith(names.UNHEALTHY_TAINT):
        return Cause.DEVICE_UNHEALTHY
    return Cause.MODE_SWITCHING if taint.key == names.MIG_MODE_TAINT else Cause.TAINTED


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


def _unknown_names(expression: str, facts: DeviceFacts) -> str:
    """Names that the expression reads and the device does not have, with what may have been meant; empty
    where it has all."""
    known = sorted({name.rpartition("/")[2] for name in (*facts.attributes, *facts.capacity)})
    unknown = sorted((names_read_by(expression) or frozenset()) - set(known))
    if not unknown:
        return ""
    alike = meant(unknown[0], known)
    hint = f"did you mean {alike}? It has" if alike else "it has"
    return f"; the device has no {unknown[0]}: {hint} {', '.join(known[:_MOST_NAMES])}"


def _taint_text(taint: Taint) -> tuple[str, str]:
    """The clause, and the value."""
    if taint.key == names.HELD_TAINT:
        clause = (
            f"taint {taint.key}:{taint.effect}: the node still uses it for a claim that is gone, until its kubelet has ended that "
            "claim's pod (crictl ps there shows what still runs)"
        )
        return (f"{clause}; uid", taint.value) if taint.value else (clause, "")
    if taint.key.startswith(names.UNHEALTHY_TAINT):
        return f"the device is unhealthy (taint {taint.key}; docs/health.md: what ends it):", taint.value
    if taint.key == names.MIG_MODE_TAINT:
        return f"the MIG mode of the card is being switched (taint {taint.key})", ""
    return f"taint {taint} is not tolerated by the request", ""
