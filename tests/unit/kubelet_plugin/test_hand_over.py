"""The whole plugin on a node that another stack hands to koordra, and back: what is published, guarded and
prepared."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordra.api import names
from koordra.errors import CheckpointError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.publish.hand_over import FILE, HandOver, Phase
from koordra.kubelet_plugin.publish.peers_on_node import GPUS, PeersOnNode
from koordra.node_state.disk import Disk
from tests.unit.kubelet_plugin.running_plugin import RunningPlugin, wait_for


@pytest.fixture
def plugin(machine_root: Path) -> Iterator[RunningPlugin]:
    with tempfile.TemporaryDirectory(prefix="k") as made:
        yield RunningPlugin(Path(made), machine_root)


def offers(plugin: RunningPlugin, amount: str) -> None:
    plugin.api.node.setdefault("status", {})["allocatable"] = {"nvidia.com/gpu": amount}
    plugin.api.tell_node()


def owner(plugin: RunningPlugin, name: str) -> None:
    plugin.api.node["metadata"]["labels"] = {names.GPU_OWNER_LABEL: name}
    plugin.api.tell_node()


def is_in(plugin: RunningPlugin, phase: Phase) -> bool:
    """Of every GPU, and of no NIC."""
    wanted = "" if phase is Phase.OWNED else phase.value

    def look() -> bool:
        found = {
            name: next(
                (
                    taint["value"]
                    for taint in device.get("taints", ())
                    if taint["key"] == names.HAND_OVER_TAINT
                ),
                "",
            )
            for name, device in plugin.api.devices().items()
        }
        gpus = {value for name, value in found.items() if name.startswith("gpu-")}
        return gpus == {wanted} and {*found.values()} == {wanted, ""}

    return wait_for(look)


def guards_gpus(plugin: RunningPlugin) -> bool:
    return any(device["type"] == names.TYPE_GPU for device in plugin.guarded()["devices"])


def test_a_node_with_another_device_plugin_begins_as_left_and_is_taken_when_that_is_gone(
    plugin: RunningPlugin,
) -> None:
    offers(plugin, "8")
    with plugin.serving():
        assert is_in(plugin, Phase.LEFT)
        assert not guards_gpus(plugin)
        assert plugin.guarded()["left"] == ["gpu"]
        assert any(device["type"] == names.TYPE_NIC for device in plugin.guarded()["devices"])
        refused = plugin.prepare().error
        assert "ForeignDriver: gpu-" in refused
        assert "nvidia.com/gpu of NVIDIA's or HAMi's device plugin is in status.allocatable" in refused
        offers(plugin, "0")
        assert is_in(plugin, Phase.OWNED)
        assert guards_gpus(plugin)
        assert plugin.prepare().error == ""


def test_a_node_is_left_once_its_last_claim_is_gone(plugin: RunningPlugin) -> None:
    with plugin.serving():
        assert is_in(plugin, Phase.OWNED)
        assert plugin.prepare().error == ""
        owner(plugin, "hami")
        assert is_in(plugin, Phase.LEAVING)
        assert guards_gpus(plugin)
        assert plugin.prepare().error == "", "the claim has its card"
        assert plugin.unprepare().error == ""
        assert is_in(plugin, Phase.LEFT)
        assert not guards_gpus(plugin)
        assert "handed over to hami (label koordra.io/gpu-owner)" in plugin.prepare().error
        owner(plugin, names.OWNER_KOORDRA)
        assert is_in(plugin, Phase.OWNED)
        assert plugin.prepare().error == ""


def test_cards_are_tainted_while_another_stack_is_back(plugin: RunningPlugin) -> None:
    with plugin.serving():
        assert is_in(plugin, Phase.OWNED)
        offers(plugin, "8")
        assert wait_for(lambda: _tainted(plugin) == {"Owned"})
        assert guards_gpus(plugin)
        offers(plugin, "0")
        assert wait_for(lambda: _tainted(plugin) == {""})


def _tainted(plugin: RunningPlugin) -> set[str]:
    return {
        next(
            (taint["value"] for taint in device.get("taints", ()) if taint["key"] == names.HAND_OVER_TAINT),
            "",
        )
        for name, device in plugin.api.devices().items()
        if name.startswith("gpu-")
    }


class FullDisk(Disk):
    def replace(self, path: Path, data: bytes, *, mode: int, durable: bool = True) -> None:
        raise OSError(28, "No space left on device")


class OpenGuard:
    def leave(self, types: frozenset[str]) -> None:
        self.types = types


def test_a_full_disk_keeps_no_plugin_from_starting_and_nothing_from_being_refused(tmp_path: Path) -> None:
    others: dict[str, str] = {}
    guard = OpenGuard()
    found = HandOver(
        tmp_path,
        claims=lambda: (),
        look=lambda kind, _node: PeersOnNode(("x is there",) if kind is GPUS else ()),
        guard=guard,
        leave=others.update,
        disk=FullDisk(),
    )
    found.see_node({"metadata": {}})
    found.start()
    assert "x is there" in others[GPUS.type]
    found.step()
    assert guard.types == {GPUS.type}


@pytest.mark.parametrize("text", ["", "{", '{"schema": "koordra.io/hand-over/v1", "left": ["cpu"]}'])
def test_a_file_that_cannot_be_read_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    found = HandOver(
        tmp_path,
        claims=lambda: (),
        look=lambda _kind, _node: PeersOnNode(),
        guard=OpenGuard(),
        leave=lambda _others: None,
        disk=Disk(),
    )
    found.see_node({"metadata": {}})
    found.start()
    assert {each.phase for each in found.standings} == {Phase.OWNED}


@pytest.mark.parametrize(("left", "phase"), [(None, Phase.OWNED), ((), Phase.OWNED), (("gpu",), Phase.LEFT)])
def test_where_the_claims_cannot_be_read_cards_stay_guarded_unless_they_are_left(
    tmp_path: Path, left: tuple[str, ...] | None, phase: Phase
) -> None:
    def unreadable() -> tuple[ClaimRecord, ...]:
        raise CheckpointError("the checkpoint is missing")

    if left is not None:
        document = {"schema": "koordra.io/hand-over/v1", "left": list(left)}
        (tmp_path / FILE).write_text(json.dumps(document))
    found = HandOver(
        tmp_path,
        claims=unreadable,
        look=lambda _kind, _node: PeersOnNode(("x is there",)),
        guard=OpenGuard(),
        leave=lambda _others: None,
        disk=Disk(),
    )
    found.see_node({"metadata": {}})
    found.start()
    assert [each.phase for each in found.standings if each.kind is GPUS] == [phase]
