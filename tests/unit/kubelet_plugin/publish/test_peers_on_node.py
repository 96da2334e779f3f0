"""Other stacks on a node, from what a kubelet of 1.36 writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from koordra.api import names
from koordra.kubelet_plugin.publish.peers_on_node import (
    CHECKPOINT,
    CLAIMS,
    DEVICE_PLUGINS,
    GPUS,
    KINDS,
    NICS,
    REGISTRY,
    DeviceKind,
    peers_on_node,
)

UID = "cc9ec54a-dbf8-44ec-90f7-125518377f7e"


class Kubelet:
    def __init__(self, folder: Path) -> None:
        self.root, self.host = folder / "kubelet", folder / "host"
        for each in (self.root / "pods", self.root / REGISTRY, self.host / DEVICE_PLUGINS):
            each.mkdir(parents=True)
        self.served: set[str] = set()

    def device_plugins(self, resource: str, *, registered: bool = True) -> None:
        entry = {
            "PodUID": UID,
            "ContainerName": "c",
            "ResourceName": resource,
            "DeviceIDs": {"-1": ["GPU-1"]},
        }
        data = {"PodDeviceEntries": [entry], "RegisteredDevices": {resource: ["GPU-1"]} if registered else {}}
        text = json.dumps({"Data": data, "Checksum": 2640983232})
        (self.host / DEVICE_PLUGINS / CHECKPOINT).write_text(text)

    def claims(self, driver: str) -> None:
        state = {"ClaimUID": UID, "ClaimName": "x", "DriverState": {driver: {"Devices": []}}}
        data = json.dumps({"kind": "DRACheckpoint", "ClaimInfoStateList": [state]})
        (self.root / CLAIMS).write_text(json.dumps({"Data": data, "Checksum": 1}))

    def registered(self, socket: str, *, served: bool = True) -> None:
        (self.root / REGISTRY / socket).touch()
        if served:
            self.served.add(socket)

    def found(self, kind: DeviceKind, node: Any = None) -> list[str]:
        found = peers_on_node(
            self.root, kind, host=self.host, node=node, answers=lambda path: path.name in self.served
        )
        assert not found.unknown
        return list(found.peers)


@pytest.fixture
def kubelet(tmp_path: Path) -> Kubelet:
    return Kubelet(tmp_path)


def test_a_kubelet_without_others_has_none(kubelet: Kubelet) -> None:
    kubelet.registered("koordra.io-reg.sock")
    kubelet.claims(names.DRIVER)
    kubelet.device_plugins("rdma/hca_shared_devices_a")
    (kubelet.root / "pods" / UID).mkdir()
    assert [kubelet.found(kind) for kind in KINDS] == [[], []]


def test_a_device_plugins_pods_count_until_the_kubelet_has_removed_them(kubelet: Kubelet) -> None:
    kubelet.device_plugins("nvidia.com/gpu", registered=False)
    assert not kubelet.found(GPUS)
    (kubelet.root / "pods" / UID).mkdir()
    assert kubelet.found(GPUS) == [
        f"pods have nvidia.com/gpu of NVIDIA's or HAMi's device plugin (uids {UID})"
    ]
    assert not kubelet.found(NICS)


def test_what_is_registered_counts_until_the_node_is_known(kubelet: Kubelet) -> None:
    """The kubelet keeps it on record after the plugin has ended."""
    kubelet.device_plugins("volcano.sh/vgpu-number")
    assert kubelet.found(GPUS) == [
        "Volcano's vGPU device plugin gives out volcano.sh/vgpu-number on the node"
    ]
    assert not kubelet.found(GPUS, {"status": {"allocatable": {"volcano.sh/vgpu-number": "0"}}})
    offered = {"status": {"allocatable": {"volcano.sh/vgpu-number": "8"}}}
    assert "in status.allocatable" in kubelet.found(GPUS, offered)[0]


def test_the_controllers_word_counts(kubelet: Kubelet) -> None:
    node = {"metadata": {"annotations": {names.NO_GPUS: "pods have cards of Koordinator"}}}
    assert kubelet.found(GPUS, node) == ["pods have cards of Koordinator"]
    assert not kubelet.found(NICS, node)


@pytest.mark.parametrize(
    ("kind", "driver", "socket"),
    [
        (GPUS, "gpu.nvidia.com", "gpu.nvidia.com-reg.sock"),
        (GPUS, "gpu.nvidia.com", f"gpu.nvidia.com-{UID}-reg.sock"),
        (GPUS, "gpu.resource.nvidia.com", "gpu.resource.nvidia.com.sock"),
        (NICS, "dra.net", "dra.net-reg.sock"),
    ],
)
def test_a_dra_driver_is_known_by_its_socket_and_its_claims(
    kubelet: Kubelet, kind: DeviceKind, driver: str, socket: str
) -> None:
    (other,) = {*KINDS} - {kind}
    kubelet.registered(socket, served=False)
    assert not kubelet.found(kind)
    kubelet.registered(socket)
    assert kubelet.found(kind) == [f"DRA driver {driver} is registered with the kubelet"]
    kubelet.claims(driver)
    assert kubelet.found(kind)[1:] == [f"pods on the node have claims of DRA driver {driver}"]
    assert not kubelet.found(other)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"Data": 1}', '{"Data": {"PodDeviceEntries": [1]}}', "[" * 100000]
)
def test_what_cannot_be_read_is_not_nobody(kubelet: Kubelet, text: str) -> None:
    (kubelet.host / DEVICE_PLUGINS / CHECKPOINT).write_text(text)
    found = peers_on_node(kubelet.root, GPUS, host=kubelet.host, node=None, answers=lambda _path: True)
    assert not found.peers
    assert found.unknown
