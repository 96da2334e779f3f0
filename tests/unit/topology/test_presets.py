"""Descriptions of machines, and the identities of machines made from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from koordra.errors import DiscoveryError, InvalidInput, InvalidManifest
from koordra.topology import presets
from koordra.topology.machine import Machine
from koordra.topology.presets.facts import preset
from tests.machines import catalogue


def identities(machine: Machine) -> set[str | None]:
    return {gpu.uuid for gpu in machine.gpus} | {nic.guid for nic in machine.nics}


def test_the_presets_that_come_with_koordra() -> None:
    folders = {one.name for one in catalogue.HERE.iterdir() if (one / "slices.yaml").exists()}
    assert set(presets.names()) == folders, "each has its golden files in tests/machines"
    with pytest.raises(InvalidInput, match=", ".join(presets.names())):
        presets.load("dgx-1")


def test_a_serial_makes_the_same_machine_and_two_serials_share_nothing() -> None:
    kind = presets.load("hgx-h100")
    first, again, second = (kind.machine(serial=serial) for serial in ("node-a", "node-a", "node-b"))
    assert first == again
    assert len(identities(first)) == 24
    assert not identities(first) & identities(second)
    assert first.boot_id != second.boot_id


def test_a_lost_card_is_a_place_with_a_fault() -> None:
    lost = catalogue.load("dead-gpu").machine(serial="a").gpus[1]
    assert (lost.uuid, lost.memory_bytes, lost.faults) == (None, None, ("GpuLost",))
    assert lost.node
    assert not lost.publishable


def test_one_function_with_two_ports_and_its_virtual_functions() -> None:
    machine = catalogue.load("nic-2-ports-8-vfs").machine(serial="a")
    (card,) = machine.nics
    assert [(port.number, port.active) for port in card.ports] == [(1, True), (2, True)]
    assert len({port.gid for port in card.ports}) == 2
    assert (card.sriov_total, card.sriov_active) == (8, 8)
    assert [vf.vf_index for vf in machine.vfs] == list(range(8))
    assert {vf.parent for vf in machine.vfs} == {card.location.bus_id}


def test_driverless_majors_keep_minors_and_never_collide() -> None:
    machine = presets.load("hgx-h100").machine(serial="a", majors=presets.Majors.driverless(240))
    nodes = [gpu.node for gpu in machine.gpus] + [nic.verbs for nic in machine.nics]
    nodes += [*machine.gpu_control, *machine.rdma_control]
    numbers = {(node.major, node.minor) for node in nodes if node}
    assert len(numbers) == len(nodes)
    assert {major for major, _ in numbers} <= set(range(240, 245))
    assert [gpu.node.minor for gpu in machine.gpus if gpu.node] == list(range(8))


def test_a_directory_holds_one_machine(tmp_path: Path) -> None:
    presets.write_machine("dgx-a100", tmp_path, serial="a")
    with pytest.raises(DiscoveryError, match="cannot be written"):
        presets.write_machine("dgx-a100", tmp_path, serial="a")


NUMA = [{"id": 0, "socket": 0, "cpus": "0-3"}]


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (None, "schema"),
        ({"schema": "koordra.io/machine/v0"}, "schema"),
        ({"schema": "koordra.io/machine/v1"}, "numa"),
        ({"schema": "koordra.io/machine/v1", "numa": [{"id": 0}]}, "numa"),
        ({"schema": "koordra.io/machine/v1", "numa": NUMA, "gpus": [{}]}, "gpus[0].path"),
        ({"schema": "koordra.io/machine/v1", "numa": NUMA, "gpus": [{"path": "0000:01:00.0"}]}, "path"),
        ({"schema": "koordra.io/machine/v1", "numa": NUMA, "nics": [{"path": "pci0000:00"}]}, "path"),
        (
            {"schema": "koordra.io/machine/v1", "numa": [{**NUMA[0], "confidence": "sure"}]},
            "numa[0].confidence",
        ),
        ({"schema": "koordra.io/machine/v1", "numa": NUMA, "gpu": {"confidence": "sure"}}, "gpu.confidence"),
        (
            {
                "schema": "koordra.io/machine/v1",
                "numa": NUMA,
                "nics": [{"path": "pci0000:00/00:01.0", "confidence": 1}],
            },
            "nics[0].confidence",
        ),
    ],
)
def test_a_wrong_description_names_machine_and_field(document: Any, field: str) -> None:
    with pytest.raises(InvalidManifest, match="machine box") as caught:
        preset(document, name="box")
    assert caught.value.field == field


def test_an_empty_field_is_an_absent_one() -> None:
    """``gpus:`` with nothing behind it, in YAML."""
    whole = {"schema": "koordra.io/machine/v1", "numa": NUMA}
    empty = dict.fromkeys(("title", "driver", "gpu", "nic", "gpus", "nics", "nvlinks", "nvswitches"))
    assert preset({**whole, **empty}, name="box").machine(serial="1") == preset(whole, name="box").machine(
        serial="1"
    )


def test_an_unreadable_description_is_named(tmp_path: Path) -> None:
    file = tmp_path / "box.yaml"
    for content in (b"a: [", b"\xff\xfe\x00"):
        file.write_bytes(content)
        with pytest.raises(InvalidManifest, match="machine box"):
            presets.load_file(file)
