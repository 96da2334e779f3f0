"""Every machine of the catalogue: its matrix, and the levels by three independent ways."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement
from pathlib import Path

import pytest

from koordra.kubelet_plugin.discovery import discover
from koordra.kubelet_plugin.resourceslice import build_devices
from koordra.topology import Level, level_between
from koordra.topology.graph import build, hops, level, nvlink_cliques, tree
from koordra.topology.machine import level as level_of_machine
from koordra.topology.machine import nvlink_domains, pcie_level, rails
from koordra.topology.matrix import matrix
from koordra.topology.outline import outline
from koordra.topology.presets import write_machine
from koordra.topology.svg import svg
from tests.machines import catalogue

machine = catalogue.machine


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_matrix(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"../machines/{name}/matrix.txt", matrix(machine(name)))


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_picture(name: str, golden: Callable[[str, str], None]) -> None:
    golden(
        f"../machines/{name}/machine.svg", svg(machine(name), title=name, subtitle=catalogue.load(name).title)
    )


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_discovery_finds_the_machine_that_was_described(name: str, tmp_path: Path) -> None:
    written = write_machine(catalogue.load(name), tmp_path, serial=catalogue.SERIAL)
    assert discover(tmp_path).machine == written


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_tree_graph_and_published_attributes_agree_on_every_level(name: str) -> None:
    found = machine(name)
    graph = build(found)
    published = {
        device["name"]: {key: next(iter(value.values())) for key, value in device["attributes"].items()}
        for device in build_devices(found, mode="joint")
    }
    for a, b in combinations_with_replacement(list(found.devices()), 2):
        assert level(graph, a.location.bus_id, b.location.bus_id) == level_of_machine(a, b)
        if a.name in published and b.name in published:
            assert level_between(published[a.name], published[b.name]) is pcie_level(a, b)


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_graph_without_nvlink_is_a_tree(name: str) -> None:
    import networkx as nx

    found = machine(name)
    bare = tree(build(found))
    assert nx.is_tree(bare)
    for device in found.devices():
        assert bare.nodes[device.location.bus_id]["name"] == device.name


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_outline_shows_every_device_once(name: str) -> None:
    found = machine(name)
    text = outline(found)
    for device in found.devices():
        assert text.count(f" {device.name} ") == 1


def test_h100_pairs_each_gpu_with_its_own_card() -> None:
    found = machine("hgx-h100")
    for number, gpu in enumerate(found.gpus):
        near = [nic for nic in found.nics if pcie_level(gpu, nic) <= Level.PXB]
        assert [nic.ib_device for nic in near] == [
            nic.ib_device for nic in found.nics[2 * number : 2 * number + 2]
        ]
        assert {rails(found.nics, found.gpus)[nic.location.bus_id] for nic in near} == {number}


def test_a100_rails_are_cards_and_storage_has_none() -> None:
    found = machine("dgx-a100")
    numbers = rails(found.nics, found.gpus)
    on_rail = [numbers[nic.location.bus_id] for nic in found.nics if nic.location.bus_id in numbers]
    assert on_rail == list(range(8))
    storage = [nic.ib_device for nic in found.nics if nic.location.bus_id not in numbers]
    assert storage == ["mlx5_4", "mlx5_5", "mlx5_10", "mlx5_11"]


def test_nvlink_domain_and_clique_of_an_nvswitch_machine() -> None:
    found = machine("hgx-h100")
    assert set(nvlink_domains(found.gpus).values()) == {"nvlink-0"}
    assert [len(clique) for clique in nvlink_cliques(build(found))] == [8]


def test_hops_tell_apart_what_levels_do_not() -> None:
    graph = build(machine("hgx-h100"))
    same_card = hops(graph, "0000:0c:00.0", "0000:0c:00.1")
    beside = hops(graph, "0000:0c:00.0", "0000:0f:00.0")
    same_numa = hops(graph, "0000:0c:00.0", "0000:2d:00.0")
    other_socket = hops(graph, "0000:0c:00.0", "0000:89:00.0")
    assert [same_card, beside, same_numa, other_socket] == [2, 8, 14, 18]
