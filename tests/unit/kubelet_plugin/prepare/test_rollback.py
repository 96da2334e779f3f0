"""What a Prepare that fails half-way takes back, and what Unprepare releases: isolation, the pods' networks,
files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from koordra.errors import CDIError, CheckpointError, NodeError, PrepareError
from koordra.kubelet_plugin.isolation.packages import backends
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from tests.fakes.disks import StepDisk
from tests.fakes.isolation import RecordingBackend
from tests.fakes.node_claims import GPU_0, NODE, claim, gpu, parameters, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of

SHARE = claim(1, gpu("gpu", GPU_0, "10Gi", cores="30"), config=[parameters("GpuConfig", isolation="limiter")])


class RefusingDisk(StepDisk):
    """Cannot rename a file of this name; the checkpoint only from `after` earlier renames on."""

    def __init__(self, name: str, *, after: int = 0) -> None:
        super().__init__()
        self._name, self._left = name, after

    def rename(self, source: Path, target: Path) -> None:
        if target.name == self._name:
            self._left -= 1
            if self._left == -1:
                raise OSError(28, "No space left on device", str(target))
        super().rename(source, target)


@dataclass
class RecordingNetworks:
    """`refuse` is an error to raise."""

    released: list[str] = field(default_factory=list)
    refuse: str = ""

    def release_claim(self, uid: str) -> None:
        if self.refuse:
            raise NodeError(self.refuse)
        self.released.append(uid)


@dataclass
class Parts:
    backend: RecordingBackend = field(default_factory=RecordingBackend)
    networks: RecordingNetworks = field(default_factory=RecordingNetworks)

    def plugin(self, node: PluginNode, disk: StepDisk | None = None) -> DeviceState:
        return DeviceState(
            node=NODE,
            paths=node.paths,
            claims=node.claims,
            inventory=lambda: node.inventory,
            backends={**backends(), "limiter": self.backend},
            disk=disk or StepDisk(),
            networks=self.networks,
        )


@pytest.fixture
def parts() -> Parts:
    return Parts()


def test_a_disk_that_is_full_before_the_files_leaves_no_isolation(node: PluginNode, parts: Parts) -> None:
    node.claims.put(SHARE)
    with pytest.raises(CDIError):
        parts.plugin(node, RefusingDisk(node.paths.cdi_file(uid(1)).name)).prepare(ref_of(SHARE))
    assert parts.backend.shares
    assert parts.backend.running == []
    assert parts.networks.released == [uid(1)]
    assert (node.holders(), node.files()) == (set(), set())


def test_a_disk_that_is_full_before_the_last_checkpoint_leaves_no_files(
    node: PluginNode, parts: Parts
) -> None:
    node.claims.put(SHARE)
    with pytest.raises(CheckpointError):
        parts.plugin(node, RefusingDisk(node.paths.checkpoint.name, after=1)).prepare(ref_of(SHARE))
    assert parts.backend.running == []
    assert (node.holders(), node.files()) == (set(), set())


def test_unprepare_takes_the_nics_back_before_the_claim_is_forgotten(node: PluginNode, parts: Parts) -> None:
    node.claims.put(SHARE)
    state = parts.plugin(node)
    state.prepare(ref_of(SHARE))
    parts.networks.refuse = "the interface is busy"
    with pytest.raises(NodeError, match="busy"):
        state.unprepare(ref_of(SHARE))
    assert node.holders() == {uid(1)}
    parts.networks.refuse = ""
    state.unprepare(ref_of(SHARE))
    assert parts.networks.released == [uid(1)]
    assert node.holders() == set()


def test_a_call_that_the_kubelet_gave_up_asks_the_api_server_nothing(node: PluginNode, parts: Parts) -> None:
    asked: list[str] = []

    class Asked:
        def get(self, namespace: str, name: str) -> dict[str, Any]:
            asked.append(name)
            return node.claims.get(namespace, name)

    node.claims.put(SHARE)
    state = parts.plugin(node)
    state._claims = Asked()
    with pytest.raises(PrepareError, match="gave this call up"):
        state.prepare(ref_of(SHARE), awaited=lambda: False)
    assert asked == []
    state.prepare(ref_of(SHARE))
    assert len(asked) == 1


def test_an_unprepare_that_the_kubelet_gave_up_takes_nothing_away(node: PluginNode, parts: Parts) -> None:
    """It may come to the lock after another one, when the claim was prepared anew."""
    node.claims.put(SHARE)
    state = parts.plugin(node)
    state.prepare(ref_of(SHARE))
    before = node.files(), node.paths.checkpoint.read_bytes()
    with pytest.raises(PrepareError, match="nothing was unprepared by it"):
        state.unprepare(ref_of(SHARE), awaited=lambda: False)
    assert (node.files(), node.paths.checkpoint.read_bytes()) == before
    assert parts.backend.running == [(uid(1), GPU_0)]
    assert parts.networks.released == []
    state.unprepare(ref_of(SHARE))
    assert node.holders() == set()
