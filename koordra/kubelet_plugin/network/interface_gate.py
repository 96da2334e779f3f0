"""The mounts that keep a container from starting before its pod has the network of its claim.

    <state>/claims/<uid>/network.json       written once the pod has its network; what containers may read of
                                            it

Prepare makes the file a read-only mount of the container (`/run/koordra.io/network/<uid>.json`, for programs
that want to know). So **the network fails closed without anybody's help**: as long as nothing was attached
the file is missing, the runtime cannot make the mount, and the container does not start. NRI by itself fails
open: a hook that is away, or late, is not asked.

That file is the claim's, and a claim may get a second pod, for which there is no Prepare. So a device that
has a network interface brings a second mount, of something that exists only in the network namespace that has
the interface:

    /proc/sys/net/ipv4/conf/<interface>   ->   /run/koordra.io/network/<uid>.in-one-pod-at-a-time/<interface>

The kernel looks that path up in the network namespace of the process that asks, and runtimes make mounts from
inside the container's own namespaces. So the kernel itself answers, for every container, whether its pod has
the interface: one whose pod has not does not start, and the error names the path. runc 1.2 and later look on
the host, too, for what they do not find inside; so the interface is to have a name in the pod that no
interface of the host has (network_decision.py).

Not for pods with a user namespace of their own (`hostUsers: false`): for them older runtimes open mounts from
outside, where the interface is missing for the rightful pod too. There the hook refuses, and verification
finds what it missed (nri/verify/drift.py, InterfaceMissing).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.claims.claim_record import Mount
from koordra.node_state import layout
from koordra.node_state.claim_network import NetworkPlan
from koordra.node_state.layout import StateFolder

GATE_MODE: Final = 0o644
IN_CONTAINER: Final = "/run/koordra.io/network"
GATE: Final = "network.json"
INTERFACES: Final = "/proc/sys/net/ipv4/conf"
ONE_POD: Final = ".in-one-pod-at-a-time"
"""Part of a path that people read in the error of a container that did not start."""


def gates(files: StateFolder, uid: str, plan: NetworkPlan, *, own_users: bool) -> tuple[Mount, ...]:
    """The mounts of a device with this plan; `own_users`: the pod has a user namespace of its own. The second
    is one that only a container can have whose network namespace has the interface."""
    if not plan.kind.ours:
        return ()
    claims = Mount(str(gate_file(files, uid)), f"{IN_CONTAINER}/{layout.file_name(uid)}")
    if not plan.host_interface or own_users:
        return (claims,)
    target = f"{IN_CONTAINER}/{uid}{ONE_POD}/{plan.interface}"
    return claims, Mount(f"{INTERFACES}/{plan.interface}", target)


def gate_file(files: StateFolder, uid: str) -> Path:
    return files.claim_folder(uid) / GATE
