"""The rules of the hook: from a container and what the node knows, an Adjustment or a Refusal. Pure.

For every container, in this order:

    1. markers        its real grants; a marker that this node did not set: refused                  (grants)
                      a claim whose NIC is in another pod's network namespace: refused
    2. annotations    a CDI device of a GPU or NIC requested without a claim: refused
       (ungranted_access)
    3. mounts         GPU or RDMA nodes mounted from the host: refused
       (ungranted_access)
    4. devices        a guarded node that it does not hold: refused, or denied by a rule
       (ungranted_access)
    5. environment    NVIDIA_VISIBLE_DEVICES=void; the variables of its devices, joined and pinned   (grants)
    6. memlock        unlimited for a holder of an RDMA device
    7. processors     those near its GPUs, if its claim asks for them                                (cgroups)
    8. RDMA limits    of its devices, if the operator sets them                                     (cgroups)

A pod that Koordinator's scheduler placed has no claim; the devices in its annotation are held the same way,
and added to the container here, since no CDI edit did (koordinator/). A container with markers never holds
anything by annotation.

In namespaces that the operator exempts, 2 to 4 and the forcing of NVIDIA_VISIBLE_DEVICES are left out.

**Failing closed.** If a claim's record cannot be read, containers with that claim's markers are refused. If
the list of guarded nodes is missing or unreadable, containers that hold devices are refused, and so are nodes
that look like a GPU's or a NIC's; everything else starts, since the node must come up before the kubelet
plugin can run. A runtime that drops device rules (NRI before 0.10) cannot deny anything to a privileged
container: if something must be denied, the container is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from koordra.node_state.claim_network import AttachedNetwork
from koordra.node_state.device_guard import DeviceGuard
from koordra.node_state.prepared_claim import PreparedClaim
from koordra.nri.hook import cgroups
from koordra.nri.hook.cgroups import RdmaLimit
from koordra.nri.hook.grants import Grant, Grants, check_network, check_nodes, granted_env, grants_of
from koordra.nri.hook.oci import Adjustment, Container, Mount, Refusal
from koordra.nri.hook.ungranted_access import (
    PRIVATE,
    check_annotations,
    check_devices,
    check_mounts,
    control_nodes,
)
from koordra.topology.machine import DeviceNode

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
NOTHING_VISIBLE: Final = "void"
"""The value for which NVIDIA's toolkit injects nothing; CDI injects what the container may have."""

_HARMLESS: Final = (NOTHING_VISIBLE, "none")
"""Values for which NVIDIA's toolkit injects no device."""

MEMLOCK: Final = "RLIMIT_MEMLOCK"


@dataclass(frozen=True, slots=True)
class NodeShape:
    """Facts that do not change while the hook runs: processors, memory nodes, RDMA devices, the operator's
    limit, and the paths that no container may mount."""

    online: frozenset[int] = frozenset()
    memory_nodes: frozenset[int] = frozenset()
    rdma_devices: tuple[str, ...] = ()
    rdma_limit: RdmaLimit | None = None
    private: tuple[str, ...] = PRIVATE


@dataclass(frozen=True, slots=True)
class Annotated:
    """What a pod holds by Koordinator's annotation, as a claim, and the mounts of its isolation."""

    claim: PreparedClaim
    mounts: tuple[Mount, ...] = ()
    taken_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The node's knowledge about one container.

    `claims`, `unreadable` (why) and `attached` (where a claim's network is, once it is in a pod) are by claim
    marker, for the markers of this container. `guarded` is None if the list is missing or, with
    `guarded_problem` saying why, unusable. `rules_apply`: the runtime applies the device rules of an
    adjustment. `annotated` is None outside of Koordinator mode.
    """

    claims: Mapping[str, PreparedClaim] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    guarded: DeviceGuard | None = None
    guarded_problem: str = ""
    rules_apply: bool = True
    shape: NodeShape = field(default_factory=NodeShape)
    annotated: Annotated | Refusal | None = None
    attached: Mapping[str, AttachedNetwork] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """The changes, and what the container then holds; both go into the ledger, by which drift is found
    later."""

    adjustment: Adjustment
    grants: Grants


def decide(container: Container, facts: NodeFacts, *, exempt: bool = False) -> Decision | Refusal:
    """The whole decision about a container that is being created."""
    grants = grants_of(container, claims=facts.claims, unreadable=facts.unreadable)
    if isinstance(grants, Refusal):
        return grants
    elsewhere = check_network(container, claims=facts.claims, attached=facts.attached)
    if elsewhere is not None:
        return elsewhere
    added: tuple[DeviceNode, ...] = ()
    annotated = facts.annotated if not grants.markers else None
    if isinstance(annotated, Refusal):
        return annotated
    if annotated is not None:
        grants = Grants(held=tuple(Grant(annotated.claim, device) for device in annotated.claim.devices))
        added = tuple(sorted(grants.nodes | control_nodes(facts.guarded, grants)))
    else:
        missing = check_nodes(container, grants)
        if missing is not None:
            return missing
    if grants.held and facts.guarded is None:
        why = facts.guarded_problem or "the kubelet plugin has not written guarded.json yet"
        return Refusal(
            "UnreadableState", f"{container}: its devices cannot be told from its neighbours': {why}"
        )
    env = granted_env(container, grants)
    if isinstance(env, Refusal):
        return env
    wanted = (
        dict(env)
        if exempt
        else {**dict(env), VISIBLE_DEVICES: _visible(grants) if annotated else NOTHING_VISIBLE}
    )
    repeated = _repeated(container, wanted, grants)
    if repeated is not None:
        return repeated
    rlimits = (MEMLOCK,) if grants.memlock and MEMLOCK not in container.rlimits else ()
    if exempt:
        return Decision(Adjustment(env=env, rlimits=rlimits), grants)
    checked = _checked(container, facts, grants)
    if isinstance(checked, Refusal):
        return checked
    cpus, mems = cgroups.near(
        grants, chosen=container.cpus, online=facts.shape.online, nodes=facts.shape.memory_nodes
    )
    shape = facts.shape
    adjustment = replace(
        checked,
        env=tuple(sorted(wanted.items())),
        rlimits=rlimits,
        cpus=cpus,
        mems=mems,
        unified=cgroups.unified(grants, devices=shape.rdma_devices, limit=shape.rdma_limit),
        devices=added,
        mounts=annotated.mounts if annotated is not None else (),
        taken_over=annotated.taken_over if annotated is not None else (),
    )
    return Decision(adjustment, grants)


def _checked(container: Container, facts: NodeFacts, grants: Grants) -> Adjustment | Refusal:
    """Device rules against access that is not granted, or a refusal."""
    refusal = check_annotations(container)
    if refusal is not None:
        return refusal
    refusal = check_mounts(
        container, gpu=grants.gpu, claims=grants.claims, guarded=facts.guarded, private=facts.shape.private
    )
    if refusal is not None:
        return refusal
    deny = check_devices(container, grants=grants, guarded=facts.guarded)
    if isinstance(deny, Refusal):
        return deny
    if deny and not facts.rules_apply and (facts.guarded is not None or facts.guarded_problem):
        return Refusal("CannotDeny", _cannot_deny(container))
    return Adjustment(deny=deny)


def _visible(grants: Grants) -> str:
    """NVIDIA_VISIBLE_DEVICES of a pod that Koordinator's scheduler placed: its runtime class is NVIDIA's,
    which then brings the driver's libraries."""
    uuids = [grant.device.uuid for grant in grants.held if grant.device.uuid]
    return ",".join(dict.fromkeys(uuids)) or NOTHING_VISIBLE


def _repeated(container: Container, wanted: Mapping[str, str], grants: Grants) -> Refusal | None:
    """Refuse a repeated variable that must be pinned: runtimes replace the first occurrence, and the last one
    wins. A variable set by both the image and the pod is repeated."""
    counts = Counter(name for name, _ in container.env if name in wanted)
    last = dict(container.env)
    for name, count in counts.items():
        harmless = name == VISIBLE_DEVICES and last[name] in _HARMLESS and not grants.held
        if count > 1 and last[name] != wanted[name] and not harmless:
            return Refusal(
                "RepeatedVariable",
                f"{container}: variable {name} is set more than once (by the pod, its image or both), so that its value "
                f"cannot be replaced; remove {name} from the container's env",
            )
    return None


def _cannot_deny(container: Container) -> str:
    return (
        f"{container}: its device rules open GPUs or NICs that it does not hold (it is privileged), and this "
        "container runtime cannot take them away; drop `privileged`, or have the operator exempt the namespace "
        "(koordra nri --exempt-namespace) or update the runtime (containerd 2.2, CRI-O 1.34)"
    )
