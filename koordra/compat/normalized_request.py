"""The normal form: what a legacy pod asks for, in a form that every dialect can be put into.

    dialect module ──> NormalizedRequest: shares per container, NICs, one scope, selectors, policies
                   ──> claims.py ──> claim spec

A share is `count` cards and, on each of them, memory and compute. Memory is an amount, a percentage of
whatever card is chosen, or (neither) all of the card. Compute is in percent, or in TFLOPS of a precision,
reserved and counted (only some isolation backends enforce it); 0 reserves none. `exclusive` keeps everybody
else off the card although the share is less than all of its memory.

The dialects differ in what belongs together:

    PER_CONTAINER   every container has cards of its own        HAMi, Volcano vGPU, Elastic GPU, TKE, Alnair,
                                                                plain
    ONE_CARD        the shares of a pod lie on one card         Aliyun gpushare, Volcano gpu-memory
    POD             all containers see the same devices         Koordinator

An init container runs before the others and is done: a card is charged the larger of both, and the init
container uses what the containers have. Where the dialect's scheduler does not look at init containers
(`ignores_init`) they use that and add nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from koordra.api.opaque.isolation_words import COUNTING, NO_ISOLATION
from koordra.api.opaque.parameters import CoresPolicy, DevicePolicy, NodePolicy, Scope
from koordra.api.opaque.precision import Precision
from koordra.quantity import canonical

MIB: Final = 1 << 20
GIB: Final = 1 << 30


class ContainerPhase(StrEnum):
    """When a container runs. A sidecar is an init container that goes on running (restartPolicy Always)."""

    APP = "container"
    SIDECAR = "sidecar container"
    INIT = "init container"


class Sharing(StrEnum):
    PER_CONTAINER = "per-container"
    ONE_CARD = "same-card-for-pod"
    POD = "pod-shared"


@dataclass(frozen=True, slots=True)
class Memory:
    """Of each card: bytes, or percent of the card; all of it where both are None."""

    bytes: int | None = None
    percent: int | None = None

    @property
    def whole(self) -> bool:
        return self.bytes is None and self.percent is None

    def __str__(self) -> str:
        if self.bytes is not None:
            return f"{canonical(self.bytes)} of memory"
        return "all memory" if self.percent is None else f"{self.percent}% of memory"


WHOLE: Final = Memory()
LEAST: Final = Memory(bytes=MIB)
"""The least a share can be: for dialects that share a card by compute and do not count memory."""


def percent_of(percent: int) -> Memory:
    return WHOLE if percent >= 100 else Memory(percent=percent)


@dataclass(frozen=True, slots=True)
class Share:
    """What one container, at the field `where`, asks for of one kind of device.

    `profile` makes it MIG instances of that profile; `mig` MIG instances of any profile with enough memory;
    `or_mig` cards, or else such instances.
    `distinct`: the `count` cards are different ones (MIG instances need not be).
    `limited_by`: the resource by whose amount the old stack limited compute, and did not only count it.
    """

    container: str
    phase: ContainerPhase
    count: int
    memory: Memory = WHOLE
    cores: int = 0
    tflops: int = 0
    precision: Precision = Precision.FP32
    exclusive: bool = False
    distinct: bool = True
    profile: str = ""
    mig: bool = False
    or_mig: bool = False
    priority: int | None = None
    cores_policy: CoresPolicy | None = None
    limited_by: str = ""
    where: str = ""

    @property
    def partition(self) -> bool:
        return self.mig or bool(self.profile)

    @property
    def whole(self) -> bool:
        return self.memory.whole and self.cores in (0, 100) and not self.tflops

    def __str__(self) -> str:
        return self.described()

    def described(self, *, counted: bool = False) -> str:
        """In words. `counted`: what keeps the share only counts its compute."""
        if self.partition:
            which = self.profile or f"with at least {self.memory}"
            return f"{self.count} MIG {_plural(self.count, 'instance')} {which}"
        if self.memory.whole and not self.cores and not self.tflops:
            return f"{self.count} whole {_plural(self.count, 'card')}"
        kept = " (accounting only)" if counted and not self.whole else ""
        compute = f" and {self.cores}% of compute{kept}" if self.cores else ""
        if self.tflops:
            compute = f" and {self.tflops} TFLOPS in {self.precision}{kept}"
        each = " on each" if self.count > 1 else ""
        alone = ", alone on the card" if self.exclusive else ""
        other = f", or as many MIG instances with at least {self.memory}" if self.or_mig else ""
        return f"{self.count} {_plural(self.count, 'card')}, {self.memory}{compute}{each}{alone}{other}"


@dataclass(frozen=True, slots=True)
class Nics:
    """NICs beside the GPUs: `count` of them, up to `most` where the GPUs lie under so many roots.

    `share` is percent of a NIC, None for a virtual function, which nobody else can have. `all`: every NIC
    that matches. `distinct`: shares are of different NICs.
    """

    count: int
    share: int | None
    most: int = 1
    virtual: bool = False
    all: bool = False
    distinct: bool = False
    selectors: tuple[str, ...] = ()

    def __str__(self) -> str:
        kind = "virtual function" if self.virtual else "NIC"
        number = "every matching" if self.all else str(self.count)
        upto = f" to {self.most}" if self.most > self.count else ""
        part = "" if self.share is None else f" at {self.share}%"
        return f"{number}{upto} {_plural(1 if self.all else max(self.count, self.most), kind)}{part}"


@dataclass(frozen=True, slots=True)
class Joint:
    """GPUs and NICs near each other. `per_device`: each GPU has a NIC of its own, otherwise the NICs cover
    the roots."""

    required: bool
    per_device: bool


@dataclass(frozen=True, slots=True)
class NormalizedRequest:
    """What a pod asks for.

    `users` are all containers that see pod-shared devices, `nic_users` those that see the NICs; `isolation`
    is what the pod itself says; `of_instances`: selectors of MIG instances alone. `numa`: the cards of each
    container on one NUMA node, `pod_numa`: all devices of the pod, True demanded, False preferred;
    `numa_affinity`: its processors too. The dialect fills in its name.
    """

    shares: tuple[Share, ...] = ()
    nics: Nics | None = None
    together: Sharing = Sharing.PER_CONTAINER
    ignores_init: bool = False
    users: tuple[str, ...] = ()
    nic_users: tuple[str, ...] = ()
    selectors: tuple[str, ...] = ()
    of_instances: tuple[str, ...] = ()
    numa: bool | None = None
    pod_numa: bool | None = None
    numa_affinity: bool = False
    gpu_scope: Scope | None = None
    joint: Joint | None = None
    partition: bool = False
    node_policy: NodePolicy | None = None
    device_policy: DevicePolicy | None = None
    isolation: str | None = None
    dialect: str = ""

    @property
    def counts_compute(self) -> bool:
        """Nothing limits what compute a share uses. Without a word of its own, what most nodes keep shares by
        does not."""
        return (self.isolation or NO_ISOLATION) in COUNTING


def _plural(number: int, noun: str) -> str:
    return noun if number == 1 else f"{noun}s"
