"""What a kubelet writes of device plugins and DRA drivers, from the doubles of those (hand_over_peers)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from koordra.kubelet_plugin.publish.peers_on_node import CHECKPOINT, CLAIMS, DEVICE_PLUGINS, REGISTRY
from tests.fakes.hand_over_peers import Peer


def write_records(
    root: Path,
    host: Path,
    peers: Sequence[Peer],
    *,
    listens: Callable[[Path], None] = Path.touch,
    leaves: Callable[[Path], None] = lambda path: path.unlink(missing_ok=True),
) -> None:
    """Its files below its `root` and the host's `/`, and the folders of its pods; `listens` and `leaves` are
    told of drivers' registration sockets."""
    folders = {path.name for path in (root / "pods").iterdir()}
    living = {pod.uid for peer in peers for pod in peer.pods if pod.lives}
    for uid in living - folders:
        (root / "pods" / uid).mkdir()
    for uid in folders - living:
        (root / "pods" / uid).rmdir()
    entries = [entry for peer in peers for entry in peer.entries()]
    registered = {name: ids for peer in peers for name, ids in peer.registered().items()}
    data = {"PodDeviceEntries": entries or None, "RegisteredDevices": registered}
    (host / DEVICE_PLUGINS / CHECKPOINT).write_text(json.dumps({"Data": data, "Checksum": 1}))
    claims = [
        {
            "ClaimUID": pod.uid,
            "DriverState": {peer.driver: {"Devices": [{"DeviceName": f"{peer.kind.type}-{pod.device}"}]}},
        }
        for peer in peers
        for pod in peer.pods
        if peer.driver and pod.lives
    ]
    document = json.dumps({"kind": "DRACheckpoint", "Entries": claims})
    (root / CLAIMS).write_text(json.dumps({"Data": document, "Checksum": 1}))
    for peer in filter(lambda each: each.driver, peers):
        socket = root / REGISTRY / f"{peer.driver}-reg.sock"
        (listens if peer.answers else leaves)(socket)
