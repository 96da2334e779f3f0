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
    5. environment    NVIDIA_VISIBLE_DEVICES=void; the variables of its devices, joined and pinned;
       (environment)  a variable that names a device which it does not hold: refused
    6. memlock        unlimited for a holder of an RDMA device
    7. processors     those near its GPUs, if its claim asks for them                                (cgroups)
    8. RDMA limits    of its devices, if the operator sets them                                     (cgroups)

A pod that Koordinator's scheduler placed has no claim; the devices in its annotation are held the same way,
and added to the container here, since no CDI edit did (koordinator/). A container with markers never holds
anything by annotation.

For containers that are exempt (system_pods), 2 to 4 and the forcing of NVIDIA_VISIBLE_DEVICES are left out.
Where another stack gives out the node's GPUs or NICs (`DeviceGuard.left`), 2 to 5 are about the others alone.

**Failing closed.** If a claim's record cannot be read, containers with that claim's markers are refused. If
the list of guarded nodes is missing or unreadable, containers that hold devices are refused, and so are nodes
that look like a GPU's or a NIC's; everything else starts, since the node must come up before the kubelet
plugin can run. A runtime that drops device rules (NRI before 0.10) cannot deny anything to a privileged
container: if something must be denied, it depends on who the container is (privileged).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from koordra.api import names
from koordra.node_state.claim_network import AttachedNetwork
from koordra.node_state.prepared_claim import DeviceGuard, PreparedClaim
from koordra.nri.hook import cgroups
from koordra.nri.hook.cgroups import RdmaLimit
from koordra.nri.hook.environment import (
    NOTHING_VISIBLE,
    VISIBLE_DEVICES,
    granted_env,
    outvote,
    refuse_repeated,
)
from koordra.nri.hook.grants import Grant, Grants, check_network, check_nodes, grants_of
from koordra.nri.hook.oci import Adjustment, Container, DeviceRule, Mount, Refusal
from koordra.nri.hook.privileged import PrivilegedPolicy, cards_on_node, check_unconfined
from koordra.nri.hook.ungranted_access import (
    PRIVATE,
    check_annotations,
    check_devices,
    check_mounts,
    check_one_way,
    control_nodes,
)
from koordra.topology.location import DeviceNode

MEMLOCK: Final = "RLIMIT_MEMLOCK"


@dataclass(frozen=True, slots=True)
class NodeShape:
    """Facts that do not change while the hook runs: processors, memory nodes, RDMA devices, the operator's
    limit and policy, and the paths that no container may mount."""

    online: frozenset[int] = frozenset()
    memory_nodes: frozenset[int] = frozenset()
    rdma_devices: tuple[str, ...] = ()
    rdma_limit: RdmaLimit | None = None
    private: tuple[str, ...] = PRIVATE
    privileged: PrivilegedPolicy = PrivilegedPolicy.REPORT


@dataclass(frozen=True, slots=True)
class Annotated:
    """What a pod holds by Koordinator's annotation, as a claim, and the mounts of its isolation. `asked`: of
    each card how much, in percent, by name of the capacity."""

    claim: PreparedClaim
    asked: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    taken_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The node's knowledge about one container.

    `claims`, `unreadable` (why) and `attached` (where a claim's network is, once it is in a pod) are by claim
    marker, for the markers of this container. `guarded` is None if the list is missing or, with
    `guarded_problem` saying why, unusable. `rules_apply`: the runtime applies the device rules of an
    adjustment. `minors` are those of the node's cards in the order of their PCI addresses, where they are
    needed.
    """

    claims: Mapping[str, PreparedClaim] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    guarded: DeviceGuard | None = None
    guarded_problem: str = ""
    rules_apply: bool = True
    shape: NodeShape = field(default_factory=NodeShape)
    attached: Mapping[str, AttachedNetwork] = field(default_factory=dict)
    minors: tuple[int, ...] = ()


def decide(
    container: Container,
    facts: NodeFacts,
    *,
    annotated: Annotated | None = None,
    exempt: bool = False,
) -> tuple[Adjustment, Grants]:
    """The changes to a container that is being created, and what it then holds. Raises Refusal.

    `annotated` is None outside of Koordinator mode, and has no effect on a container with markers. `exempt`:
    nothing is taken away from it (system_pods).
    """
    grants = grants_of(container, claims=facts.claims, unreadable=facts.unreadable)
    check_network(container, claims=facts.claims, attached=facts.attached)
    annotated = None if grants.markers else annotated
    added: tuple[DeviceNode, ...] = ()
    if annotated is not None:
        asked = annotated.asked
        held = [Grant(annotated.claim, each, asked.get(each.device, ())) for each in annotated.claim.devices]
        grants = Grants(held=tuple(held))
        added = tuple(sorted(grants.nodes | control_nodes(facts.guarded, grants)))
    else:
        check_nodes(container, grants)
    if grants.held and facts.guarded is None:
        why = facts.guarded_problem or "the kubelet plugin has not written guarded.json yet"
        raise Refusal(
            "UnreadableState", f"{container}: its devices cannot be told from its neighbours': {why}"
        )
    env = granted_env(container, grants)
    if not (exempt or (_left(facts, names.TYPE_GPU) and not grants.gpu)):
        # The runtime class of a pod that Koordinator's scheduler placed is NVIDIA's, which brings the
        # driver's libraries.
        env[VISIBLE_DEVICES] = (",".join(grants.uuids) if annotated else "") or NOTHING_VISIBLE
    deny, confined = ((), True) if exempt else _deny(container, facts, grants)
    if not confined:
        env |= cards_on_node(grants, facts.minors, facts.guarded)
    last = outvote(container, env)
    refuse_repeated(container, env)
    rlimits = (MEMLOCK,) if grants.memlock and MEMLOCK not in container.rlimits else ()
    if exempt:
        return Adjustment(env=tuple(env.items()), rlimits=rlimits), grants
    shape = facts.shape
    cpus, mems = cgroups.near(grants, chosen=container.cpus, online=shape.online, nodes=shape.memory_nodes)
    return Adjustment(
        env=tuple(sorted(env.items())),
        last_env=last,
        deny=deny,
        rlimits=rlimits,
        cpus=cpus,
        mems=mems,
        unified=cgroups.unified(grants, devices=shape.rdma_devices, limit=shape.rdma_limit),
        devices=added,
        mounts=annotated.mounts if annotated else (),
        taken_over=annotated.taken_over if annotated else (),
        confined=confined,
    ), grants


def _left(facts: NodeFacts, kind: str) -> bool:
    return facts.guarded is not None and kind in facts.guarded.left


def _deny(container: Container, facts: NodeFacts, grants: Grants) -> tuple[tuple[DeviceRule, ...], bool]:
    """Device rules against access that is not granted, and whether the runtime applies them. Raises
    Refusal."""
    check_annotations(container, gpus_left=_left(facts, names.TYPE_GPU))
    check_mounts(
        container,
        gpu=grants.gpu,
        claims=grants.claims,
        devices=grants.devices,
        guarded=facts.guarded,
        private=facts.shape.private,
    )
    check_one_way(container, grants)
    deny = check_devices(container, grants=grants, guarded=facts.guarded)
    if not deny or facts.rules_apply or (facts.guarded is None and not facts.guarded_problem):
        return deny, True
    check_unconfined(container, grants, guarded=facts.guarded, policy=facts.shape.privileged)
    return (), False
