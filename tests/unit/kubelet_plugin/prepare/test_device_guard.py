"""guarded.json: what is gone stays guarded, and it is written only when it says something new."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordra.errors import CheckpointError
from koordra.kubelet_plugin.prepare.device_guard import DeviceGuardFile
from koordra.topology.machine import Gpu, Machine
from koordra.topology.problems import Discovery
from tests.fakes.disks import FailingDisk
from tests.fakes.node_claims import GPU_0, GPU_1, NODE


class Guarded:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "guarded.json"
        self.disk = FailingDisk()
        self.file = DeviceGuardFile(self.path, node=NODE, disk=self.disk)

    def minors(self) -> dict[str, list[int]]:
        """Minors of the GPUs' nodes, by device."""
        document: dict[str, Any] = json.loads(self.path.read_text())
        return {
            entry["name"]: [node["minor"] for node in entry["nodes"]]
            for entry in document["devices"]
            if entry["type"] == "gpu"
        }


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path)


@pytest.fixture
def machine(discovery: Discovery) -> Machine:
    """Two cards, with minors 0 and 1."""
    return replace(discovery.machine, gpus=discovery.machine.gpus[:2], nics=())


def renumbered(gpu: Gpu, minor: int) -> Gpu:
    assert gpu.node is not None
    return replace(gpu, node=replace(gpu.node, path=f"/dev/nvidia{minor}", minor=minor))


def test_a_device_that_is_gone_stays_guarded(guarded: Guarded, machine: Machine) -> None:
    guarded.file.update(machine)
    for _ in range(2):
        guarded.file.update(replace(machine, gpus=machine.gpus[1:]))
        assert guarded.minors() == {GPU_1: [1], GPU_0: [0]}
    guarded.file.update(machine)
    assert guarded.minors() == {GPU_0: [0], GPU_1: [1]}


def test_a_card_whose_node_is_not_known_any_more_keeps_its_old_one(
    guarded: Guarded, machine: Machine
) -> None:
    """The driver is being reloaded: the card is there, its minor nobody tells."""
    guarded.file.update(machine)
    first, second = machine.gpus
    guarded.file.update(replace(machine, gpus=(replace(first, node=None), second)))
    assert guarded.minors() == {GPU_0: [0], GPU_1: [1]}


def test_a_number_that_another_device_has_is_that_devices(guarded: Guarded, machine: Machine) -> None:
    guarded.file.update(machine)
    guarded.file.update(replace(machine, gpus=(renumbered(machine.gpus[1], 0),)))
    assert guarded.minors() == {GPU_1: [0, 1]}


def test_the_same_machine_is_not_written_twice(guarded: Guarded, machine: Machine) -> None:
    guarded.file.update(machine)
    steps = len(guarded.disk.steps)
    faulty = replace(machine.gpus[0], faults=("Xid48",))
    guarded.file.update(replace(machine, gpus=(faulty, machine.gpus[1])))
    assert len(guarded.disk.steps) == steps


def test_what_could_not_be_written_is_written_the_next_time(guarded: Guarded, machine: Machine) -> None:
    guarded.disk.full = True
    with pytest.raises(CheckpointError, match=r"guarded\.json cannot be written: No space left"):
        guarded.file.update(machine)
    guarded.disk.full = False
    guarded.file.update(machine)
    assert guarded.minors() == {GPU_0: [0], GPU_1: [1]}


def test_a_file_that_somebody_took_away_is_put_back(guarded: Guarded, machine: Machine) -> None:
    guarded.file.ensure()
    assert not guarded.path.exists()
    guarded.file.update(machine)
    written = guarded.path.read_bytes()
    guarded.path.unlink()
    guarded.file.ensure()
    assert guarded.path.read_bytes() == written
