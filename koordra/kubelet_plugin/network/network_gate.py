"""The mounts that keep a container from starting before its pod has the network of its claim.

    <state>/claims/<uid>/network.json       written once the pod has its network; what containers may read of it

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

from koordra.kubelet_plugin.claims.container_edits import Mount
from koordra.node_state import layout, strict_json
from koordra.node_state.claim_network import AttachedNetwork

GATE_MODE: Final = 0o644
IN_CONTAINER: Final = "/run/koordra.io/network"
GATE: Final = "network.json"
INTERFACES: Final = "/proc/sys/net/ipv4/conf"
ONE_POD: Final = ".in-one-pod-at-a-time"
"""Part of a path that people read in the error of a container that did not start."""


def gate(state: Path, uid: str) -> Mount:
    """The mount that holds a container back until its network is there."""
    return Mount(str(gate_file(state, uid)), f"{IN_CONTAINER}/{layout.file_name(uid)}")


def interface_gate(uid: str, interface: str) -> Mount:
    """The mount that only a container can have whose network namespace has the interface."""
    return Mount(f"{INTERFACES}/{interface}", f"{IN_CONTAINER}/{uid}{ONE_POD}/{interface}")


def gate_file(state: Path, uid: str) -> Path:
    return layout.claim_folder(state, uid) / GATE


def encode_gate(claim: AttachedNetwork) -> bytes:
    """What containers may read."""
    devices = [
        {
            "device": device.device,
            "interface": device.interface,
            "addresses": list(device.addresses),
            "mac": device.mac,
        }
        for device in claim.devices
    ]
    return strict_json.encode({"devices": devices})
