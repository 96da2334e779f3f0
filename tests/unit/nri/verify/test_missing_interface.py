"""A container whose network namespace lacks the interface of a NIC that it holds: seen, told, never a reason
to evict."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord, State
from koordra.kubelet_plugin.prepare.claim_files import network_of
from koordra.metrics import Metrics
from koordra.node_state.claim_network import (
    AttachedDevice,
    AttachedNetwork,
    ClaimNetwork,
    NetworkKind,
    NetworkPlan,
    encode,
    encode_attached,
    read_networks,
)
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.disk import Disk
from koordra.node_state.layout import StateFolder
from koordra.node_state.reader import StateReader
from koordra.nri.hook.grants import Grant, Grants
from koordra.nri.hook.ledger import Granted, Ledger, granted_of
from koordra.nri.verify.api_reporter import ApiReporter
from koordra.nri.verify.bundles import Running
from koordra.nri.verify.drift import Drift, Expected, Finding, Interfaces, drift_of
from koordra.nri.verify.verification import Verification
from tests.fakes.metric_samples import sample
from tests.unit.nri.hook.test_validator import Api, claim_object
from tests.unit.nri.node_state import (
    MARKER,
    NODE,
    NONCE,
    OTHER_UID,
    UID,
    claim,
    claim_json,
    container,
    guarded_json,
    markers,
    nic_json,
    write,
)
from tests.unit.nri.verify.test_verify import FakeNode, Told, spec

NIC = "nic-0000-0c-00-0"
NIC_CLAIM = claim(nic_json())
HELD = granted_of(container(), Grants(held=(Grant(NIC_CLAIM, NIC_CLAIM.devices[0]),)), None).devices
GRANTED = Granted(pod_uid="u", env=(), numbers=frozenset(), devices=HELD)
DEV = "Inter-|   Receive  |  Transmit\n face |bytes |bytes\n    lo: 0 0\n  eth0: 12 0\n rail0:1234567 0\nrail0.7: 0 0\n"


class Machine:
    """A node on which one container holds a NIC whose interface is to be `rail0` in pod `u`."""

    def __init__(self, folder: Path, *, granted: Granted | None = GRANTED, host: str = "ens1") -> None:
        self.folder = folder
        self.node, self.told, self.metrics = FakeNode(folder / "node"), Told(), Metrics()
        self.state = folder / "state"
        write(self.state / "guarded.json", guarded_json())
        write(self.state / "prepared" / f"{UID}.json", claim_json(nic_json()))
        plan = NetworkPlan(NetworkKind.MOVE, "0000:0c:00.0", host, "rail0")
        device = DeviceRecord(request="nic", device=NIC, type="nic", identity="1", network=plan)
        ref = ClaimRef("team", "train", UID)
        record = ClaimRecord(ref, NODE, NONCE, "boot", State.COMPLETED, (device,), pods=("u",))
        write(StateFolder(self.state).network_file(UID), encode(network_of(record)).decode())
        assert read_networks(StateFolder(self.state), Disk())[0].plans == ((NIC, plan),)
        self.attached(pod="u")
        ledger = Ledger(self.state)
        env = ["NVIDIA_VISIBLE_DEVICES=void"]
        if granted is not None:
            ledger.add("c1", granted)
        else:
            env += [f"{name}={value}" for name, value in markers(0)]
        self.node.run("c1", spec(env=env), pid=7)
        self.interfaces(DEV)
        self.verification = Verification(
            StateReader(self.state, node_name=NODE),
            ledger=ledger,
            bundles=self.node.bundles,
            metrics=self.metrics,
            reporter=self.told,
        )

    def attached(self, *, pod: str) -> None:
        where = AttachedNetwork(UID, pod, "sandbox", "/run/netns/a", (AttachedDevice(NIC, "rail0"),))
        write(self.state / "network" / "attached" / f"{UID}.json", encode_attached(where).decode())

    def interfaces(self, text: str) -> None:
        write(self.folder / "node" / "proc" / "7" / "net" / "dev", text)

    def missing(self) -> list[str]:
        return [
            found.drift.message
            for found in self.verification.sync()
            if found.drift.kind == "InterfaceMissing"
        ]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_interface_that_is_taken_away_is_told_and_one_that_is_back_too(machine: Machine) -> None:
    assert machine.verification.sync() == ()
    machine.interfaces(DEV.replace(" rail0:", " rail1:"))
    (message,) = machine.missing()
    assert message.startswith(
        f"container main of pod team/train-0: {NIC} is held and its network interface rail0 "
    )
    assert "taken away or renamed" in message
    assert machine.told.found_kinds == ["InterfaceMissing"]
    assert sample(machine.metrics, "koordra_nri_drift", {"kind": "InterfaceMissing"}) == 1
    assert sample(machine.metrics, "koordra_nri_drift_found_total", {"kind": "InterfaceMissing"}) == 1
    machine.interfaces(DEV)
    assert machine.missing() == []
    assert machine.told.gone_kinds == ["InterfaceMissing"]
    assert sample(machine.metrics, "koordra_nri_drift", {"kind": "InterfaceMissing"}) == 0


def test_whose_pod_has_it_and_that_nobody_has_it_are_said(machine: Machine) -> None:
    machine.interfaces("\n\n    lo: 0\n")
    machine.attached(pod="another")
    (message,) = machine.missing()
    assert "it is in the pod with uid another, and goes into one pod at a time" in message
    (machine.state / "network" / "attached" / f"{UID}.json").unlink()
    (message,) = machine.missing()
    assert "is the NRI hook there?" in message


def test_a_container_that_no_hook_saw_is_looked_into_by_its_markers(tmp_path: Path) -> None:
    machine = Machine(tmp_path, granted=None)
    assert [found.drift.kind for found in machine.verification.sync()] == ["HookMissed"]
    machine.interfaces("\n\n    lo: 0\n")
    assert sorted(found.drift.kind for found in machine.verification.sync()) == [
        "HookMissed",
        "InterfaceMissing",
    ]


def test_a_nic_without_an_interface_and_a_container_without_the_nic_lack_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "infiniband", host="")
    machine.interfaces("\n\n    lo: 0\n")
    assert machine.missing() == []
    other = replace(HELD[0], device="nic-0000-ff-00-0")
    machine = Machine(tmp_path / "other", granted=replace(GRANTED, devices=(other,)))
    machine.interfaces("\n\n    lo: 0\n")
    assert machine.missing() == []
    unclaimed = replace(HELD[0], claim_name="", claim_uid="../../etc")
    machine = Machine(tmp_path / "koordinator", granted=replace(GRANTED, devices=(unclaimed,)))
    assert machine.missing() == []


def test_a_process_that_ended_or_whose_number_is_anothers_is_not_believed(machine: Machine) -> None:
    machine.interfaces("\n\n    lo: 0\n")
    proc = machine.folder / "node" / "proc" / "7"
    write(proc / "cgroup", "4:devices:/k8s.io/another\n")
    assert machine.missing() == []
    write(proc / "cgroup", "0::/k8s.io/c1\n")
    assert len(machine.missing()) == 1
    (proc / "net" / "dev").unlink()
    assert machine.missing() == []
    (machine.folder / "node" / "bundles" / "c1" / "init.pid").unlink()
    assert machine.missing() == []


def test_an_interface_on_its_way_is_not_missing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look comes before the interface, the second after it."""
    machine.interfaces("\n\n    lo: 0\n")
    seen = machine.node.bundles.interfaces

    def late(running: Any) -> frozenset[str] | None:
        found = seen(running)
        machine.interfaces(DEV)
        return found

    monkeypatch.setattr(machine.node.bundles, "interfaces", late)
    assert machine.missing() == []
    assert machine.told.found_kinds == []


def test_an_interface_of_the_same_name_in_a_pod_that_the_network_is_not_in_is_another(
    machine: Machine,
) -> None:
    """A network plugin's, or one that the program made itself."""
    machine.attached(pod="another")
    (message,) = machine.missing()
    assert "it is in the pod with uid another" in message
    plan = NetworkPlan(NetworkKind.MOVE, "0000:0c:00.0", "ens1", "rail0")
    planned = {UID: ClaimNetwork(ClaimRef("team", "train", UID), ("u",), ((NIC, plan),))}
    known = Interfaces(frozenset({"rail0"}), planned, {UID: AttachedNetwork(UID, "another")})
    for pod, lacks in (("u", 1), ("", 0)):  # whose pod is not known is not told
        found = drift_of(Running(container(pod_uid=pod)), Expected(GRANTED, interfaces=known))
        assert [drift.kind for drift in found].count("InterfaceMissing") == lacks


def test_names_of_any_bytes_are_no_hindrance(machine: Machine) -> None:
    dev = machine.folder / "node" / "proc" / "7" / "net" / "dev"
    dev.write_bytes(DEV.encode() + b" \xff\xfe\x1crail1: 0 0\n")
    cgroup = machine.folder / "node" / "proc" / "7" / "cgroup"
    cgroup.write_bytes(b"0::/k8s.io/c1/\xff\n")
    assert machine.verification.sync() == ()
    dev.write_bytes(b"\n\n \xff: 0\n")
    assert len(machine.missing()) == 1
    # Nor does what the kernel lets the container open go by unseen.
    cgroup.write_bytes(b"4:devices:/c1/\xff\n")
    devices = machine.folder / "node" / "cgroup" / "devices" / "c1" / os.fsdecode(b"\xff")
    write(devices / "devices.list", "a *:* rwm\n")
    assert "ForeignDevice" in {found.drift.kind for found in machine.verification.sync()}


def test_the_condition_stays_false_while_the_reason_changes(machine: Machine) -> None:
    """First it is in no pod, then in another one: one difference is gone, the other has come, and the
    interface is not there."""
    machine.interfaces("\n\n    lo: 0\n")
    (machine.state / "network" / "attached" / f"{UID}.json").unlink()
    assert len(machine.missing()) == 1
    machine.attached(pod="another")
    assert len(machine.missing()) == 1
    assert machine.told.found_devices == [[NIC], [NIC]]
    assert machine.told.gone_devices == [[]]
    machine.attached(pod="u")
    machine.interfaces(DEV)
    assert machine.missing() == []
    assert machine.told.gone_devices == [[], [NIC]]


def test_a_container_that_cannot_be_looked_at_keeps_no_other_from_being_looked_at(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.interfaces("\n\n    lo: 0\n")
    assert len(machine.missing()) == 1
    machine.node.run("c0", spec(env=[f"{MARKER}={NONCE}"]), pid=8)
    machine.node.run("c2", spec(env=[f"{MARKER}=granted"]), pid=9)
    seen = machine.node.bundles.interfaces

    def odd(running: Any) -> frozenset[str] | None:
        if running.container.id in {"c0", "c1"}:
            raise KeyError("odd")
        return seen(running)

    monkeypatch.setattr(machine.node.bundles, "interfaces", odd)
    found = {(each.container.id, each.drift.kind) for each in machine.verification.sync()}
    assert found >= {("c0", "Unverified"), ("c1", "Unverified"), ("c1", "InterfaceMissing")}
    assert ("c2", "ForgedMarker") in found
    assert machine.told.gone_kinds == []


@pytest.mark.parametrize(
    "broken",
    ["{", {"schema": "koordra.io/network/v2"}, {"claim": {"namespace": "a", "name": "b", "uid": OTHER_UID}}],
)
def test_an_unusable_record_is_unverified(machine: Machine, broken: str | dict[str, Any]) -> None:
    file = StateFolder(machine.state).network_file(UID)
    document = json.loads(file.read_text())
    write(file, broken if isinstance(broken, str) else {**document, **broken})
    (finding,) = machine.verification.sync()
    assert (finding.drift.kind, finding.drift.subject) == ("Unverified", "")
    assert "its network interfaces cannot be verified" in finding.drift.message


def test_it_becomes_an_event_and_a_condition() -> None:
    device = replace(HELD[0], device="gpu-0000-0f-00-0", share_id="share-1")
    finding = Finding(
        container(id="c1", pod_uid="pod-1"), Drift("InterfaceMissing", "rail0 is not there", (device,))
    )
    api = Api(claim_object())
    reporter = ApiReporter(api, node=NODE, now=lambda: "2026-11-21T12:00:00Z")  # type: ignore[arg-type]
    reporter.found(finding)
    ((kind, subresource, event),) = api.created
    assert (kind, subresource, event["reason"]) == ("Event", None, "NetworkDrift")
    assert event["message"] == "InterfaceMissing: rail0 is not there"
    conditions = api.updated[-1]["status"]["devices"][1]["conditions"]
    assert [(each["type"], each["status"], each["reason"]) for each in conditions] == [
        ("InterfacePresent", "False", "InterfaceMissing")
    ]
    reporter.gone(finding)
    conditions = api.updated[-1]["status"]["devices"][1]["conditions"]
    assert [(each["type"], each["status"]) for each in conditions] == [("InterfacePresent", "True")]
    assert MARKER not in event["message"]
