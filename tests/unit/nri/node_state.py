"""Builders for what the kubelet plugin would have stored, and for containers, shared by the tests of the
hook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from koordra.node_state import prepared_claim
from koordra.node_state.claim_ref import marker_of
from koordra.node_state.prepared_claim import DeviceGuard, GuardedDevice, PreparedClaim
from koordra.nri.hook.adjust import NodeFacts, decide
from koordra.nri.hook.oci import Adjustment, Container, DeviceRule, Mount, Refusal
from koordra.topology.location import DeviceNode


def adjust(container: Container, facts: NodeFacts, *, exempt: bool = False) -> Adjustment | Refusal:
    """What to change of a container that is being created, or why it may not be."""
    try:
        return decide(container, facts, exempt=exempt)[0]
    except Refusal as refusal:
        return refusal


NODE = "node-a"
UID = "11111111-2222-3333-4444-555555555555"
OTHER_UID = "99999999-2222-3333-4444-555555555555"
NONCE = "0123456789abcdef" * 2
OTHER_NONCE = "fedcba9876543210" * 2
MARKER = marker_of(UID)
OTHER_MARKER = marker_of(OTHER_UID)

GPU0 = DeviceNode("/dev/nvidia0", 195, 0)
GPU1 = DeviceNode("/dev/nvidia1", 195, 1)
DRM0 = DeviceNode("/dev/dri/renderD128", 226, 128)
VERBS0 = DeviceNode("/dev/infiniband/uverbs0", 231, 192)
UMAD0 = DeviceNode("/dev/infiniband/umad0", 231, 0)
NVIDIACTL = DeviceNode("/dev/nvidiactl", 195, 255)
RDMA_CM = DeviceNode("/dev/infiniband/rdma_cm", 10, 58)
NULL = DeviceNode("/dev/null", 1, 3)

GUARDED = DeviceGuard(
    node=NODE,
    devices=(
        GuardedDevice("gpu-0000-0f-00-0", "gpu", (GPU0, DRM0)),
        GuardedDevice("gpu-0000-1f-00-0", "gpu", (GPU1,)),
        GuardedDevice("nic-0000-0c-00-0", "nic", (VERBS0, UMAD0)),
    ),
    control=(NVIDIACTL, RDMA_CM),
)

DENY_ALL = DeviceRule(allow=False)
ALLOW_ALL = DeviceRule(allow=True)


def node_json(node: DeviceNode) -> dict[str, Any]:
    return {"path": node.path, "type": node.type, "major": node.major, "minor": node.minor}


def gpu_json(n: int = 0, *, request: str = "gpu", **env: str) -> dict[str, Any]:
    node = (GPU0, GPU1)[n]
    return {
        "request": request,
        "device": f"gpu-0000-{n}f-00-0",
        "type": "gpu",
        "shareID": None,
        "cdiDevices": [f"koordra.io/claim={UID}-gpu-0000-{n}f-00-0"],
        "uuid": f"GPU-{n}",
        "ibDevice": None,
        "netdev": None,
        "numaNode": 0,
        "cpus": "0-55",
        "deviceNodes": [node_json(node)],
        "env": env,
    }


def nic_json(**env: str) -> dict[str, Any]:
    return {
        **gpu_json(request="nic"),
        "device": "nic-0000-0c-00-0",
        "type": "nic",
        "uuid": None,
        "ibDevice": "mlx5_0",
        "deviceNodes": [node_json(VERBS0)],
        "env": {"NCCL_IB_HCA": "=mlx5_0", "UCX_NET_DEVICES": "mlx5_0:1", **env},
    }


def claim_json(
    *devices: dict[str, Any], uid: str = UID, nonce: str = NONCE, memlock: bool = False, name: str = "train"
) -> dict[str, Any]:
    return {
        "schema": "koordra.io/prepared/v1",
        "claim": {"namespace": "team", "name": name, "uid": uid},
        "nonce": nonce,
        "marker": marker_of(uid),
        "devices": list(devices),
        "memlock": memlock,
    }


def claim(*devices: dict[str, Any], **fields: Any) -> PreparedClaim:
    return prepared_claim.decode(json.dumps(claim_json(*devices, **fields)).encode())


def guarded_json() -> dict[str, Any]:
    return {
        "schema": "koordra.io/guarded/v1",
        "node": NODE,
        "devices": [
            {"name": device.name, "type": device.type, "nodes": [node_json(node) for node in device.nodes]}
            for device in GUARDED.devices
        ],
        "control": [node_json(node) for node in GUARDED.control],
    }


def write(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    path.chmod(0o600)
    return path


def markers(*indices: int, marker: str = MARKER, nonce: str = NONCE) -> tuple[tuple[str, str], ...]:
    """The variables that the CDI edits of a claim's devices set."""
    return ((marker, nonce), *((f"{marker}_{n}", nonce) for n in indices))


def rules_for(*nodes: DeviceNode) -> tuple[DeviceRule, ...]:
    """An unprivileged container's device rules: deny all, make any node, open these."""
    opened = (DeviceRule(True, node.type, node.major, node.minor, "rwm") for node in nodes)
    return (DENY_ALL, DeviceRule(True, "c", None, None, "m"), DeviceRule(True, "c", 1, 3, "rwm"), *opened)


def container(*nodes: DeviceNode, **fields: Any) -> Container:
    """An unprivileged container with the given nodes, unless `fields` say otherwise."""
    values: dict[str, Any] = {
        "namespace": "team",
        "pod": "train-0",
        "name": "main",
        "devices": nodes,
        "rules": rules_for(*nodes),
    }
    return Container(**{**values, **fields})


def privileged(*nodes: DeviceNode, **fields: Any) -> Container:
    return container(*nodes, **{"rules": (ALLOW_ALL,), **fields})


GPU_CLAIM = claim(gpu_json(KOORDRA_MEMORY_LIMIT_0="10Gi"))
JOINT_CLAIM = claim(gpu_json(), nic_json(), memlock=True)
OTHER_CLAIM = claim(gpu_json(1), uid=OTHER_UID, nonce=OTHER_NONCE, name="second")
VOID = ("NVIDIA_VISIBLE_DEVICES", "void")


def facts(**fields: Any) -> NodeFacts:
    return NodeFacts(**{"guarded": GUARDED, **fields})


def adjusted(container: Container, facts: NodeFacts, *, exempt: bool = False) -> Adjustment:
    answer = adjust(container, facts, exempt=exempt)
    assert isinstance(answer, Adjustment), answer
    return answer


def refused(container: Container, facts: NodeFacts, *, exempt: bool = False) -> Refusal:
    answer = adjust(container, facts, exempt=exempt)
    assert isinstance(answer, Refusal), answer
    assert str(container) in str(answer)
    return answer


def bind(source: str, destination: str = "/data") -> tuple[Mount, ...]:
    return (Mount(source, destination, bind=True),)
