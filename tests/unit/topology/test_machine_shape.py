"""Shapes of machines: published attributes make the same as facts, nodes of one kind have one, and how near
devices are in it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations

import pytest

from koordra.api import names
from koordra.kubelet_plugin.publish.resource_slices import build_devices
from koordra.topology import Level
from koordra.topology.fabrics import published_links
from koordra.topology.machine import pcie_level
from koordra.topology.machine_shape import pair_level, shape_of_devices
from tests.fakes.machine_shapes import shape_of_machine
from tests.machines import catalogue


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_published_attributes_make_the_same_shape(name: str) -> None:
    machine = catalogue.machine(name)
    offered = replace(machine, gpus=tuple(gpu for gpu in machine.gpus if gpu.publishable))
    links = published_links(offered.gpus)
    published = []
    for device in build_devices(machine, mode="joint"):
        values = {key: next(iter(value.values())) for key, value in device["attributes"].items()}
        published.append(values | links.get(values[names.STANDARD_PCI_BUS_ID], {}))
    gpus = [values for values in published if values[names.ATTR_TYPE] == names.TYPE_GPU]
    nics = [values for values in published if values[names.ATTR_TYPE] == names.TYPE_NIC]
    assert shape_of_devices(gpus, nics) == shape_of_machine(offered)


def test_nodes_of_one_kind_have_one_shape() -> None:
    kind = catalogue.load("azure-ndv5")
    first, second = [shape_of_machine(kind.machine(serial=serial)) for serial in ("a", "b")]
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.parametrize("name", [name for name in catalogue.NAMES if catalogue.machine(name).nics])
def test_the_level_of_pairs_is_the_worst_of_the_best_pairing(name: str) -> None:
    machine = catalogue.machine(name)
    shape = shape_of_machine(machine)
    gpus, nics = range(min(shape.gpus, 4)), range(min(shape.nics, 4))
    for count in range(1, 1 + min(len(gpus), len(nics), 3)):
        for some in combinations(gpus, count):
            for others in combinations(nics, count):
                best = min(
                    max(
                        pcie_level(machine.gpus[gpu], machine.nics[nic])
                        for gpu, nic in zip(some, order, strict=True)
                    )
                    for order in permutations(others)
                )
                masks = sum(1 << gpu for gpu in some), sum(1 << nic for nic in others)
                assert pair_level(shape, *masks) == best


def test_nothing_is_paired_with_nothing() -> None:
    shape = shape_of_machine(catalogue.machine("dgx-h100"))
    assert pair_level(shape, 0b11, 0) is None
    assert pair_level(shape, 0, 0b11) is None
    assert pair_level(shape, 0b1, 0b1) == Level.PXB
