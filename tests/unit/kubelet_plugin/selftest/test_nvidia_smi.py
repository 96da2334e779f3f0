"""koordra's discovery against what nvidia-smi says."""

from __future__ import annotations

from dataclasses import replace

from koordra.kubelet_plugin.selftest.machine import nvidia_smi
from koordra.topology.machine import Machine
from tests.machines import catalogue

MACHINE = catalogue.machine("hgx-h100")


def csv(machine: Machine, **changes: str) -> str:
    lines = []
    for index, gpu in enumerate(machine.gpus):
        fields = {
            "index": str(index),
            "uuid": gpu.uuid,
            "name": gpu.product_name,
            "bus": f"0000{gpu.location.bus_id.upper()}",
            "memory": str((gpu.memory_bytes or 0) >> 20),
            "reserved": "0",
            "used": "4",
            "mig": "Enabled" if gpu.mig_enabled else "Disabled",
            "driver": machine.driver_version,
        }
        if index == 0:
            fields |= changes
        lines.append(", ".join(str(field) for field in fields.values()))
    return "\n".join(lines) + "\n"


def found(**changes: str) -> list[str]:
    return nvidia_smi.differences(MACHINE, nvidia_smi.cards(csv(MACHINE, **changes)))


def test_the_same_machine_has_no_differences() -> None:
    assert found() == []
    assert len(nvidia_smi.cards(csv(MACHINE))) == 8


def test_what_differs_of_a_card_is_named() -> None:
    uuid = MACHINE.gpus[0].uuid
    assert found(memory="40960") == [f"{uuid}: memory: koordra 81559 MiB, nvidia-smi 40960 MiB"]
    assert found(mig="Enabled") == [f"{uuid}: MIG mode: koordra False, nvidia-smi True"]
    assert found(name="NVIDIA A100") == [
        f"{uuid}: name: koordra {MACHINE.gpus[0].product_name}, nvidia-smi NVIDIA A100"
    ]
    (one,) = found(bus="00000000:AA:00.0")
    assert "bus id" in one
    (one,) = found(driver="1.2.3")
    assert "driver version" in one


def test_what_the_driver_keeps_for_itself_may_be_left_out_of_the_memory() -> None:
    assert found(memory="82000", reserved="500") == []
    assert found(memory="82100", reserved="500") != []


def test_a_card_that_only_one_of_them_has_is_named() -> None:
    other = "GPU-00000000-0000-0000-0000-000000000000"
    assert found(uuid=other) == [
        f"nvidia-smi lists {other}, koordra does not",
        f"koordra finds {MACHINE.gpus[0].uuid}, nvidia-smi does not list it",
    ]


def test_lines_that_are_no_cards_are_left_out() -> None:
    assert nvidia_smi.cards("NVIDIA-SMI has failed\n\n") == ()
    (card,) = nvidia_smi.cards("0, GPU-x, Name, 00000000:0F:00.0, 100, [N/A], [N/A], [N/A], 580.1\n")
    assert (card.reserved_mib, card.mig, card.bus_id) == (0, None, "0000:0f:00.0")


TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPXB\tPXB\t0-55,112-167\t0\t\tN/A
GPU1\tNV18\t X \tNODE\tNODE\t0-55,112-167\t0\t\tN/A
NIC0\tPXB\tNODE\t X \tPIX\t\t\t\t
NIC1\tPXB\tNODE\tPIX\t X \t\t\t\t

Legend:

  X    = Self
  PIX  = Connection traversing at most a single PCIe bridge

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1

"""


def test_the_matrix_is_read_with_the_names_of_its_legend() -> None:
    seen = nvidia_smi.matrix(TOPOLOGY)
    assert seen["GPU0", "GPU1"] == "NV18"
    assert seen["GPU1", "mlx5_0"] == "NODE"
    assert seen["mlx5_0", "mlx5_1"] == "PIX"
    assert len(seen) == 16


def test_the_matrix_of_the_same_machine_has_no_differences() -> None:
    listed = nvidia_smi.cards(csv(MACHINE))
    assert nvidia_smi.topology_differences(MACHINE, listed, nvidia_smi.matrix(TOPOLOGY)) == []


def test_a_pair_with_another_level_is_named() -> None:
    listed = nvidia_smi.cards(csv(MACHINE))
    seen = nvidia_smi.matrix(TOPOLOGY.replace("NV18", "NV12", 1).replace("GPU1\tNV18", "GPU1\tNV12"))
    assert nvidia_smi.topology_differences(MACHINE, listed, seen) == [
        "GPU0 - GPU1: koordra NV18, nvidia-smi NV12"
    ]


def test_a_machine_without_cards_differs_from_one_that_lists_them() -> None:
    nothing = replace(MACHINE, gpus=())
    assert len(nvidia_smi.differences(nothing, nvidia_smi.cards(csv(MACHINE)))) == 8
