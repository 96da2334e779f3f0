"""The rules of the hook: a container and what the node knows go in, an Adjustment or a Refusal comes out.
Pure.

For every container, in this order:

    1. markers        what it was really given; a marker that the node did not set: refused        (grants)
    2. annotations    a CDI device of a GPU or NIC named past the claims: refused                   (foreign)
    3. mounts         GPU or RDMA nodes brought in from the host: refused                         (foreign)
    4. devices        a guarded node that it does not hold: refused, or denied by a rule            (foreign)
    5. environment    NVIDIA_VISIBLE_DEVICES=void; what its devices call for, joined and pinned     (grants)
    6. memlock        unlimited for who holds an RDMA device

In namespaces that the operator exempts, 2 to 4 and the forcing of NVIDIA_VISIBLE_DEVICES are left out.

**Failing closed.** When a claim's record cannot be read, containers with that claim's markers are refused.
When the list of guarded nodes cannot be read or is not there yet, containers that hold devices are refused,
and so are nodes that look like a GPU's or a NIC's; everything else starts, since the node must come up before
the kubelet plugin can run. A runtime that drops rules (NRI before 0.10) cannot deny anything to a privileged
container: where there is something to deny, it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from koordra.nri.foreign import check_annotations, check_devices, check_mounts
from koordra.nri.grants import GRANTED, granted_env, grants_of
from koordra.nri.oci import Adjustment, Container, Refusal
from koordra.nri.prepared import MARKER_PREFIX, Guarded, PreparedClaim

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
NOTHING_VISIBLE: Final = "void"
"""The value on which NVIDIA's toolkit injects nothing; CDI has brought what the container may have."""

MEMLOCK: Final = "RLIMIT_MEMLOCK"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the hook looked up for one container.

    `claims` and `unreadable` (why) are by claim marker, for the markers of this container. `guarded` is None
    when the list is not there or, with `guarded_problem` saying why, unusable. `rules_apply`: the runtime
    applies the device rules of an adjustment.
    """

    claims: Mapping[str, PreparedClaim] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    guarded: Guarded | None = None
    guarded_problem: str = ""
    rules_apply: bool = True


def adjust(container: Container, facts: NodeFacts, *, exempt: bool = False) -> Adjustment | Refusal:
    """What to change of a container that is being created, or why it may not be."""
    grants = grants_of(container, claims=facts.claims, unreadable=facts.unreadable)
    if isinstance(grants, Refusal):
        return grants
    if grants.held and facts.guarded is None:
        why = facts.guarded_problem or "the kubelet plugin has not written guarded.json yet"
        return Refusal(
            "UnreadableState", f"{container}: its devices cannot be told from its neighbours': {why}"
        )
    env = granted_env(container, grants)
    if isinstance(env, Refusal):
        return env
    rlimits = (MEMLOCK,) if grants.memlock and MEMLOCK not in container.rlimits else ()
    if exempt:
        return Adjustment(env=env, rlimits=rlimits)

    refusal = check_annotations(container)
    if refusal is not None:
        return refusal
    refusal = check_mounts(container, grants=grants, guarded=facts.guarded)
    if refusal is not None:
        return refusal
    deny = check_devices(container, grants=grants, guarded=facts.guarded)
    if isinstance(deny, Refusal):
        return deny
    if deny and not facts.rules_apply and (facts.guarded is not None or facts.guarded_problem):
        return Refusal("CannotDeny", _cannot_deny(container))
    pinned = {**dict(env), VISIBLE_DEVICES: NOTHING_VISIBLE}
    return Adjustment(env=tuple(sorted(pinned.items())), deny=deny, rlimits=rlimits)


def _cannot_deny(container: Container) -> str:
    return (
        f"{container}: its device rules open GPUs or NICs that it does not hold (it is privileged), and this "
        "container runtime cannot take them away; drop `privileged`, or have the operator exempt the namespace "
        "(koordra nri --exempt-namespace) or update the runtime (containerd 2.2, CRI-O 1.34)"
    )


def unguarded(container: Container) -> str | None:
    """Why a container that exists already cannot have passed the hook; None when nothing shows it.

    For Synchronize: a container created while no hook was registered still has a nonce in a marker, or
    another value of NVIDIA_VISIBLE_DEVICES. (Drift of what it may open is not looked for here.)
    """
    env = dict(container.env)
    for name, value in env.items():
        if name.startswith(MARKER_PREFIX) and value != GRANTED:
            return f"{name} has not been verified"
    if env.get(VISIBLE_DEVICES) != NOTHING_VISIBLE:
        return f"{VISIBLE_DEVICES} is not {NOTHING_VISIBLE}"
    return None
