"""A card is kept in one way at a time: two claims that ask for different ways at once, by two instances of
the plugin, and a kill between any two steps of the first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from koordra.api.opaque.isolation import IsolationPolicy
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.claim_record import State
from koordra.kubelet_plugin.isolation.packages import backends
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.kubelet_plugin.publish.offering import Offering
from tests.fakes.disks import DyingDisk, Killed, StepDisk
from tests.fakes.isolation import JournalledBackend
from tests.fakes.node_claims import GPU_0, claim, gpu, parameters
from tests.patience import PATIENCE
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of

WAYS = ("mps", "timeslicing")
CLAIMS = {
    way: claim(
        number,
        gpu("gpu", GPU_0, "10Gi", share=f"s{number}"),
        config=[parameters("GpuConfig", isolation=way)],
    )
    for number, way in enumerate(WAYS, 1)
}


class Ways:
    """Two backends that set the same card, each in its own way."""

    def __init__(self, folder: Path, inventory: NodeInventory) -> None:
        offering = Offering(isolation=IsolationPolicy(WAYS))
        self.node = PluginNode(folder, replace(inventory, offering=offering))
        for obj in CLAIMS.values():
            self.node.claims.put(obj)
        self.made: dict[str, str] = {}
        self.card = {GPU_0: "as the operator set it"}
        self.touched: list[str] = []

    def plugin(self, disk: StepDisk | None = None) -> DeviceState:
        """As it is before it repairs anything."""
        disk = disk or StepDisk()
        own = []
        for way in WAYS:

            def step(name: str, way: str = way) -> None:
                disk.at_step(name, Path("backend"))
                self.touched.append(way)

            backend = JournalledBackend(self.made, self.card, step)
            backend.name = way  # type: ignore[misc]
            own.append(backend)
        self.node.backends = {**backends(), **{backend.name: backend for backend in own}}
        return self.node.unrepaired(disk)

    def ways(self) -> set[str]:
        return {record.isolation for record in self.node.checkpoint().cards}

    def end(self) -> None:
        """All claims end, and the card is as it was."""
        plugin = self.plugin()
        for obj in CLAIMS.values():
            plugin.unprepare(ref_of(obj))
        assert plugin.look_at_cards() == {}
        assert (self.card, self.made) == ({GPU_0: "as the operator set it"}, {})


def test_of_two_at_once_one_has_the_card_and_the_other_has_touched_nothing(
    tmp_path: Path, inventory: NodeInventory
) -> None:
    found = Ways(tmp_path, inventory)
    plugins, together = [found.plugin(), found.plugin()], Barrier(2)

    def prepare(plugin: DeviceState, way: str) -> str:
        together.wait(PATIENCE)
        try:
            plugin.prepare(ref_of(CLAIMS[way]))
        except PrepareError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor() as pool:
        answers = dict(zip(WAYS, pool.map(prepare, plugins, WAYS), strict=True))
    (winner,) = [way for way, refused in answers.items() if not refused]
    (refused,) = filter(None, answers.values())
    assert f"has a share with {winner}; a card is kept in one way at a time" in refused
    assert set(found.touched) == found.ways() == {winner}
    found.end()


@pytest.mark.long
@pytest.mark.parametrize("first", WAYS)
def test_killed_between_any_two_steps_the_other_way_waits_until_all_is_undone(
    first: str, tmp_path: Path, inventory: NodeInventory
) -> None:
    (second,) = {*WAYS} - {first}
    counted = StepDisk()
    Ways(tmp_path / "counted", inventory).plugin(counted).prepare(ref_of(CLAIMS[first]))
    for at in range(len(counted.steps)):
        found = Ways(tmp_path / str(at), inventory)
        with pytest.raises(Killed):
            found.plugin(DyingDisk(at)).prepare(ref_of(CLAIMS[first]))
        begun = found.node.checkpoint().claims
        found.touched.clear()
        if begun and any(device.isolation for device in begun[0].devices):
            with pytest.raises(PrepareError, match="a card is kept in one way at a time"):
                found.plugin().prepare(ref_of(CLAIMS[second]))
            assert second not in found.touched
        plugin = found.plugin()
        plugin.repair()
        if any(record.state is State.COMPLETED for record in found.node.checkpoint().claims):
            plugin.unprepare(ref_of(CLAIMS[first]))  # the last step was done
        plugin.prepare(ref_of(CLAIMS[second]))
        assert found.ways() == {second}
        with pytest.raises(PrepareError, match="a card is kept in one way at a time"):
            plugin.prepare(ref_of(CLAIMS[first]))
        found.end()
