"""What happened to a claim, in words for people: one value that Events, logs and metrics are made from. Pure.

Their reasons are the words below, and the allocator's (InsufficientCapacity, TopologyScopeUnmet, ...) of a
claim that waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from koordra.allocator.explain.telling import headline, in_one_line
from koordra.allocator.reasons import Cause, Reason
from koordra.api import objects
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.inert import inert

ALLOCATED: Final = "Allocated"
"""devices were given to the claim"""
GIVEN_BACK: Final = "GivenBack"
"""the claim's devices were taken back, and why"""
ALLOCATION_REFUSED: Final = "AllocationRefused"
"""the scheduler said no to a node: its words, and for how long the node is left out"""
WRITE_REFUSED: Final = "WriteRefused"
"""the API server refused the write"""
GATE_REFUSED: Final = "GateRefused"
"""the API server refused to lift a pod's gate"""
PREEMPTED: Final = "Preempted"
"""a pod had to go for a more urgent one"""
DRIVER_UPGRADE: Final = "DriverUpgrade"
"""a pod had to go because the GPU driver of its node is to be free"""
DRIVER_UPGRADE_WAITS: Final = "DriverUpgradeWaits"
"""why such a pod does not go yet"""
DRIVER_RELEASE: Final = "DriverRelease"
"""of a Node: how far its GPU driver is free"""
NODE_EVICTION: Final = "NodeEviction"
"""a pod had to go because its node asked for it, and why"""
NODE_EVICTION_WAITS: Final = "NodeEvictionWaits"
"""why such a pod does not go yet"""
CLAIM_MISSING: Final = "ClaimMissing"
"""a pod that is held names claims that are not there"""
QUOTA_EXCEEDED: Final = "QuotaExceeded"
"""a legacy pod beyond a quota, or a quota that is full"""
RESIZED: Final = "Resized"
"""the limits of a running claim's shares are others, and all its processes act by them"""
RESIZE_REFUSED: Final = "ResizeRefused"
"""why the wish of a claim's annotation is not granted"""
NODES_ASKED: Final = "NodesAsked"
"""an autoscaler is asked for nodes that would make it fit"""
NODES_NOT_COMING: Final = "NodesNotComing"
"""the nodes that were asked for did not come, and for how long their group is not asked again"""
NO_NODE_HELPS: Final = "NoNodeHelps"
"""no new node would make it fit, and why"""
INTERNAL_ERROR: Final = "InternalError"
"""a defect of the allocator's: please report it"""
GANG_GATHERING: Final = "GangGathering"
"""not all members that a gang needs are there"""
GANG_REFUSED: Final = "GangRefused"
"""a gang's terms cannot be meant, or a member is not held by the gate"""

UNGUARDED_CLASS: Final = "UnguardedClass"
"""a DeviceClass of koordra's without the clause that keeps kube-scheduler's allocator away"""
FOREIGN_CLASS: Final = "ForeignClass"
"""a DeviceClass that is not koordra's matches joint devices"""
FOREIGN_WRITER: Final = "ForeignWriter"
"""somebody else wrote an allocation of a joint device"""
OVER_COMMITTED: Final = "OverCommitted"
"""a device is given out beyond what it has; the node refuses to prepare what is too much, and an Immediate
claim that no pod uses gives its devices back"""
TWO_DRIVERS: Final = "TwoDrivers"
"""another driver publishes a device at the same PCI address"""
STRANGE_SLICE: Final = "StrangeSlice"
"""a ResourceSlice in koordra's name that no plugin of koordra makes"""
FOREIGN_PLUGIN: Final = "ForeignPlugin"
"""another stack gives out a node's devices as well (docs/beside-other-stacks.md)"""
CONFLICTS: Final = (
    UNGUARDED_CLASS,
    FOREIGN_CLASS,
    FOREIGN_WRITER,
    OVER_COMMITTED,
    TWO_DRIVERS,
    STRANGE_SLICE,
    FOREIGN_PLUGIN,
)
"""Somebody does what only koordra may do (conflicts/)."""

TOLD: Final = (
    *(ALLOCATED, GIVEN_BACK, ALLOCATION_REFUSED, WRITE_REFUSED, GATE_REFUSED, PREEMPTED, DRIVER_UPGRADE),
    *(
        DRIVER_UPGRADE_WAITS,
        DRIVER_RELEASE,
        NODE_EVICTION,
        NODE_EVICTION_WAITS,
        CLAIM_MISSING,
        QUOTA_EXCEEDED,
        RESIZED,
        RESIZE_REFUSED,
    ),
    *(NODES_ASKED, NODES_NOT_COMING, NO_NODE_HELPS),
    *(INTERNAL_ERROR, GANG_GATHERING, GANG_REFUSED, *CONFLICTS, *(cause.value for cause in Cause)),
)
"""What may be told of claims, pods and nodes."""

LONGEST_MESSAGE: Final = 1024
"""Bytes; the API server refuses longer Event messages."""


@dataclass(frozen=True, slots=True)
class ClaimEvent:
    """`about`: the claim and the pods on which it is reported. `warning`: somebody may have to act."""

    reason: str
    message: str
    about: tuple[Object, ...]
    warning: bool = True

    def __post_init__(self) -> None:
        """An event waits to be written while its object may be long gone: no more of that is kept than what
        tells which one it was."""
        object.__setattr__(self, "about", tuple(map(_reference, self.about)))


_IDENTITY: Final = ("namespace", "name", "uid", "creationTimestamp")


def _reference(obj: Object) -> Object:
    metadata = objects.metadata(obj)
    type_meta: Object = {name: obj[name] for name in ("apiVersion", "kind") if name in obj}
    return {**type_meta, "metadata": {name: metadata[name] for name in _IDENTITY if name in metadata}}


EventSink = Callable[[ClaimEvent], None]
"""Whoever wants to know: the Event recorder, logs, metrics. Must neither block nor raise."""

ReasonsSink = Callable[[Object, Sequence[Reason]], object]
"""(claim, why it waits), each time that the claim is looked at."""


def allocated(claim: Object, pods: Iterable[Object], *, level: str | None = None) -> ClaimEvent:
    devices = ", ".join(map(_device_text, claims_of.results(claim)))
    near = f", GPU and NIC at {level}" if level else ""
    message = f"{_name(claim)} on {claims_of.node_of(claim) or 'any node'}: {devices}{near}"
    return ClaimEvent(ALLOCATED, cut(message), (claim, *pods), warning=False)


def given_back(claim: Object, pods: Iterable[Object], *, why: str) -> ClaimEvent:
    devices = ", ".join(str(result.get("device")) for result in claims_of.results(claim))
    message = f"{_name(claim)}: {devices} on {claims_of.node_of(claim)} given back: {why}"
    return ClaimEvent(GIVEN_BACK, cut(message), (claim, *pods), warning=False)


def allocation_refused(pod: Object, claim: Object, *, node: str, why: str, pause: float) -> ClaimEvent:
    message = (
        f"{_name(claim)}: kube-scheduler refused node {node}: {why}. "
        f"{node} is left out for {pause:.0f} s and another place is looked for"
    )
    return ClaimEvent(ALLOCATION_REFUSED, cut(message), (claim, pod))


def write_refused(claim: Object, pods: Iterable[Object], *, message: str) -> ClaimEvent:
    return ClaimEvent(
        WRITE_REFUSED,
        cut(f"{_name(claim)}: the API server refused the allocation: {message}"),
        (claim, *pods),
    )


def gate_refused(pod: Object, *, message: str) -> ClaimEvent:
    text = f"pod {objects.key(pod)} has its devices, and the API server refused to lift its gate: {message}"
    return ClaimEvent(GATE_REFUSED, cut(text), (pod,))


def resized(claim: Object, *, limits: str) -> ClaimEvent:
    message = f"the limits of the claim's shares are changed, and all its processes act by them: {limits}"
    return ClaimEvent(RESIZED, cut(message), (claim,), warning=False)


def resize_refused(claim: Object, *, why: str) -> ClaimEvent:
    message = f"the claim's shares stay as they are: {why}"
    return ClaimEvent(RESIZE_REFUSED, cut(message), (claim,))


def preempted(victim: Object, by: Object, *, node: str) -> ClaimEvent:
    message = f"pod {objects.key(victim)} was evicted from node {node} for pod {objects.key(by)}, which has a higher priority"
    return ClaimEvent(PREEMPTED, cut(message), (victim, by))


def evicted_for_driver(pod: Object) -> ClaimEvent:
    node = objects.spec_of(pod).get("nodeName")
    message = f"pod {objects.key(pod)} was evicted from node {node}: the GPU driver there is to be free"
    return ClaimEvent(DRIVER_UPGRADE, cut(message), (pod,))


def driver_upgrade_waits(pods: Sequence[Object], *, why: str) -> ClaimEvent:
    node = objects.spec_of(pods[0]).get("nodeName")
    return ClaimEvent(
        DRIVER_UPGRADE_WAITS, cut(f"the GPU driver of node {node} is to be free: {why}"), tuple(pods)
    )


def evicted_for_node(pod: Object, *, why: str) -> ClaimEvent:
    node = objects.spec_of(pod).get("nodeName")
    message = f"pod {objects.key(pod)} was evicted because node {node} asked for it: {why}"
    return ClaimEvent(NODE_EVICTION, cut(message), (pod,))


def node_eviction_waits(pod: Object, *, why: str) -> ClaimEvent:
    node = objects.spec_of(pod).get("nodeName")
    message = f"node {node} asks for the eviction of pod {objects.key(pod)}: {why}"
    return ClaimEvent(NODE_EVICTION_WAITS, cut(message), (pod,))


def driver_release(node: Object, phase: str) -> ClaimEvent:
    """`phase` is empty where the driver is in use again."""
    message = f"the GPU driver is to be free: {phase}" if phase else "the GPU driver is in use again"
    return ClaimEvent(DRIVER_RELEASE, message, (node,), warning=False)


def nodes_asked(
    claim: Object, pods: Sequence[Object], *, number: int, group: str, machine: str
) -> ClaimEvent:
    nodes = "a new node" if number == 1 else f"{number} new nodes"
    message = f"{_name(claim)}: asked for {nodes} of group {group} ({machine})"
    return ClaimEvent(NODES_ASKED, cut(message), (claim, *pods), warning=False)


def nodes_not_coming(
    claim: Object, pods: Sequence[Object], *, group: str, why: str, pause: float
) -> ClaimEvent:
    message = f"{_name(claim)}: group {group} is not asked for nodes for {pause:.0f} s: {why}"
    return ClaimEvent(NODES_NOT_COMING, cut(message), (claim, *pods))


def no_node_helps(claim: Object, pods: Sequence[Object], *, why: str) -> ClaimEvent:
    return ClaimEvent(NO_NODE_HELPS, cut(f"{_name(claim)}: {why}"), (claim, *pods))


def lacking(pod: Object, *, message: str) -> ClaimEvent:
    return ClaimEvent(CLAIM_MISSING, cut(message), (pod,))


def pinned(claim: Object, pod: Object, reasons: Sequence[Reason]) -> ClaimEvent:
    """A pod for which its shared claim has no place; reported on both."""
    return replace(waiting(claim, (), reasons), about=(pod, claim))


def waiting(claim: Object, pods: Iterable[Object], reasons: Sequence[Reason]) -> ClaimEvent:
    """Why a claim waits: the nearest miss is the reason, the message has nodes, devices, clause, figures."""
    begin = f"{_name(claim)}: "
    message = begin + in_one_line(reasons, most=LONGEST_MESSAGE - len(begin.encode()))
    return ClaimEvent(headline(reasons), cut(message), (claim, *pods))


def cut(message: str) -> str:
    """Inert, and as long as the API server takes."""
    message = inert(message)
    written = message.encode()
    if len(written) <= LONGEST_MESSAGE:
        return message
    return f"{written[: LONGEST_MESSAGE - 3].decode(errors='ignore')}..."


def _name(claim: Object) -> str:
    return f"claim {objects.name(claim)}"


def _device_text(result: Fields) -> str:
    shares = ", ".join(f"{name} {amount}" for name, amount in claims_of.consumed(result).items())
    return f"{result.get('request')}={result.get('device')}" + (f" ({shares})" if shares else "")
