"""Which faults end the pods on a device is the operator's to say; the words are those of the taints."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from koordra.errors import InvalidInput
from koordra.kubelet_plugin.discovery import gpu_health
from koordra.kubelet_plugin.publish.drain_policy import FAULTS, drain_policy
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.publish.resource_slices import build_devices
from koordra.topology.machine import Machine
from tests.machines import catalogue

MACHINE = catalogue.load("hgx-h100").machine(serial="x")


def effects(text: str, *faults: str) -> dict[str, str]:
    """Of the unhealthy taints, by device; the first card has the faults and the first NIC no link."""
    gpu, nic = MACHINE.gpus[0], MACHINE.nics[0]
    down = replace(nic, ports=tuple(replace(port, active=False) for port in nic.ports))
    machine: Machine = replace(
        MACHINE, gpus=(replace(gpu, faults=faults), *MACHINE.gpus[1:]), nics=(down, *MACHINE.nics[1:])
    )
    devices = build_devices(machine, mode="native", offering=Offering(drain=drain_policy(text)))
    return {device["name"]: taint["effect"] for device in devices for taint in device.get("taints", ())}


GPU, NIC = MACHINE.gpus[0].name, MACHINE.nics[0].name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {GPU: "NoSchedule", NIC: "NoSchedule"}),
        ("Xid79", {GPU: "NoExecute", NIC: "NoSchedule"}),
        ("NeedsReset, Xid79", {GPU: "NoExecute", NIC: "NoSchedule"}),
        ("Xid48", {GPU: "NoSchedule", NIC: "NoSchedule"}),
        ("LinkDown", {GPU: "NoSchedule", NIC: "NoExecute"}),
        ("all", {GPU: "NoExecute", NIC: "NoExecute"}),
    ],
)
def test_only_the_named_faults_end_pods(text: str, expected: dict[str, str]) -> None:
    assert effects(text, "NeedsReset" if "NeedsReset" in text else "Xid79") == expected


@pytest.mark.parametrize(
    "text", ["Xid", "xid79", "Xid079", "gpulost", "GpuLost,Sneezing", "*", "All", "Xid79;Xid48"]
)
def test_a_word_that_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is no fault of a device") as raised:
        drain_policy(text)
    assert "write all, Xid and a number, or of GpuLost, NeedsReset," in str(raised.value)


@pytest.mark.parametrize("number", [13, 31, 94, 154])
def test_an_xid_that_never_makes_a_card_faulty_is_refused_rather_than_waited_for(number: int) -> None:
    with pytest.raises(InvalidInput, match=f"Xid{number} never makes a card faulty"):
        drain_policy(f"Xid79,Xid{number}")


@pytest.mark.parametrize("word", [*FAULTS, "Xid48"])
def test_each_word_ends_the_pods_of_its_fault_and_of_no_other(word: str) -> None:
    policy = drain_policy(word)
    assert policy.ends_pods(["Other", word])
    assert not policy.ends_pods([other for other in (*FAULTS, "Xid79") if other != word])


def test_every_fault_that_is_made_can_be_named() -> None:
    """The words in the sources that make them."""
    package = Path(gpu_health.__file__).parent
    sources = [package / f"{name}.py" for name in ("gpu_health", "nvml_query", "reading", "link_flaps")]
    made = {
        word
        for path in sources
        for word in re.findall(
            r'"((?:Needs|Row|Pages|Fabric|Uvm|Link|Gpu)[A-Z][A-Za-z0-9]+)"', path.read_text()
        )
    }
    assert made - set(FAULTS) == set()
    assert len(made) > 12
