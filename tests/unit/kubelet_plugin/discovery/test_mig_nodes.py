"""Capability nodes of MIG instances: only numbers that every source agrees on are given out."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.publish.resource_slices import build_devices
from koordra.topology.machine import Gpu
from koordra.topology.presets.facts import preset
from koordra.topology.presets.tree import MachineWriter
from koordra.topology.problems import Discovery

MACHINE = preset(
    {
        "schema": "koordra.io/machine/v1",
        "driver": {"version": "550.54.15", "cuda": 12040},
        "numa": [{"id": 0, "socket": 0, "cpus": "0-3", "distances": [10]}],
        "gpu": {"product": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960, "mig_profiles": "A100-SXM4-40GB"},
        "gpus": [
            {"path": "pci0000:10/10:01.0/11:00.0", "numa": 0, "mig": False},
            {"path": "pci0000:20/20:01.0/21:00.0", "numa": 0, "mig": True}
            | {"mig_instances": [["3g.20gb", 4], ["1g.5gb", 0]]},
        ],
    },
    name="mig",
).machine(serial="mig")
SMALL, LARGE = MACHINE.gpus[1].mig_instances
CARD = "gpu-0000-21-00-0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    MachineWriter(tmp_path).write(MACHINE)
    return tmp_path


def card(found: Discovery) -> Gpu:
    return found.machine.gpus[1]


def offered(found: Discovery) -> list[str]:
    devices = build_devices(found.machine, mode="native", offering=Offering(mig=True))
    return [device["name"] for device in devices if device["name"].startswith(CARD)]


BOTH = [f"{CARD}-mig-1g5gb-0", f"{CARD}-mig-3g20gb-4"]


def test_instances_come_with_their_nodes(root: Path) -> None:
    found = discover(root)
    assert found.machine == MACHINE
    assert found.problems == ()
    assert offered(found) == BOTH


def test_nodes_need_not_exist_on_the_host(root: Path) -> None:
    shutil.rmtree(root / "dev/nvidia-caps")
    assert discover(root).machine == MACHINE


def test_a_node_with_other_numbers_is_not_given_out(root: Path) -> None:
    stale = root / SMALL.nodes[1].path.lstrip("/")
    stale.unlink()
    stale.write_text("c 511:3\n")
    found = discover(root)
    assert offered(found) == BOTH[1:]
    assert [problem.field for problem in found.problems] == ["MIG instance 2"]


def test_the_driver_may_tell_the_minor_in_the_other_place_only(root: Path) -> None:
    (root / "proc/driver/nvidia-caps/mig-minors").unlink()
    for instance in (SMALL, LARGE):
        folder = root / f"proc/driver/nvidia/capabilities/gpu1/mig/gi{instance.gpu_instance}"
        for node, file in zip(instance.nodes, (folder / "access", folder / "ci0/access"), strict=True):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"DeviceFileMinor: {node.minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    assert discover(root).machine == MACHINE


def test_two_places_that_disagree(root: Path) -> None:
    folder = root / f"proc/driver/nvidia/capabilities/gpu1/mig/gi{SMALL.gpu_instance}"
    folder.mkdir(parents=True)
    (folder / "access").write_text("DeviceFileMinor: 3\n")
    found = discover(root)
    assert offered(found) == BOTH[1:]
    assert "minors 3 and" in str(found.problems[0])


@pytest.mark.parametrize("path", ["proc/devices", "proc/driver/nvidia-caps/mig-minors"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"nvidia-caps\ngpu1/gi1/access\n"])
def test_without_numbers_no_instance_is_offered(root: Path, path: str, content: bytes | None) -> None:
    if content is None:
        (root / path).unlink()
    else:
        (root / path).write_bytes(content)
    found = discover(root)
    assert offered(found) == []
    assert len(found.problems) == 4


def test_a_long_listing_is_read_to_its_end(root: Path) -> None:
    file = root / "proc/driver/nvidia-caps/mig-minors"
    padding = "".join(
        f"gpu{gpu}/gi{gi}/access {9000 + gpu * 20 + gi}\n" for gpu in range(500, 900) for gi in range(15)
    )
    file.write_text(padding + file.read_text())
    assert file.stat().st_size > 128 * 1024
    assert discover(root).machine == MACHINE


def change(root: Path, **changes: Any) -> None:
    document = json.loads((root / "nvml.json").read_text())
    document["gpus"][1]["migInstances"][0].update(changes)
    (root / "nvml.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    "changes",
    [{"uuid": LARGE.uuid}, {"start": 4}, {"start": 3, "size": 2}, {"gpuInstance": LARGE.gpu_instance}],
)
def test_instances_that_claim_the_same_are_both_left_out(root: Path, changes: dict[str, Any]) -> None:
    change(root, **changes)
    found = discover(root)
    assert offered(found) == []
    assert any("another instance claims the same" in str(problem) for problem in found.problems)


def test_management_nodes_are_found_and_nobodys(root: Path) -> None:
    for name, numbers in {"nvidia-caps/nvidia-cap1": "511:1", "nvidia-caps/nvidia-cap2": "511:2"}.items():
        (root / "dev" / name).write_text(f"c {numbers}\n")
    (root / "dev/nvidia-nvswitch0").write_text("c 508:0\n")
    (root / "dev/nvidia-nvswitchctl").write_text("c 508:255\n")
    found = discover(root)
    assert [node.path for node in found.machine.gpu_management] == [
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia-caps/nvidia-cap2",
        "/dev/nvidia-nvswitch0",
        "/dev/nvidia-nvswitchctl",
    ]
    assert offered(found) == BOTH


def test_a_real_node_and_a_stand_in_are_the_same(root: Path) -> None:
    for file in (root / "dev/nvidia-caps").iterdir():
        numbers = file.lstat().st_rdev
        if numbers:
            file.unlink()
            file.write_text(f"c {os.major(numbers)}:{os.minor(numbers)}\n")
    assert discover(root).machine == MACHINE
