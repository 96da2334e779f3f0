"""Isolation backends: found by name, also third parties'; started, stopped and rolled back with the claim."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from koordra.api.parameters import GpuConfig
from koordra.errors import PrepareError
from koordra.kubelet_plugin import isolation
from koordra.kubelet_plugin.claims.container_edits import ContainerEdits
from koordra.kubelet_plugin.isolation import Backends, Share
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from tests.fakes.disks import StepDisk
from tests.fakes.node_claims import GPU_0, NIC_0, NODE, claim, gpu, nic, parameters, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of


@dataclass
class RecordingBackend:
    """Writes down what it is asked for; `refuse` is an error to raise from start."""

    name: str = "limiter"
    running: list[tuple[str, str]] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    refuse: str = ""

    def edits(self, share: Share, config: GpuConfig) -> ContainerEdits:
        self.shares.append(share)
        return ContainerEdits(env=((f"LIMIT_{share.index}", f"{share.memory_bytes} {config.priority}"),))

    def start(self, share: Share, config: GpuConfig) -> None:
        del config
        if self.refuse:
            raise PrepareError(self.refuse)
        if (share.claim_uid, share.device) not in self.running:
            self.running.append((share.claim_uid, share.device))

    def stop(self, *, claim_uid: str, device: str) -> None:
        if (claim_uid, device) in self.running:
            self.running.remove((claim_uid, device))


def plugin(node: PluginNode, backend: RecordingBackend) -> DeviceState:
    return DeviceState(
        node=NODE,
        paths=node.paths,
        claims=node.claims,
        inventory=lambda: node.inventory,
        backends=Backends({**isolation.backends().known, backend.name: backend}),
        disk=StepDisk(),
    )


OBJECT = claim(
    1,
    gpu("gpu", GPU_0, "10Gi", cores="30"),
    nic("nic", NIC_0),
    config=[parameters("GpuConfig", isolation="limiter", priority=7)],
)


def test_a_backend_lives_as_long_as_the_claim(node: PluginNode) -> None:
    backend = RecordingBackend()
    state = plugin(node, backend)
    node.claims.put(OBJECT)
    state.prepare(ref_of(OBJECT))
    state.prepare(ref_of(OBJECT))
    assert backend.running == [(uid(1), GPU_0)]
    assert (backend.shares[0].memory_bytes, backend.shares[0].cores) == (10 << 30, 30)
    assert node.record(uid(1))["devices"][0]["env"]["LIMIT_0"] == f"{10 << 30} 7"
    state.unprepare(ref_of(OBJECT))
    assert backend.running == []


def test_a_backend_that_cannot_start_leaves_nothing(node: PluginNode) -> None:
    backend = RecordingBackend(refuse="no MPS daemon")
    state = plugin(node, backend)
    node.claims.put(OBJECT)
    with pytest.raises(PrepareError, match="no MPS daemon"):
        state.prepare(ref_of(OBJECT))
    assert node.files() == set()
    assert node.holders() == set()
    backend.refuse = ""
    state.prepare(ref_of(OBJECT))
    assert node.holders() == {uid(1)}


def test_unprepare_stops_the_backend_also_when_nobody_knows_what_the_claim_had(node: PluginNode) -> None:
    backend = RecordingBackend()
    node.claims.put(OBJECT)
    plugin(node, backend).prepare(ref_of(OBJECT))
    assert backend.running == [(uid(1), GPU_0)]
    node.paths.checkpoint.unlink()
    node.paths.prepared_file(uid(1)).write_text("{")
    plugin(node, backend).unprepare(ref_of(OBJECT))
    assert backend.running == []
    assert node.files() == set()


def test_third_parties_register_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        def __init__(self, name: str) -> None:
            self.name = name

        def load(self) -> type[RecordingBackend]:
            return RecordingBackend

    monkeypatch.setattr(isolation, "entry_points", lambda group: [Entry("vendor"), Entry("none")])
    found = isolation.backends()
    assert isinstance(found.get("vendor"), RecordingBackend)
    assert not isinstance(found.get("none"), RecordingBackend)
    assert found.names() == "none, vendor"
