"""What a claim asks for, resolved: each request with its class, amounts and koordra's own parameters.

A claim becomes a ResolvedClaim: requests in their order, each with its alternatives (one for an exact
request), the claim's constraints, and the opaque parameters of `koordra.io/v1alpha1` found in the
configuration of the classes and of the claim (koordra.api.opaque.configuration). What upstream answers with
an error for the claim as a whole is raised here as ClaimRefused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Final

from koordra.allocator import features as gates
from koordra.allocator.features import Features
from koordra.allocator.reasons import Cause, ClaimRefused, refusal
from koordra.allocator.request.claim_validation import (
    refuse_amounts_said_twice,
    refuse_below_least,
    refuse_foreign_driver,
    refuse_misnamed,
)
from koordra.allocator.request.classes import is_koordra
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
from koordra.api.opaque import configuration as opaque
from koordra.api.opaque.isolation import AskedIsolation
from koordra.api.opaque.parameters import (
    JointAllocation,
    Parameters,
    PartitionPolicy,
    PlacementPolicy,
    RdmaMode,
    decode,
)
from koordra.cel.selectors import compile_error
from koordra.errors import InvalidInput, InvalidManifest

NO_POLICY: Final = PlacementPolicy()


@dataclass(frozen=True, slots=True, eq=False)
class RequestAlternative:
    """One way to satisfy a request. `label` is the name results carry: `request` or `request/subrequest`.

    `own_driver_only`: some request of the claim is for koordra's classes, so devices of other drivers may not
    be mixed in. Two that are of one `kind` ask the same of a device, so that what was found for one holds for
    the other. Of those with the same `selectors` that is true of what these say. `compute`: TFLOPS and their
    precision.
    """

    claim: int
    request: int
    index: int
    label: str
    base: str
    sub: str
    spec: Alternative
    device_class: DeviceClass
    own_driver_only: bool
    memory_percent: int | None
    compute: tuple[int, str] | None
    whole: frozenset[str]
    isolation: AskedIsolation
    demands_partition: bool
    kind: object
    selectors: object

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
    """`demands_partition`: its whole GPUs are one partition of the NVLink fabric, whatever the node's label
    says."""

    claim: ResourceClaim
    requests: tuple[ResolvedRequest, ...]
    constraints: tuple[Constraint, ...]
    joints: tuple[JointAllocation, ...] = ()
    joint_requests: tuple[frozenset[int], ...] = ()
    placement: PlacementPolicy = NO_POLICY
    demands_partition: bool = False

    @property
    def alternatives(self) -> list[RequestAlternative]:
        """Those of all requests."""
        return [wanted for request in self.requests for wanted in request.alternatives]


def resolve(
    claim: ResourceClaim,
    *,
    position: int,
    classes: Mapping[str, DeviceClass | InvalidManifest],
    features: Features,
) -> ResolvedClaim:
    """The claim as the search sees it. Raises ClaimRefused."""
    known = (classes.get(spec.device_class) for request in claim.requests for spec in request.alternatives)
    own = any(isinstance(found, DeviceClass) and is_koordra(found) for found in known)
    resolver = _Resolver(claim, position, classes, features, own)
    resolved = ResolvedClaim(
        claim,
        tuple(resolver.request(index, request) for index, request in enumerate(claim.requests)),
        claim.constraints,
    )
    for index, constraint in enumerate(claim.constraints):
        if not (constraint.match_attribute or constraint.distinct_attribute):
            raise resolver.refusal(
                Cause.CONSTRAINT_VIOLATED,
                f"constraint #{index}: empty constraint (unsupported constraint type?)",
            )
    refuse_misnamed(claim, own=own)
    if own:
        refuse_below_least(claim)
        asked = [(wanted.device_class, wanted.label) for wanted in resolved.alternatives]
        refuse_foreign_driver(claim, asked)
    return resolver.with_claim_parameters(resolved)


@dataclass(frozen=True)
class _Resolver:
    claim: ResourceClaim
    position: int
    classes: Mapping[str, DeviceClass | InvalidManifest]
    features: Features
    own_driver_only: bool

    def refusal(self, cause: Cause, detail: str, label: str | None = None) -> ClaimRefused:
        return refusal(self.claim.key, cause, detail, request=label)

    def request(self, index: int, request: DeviceRequest) -> ResolvedRequest:
        if request.prioritized:
            self._require(gates.PRIORITIZED_LIST, "has subrequests", request.name)
        alternatives = []
        for number, spec in enumerate(request.alternatives):
            label = f"{request.name}/{spec.name}" if request.prioritized else request.name
            device_class = self._checked(spec, label)
            config = self._configuration(device_class)
            gpu = config.gpu(label)
            compute = None if _says(spec, names.CAPACITY_CORES) else gpu.compute
            whole = {names.CAPACITY_SLOTS} if gpu.exclusive else set()
            if config.rdma(label).mode is RdmaMode.EXCLUSIVE:
                whole.add(names.CAPACITY_SHARE)
            isolation = config.isolation(label)
            selectors = _digest(device_class.name, device_class.selectors, spec.selectors)
            # Everything that decides whether a device can serve the request.
            kind = (
                self.own_driver_only,
                selectors,
                _digest([(one.key, one.operator, one.value, one.effect) for one in spec.tolerations]),
                None if spec.capacity is None else tuple(sorted(spec.capacity.items())),
                tuple(sorted(spec.capacity_spelled.items())),
                gpu.memory_percent,
                compute,
                frozenset(whole),
                isolation,
            )
            alternatives.append(
                RequestAlternative(
                    self.position,
                    index,
                    number,
                    label=label,
                    base=request.name,
                    sub=spec.name if request.prioritized else "",
                    spec=spec,
                    device_class=device_class,
                    own_driver_only=self.own_driver_only,
                    memory_percent=gpu.memory_percent,
                    compute=compute,
                    whole=frozenset(whole),
                    isolation=isolation,
                    demands_partition=gpu.partition is PartitionPolicy.HONOR,
                    kind=_one_of(kind),
                    selectors=selectors,
                )
            )
        return ResolvedRequest(request.name, tuple(alternatives), request.prioritized)

    def _require(self, gate: str, what: str, label: str) -> None:
        if gate not in self.features:
            raise self.refusal(
                Cause.FEATURE_DISABLED,
                f"{what}, but the {gate} feature is disabled; it is a gate of the API server, the scheduler and the kubelet",
                label,
            )

    def _checked(self, spec: Alternative, label: str) -> DeviceClass:
        """The class of what is asked for. Raises ClaimRefused for what no device could satisfy, or upstream
        does not take."""
        if spec.capacity is not None:
            self._require(gates.CONSUMABLE_CAPACITY, "has capacity requests", label)
        if spec.admin_access:
            self._require(gates.ADMIN_ACCESS, "admin access is requested", label)
        self._refuse_empty(spec.selectors, label, owner="")
        if not spec.device_class:
            raise self.refusal(
                Cause.SELECTOR_MISMATCH,
                "missing device class name (unsupported request type?); set deviceClassName",
                label,
            )
        device_class = self.classes.get(spec.device_class)
        if device_class is None:
            known = ", ".join(sorted(self.classes)) or "none"
            raise self.refusal(
                Cause.SELECTOR_MISMATCH,
                f"DeviceClass {spec.device_class} does not exist; create it or use one of: {known}",
                label,
            )
        if isinstance(device_class, InvalidManifest):
            raise self.refusal(Cause.SELECTOR_ERROR, str(device_class), label)
        self._refuse_empty(device_class.selectors, label, owner=f"class {device_class.name}, ")
        if spec.mode not in (EXACT_COUNT, ALL):
            raise self.refusal(Cause.FEATURE_DISABLED, f"unsupported count mode {spec.mode}", label)
        for name, amount in sorted((spec.capacity or {}).items()):
            if amount < 0:
                raise self.refusal(
                    Cause.CONSTRAINT_VIOLATED,
                    f"{name}: requested {amount}, an amount cannot be negative",
                    label,
                )
            if amount == 0 and is_koordra(device_class) and name.rpartition("/")[2] == names.CAPACITY_MEMORY:
                raise self.refusal(
                    Cause.CONSTRAINT_VIOLATED,
                    f"{name}: requested 0, at least 1Mi; leave memory out for the whole card",
                    label,
                )
        return device_class

    def _refuse_empty(self, selectors: Sequence[str], label: str, *, owner: str) -> None:
        if "" in selectors:
            place = f"{owner}selector #{selectors.index('')}"
            raise self.refusal(
                Cause.SELECTOR_ERROR, f"{place}: CEL expression empty (unsupported selector type?)", label
            )

    def _configuration(self, device_class: DeviceClass) -> opaque.Configuration:
        of_class = (self._decoded(entry, device_class) for entry in device_class.config)
        return opaque.Configuration.of(
            [
                *(opaque.Entry((), one, of_class=True) for one in of_class if one is not None),
                *(opaque.Entry(entry.requests, one) for entry, one in self._of_claim if one is not None),
            ]
        )

    @cached_property
    def _of_claim(self) -> list[tuple[Configuration, Parameters | None]]:
        return [(entry, self._decoded(entry)) for entry in self.claim.config]

    def _decoded(self, entry: Configuration, device_class: DeviceClass | None = None) -> Parameters | None:
        """koordra's parameters in an entry of the class, or of the claim; None in another driver's entry."""
        if entry.driver != names.DRIVER:
            return None
        owner = f"DeviceClass {device_class.name}" if device_class else str(self.claim)
        field = f"{entry.where}.opaque.parameters"
        try:
            return decode(entry.parameters, object=owner, field=field, in_claim=device_class is None)
        except InvalidInput as error:
            raise self.refusal(Cause.CONSTRAINT_VIOLATED, str(error)) from error

    def with_claim_parameters(self, resolved: ResolvedClaim) -> ResolvedClaim:
        """With JointAllocations and the requests each covers, and the placement policy (the last one said
        wins)."""
        joints: list[tuple[JointAllocation, frozenset[int]]] = []
        placement = NO_POLICY
        everything = frozenset(range(len(resolved.requests)))
        for entry, parameters in self._of_claim:
            refuse_amounts_said_twice(self.claim, entry, parameters)
            if isinstance(parameters, JointAllocation):
                named = {name.partition("/")[0] for name in entry.requests}
                covered = {index for index, one in enumerate(resolved.requests) if one.name in named}
                joints.append((parameters, frozenset(covered) if named else everything))
            elif isinstance(parameters, PlacementPolicy):
                placement = _merged(parameters, placement)
        for device_class in dict.fromkeys(wanted.device_class for wanted in resolved.alternatives):
            for entry in device_class.config:
                parameters = self._decoded(entry, device_class)
                if isinstance(parameters, JointAllocation) and not joints:
                    joints.append((parameters, everything))
                elif isinstance(parameters, PlacementPolicy):
                    placement = _merged(placement, parameters)
        return replace(
            resolved,
            joints=tuple(joint for joint, _ in joints),
            joint_requests=tuple(covered for _, covered in joints),
            placement=placement,
            demands_partition=any(wanted.demands_partition for wanted in resolved.alternatives),
        )


def _merged(first: PlacementPolicy, second: PlacementPolicy) -> PlacementPolicy:
    return PlacementPolicy(first.node or second.node, first.device or second.device)


def _digest(*values: object) -> bytes:
    """Equal for equal values, and short: what tells kinds apart outlives the claims, and selectors may be a
    megabyte."""
    return sha256(repr(values).encode()).digest()


def _says(spec: Alternative, capacity: str) -> bool:
    return any(name.rpartition("/")[2] == capacity for name in spec.capacity or {})


@lru_cache(maxsize=4096)
def _one_of(values: tuple[object, ...]) -> object:
    """One object for each value, which is compared quickly."""
    return object()


def refuse_bad_selectors(claim: ResolvedClaim) -> None:
    """Raises ClaimRefused for the first selector that does not compile, though no device may ever be held
    against it."""
    for wanted in claim.alternatives:
        for owner, expressions in (
            (f"class {wanted.device_class.name}: ", wanted.device_class.selectors),
            ("", wanted.spec.selectors),
        ):
            for index, expression in enumerate(expressions):
                error = compile_error(expression)
                if error is not None:
                    detail = f"{owner}selector #{index} {expression.strip()!r}: CEL compile error: {error}"
                    raise refusal(claim.claim.key, Cause.SELECTOR_ERROR, detail, request=wanted.label)
