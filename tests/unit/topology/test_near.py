"""What `koordra topology` shows first: how near GPUs and NICs are, in 80 columns, of every machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from koordra.topology.machine import Machine
from koordra.topology.pictures.text import gpu_nic_matrix, held_lines, level_text
from koordra.topology.pictures.usage import MachineUsage, Part
from tests.machines import catalogue


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_every_pair_is_there_once_within_80_columns(name: str) -> None:
    machine = catalogue.machine(name)
    text = gpu_nic_matrix(machine, width=80)
    assert max(map(len, text.splitlines())) <= 80
    seen: dict[tuple[str, str], str] = {}
    for block in text.partition("Legend:")[0].split("\n\n"):
        head, *rows = [line.split() for line in block.splitlines()] or [[]]
        for row in rows if head[-1:] == ["NUMA"] else ():
            for column, level in zip(head[:-1], row[1:-1], strict=True):
                assert seen.setdefault((row[0], column), level) == level
    columns = machine.gpus or machine.nics
    assert len(seen) == len(columns) * len({*machine.gpus, *machine.nics})
    for place, gpu in enumerate(machine.gpus):
        for number, nic in enumerate(machine.nics):
            assert seen[f"NIC{number}", f"GPU{place}"].rstrip("*") == level_text(nic, gpu)


@pytest.mark.parametrize("name", ["hgx-h100", "gpu16-nic16"])
def test_near_as_it_is_shown(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"topology/near-{name}.txt", gpu_nic_matrix(catalogue.machine(name), width=80))


def test_a_machine_without_devices() -> None:
    assert gpu_nic_matrix(Machine(), width=80) == "no GPU and no RDMA NIC\n"


def test_who_has_how_much() -> None:
    machine = catalogue.machine("t4x4-1nic")
    gpu = machine.gpus[1].name
    parts = (
        Part("team/a", {"memory": "4Gi", "cores": "30"}, {"memory": 0.27, "cores": 0.3}),
        Part("team/b", {"memory": "1Mi"}, {"memory": 0.0001}),
    )
    usage = MachineUsage(
        holders={gpu: ("team/a", "team/b"), machine.nics[0].name: ("team/c",)}, parts={gpu: parts}
    )
    assert held_lines(machine, usage) == (
        "GPU1  memory [aaaaab··············] 27%\n"
        "      cores  [aaaaaa··············] 30%\n"
        "      a team/a (memory 4Gi, cores 30)\n"
        "      b team/b (memory 1Mi)\n"
        "NIC0  a team/c\n"
    )
