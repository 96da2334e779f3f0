"""koordra's own opaque parameters, `koordra.io/v1alpha1`: what a claim can say that the standard fields
cannot.

They ride in `devices.config[].opaque.parameters` of a ResourceClaim or DeviceClass. Whose word a field is, a
claim's or the operator's alone: authority.py.

Decoding is strict, since a misspelt field that is ignored is a lost guarantee: an unknown field, kind or
value is an InvalidParameters that names it and lists what is allowed. The classes and tables below are the
only description of the fields: of them are made the decoder, its errors and docs/reference/parameters.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from koordra.api import names
from koordra.api.opaque.authority import refuse_operators
from koordra.api.opaque.driver_capabilities import (
    DriverCapabilities,
    DriverCapability,
    decode_capabilities,
)
from koordra.api.opaque.imex import ImexChannels, ImexConfig
from koordra.api.opaque.isolation_words import AUTO, isolations, wishes
from koordra.api.opaque.precision import Precision
from koordra.api.opaque.rdma_fabric import RdmaFabric, decode_fabric
from koordra.api.opaque.rdma_network import RdmaNetwork, decode_network
from koordra.api.opaque.resize import Bounds, decode_bounds
from koordra.api.reader import Reader, snake_case
from koordra.errors import InvalidParameters
from koordra.spelling import meant

API_VERSION: Final = "koordra.io/v1alpha1"


class Scope(StrEnum):
    """How far apart devices may be, narrow to wide. Koordinator's `SamePCIe` is PCIE_ROOT."""

    PCIE_SWITCH = "PCIeSwitch"
    PCIE_ROOT = "PCIeRoot"
    NUMA_NODE = "NUMANode"
    SOCKET = "Socket"
    NODE = "Node"


SCOPE_ATTRIBUTES: Final = {
    Scope.PCIE_SWITCH: names.ATTR_PCIE_SWITCH,
    Scope.PCIE_ROOT: names.STANDARD_PCIE_ROOT,
    Scope.NUMA_NODE: names.ATTR_NUMA_NODE,
    Scope.SOCKET: names.ATTR_SOCKET,
}
"""Scope -> the attribute that devices of one scope share; Node needs none."""


class Enforcement(StrEnum):
    REQUIRED = "Required"
    PREFERRED = "Preferred"


class Pairing(StrEnum):
    PER_DEVICE = "PerDevice"
    PER_GROUP = "PerGroup"
    TOGETHER = "Together"


class NodePolicy(StrEnum):
    BINPACK = "Binpack"
    SPREAD = "Spread"
    FRAGMENTATION_AWARE = "FragmentationAware"


class DevicePolicy(StrEnum):
    BINPACK = "Binpack"
    SPREAD = "Spread"
    TOPOLOGY_AWARE = "TopologyAware"


class CoresPolicy(StrEnum):
    HARD = "Hard"
    ELASTIC = "Elastic"


class TimeSlice(StrEnum):
    DEFAULT = "Default"
    SHORT = "Short"
    MEDIUM = "Medium"
    LONG = "Long"


class PartitionPolicy(StrEnum):
    HONOR = "Honor"
    PREFER = "Prefer"


class RdmaMode(StrEnum):
    SHARED = "Shared"
    EXCLUSIVE = "Exclusive"


@dataclass(frozen=True, slots=True)
class JointAllocation:
    """How near the devices of the named requests must be to each other."""

    scope: Scope
    """How far apart they may be, narrow to wide."""
    enforcement: Enforcement = Enforcement.REQUIRED
    """Outside the scope the claim waits (`Required`), or the next wider scope is tried (`Preferred`)."""
    pairing: Pairing = Pairing.PER_DEVICE
    """`PerDevice`: each GPU has a NIC of its own in scope. `PerGroup`: the NICs together cover the scopes of
    the GPUs. `Together`: all devices of all named requests lie in one scope."""


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """Where devices are taken when several places fit; without it by the controller's own policy."""

    node: NodePolicy | None = None
    """Which node: the fullest, the emptiest, or where the least becomes unusable for claims to come."""
    device: DevicePolicy | None = None
    """Which card of it: the fullest, the emptiest, or the one that leaves the best groups to others."""


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """How GPUs, shares of GPUs and MIG instances are handed out."""

    isolation: str | None = None
    """The backend that keeps a share; where absent, the operator's policy says which."""
    cores_policy: CoresPolicy | None = None
    """Whether idle compute beyond the share may be used, until its owner wants it (preview)."""
    priority: int | None = None
    """Of `coresPolicy: Elastic`: the smallest has idle compute first (preview)."""
    memory_percent: int | None = None
    """Memory as a part of the card that is chosen."""
    tflops: int | None = None
    """As many cores as the chosen card needs for it."""
    tflops_precision: Precision | None = None
    """Of `tflops`; FP32 where absent."""
    exclusive: bool = False
    """Nobody else on the card, though the share is not all of its memory: it takes all its slots."""
    partition: PartitionPolicy | None = None
    """`Honor`: the claim's whole GPUs are one partition of the node's NVLink fabric, or the claim waits;
    `Prefer`: better so. It does not lift what the node demands by its label."""
    numa_affinity: bool = False
    """Containers that hold the GPU run on the processors and memory of its NUMA node."""
    driver_capabilities: DriverCapabilities | None = None
    """The parts of NVIDIA's driver that a container gets."""
    allowed_isolation: tuple[str, ...] | None = None
    """The backends that shares of this class may have."""
    default_isolation: str | None = None
    """The backend of shares for which nothing asks for any."""
    resize: Bounds | None = None
    """Between which bounds running claims may change their share (annotation `koordra.io/resize`)."""
    time_slice: TimeSlice | None = None
    """How long a process has the card in its turn, with `isolation: timeslicing`; the driver decides how long
    each word is."""

    @property
    def compute(self) -> tuple[int, str] | None:
        """TFLOPS and their precision."""
        return None if self.tflops is None else (self.tflops, self.tflops_precision or Precision.FP32)


@dataclass(frozen=True, slots=True)
class RdmaConfig:
    """How a NIC is handed to the container and to its pod's network."""

    mode: RdmaMode | None = None
    """The physical function with other claims, or alone."""
    memlock: bool = True
    """Whether the container may lock memory without limit, which registering memory for RDMA needs."""
    network: RdmaNetwork | None = None
    """What the pod's network interface on the NIC looks like."""
    fabric: RdmaFabric | None = None
    """What communication libraries must know of the network that the NIC is on."""


Parameters = JointAllocation | PlacementPolicy | GpuConfig | RdmaConfig | ImexConfig


NO_EFFECT: Final[Mapping[str, str]] = {
    "coresPolicy": "has no effect but by isolation hami-core, and on nodes with --limiter-cores (preview): elsewhere "
    "cores are reserved and counted, and nothing enforces them",
    "priority": "has no effect but with coresPolicy Elastic, on nodes with --limiter-cores (preview)",
}
"""Fields of GpuConfig that are accepted although most nodes do not act by them, and the warning where they
are written."""

FieldType = (
    type[StrEnum]
    | type[bool]
    | type[RdmaNetwork]
    | type[RdmaFabric]
    | type[Bounds]
    | range
    | Callable[[], tuple[str, ...]]
    | list[Any]
)
"""One of an enum's words, true or false, the `network`, `fabric` or `resize` object, a whole number of a
range, the name of an isolation backend (`isolations`), or a list of such. A field's attribute is its name in
snake case."""

KINDS: Final[Mapping[str, tuple[Callable[..., Parameters], Mapping[str, FieldType]]]] = {
    "JointAllocation": (
        JointAllocation,
        {"scope": Scope, "enforcement": Enforcement, "pairing": Pairing},
    ),
    "PlacementPolicy": (PlacementPolicy, {"node": NodePolicy, "device": DevicePolicy}),
    "GpuConfig": (
        GpuConfig,
        {
            "isolation": wishes,
            "coresPolicy": CoresPolicy,
            "priority": range(101),
            "memoryPercent": range(1, 101),
            "tflops": range(1, 100_001),
            "tflopsPrecision": Precision,
            "exclusive": bool,
            "partition": PartitionPolicy,
            "numaAffinity": bool,
            "driverCapabilities": DriverCapability,
            "allowedIsolation": [isolations],
            "defaultIsolation": wishes,
            "resize": Bounds,
            "timeSlice": TimeSlice,
        },
    ),
    "RdmaConfig": (
        RdmaConfig,
        {"mode": RdmaMode, "memlock": bool, "network": RdmaNetwork, "fabric": RdmaFabric},
    ),
    "ImexConfig": (ImexConfig, {"channels": ImexChannels}),
}
_REQUIRED: Final = {"JointAllocation": "scope"}


def decode(parameters: object, *, object: str, field: str, in_claim: bool = False) -> Parameters:
    """The value of one `opaque.parameters` document. `object` and `field` say in the error where it stands.

    Raises InvalidParameters for anything that is not exactly one of the kinds above, and where a claim says
    what is the operator's to say.
    """
    if not isinstance(parameters, Mapping):
        raise InvalidParameters(
            "parameters are not an object", object=object, field=field, remedy=_KINDS_REMEDY
        )
    read = Reader(parameters, object=object, field=field, error=InvalidParameters)
    kind, version = parameters.get("kind"), parameters.get("apiVersion")
    if version != API_VERSION:
        problem = f"{version!r} is not a version koordra knows"
        raise read.wrong(problem, f"write {API_VERSION}", at="apiVersion")
    if not isinstance(kind, str) or kind not in KINDS:
        problem = f"there is no kind {kind!r}{_did_you_mean(kind, tuple(KINDS))}"
        raise read.wrong(problem, _KINDS_REMEDY, at="kind")
    build, known = KINDS[kind]
    for name in sorted(str(name) for name in parameters.keys() - known.keys() - {"apiVersion", "kind"}):
        problem = f"{kind} has no field {name!r}{_did_you_mean(name, tuple(known))}"
        raise read.wrong(problem, f"fields are {', '.join(known)}", at=name)
    if in_claim:
        refuse_operators(read, parameters.keys() - {"apiVersion", "kind"}, of=kind)
    required = _REQUIRED.get(kind)
    if required is not None and required not in parameters:
        raise read.wrong(
            f"{kind} needs {required}", f"use one of {', '.join(allowed(known[required]))}", at=required
        )
    built = build(
        **{
            snake_case(name): _value(entry, parameters[name], read, name, in_claim=in_claim)
            for name, entry in known.items()
            if name in parameters
        }
    )
    if isinstance(built, GpuConfig):
        _require_default_allowed(built, read)
    return built


def _require_default_allowed(config: GpuConfig, read: Reader) -> None:
    for name, word in (("defaultIsolation", config.default_isolation), ("isolation", config.isolation)):
        if word not in (None, AUTO) and word not in (config.allowed_isolation or (word,)):
            raise read.wrong(
                f"{word} is not among {', '.join(config.allowed_isolation or ())}",
                "add it to allowedIsolation, or leave it out",
                at=name,
            )


def _value(kind: FieldType, value: object, read: Reader, name: str, *, in_claim: bool = False) -> Any:
    if kind is DriverCapability:
        return decode_capabilities(value, read, in_claim=in_claim)
    if kind is RdmaNetwork:
        return decode_network(read.inner(name), in_claim=in_claim)
    if kind is RdmaFabric:
        return decode_fabric(read.inner(name))
    if kind is Bounds:
        return decode_bounds(read.inner(name))
    if isinstance(kind, list):
        if not isinstance(value, list) or not value:
            raise read.wrong(f"{value!r} is no list of words", "write [limiter]", at=name)
        return tuple(_value(kind[0], word, read, f"{name}[{index}]") for index, word in enumerate(value))
    if isinstance(kind, range):
        if isinstance(value, bool) or not isinstance(value, int) or value not in kind:
            raise read.wrong(f"{value!r} is not a whole number from {kind[0]} to {kind[-1]}", at=name)
        return value
    if kind is bool:
        if not isinstance(value, bool):
            raise read.wrong(f"{value!r} is neither true nor false", at=name)
        return value
    words = allowed(kind)
    if value not in words:
        problem = f"{value!r} is not allowed{_did_you_mean(value, words)}"
        raise read.wrong(problem, f"use one of {', '.join(words)}", at=name)
    return kind(value) if isinstance(kind, type) else value


def allowed(kind: FieldType) -> tuple[str, ...]:
    """The words of an enum, or the names of the isolation backends."""
    if kind is isolations or kind is wishes:
        return kind()
    return tuple(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else ()


def _did_you_mean(word: object, known: tuple[str, ...]) -> str:
    near = meant(str(word), known)
    return f" (did you mean {near}?)" if near else ""


_KINDS_REMEDY: Final = f"write apiVersion {API_VERSION} and a kind of {', '.join(KINDS)}"
