"""Taints besides those of health: cordons, and devices that are still held for claims the API has
forgotten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from koordra.api import kinds
from koordra.api.kinds import Kind
from koordra.cli.cluster.cordon_device import cordon_device as command
from koordra.errors import ApiUnreachable, InvalidInput
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord, State
from koordra.kubelet_plugin.prepare.claim_audit import ClaimAudit, known_to_kubelet
from koordra.kubelet_plugin.publish.node_slices import (
    Cordon,
    Taint,
    cordons_of,
    held_taints,
    with_taints,
)
from koordra.node_state.claim_ref import ClaimRef
from tests.fakes.node_claims import GPU_0, GPU_1, claim, gpu, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of


def test_cordons_are_annotations_of_the_node() -> None:
    node = {
        "metadata": {
            "name": "node-a",
            "annotations": {
                "cordon.koordra.io/gpu-b": "NoExecute  burnt out",
                "cordon.koordra.io/gpu-a": "NoSchedule",
                "cordon.koordra.io/gpu-c": "loud fan",
                "example.com/other": "x",
            },
        }
    }
    assert cordons_of(node) == (
        Cordon("gpu-a"),
        Cordon("gpu-b", "NoExecute", "burnt out"),
        Cordon("gpu-c", "NoSchedule", "loud fan"),
    )
    assert Cordon("gpu-b", "NoExecute", "burnt out").taint == Taint(
        "koordra.io/cordoned", "burnt-out", "NoExecute"
    )
    for cordon in cordons_of(node)[:2]:
        key, value = cordon.annotation
        assert cordons_of({"metadata": {"annotations": {key: value}}}) == (cordon,)


def record(number: int, *devices: str, admin: bool = False) -> ClaimRecord:
    return ClaimRecord(
        ref=ClaimRef("team-a", f"claim-{number}", uid(number)),
        pool="node-a",
        nonce="0" * 32,
        boot_id="boot",
        state=State.COMPLETED,
        devices=tuple(
            DeviceRecord(request="r", device=name, type="gpu", identity="", admin_access=admin)
            for name in devices
        ),
    )


def test_a_held_part_holds_its_whole_and_a_held_whole_its_parts() -> None:
    offered = ["nic-x", "nic-x-vf-0", "nic-x-vf-1", "nic-y", "gpu-z-mig-1g-0"]
    held = Taint("koordra.io/held", uid(1))
    found = held_taints([record(1, "nic-x-vf-0")], offered=offered)
    assert list(found) == [("nic-x", held), ("nic-x-vf-0", held)]
    for holder, names in (
        ("nic-x", {"nic-x", "nic-x-vf-0", "nic-x-vf-1"}),
        ("gpu-z", {"gpu-z", "gpu-z-mig-1g-0"}),
    ):
        assert {name for name, _ in held_taints([record(1, holder)], offered=offered)} == names
    assert not list(held_taints([record(1, "nic-y", admin=True)], offered=offered))


def test_taints_are_with_taints_slices_and_nothing_else_changes() -> None:
    slices: list[dict[str, Any]] = [
        {
            "spec": {
                "devices": [{"name": "a", "taints": [{"key": "k", "effect": "NoSchedule"}]}, {"name": "b"}]
            }
        },
        {"spec": {"sharedCounters": []}},
    ]
    cordon = "a", Cordon("a", reason="x").taint
    held = "a", Taint("koordra.io/held", uid(1))
    first, second = with_taints(slices, [cordon, held, cordon])
    assert [taint["key"] for taint in first["spec"]["devices"][0]["taints"]] == [
        "k",
        "koordra.io/cordoned",
        "koordra.io/held",
    ]
    assert first["spec"]["devices"][1] == {"name": "b"}
    assert second is slices[1]
    assert with_taints(slices, []) == slices
    assert slices[0]["spec"]["devices"][0]["taints"] == [{"key": "k", "effect": "NoSchedule"}]


@pytest.mark.parametrize(
    ("change", "held"),
    [
        ("nothing", False),
        ("deleted", True),
        ("another claim of this name", True),
        ("deallocated", True),
        ("allocated elsewhere", True),
        ("no answer", False),
    ],
)
def test_what_makes_a_claim_held(node: PluginNode, change: str, held: bool) -> None:
    node.claims.put(claim(1, gpu("gpu", GPU_0)))
    node.plugin().prepare(ref_of(claim(1)))
    claims = node.claims
    match change:
        case "deleted":
            claims.claims.clear()
        case "another claim of this name":
            claims.put(claim(2, gpu("gpu", GPU_0), name="claim-1"))
        case "deallocated":
            claims.put(claim(1))
        case "allocated elsewhere":
            claims.put(claim(1, gpu("gpu", GPU_1)))
        case "no answer":
            claims.away = ApiUnreachable("connection refused")
    auditing = Auditing(node)
    auditing.kubelet.write_text("{}")
    auditing.at(0)
    assert bool(auditing.audit.held) is held


def test_a_server_that_is_away_changes_nothing(node: PluginNode) -> None:
    """What was held stays held, and nobody becomes an orphan by it."""
    for number, device in ((1, GPU_0), (2, GPU_1)):
        node.claims.put(claim(number, gpu("gpu", device)))
        node.plugin().prepare(ref_of(claim(number)))
    del node.claims.claims["team-a", "claim-1"]
    auditing = Auditing(node)
    auditing.kubelet.write_text("{}")
    auditing.at(0)
    node.claims.away = ApiUnreachable("connection refused")
    for now in (100, 10_000):
        auditing.at(now)
        assert [each.ref.uid for each in auditing.audit.held] == [uid(1)]
    assert node.holders() == {uid(1), uid(2)}


class Auditing:
    """An audit of a node whose kubelet knows what its file says; time is the test's."""

    def __init__(self, node: PluginNode) -> None:
        self.now = 0.0
        self.kubelet = node.paths.state.parent / "dra_manager_state"
        self.told: list[list[str]] = []
        self.audit = ClaimAudit(
            node.plugin(),
            node.claims,
            kubelet_claims=self.kubelet,
            on_change=lambda: self.told.append([each.ref.uid for each in self.audit.held]),
            clock=lambda: self.now,
        )

    def at(self, now: float) -> None:
        self.now = now
        self.audit.audit()


def test_a_force_deleted_claim_is_held_until_the_kubelet_gives_it_back(node: PluginNode) -> None:
    node.claims.put(claim(1, gpu("gpu", GPU_0)))
    node.plugin().prepare(ref_of(claim(1)))
    auditing = Auditing(node)
    auditing.kubelet.write_text(f'{{"Data": "{uid(1)}"}}')
    auditing.at(0)
    assert auditing.told == []
    node.claims.claims.clear()
    for now in (10, 100, 1000):
        auditing.at(now)
    assert auditing.told == [[uid(1)]]
    assert node.holders() == {uid(1)}
    node.plugin().unprepare(ref_of(claim(1)))
    auditing.at(1001)
    assert auditing.told == [[uid(1)], []]


def test_an_orphan_is_released_after_patience(node: PluginNode) -> None:
    """The claim vanished while nobody looked, and the kubelet does not know it: no call will ever come."""
    for number, device in ((1, GPU_0), (2, GPU_1)):
        node.claims.put(claim(number, gpu("gpu", device)))
        node.plugin().prepare(ref_of(claim(number)))
    auditing = Auditing(node)
    auditing.kubelet.write_text("{}")
    del node.claims.claims["team-a", "claim-1"]
    auditing.at(0)
    auditing.at(59)
    assert node.holders() == {uid(1), uid(2)}
    # The kubelet knows it after all: the clock starts again.
    auditing.kubelet.write_text(uid(1))
    auditing.at(61)
    auditing.kubelet.write_text("{}")
    auditing.at(62)
    assert node.holders() == {uid(1), uid(2)}
    auditing.at(122)
    assert node.holders() == {uid(2)}
    assert auditing.told[-1] == []
    assert not any(uid(1) in name for name in node.files())


@pytest.mark.parametrize("content", [None, ""])
def test_without_the_kubelets_record_nobody_is_an_orphan(node: PluginNode, content: str | None) -> None:
    node.claims.put(claim(1, gpu("gpu", GPU_0)))
    node.plugin().prepare(ref_of(claim(1)))
    auditing = Auditing(node)
    if content is not None:
        auditing.kubelet.write_text(content)
    node.claims.claims.clear()
    for now in (0, 100, 10_000):
        auditing.at(now)
    assert node.holders() == {uid(1)}
    assert known_to_kubelet(auditing.kubelet, [uid(1)]) is None


class FakeNodes:
    """The API as `cordon-device` uses it."""

    def __init__(self) -> None:
        self.annotations: dict[str, str] = {}

    def negotiate(self) -> None:
        pass

    def get(self, kind: Kind, name: str) -> dict[str, Any]:
        assert kind is kinds.NODES
        return {"metadata": {"name": name, "annotations": dict(self.annotations)}}

    def list(self, kind: Kind, *, field_selector: str) -> tuple[list[dict[str, Any]], str]:
        assert kind is kinds.RESOURCE_SLICES
        assert field_selector == "spec.driver=koordra.io,spec.nodeName=node-a"
        return [{"spec": {"devices": [{"name": "gpu-a"}, {"name": "gpu-b"}]}}], "1"

    def patch(self, kind: Kind, name: str, body: dict[str, Any]) -> None:
        assert (kind, name) == (kinds.NODES, "node-a")
        for key, value in body["metadata"]["annotations"].items():
            if value is None:
                self.annotations.pop(key, None)
            else:
                self.annotations[key] = value


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> FakeNodes:
    made = FakeNodes()
    monkeypatch.setattr("koordra.kube.kubeconfig.new_client", lambda *_, **__: made)
    return made


def run(*arguments: str) -> str:
    ran = CliRunner().invoke(command, list(arguments))
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return ran.output


def test_cordon_list_and_uncordon(nodes: FakeNodes) -> None:
    assert run("node-a") == "no device of node-a is cordoned\n"
    assert run("node-a", "gpu-a", "--reason", "fan is loud") == "gpu-a of node-a cordoned\n"
    run("node-a", "gpu-b", "--evict")
    assert nodes.annotations == {
        "cordon.koordra.io/gpu-a": "NoSchedule fan is loud",
        "cordon.koordra.io/gpu-b": "NoExecute",
    }
    assert run("node-a") == "gpu-a  NoSchedule  fan is loud\ngpu-b  NoExecute\n"
    with pytest.raises(InvalidInput, match=r"publishes no such device; it has gpu-a, gpu-b"):
        run("node-a", "gpu-c")
    run("node-a", "gpu-a", "--uncordon")
    assert list(nodes.annotations) == ["cordon.koordra.io/gpu-b"]
    run("node-a", "--uncordon", "--all")
    assert nodes.annotations == {}


def test_records_are_told_apart_by_boot(node: PluginNode, tmp_path: Path) -> None:
    """After a reboot no container is left: nothing is held, and nothing is an orphan."""
    node.claims.put(claim(1, gpu("gpu", GPU_0)))
    node.plugin().prepare(ref_of(claim(1)))
    node.claims.claims.clear()
    node.inventory = replace(node.inventory, machine=replace(node.inventory.machine, boot_id="next"))
    auditing = Auditing(node)
    auditing.at(0)
    assert auditing.audit.held == ()
