"""The best choice of GPUs and NICs: the tables and the search against trying everything, and what the answers look like."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from koordra.api import names
from koordra.kubelet_plugin.publish.resource_slices import build_devices
from koordra.topology import Level
from koordra.topology.machine import Machine
from koordra.topology.nvlinks import published_links
from koordra.topology.shape_search import ShapeSearch
from koordra.topology.shape_tables import ShapeTables
from koordra.topology.shapes import Choice, Chooser, Shape, chooser, shape_of_devices, shape_of_machine
from tests.fakes.best_choice import BestChoice, mask_of, numbers
from tests.long import mostly_long
from tests.machines import catalogue

SMALL = [
    name
    for name in catalogue.NAMES
    if max(len(catalogue.machine(name).gpus), len(catalogue.machine(name).nics)) <= 8
]
LARGE = [name for name in catalogue.NAMES if name not in SMALL]


def every_other_nic(name: str) -> Machine:
    """A machine with one NIC of each card (or of each pair), so that a table can hold it."""
    machine = catalogue.machine(name)
    return replace(machine, nics=machine.nics[::2])


def questions(shape: Shape, *, count: int, seed: str, most: int) -> Iterator[tuple[int, int, int, int]]:
    """Eligible GPUs and NICs and how many of them, so that at most ``most`` devices of a kind are eligible."""
    rng = random.Random(seed)
    for _ in range(count):
        gpus = mask_of(rng.sample(range(shape.gpus), rng.randint(0, min(shape.gpus, most))))
        nics = mask_of(rng.sample(range(shape.nics), rng.randint(0, min(shape.nics, most))))
        yield gpus, nics, rng.randint(0, gpus.bit_count()), rng.randint(0, nics.bit_count())


def true_best(truth: BestChoice, gpus: int, nics: int, k: int, j: int) -> Choice:
    chosen_gpus, chosen_nics, level = truth.best(numbers(gpus), numbers(nics), k, j)
    return Choice(mask_of(chosen_gpus), mask_of(chosen_nics), level)


@pytest.mark.parametrize("name", SMALL)
def test_tables_and_search_equal_trying_everything(name: str) -> None:
    machine = catalogue.machine(name)
    shape, truth = shape_of_machine(machine), BestChoice.of(machine)
    tables, search = ShapeTables(shape), ShapeSearch(shape)
    for question in questions(shape, count=60, seed=name, most=8):
        expected = true_best(truth, *question)
        assert tables.best(*question) == expected, question
        assert search.best(*question) == expected, question


@pytest.mark.parametrize("name", mostly_long(LARGE, fast=0))
def test_search_equals_trying_everything_on_samples_of_large_machines(name: str) -> None:
    machine = catalogue.machine(name)
    shape, truth = shape_of_machine(machine), BestChoice.of(machine)
    found = chooser(shape)
    assert isinstance(found, ShapeSearch)
    for question in questions(shape, count=80, seed=name, most=6):
        assert found.best(*question) == true_best(truth, *question), question
    everything = (1 << shape.gpus) - 1, (1 << shape.nics) - 1
    for k, j in ((1, 1), (2, 1), (1, 2), (2, 0), (0, 2), (2, 2)):
        assert found.best(*everything, k, j) == true_best(truth, *everything, k, j)


@pytest.mark.parametrize("name", LARGE)
def test_search_equals_the_tables_where_both_can_answer(name: str) -> None:
    machine = every_other_nic(name)
    machine = replace(machine, gpus=machine.gpus[:8], nics=machine.nics[:8])
    shape = shape_of_machine(machine)
    tables, search = ShapeTables(shape), ShapeSearch(shape)
    for question in questions(shape, count=300, seed=name, most=8):
        assert search.best(*question) == tables.best(*question), question


def test_a_mesh_is_searched_by_enumerating_gpus() -> None:
    machine = catalogue.machine("v100x8-sxm2")
    nics = [*machine.nics]
    for nic in machine.nics:
        bus_id = nic.location.bus_id
        for function in range(1, 4):
            location = replace(nic.location, bus_id=f"{bus_id[:-1]}{function}")
            nics.append(replace(nic, location=location))
    machine = replace(machine, nics=tuple(nics))
    shape, truth = shape_of_machine(machine), BestChoice.of(machine)
    found = chooser(shape)
    assert isinstance(found, ShapeSearch)
    for question in questions(shape, count=40, seed="mesh", most=5):
        assert found.best(*question) == true_best(truth, *question), question


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


def test_too_few_devices_is_no_choice() -> None:
    for name in ("t4x4-1nic", "gpu16-nic16"):
        found = chooser(shape_of_machine(catalogue.machine(name)))
        assert found.best(0b11, 0b1, 3, 1) is None
        assert found.best(0b11, 0b1, 1, 2) is None
        assert found.best(0b11, 0b1, -1, 0) is None
        assert found.best(0, 0, 0, 0) == Choice(0, 0, None)


def test_nodes_of_one_kind_share_one_table() -> None:
    kind = catalogue.load("azure-ndv5")
    shapes = [shape_of_machine(kind.machine(serial=serial)) for serial in ("a", "b")]
    assert shapes[0] == shapes[1]
    assert chooser(shapes[0]) is chooser(shapes[1])


class TestWhatTheObjectiveMeans:
    """Readable cases, one for each part of the objective."""

    @staticmethod
    def ask(name: str, gpus: str, nics: str, k: int, j: int) -> tuple[set[int], set[int], Level | None]:
        """Devices are given as a string of digits, ``*`` for all."""
        machine = catalogue.machine(name)
        shape = shape_of_machine(machine)
        found: Chooser = chooser(shape)
        choice = found.best(
            (1 << shape.gpus) - 1 if gpus == "*" else mask_of(map(int, gpus)),
            (1 << shape.nics) - 1 if nics == "*" else mask_of(map(int, nics)),
            k,
            j,
        )
        assert choice
        return set(numbers(choice.gpus)), set(numbers(choice.nics)), choice.level

    def test_each_gpu_gets_a_nic_of_its_switch(self) -> None:
        assert self.ask("dgx-h100", "*", "*", 2, 2) == ({0, 1}, {0, 3}, Level.PXB)

    def test_both_ports_of_the_card_go_with_their_gpu(self) -> None:
        assert self.ask("hgx-h100", "1234567", "*", 1, 2) == ({1}, {2, 3}, Level.PXB)

    def test_a_far_pair_is_avoided_before_two_distant_ones(self) -> None:
        gpus, nics, level = self.ask("azure-ndv5", "045", "123", 2, 2)
        assert (gpus, nics, level) == ({0, 4}, {1, 2}, Level.SYS)
        gpus, nics, level = self.ask("azure-ndv5", "01456", "12", 2, 2)
        assert (gpus, nics, level) == ({0, 1}, {1, 2}, Level.NODE)

    def test_a_partition_of_the_fabric_is_taken_and_larger_ones_are_left_whole(self) -> None:
        assert self.ask("azure-ndv5", "0234567", "", 2, 0)[0] == {2, 3}
        assert self.ask("azure-ndv5", "012345", "", 1, 0)[0] == {4}

    def test_nvlinks_inside_the_set_decide_on_a_mesh(self) -> None:
        assert self.ask("v100x8-sxm2", "0134", "", 2, 0)[0] == {0, 3}
        assert self.ask("v100x8-sxm2", "*", "", 2, 0)[0] == {2, 3}
        assert self.ask("v100x8-sxm2", "*", "", 4, 0)[0] == {0, 1, 2, 3}

    def test_a_broken_switch_group_is_used_up_first(self) -> None:
        assert self.ask("gpu16-nic16", "01345", "*", 1, 1)[0] == {3}

    def test_a_gpu_without_a_nic_is_taken_when_none_is_asked_for(self) -> None:
        assert self.ask("azure-ndv5", "45", "4", 1, 0)[0] == {5}

    def test_spread_is_least_without_nvlink(self) -> None:
        assert self.ask("pcie-a100x8-2nic", "0456", "", 2, 0)[0] == {4, 5}


def test_a_table_is_made_in_time_and_looked_up_fast() -> None:
    """Generous bounds, for machines under load: the aims are 2 s and a few microseconds."""
    shape = shape_of_machine(catalogue.machine("azure-ndv5"))
    started = time.perf_counter()
    tables = ShapeTables(shape)
    built = time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(10_000):
        tables.best(0b11011101, 0b10111011, 2, 2)
    looked_up = (time.perf_counter() - started) / 10_000
    assert built < 10
    assert looked_up < 100e-6
