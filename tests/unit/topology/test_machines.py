"""Every machine of the catalogue: its matrix, and the levels by three independent ways."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path

import pytest

from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.publish.resource_slices import build_devices
from koordra.topology import Level, level_between
from koordra.topology.cpu_lists import number_ranges
from koordra.topology.fabrics import inferred_parts, nvlink_domains, rails
from koordra.topology.graph import build, nvlink_cliques, tree
from koordra.topology.machine import NumaNode, pcie_level
from koordra.topology.machine import level as level_of_machine
from koordra.topology.pictures.document import document
from koordra.topology.pictures.dot import dot
from koordra.topology.pictures.svg import svg
from koordra.topology.pictures.text import matrix, text_tree
from koordra.topology.presets import write_machine
from tests.machines import catalogue
from tests.unit.topology.graph_levels import hops, level

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


def test_parts_that_nobody_has_seen_are_marked() -> None:
    found = machine("vm-flat")
    parts = {"ffff:ff:01.0", "ffff:ff:02.0", "pciffff:00", "pciffff:01"}
    assert inferred_parts(found) == parts
    for part in parts:
        (line,) = [line for line in text_tree(found).splitlines() if f" {part} " in line]
        assert line.endswith("  *")
        (line,) = [line for line in dot(found).splitlines() if line.strip().startswith(f'"{part}" [')]
        assert line.endswith("style=dashed];")
        assert f"{part} *" in line
        assert f"{part}*<" in svg(found)
    assert not inferred_parts(machine("hgx-h100"))


def test_outline_says_what_its_marks_mean() -> None:
    note = "* inferred or laid over, not read from the machine\n"
    assert text_tree(machine("vm-flat")).endswith(note)
    assert note not in text_tree(machine("hgx-h100"))


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_dot_names_inferred_fields_as_the_other_pictures_do(name: str) -> None:
    found = machine(name)
    shown = {word for line in dot(found).splitlines() for word in re.findall(r"\* ([a-zA-Z, ]+)", line)}
    assert shown == {device.location.attributes()["koordra.io/inferred"] for device in found.devices()} - {
        None
    }


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_outline_shows_every_device_once(name: str) -> None:
    found = machine(name)
    text = text_tree(found)
    for device in found.devices():
        assert text.count(f" {device.name} ") == 1


def test_h100_pairs_each_gpu_with_its_own_card() -> None:
    found = machine("hgx-h100")
    for number, gpu in enumerate(found.gpus):
        near = [nic for nic in found.nics if pcie_level(gpu, nic) <= Level.PXB]
        assert [nic.ib_device for nic in near] == [
            nic.ib_device for nic in found.nics[2 * number : 2 * number + 2]
        ]
        assert {rails(found)[nic.location.bus_id] for nic in near} == {number}


def test_a100_rails_are_cards_and_storage_has_none() -> None:
    found = machine("dgx-a100")
    numbers = rails(found)
    on_rail = [numbers[nic.location.bus_id] for nic in found.nics if nic.location.bus_id in numbers]
    assert on_rail == list(range(8))
    storage = [nic.ib_device for nic in found.nics if nic.location.bus_id not in numbers]
    assert storage == ["mlx5_4", "mlx5_5", "mlx5_10", "mlx5_11"]


def test_nvlink_domain_and_clique_of_an_nvswitch_machine() -> None:
    found = machine("hgx-h100")
    assert set(nvlink_domains(found).values()) == {"nvlink-0"}
    assert [len(clique) for clique in nvlink_cliques(build(found))] == [8]


def test_hops_tell_apart_what_levels_do_not() -> None:
    graph = build(machine("hgx-h100"))
    same_card = hops(graph, "0000:0c:00.0", "0000:0c:00.1")
    beside = hops(graph, "0000:0c:00.0", "0000:0f:00.0")
    same_numa = hops(graph, "0000:0c:00.0", "0000:2d:00.0")
    other_socket = hops(graph, "0000:0c:00.0", "0000:89:00.0")
    assert [same_card, beside, same_numa, other_socket] == [2, 8, 14, 18]


class TestGraceBoard:
    """Two sockets, and a NUMA node without CPUs for every slice of every GPU's memory, as GB200 boards show
    them."""

    BOARD = catalogue.machine("oci-bm-gpu-gb200-4")
    FOUND = replace(
        BOARD,
        numa_nodes=(
            *(replace(node, distances=(*node.distances, *[80] * 32)) for node in BOARD.numa_nodes),
            *(NumaNode(number, "", distances=(80,) * 34) for number in range(2, 34)),
        ),
    )

    def test_memory_only_nodes_take_one_place_in_every_picture(self) -> None:
        assert [node.id for node in self.FOUND.memory_only()] == list(range(2, 34))
        assert "memory only: NUMA nodes 2-33\n" in text_tree(self.FOUND)
        assert "NUMA node 2 " not in text_tree(self.FOUND)
        assert dot(self.FOUND).count("subgraph") == 2
        drawn = svg(self.FOUND)
        assert drawn.count(">NUMA 2-33<") == 1
        assert drawn.count(">NUMA 1<") == 2, "as a panel and as a row of distances"
        assert ">NUMA 2<" not in drawn
        width = float(drawn.partition('width="')[2].partition('"')[0])
        assert width < float(svg(self.BOARD).partition('width="')[2].partition('"')[0]) + 200

    def test_the_document_has_them_all(self) -> None:
        assert len(document(self.FOUND)["numaNodes"]) == 34


def test_distances_of_numa_nodes_whose_numbers_have_gaps() -> None:
    """POWER numbers its sockets 0 and 8; a row of the SLIT has as many entries as there are nodes."""
    found = replace(
        catalogue.machine("t4x4-1nic"),
        numa_nodes=(NumaNode(0, "0-79", (10, 40), socket=0), NumaNode(8, "80-159", (41, 10), socket=8)),
    )
    assert (found.distance(0, 8), found.distance(8, 0), found.distance(8, 8)) == (40, 41, 10)
    assert found.distance(0, 1) is None
    assert ">40<" in svg(found)
    assert ">41<" in svg(found)
    torn = replace(found, numa_nodes=(*found.numa_nodes, NumaNode(9, "160")))
    assert torn.distance(0, 8) is None, "a node came while the rows were read"
    assert "SLIT" not in svg(torn)


def test_a_socket_that_its_cpus_do_not_agree_on_is_unknown() -> None:
    found = replace(catalogue.machine("no-gpu"), numa_nodes=(NumaNode(0, "0-79"),))
    assert ">Socket unknown<" in svg(found)


def test_number_ranges() -> None:
    assert [number_ranges(numbers) for numbers in ([], [3], [0, 2, 3, 4, 9])] == ["", "3", "0,2-4,9"]
