"""The machines of the shared topology data: places, names, NVLink, confidence, and every expected level."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from koordra.topology.machine import Device, Gpu, Machine, nvlinks_between, pcie_level
from koordra.topology.presets import Preset
from tests.machines import catalogue

FOLDERS = {
    "dgx-a100": "dgx-a100",
    "hgx-h100-oci-bm-gpu-h100-8": "hgx-h100",
    "dgx-h100": "dgx-h100",
    "pcie-a100x8-2nic": "pcie-a100x8-2nic",
    "t4x4-1nic": "t4x4-1nic",
    "v100x8-sxm2": "v100x8-sxm2",
    "azure-ndv5": "azure-ndv5",
    "aws-p4d-24xlarge": "aws-p4d-24xlarge",
    "azure-nd-gb300-v6": "azure-nd-gb300-v6",
    "oci-bm-gpu-gb200-4": "oci-bm-gpu-gb200-4",
}
"""Name in the data -> folder of tests/machines."""

MIXED, GPUS, ANY = {"mixed"}, {"gpus"}, {"mixed", "gpus", "nics"}
# What each key of expected_levels is about: which pairs, in one switch group, on one NUMA node (None:
# either).
KEYS: dict[str, tuple[set[str], bool | None, bool | None]] = {
    "gpu_nic_same_group": (MIXED, True, None),
    "gpu_nic_paired": (MIXED, True, None),
    "gpu_nic_same_switch": (MIXED, True, None),
    "gpu_gpu_same_group_pcie": (GPUS, True, None),
    "gpu_gpu_same_switch": (GPUS, True, None),
    "gpu_gpu_same_switch_pcie": (GPUS, True, None),
    "gpu_nic_other_group": (MIXED, False, None),
    "gpu_nic_same_numa_other": (MIXED, False, True),
    "gpu_nic_same_socket_other_switch": (MIXED, False, True),
    "gpu_nic_same_numa": (MIXED, None, True),
    "gpu_nic_cross_numa": (MIXED, None, False),
    "same_socket": (ANY, False, True),
    "cross_socket": (ANY, None, False),
    "cross_numa": (ANY, None, False),
}
WITH_THE_FILE = " only when the static file is used"


@pytest.fixture(scope="module")
def topologies(shared_data: Path) -> dict[str, Any]:
    document = json.loads((shared_data / "topologies.json").read_text())
    return {entry["name"]: entry for entry in document["topologies"]}


@pytest.fixture(params=sorted(FOLDERS))
def entry(request: pytest.FixtureRequest, topologies: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = topologies[request.param]
    return found


def kind(entry: dict[str, Any]) -> Preset:
    return catalogue.load(FOLDERS[entry["name"]])


def seen(entry: dict[str, Any]) -> Machine:
    """The machine as sysfs shows it, without the overlay."""
    return kind(entry).machine(serial=catalogue.SERIAL)


def test_every_machine_of_the_data_is_here(topologies: dict[str, Any]) -> None:
    assert set(topologies) == set(FOLDERS)
    assert set(FOLDERS.values()) <= set(catalogue.NAMES)


def test_expected_levels(entry: dict[str, Any]) -> None:
    group = groups(entry)
    checked: Counter[str] = Counter()
    for key, text in entry["expected_levels"].items():
        if key == "note":
            continue
        kinds, same_group, same_numa = KEYS[key]
        overlaid = str(text).endswith(WITH_THE_FILE)
        machine = catalogue.machine(FOLDERS[entry["name"]]) if overlaid else seen(entry)
        allowed = re.match(r"[A-Z/]+", str(text))
        assert allowed, f"{key}: {text}"
        for a, b in combinations(list(machine.devices()), 2):
            together = group[a.location.bus_id] == group[b.location.bus_id]
            if (
                pair(a, b) in kinds
                and same_group in (None, together)
                and same_numa in (None, a.location.numa == b.location.numa)
            ):
                assert str(pcie_level(a, b)) in allowed[0].split("/"), f"{key}: {a.name} {b.name}"
                checked[key] += 1
    assert set(checked) == set(entry["expected_levels"]) - {"note"}, "a level was never looked at"


def test_without_its_file_the_flat_machine_pairs_nothing(topologies: dict[str, Any]) -> None:
    flat = topologies["azure-ndv5"]
    group = groups(flat)
    for a, b in combinations(list(seen(flat).devices()), 2):
        if group[a.location.bus_id] == group[b.location.bus_id]:
            assert str(pcie_level(a, b)) == "NODE"


def test_places_and_names(entry: dict[str, Any]) -> None:
    found = seen(entry)
    assert [(gpu.location.bus_id, gpu.location.numa, gpu.product_name) for gpu in found.gpus] == [
        (gpu["bus_id"], gpu["numa"], gpu["model"]) for gpu in entry["gpus"]
    ]
    assert [gpu.memory_bytes for gpu in found.gpus] == [gpu["memory_mib"] << 20 for gpu in entry["gpus"]]
    assert [gpu.minor for gpu in found.gpus] == [gpu["minor"] for gpu in entry["gpus"]]
    listed = {nic["bus_id"]: nic for nic in entry["nics"]}
    assert {nic.location.bus_id for nic in found.nics} == set(listed)
    for nic in found.nics:
        facts = listed[nic.location.bus_id]
        assert (nic.ib_device, nic.netdev) == (facts["name"], facts["netdev"])
        assert (nic.location.numa, nic.sriov_total) == (facts["numa"], facts["sriov_totalvfs"])
        assert nic.port
        assert (nic.port.link_layer, nic.port.rate_gbps) == (facts["link_layer"], facts["speed_gbps"])
    assert [(node.id, node.socket, node.cpus) for node in found.numa_nodes] == [
        (node["id"], node["socket"], node["cpus"]) for node in entry["numa_nodes"]
    ]


def test_nvlink(entry: dict[str, Any]) -> None:
    facts, gpus = entry["nvlink"], seen(entry).gpus
    for a, b in combinations(range(len(gpus)), 2):
        links = nvlinks_between(gpus[a], gpus[b])
        if "matrix" in facts:
            assert links == facts["matrix"][a][b]
        else:
            assert (f"NV{links}" if links else None) == facts.get("gpu_gpu_label")


def test_confidence_is_what_the_data_says(entry: dict[str, Any]) -> None:
    document = kind(entry).document
    for field, default in (("gpus", document.get("gpu", {})), ("nics", document.get("nic", {}))):
        marked = {
            described["path"].rpartition("/")[2]: {**default, **described}.get("confidence", "published")
            for described in document[field]
        }
        assert Counter(marked.values()) == Counter(item["confidence"] for item in entry[field])
        for item in entry[field]:
            short = item["bus_id"].removeprefix("0000:")
            assert marked.get(short, marked.get(item["bus_id"])) == item["confidence"]


def pair(a: Device, b: Device) -> str:
    gpus = isinstance(a, Gpu) + isinstance(b, Gpu)
    return ("nics", "mixed", "gpus")[gpus]


def groups(entry: dict[str, Any]) -> dict[str, str]:
    """Bus id -> topmost switch (or root) in the data's own tree."""
    parents = {switch["id"]: switch["parent"] for switch in entry["switches"]}

    def top(node: str) -> str:
        return node if parents.get(node) not in parents else top(parents[node])

    return {device["bus_id"]: top(device["parent"]) for device in (*entry["gpus"], *entry["nics"])}
