"""Every item of what other limiters get wrong (memory, device time, locks, start-up) has a test that fails
with the defect switched on.

native/test/defects.list pairs switches with tests, and `make -C native test` runs each pair. Here: the list
names what there is, and no item is missing from it. Items of the node's side have their tests in Python.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NATIVE = ROOT / "native"
LINES = [
    line.split(maxsplit=2)
    for line in (NATIVE / "test" / "defects.list").read_text().splitlines()
    if line and not line.startswith("#")
]

ITEMS = (
    # 3.2, by row of its table
    "3.2 cuMemAlloc:",
    "3.2 cuMemAllocPitch",
    "3.2 cuMemAllocManaged",
    "3.2 cuMemCreate: the current context's card",
    "3.2, 3.8, row 1 cuMemCreate on the host",
    "3.2, 3.8, row 1 cuMemRelease; expandable segments",
    "3.2 cuMemAllocAsync",
    "3.2 one counter for all cards",
    "3.2, row 2 cuMemAllocFromPoolAsync",
    "3.2 arrays",
    "3.2 mipmapped arrays",
    "3.2 host memory",
    "3.2 IPC",
    "3.2 shareable handles",
    "3.2 external memory",
    "3.2, row 2 graph allocation nodes",
    "3.2 modules",
    "3.2 contexts",
    "3.2 cuMemGetInfo; 3.8 graph profiling clamp",
    "3.2 cuDeviceTotalMem",
    "3.2, 3.8, row 2 frees answer -1",
    "3.2, 3.8, row 5 CUDA_VISIBLE_DEVICES",
    # 3.3
    "3.3 tokens are blocks of the grid",
    "3.3 duration ignored",
    "3.3 cooperative launches unthrottled",
    "3.3 graph launches unthrottled",
    "3.3, row 4 10 ms sleeps, bursty",
    "3.3, 3.7, row 4 little effect on large cards",
    "3.3, 3.8 host pid unknown",
    "3.3, row 4 no effect when alone",
    "3.8, row 4 utilisation 0 with open modules",
    "3.3 a limit changes in steps, over seconds",
    "row 4 bursty",
    "3.8 hangs of several cards",
    # 3.4
    "3.4, row 3 unnamed semaphore",
    "3.4 the pid is looked up in the wrong namespace",
    "3.4 slot compaction",
    "3.4 limits frozen at first creation",
    "3.4, 3.8 SIGUSR1, SIGUSR2",
    "3.4, row 8 a tenant edits its limits",
    # 3.8 beyond those
    "3.8, row 5 host pid unknown",
    "3.8, row 7 silent loss of isolation",
    "3.8, row 7 a newer driver",
    "3.8, row 8 CUDA_DISABLE_CONTROL",
    "3.8, row 8 Vulkan",
    # section 7 beyond those
    "row 6 a lock for the whole node",
    "row 12 memory scaling",
    "row 17 metrics zero unless limited",
)

IN_PYTHON = {
    "3.2 NVML process lists not filtered": "test_nvml.py::test_a_tenant_sees_the_processes_of_its_own_claim",
    "3.8, row 7 nobody told": "test_condition.py::test_the_condition_follows_the_handshake",
    "row 5 host pid by a broker": "test_backend.py::test_the_node_learns_the_host_pid",
    "row 8 bypasses": "test_reconcile.py::test_who_computes_without_the_limiter_is_found_at_the_second_look",
    "row 17 metrics": "test_report.py::test_every_claim_has_its_figures_until_it_is_gone",
}


@pytest.mark.parametrize("item", ITEMS)
def test_every_item_is_in_the_list(item: str) -> None:
    assert any(item in why for _, _, why in LINES), f"no line of defects.list is about {item!r}"


@pytest.mark.parametrize("where", IN_PYTHON.values(), ids=IN_PYTHON)
def test_items_of_the_nodes_side_are_tests_here(where: str) -> None:
    file, _, name = where.partition("::")
    assert f"def {name}(" in (Path(__file__).parent / file).read_text()


def test_the_list_names_tests_and_switches_that_there_are() -> None:
    sources = "".join(path.read_text() for path in (NATIVE / "test" / "unit").glob("*.c"))
    limiter = "".join(path.read_text() for path in (NATIVE / "limiter").glob("*.[ch]"))
    tests = set(re.findall(r"^TEST\((\w+)\)", sources, re.MULTILINE))
    switches = set(re.findall(r"DEFECT\((\w+)\)", limiter)) - {"name"}
    for switch, test, _ in LINES:
        assert test in tests
        assert switch in switches
    unused = switches - {switch for switch, _, _ in LINES} - {"process_lists_unfiltered"}
    assert not unused, "a switch without a test"
