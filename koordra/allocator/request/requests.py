"""What a claim asks for, resolved: each request with its class, amounts and koordra's own parameters.

A claim becomes an ResolvedClaim: requests in their order, each with its alternatives (one for an exact request), the claim's
constraints, and the opaque parameters of `koordra.io/v1alpha1` found in the configuration of the classes and of the claim
(the claim's own word wins over its class's). Everything that upstream answers with an error for the claim as a whole is
found here and raised as ClaimRefused, so that the search only meets requests that make sense.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Final

from koordra.allocator import features as gates
from koordra.allocator.features import Features
from koordra.allocator.reasons import Cause, refusal
from koordra.allocator.request.claim_validation import refuse_memory_said_twice, refuse_misnamed
from koordra.api import names
from koordra.api.claims import (
    ALL,
    EXACT_COUNT,
    Alternative,
    Configuration,
    Constraint,
    DeviceClass,
    DeviceRequest,
    ResourceClaim,
)
from koordra.api.opaque.isolation import AskedIsolation, asked_isolation
from koordra.api.opaque.parameters import (
    GpuConfig,
    JointAllocation,
    Parameters,
    PartitionPolicy,
    PlacementPolicy,
    RdmaConfig,
    RdmaMode,
    decode,
    reject_operator_fields,
)
from koordra.cel.selectors import compile_error
from koordra.errors import InvalidInput, InvalidManifest

KOORDRA_CLASSES: Final = frozenset({names.CLASS_GPU, names.CLASS_MIG, names.CLASS_NIC, names.CLASS_VF})
_DRIVER_TEST: Final = re.compile(r"""device\.driver\s*==\s*["']([^"']+)["']""")


@dataclass(frozen=True, slots=True, eq=False)
class RequestAlternative:
    """One way to satisfy a request. `label` is the name results carry: `request` or `request/subrequest`.

    Two that are of one `kind` ask the same of a device, so that what was found for one holds for the other. Of those with the
    same `selectors` that is true of what these say.
    """

    claim: int
    request: int
    index: int
    label: str
    base: str
    sub: str
    spec: Alternative
    device_class: DeviceClass
    percent: Mapping[str, int] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()
    isolation: AskedIsolation = field(default_factory=AskedIsolation)
    kind: object = None
    selectors: object = None

    @property
    def takes_all(self) -> bool:
        return self.spec.mode == ALL


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedRequest:
    name: str
    alternatives: tuple[RequestAlternative, ...]
    prioritized: bool


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedClaim:
    """`own_driver_only`: some request is for koordra's classes, so devices of other drivers may not be mixed in.

    `demands_partition`: its whole GPUs are one partition of the NVLink fabric, whatever the node's label says.
    """

    claim: ResourceClaim
    requests: tuple[ResolvedRequest, ...]
    constraints: tuple[Constraint, ...]
    joints: tuple[JointAllocation, ...] = ()
    joint_requests: tuple[frozenset[int], ...] = ()
    placement: PlacementPolicy = field(default_factory=PlacementPolicy)
    own_driver_only: bool = False
    demands_partition: bool = False


def resolve(
    claim: ResourceClaim,
    *,
    position: int,
    classes: Mapping[str, DeviceClass | InvalidManifest],
    features: Features,
) -> ResolvedClaim:
    """The claim as the search sees it. Raises ClaimRefused."""
    requests = tuple(
        _request(claim, request, position=(position, index), classes=classes, features=features)
        for index, request in enumerate(claim.requests)
    )
    for index, constraint in enumerate(claim.constraints):
        if not (constraint.match_attribute or constraint.distinct_attribute):
            raise refusal(
                claim.key,
                Cause.CONSTRAINT_VIOLATED,
                f"constraint #{index}: empty constraint (unsupported constraint type?)",
            )
    foreign = _foreign_driver(requests)
    own = any(_is_koordra(wanted.device_class) for request in requests for wanted in request.alternatives)
    refuse_misnamed(claim, own=own)
    if own and foreign:
        raise refusal(
            claim.key,
            Cause.FOREIGN_DRIVER,
            f"the claim mixes requests for {names.DRIVER} and for {foreign[1]}; put the latter into a claim of its own",
            request=foreign[0],
        )
    joints, joint_requests, placement = _claim_parameters(claim, requests)
    return ResolvedClaim(
        claim=claim,
        requests=requests,
        constraints=claim.constraints,
        joints=joints,
        joint_requests=joint_requests,
        placement=placement,
        own_driver_only=own,
        demands_partition=_demands_partition(claim, requests),
    )


def _request(
    claim: ResourceClaim,
    request: DeviceRequest,
    *,
    position: tuple[int, int],
    classes: Mapping[str, DeviceClass | InvalidManifest],
    features: Features,
) -> ResolvedRequest:
    if request.prioritized and gates.PRIORITIZED_LIST not in features:
        raise refusal(
            claim.key,
            Cause.FEATURE_DISABLED,
            f"has subrequests, but the {gates.PRIORITIZED_LIST} feature is disabled",
            request=request.name,
        )
    return ResolvedRequest(
        request.name,
        tuple(
            _alternative(
                claim, request, spec, position=(*position, index), classes=classes, features=features
            )
            for index, spec in enumerate(request.alternatives)
        ),
        request.prioritized,
    )


def _alternative(
    claim: ResourceClaim,
    request: DeviceRequest,
    spec: Alternative,
    *,
    position: tuple[int, int, int],
    classes: Mapping[str, DeviceClass | InvalidManifest],
    features: Features,
) -> RequestAlternative:
    label = f"{request.name}/{spec.name}" if request.prioritized else request.name
    _check_gates(claim, spec, label=label, features=features)
    _check_selectors(claim, spec.selectors, label=label, owner="")
    device_class = _class_of(claim, spec, label=label, classes=classes)
    _check_selectors(claim, device_class.selectors, label=label, owner=f"class {device_class.name}, ")
    if spec.mode not in (EXACT_COUNT, ALL):
        raise refusal(claim.key, Cause.FEATURE_DISABLED, f"unsupported count mode {spec.mode}", request=label)
    _check_amounts(claim, spec, device_class, label=label)
    percent: dict[str, int] = {}
    whole: set[str] = set()
    of_class, of_claim = _parameters_of(claim, device_class, request.name, label)
    isolation = asked_isolation(of_class, of_claim)
    for parameters in (*of_class, *of_claim):
        if isinstance(parameters, GpuConfig) and parameters.memory_percent is not None:
            percent[names.CAPACITY_MEMORY] = parameters.memory_percent
        if isinstance(parameters, GpuConfig) and parameters.exclusive:
            whole.add(names.CAPACITY_SLOTS)
        if isinstance(parameters, RdmaConfig) and parameters.mode is RdmaMode.EXCLUSIVE:
            whole.add(names.CAPACITY_SHARE)
    return RequestAlternative(
        *position,
        label=label,
        base=request.name,
        sub=spec.name if request.prioritized else "",
        spec=spec,
        device_class=device_class,
        percent=percent,
        whole=frozenset(whole),
        isolation=isolation,
        kind=_kind(spec, device_class, percent, frozenset(whole), isolation),
        selectors=_one_of((device_class.name, device_class.selectors, spec.selectors)),
    )


def _kind(
    spec: Alternative,
    device_class: DeviceClass,
    percent: Mapping[str, int],
    whole: frozenset[str],
    isolation: AskedIsolation,
) -> object:
    """Everything of a request that decides whether a device can serve it, as one object per value."""
    return _one_of(
        (
            device_class.name,
            device_class.selectors,
            spec.selectors,
            spec.tolerations,
            None if spec.capacity is None else tuple(sorted(spec.capacity.items())),
            tuple(sorted(spec.capacity_spelled.items())),
            tuple(sorted(percent.items())),
            whole,
            isolation,
        )
    )


@lru_cache(maxsize=4096)
def _one_of(values: tuple[object, ...]) -> object:
    return object()


def _check_gates(claim: ResourceClaim, spec: Alternative, *, label: str, features: Features) -> None:
    if spec.capacity is not None and gates.CONSUMABLE_CAPACITY not in features:
        raise refusal(
            claim.key,
            Cause.FEATURE_DISABLED,
            f"has capacity requests, but the {gates.CONSUMABLE_CAPACITY} feature is disabled",
            request=label,
        )
    if spec.admin_access and gates.ADMIN_ACCESS not in features:
        raise refusal(
            claim.key,
            Cause.FEATURE_DISABLED,
            f"admin access is requested, but the {gates.ADMIN_ACCESS} feature is disabled",
            request=label,
        )


def _check_selectors(claim: ResourceClaim, selectors: Sequence[str], *, label: str, owner: str) -> None:
    for index, expression in enumerate(selectors):
        if not expression:
            detail = f"{owner}selector #{index}: CEL expression empty (unsupported selector type?)"
            raise refusal(claim.key, Cause.SELECTOR_ERROR, detail, request=label)


def _class_of(
    claim: ResourceClaim,
    spec: Alternative,
    *,
    label: str,
    classes: Mapping[str, DeviceClass | InvalidManifest],
) -> DeviceClass:
    if not spec.device_class:
        raise refusal(
            claim.key,
            Cause.SELECTOR_MISMATCH,
            "missing device class name (unsupported request type?); set deviceClassName",
            request=label,
        )
    found = classes.get(spec.device_class)
    if found is None:
        known = ", ".join(sorted(classes)) or "none"
        raise refusal(
            claim.key,
            Cause.SELECTOR_MISMATCH,
            f"DeviceClass {spec.device_class} does not exist; create it or use one of: {known}",
            request=label,
        )
    if isinstance(found, InvalidManifest):
        raise refusal(claim.key, Cause.SELECTOR_ERROR, str(found), request=label)
    return found


def _check_amounts(claim: ResourceClaim, spec: Alternative, device_class: DeviceClass, *, label: str) -> None:
    for name, amount in sorted((spec.capacity or {}).items()):
        if amount < 0:
            detail = f"{name}: requested {amount}, an amount cannot be negative"
            raise refusal(claim.key, Cause.INSUFFICIENT_CAPACITY, detail, request=label)
        if amount == 0 and _is_koordra(device_class) and name.rpartition("/")[2] == names.CAPACITY_MEMORY:
            raise refusal(
                claim.key,
                Cause.INSUFFICIENT_CAPACITY,
                f"{name}: requested 0, at least 1Mi; leave memory out for the whole card",
                request=label,
            )


def _is_koordra(device_class: DeviceClass) -> bool:
    return device_class.name in KOORDRA_CLASSES or names.DRIVER in _drivers_named(device_class)


def _drivers_named(device_class: DeviceClass) -> set[str]:
    return {driver for expression in device_class.selectors for driver in _DRIVER_TEST.findall(expression)}


def _foreign_driver(requests: Sequence[ResolvedRequest]) -> tuple[str, str] | None:
    """The first request whose class names a driver other than koordra's, with that driver."""
    for request in requests:
        for wanted in request.alternatives:
            others = sorted(_drivers_named(wanted.device_class) - {names.DRIVER})
            if others and not _is_koordra(wanted.device_class):
                return wanted.label, others[0]
    return None


def _parameters_of(
    claim: ResourceClaim, device_class: DeviceClass, request: str, label: str
) -> tuple[tuple[Parameters, ...], tuple[Parameters, ...]]:
    """koordra's parameters for one request: the class's, and the claim's (which win but for isolation)."""
    own = [entry for entry in claim.config if not entry.requests or {request, label} & set(entry.requests)]
    of_class, of_claim = (
        tuple(found for entry in entries if (found := _decoded(claim, entry, owner=owner)) is not None)
        for entries, owner in ((device_class.config, f"DeviceClass {device_class.name}"), (own, str(claim)))
    )
    return of_class, of_claim


def _decoded(claim: ResourceClaim, entry: Configuration, *, owner: str) -> Parameters | None:
    if entry.driver != names.DRIVER:
        return None
    try:
        field = f"{entry.where}.opaque.parameters"
        found = decode(entry.parameters, object=owner, field=field)
        if owner == str(claim):
            reject_operator_fields(found, object=owner, field=field)
        return found
    except InvalidInput as error:
        raise refusal(claim.key, Cause.CONSTRAINT_VIOLATED, str(error)) from error


def _demands_partition(claim: ResourceClaim, requests: Sequence[ResolvedRequest]) -> bool:
    """The last word of class and claim about any of the requests; one request that demands it is enough."""
    for wanted in (wanted for request in requests for wanted in request.alternatives):
        said = [
            parameters.partition
            for parameters in chain(*_parameters_of(claim, wanted.device_class, wanted.base, wanted.label))
            if isinstance(parameters, GpuConfig) and parameters.partition is not None
        ]
        if said and said[-1] is PartitionPolicy.HONOR:
            return True
    return False


def _claim_parameters(
    claim: ResourceClaim, requests: Sequence[ResolvedRequest]
) -> tuple[tuple[JointAllocation, ...], tuple[frozenset[int], ...], PlacementPolicy]:
    """JointAllocations with the requests each covers, and the placement policy (the last one said wins)."""
    joints: list[JointAllocation] = []
    covered: list[frozenset[int]] = []
    placement = PlacementPolicy()
    everything = frozenset(range(len(requests)))
    for entry in claim.config:
        parameters = _decoded(claim, entry, owner=str(claim))
        refuse_memory_said_twice(claim, entry, parameters, claim.requests)
        if isinstance(parameters, JointAllocation):
            named = {name.partition("/")[0] for name in entry.requests}
            joints.append(parameters)
            covered.append(
                frozenset(index for index, request in enumerate(requests) if request.name in named)
                if named
                else everything
            )
        elif isinstance(parameters, PlacementPolicy):
            placement = PlacementPolicy(
                parameters.node or placement.node, parameters.device or placement.device
            )
    for device_class in dict.fromkeys(
        wanted.device_class for request in requests for wanted in request.alternatives
    ):
        for entry in device_class.config:
            parameters = _decoded(claim, entry, owner=f"DeviceClass {device_class.name}")
            if isinstance(parameters, JointAllocation) and not joints:
                joints.append(parameters)
                covered.append(everything)
            elif isinstance(parameters, PlacementPolicy):
                placement = PlacementPolicy(
                    placement.node or parameters.node, placement.device or parameters.device
                )
    return tuple(joints), tuple(covered), placement


def refuse_bad_selectors(claim: ResolvedClaim) -> None:
    """Raises ClaimRefused for the first selector that does not compile, though no device may ever be held against it."""
    for wanted in (wanted for request in claim.requests for wanted in request.alternatives):
        for owner, expressions in (
            (f"class {wanted.device_class.name}: ", wanted.device_class.selectors),
            ("", wanted.spec.selectors),
        ):
            for index, expression in enumerate(expressions):
                error = compile_error(expression)
                if error is not None:
                    detail = f"{owner}selector #{index} {expression.strip()!r}: CEL compile error: {error}"
                    raise refusal(claim.claim.key, Cause.SELECTOR_ERROR, detail, request=wanted.label)
