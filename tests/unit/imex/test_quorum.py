"""A gang's domain from end to end: plugins, `koordra imex` and daemons of two nodes.

Every part is the real one but NVIDIA's programs (tests/fakes/imex_daemon.py) and the API server."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds, names
from koordra.api.opaque.imex import ImexDomain
from koordra.api.resource_class import CONFIG_MAPS
from koordra.errors import PrepareError
from koordra.imex import supervisor as supervision
from koordra.imex.daemon import Daemon
from koordra.imex.supervisor import Supervisor
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.kubelet_plugin.prepare.imex_membership import ImexMembership
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory, inventory_of
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.node_state.disk import Disk
from koordra.node_state.imex import ImexFolder
from koordra.topology.presets import write_machine
from tests.fakes.kube_api import FakeKubeApi
from tests.fakes.node_claims import claim, result, uid
from tests.patience import PATIENCE
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of

DOUBLE = Path(__file__).parents[2] / "fakes" / "imex_daemon.py"
CLIQUE = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.32766"
TRAIN = ImexDomain("gang team-a/train", CLIQUE)
NET = f"127.{os.getpid() % 200 + 20}.1"
NODES = ("tray-a", "tray-b")


@pytest.fixture(scope="session")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> NodeInventory:
    root = tmp_path_factory.mktemp("tray")
    write_machine("gb200-nvl72", root, serial="tray")
    return inventory_of(discover(root), offering=Offering(imex=True))


class Node(PluginNode):
    """A tray with its plugin and its `koordra imex`."""

    def __init__(self, folder: Path, inventory: NodeInventory, number: int, api: Any) -> None:
        super().__init__(folder, inventory)
        self.name, self.address, self.api = NODES[number], f"{NET}.{number + 1}", api
        self.folder, self.stop = ImexFolder(self.paths.state), threading.Event()
        api.create(
            kinds.NODES,
            {
                "metadata": {"name": self.name},
                "status": {"addresses": [{"type": "InternalIP", "address": self.address}]},
            },
        )
        self.daemon = Daemon(self.command, self.folder.path)
        supervisor = Supervisor(self.folder, self.daemon, Disk(), lambda: 1.0)
        self.running = threading.Thread(target=supervisor.run, args=(self.stop,))
        self.running.start()

    def command(self, name: str, arguments: Sequence[str]) -> list[str]:
        own = f"IMEX_ADDRESS={self.address}"
        return ["env", own, sys.executable, str(DOUBLE), str(self.folder.path), name, *arguments]

    def unrepaired(self, disk: Disk | None = None, **more: Any) -> DeviceState:
        found = super().unrepaired(disk, **more)
        found._imex = ImexMembership(
            self.api,
            node=self.name,
            namespace="koordra-system",
            folder=self.folder,
            disk=Disk(),
        )
        return found

    def prepare(self, waits: int = 0) -> None:
        obj = claim(
            1, result("imex", names.IMEX_DEVICE, share="s" * 8, pool=self.name), config=[TRAIN.entry()]
        )
        self.claims.put(obj)
        state = self.plugin()
        state._waits = (0.05,) * waits
        state.prepare(ref_of(obj))

    def end(self) -> None:
        self.stop.set()
        self.running.join(PATIENCE)


@pytest.fixture
def trays(tmp_path: Path, inventory: NodeInventory, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Node]]:
    monkeypatch.setattr(supervision, "STEP", 0.02)
    api: Any = FakeKubeApi()
    api.create(
        CONFIG_MAPS,
        {
            "metadata": {"name": TRAIN.object_name, "namespace": "koordra-system"},
            "data": {str(number): name for number, name in enumerate(NODES)},
        },
    )
    found = [Node(tmp_path / name, inventory, number, api) for number, name in enumerate(NODES)]
    yield found
    for node in found:
        node.end()


LONG = int(PATIENCE * 20)


def refusal(node: Node) -> str:
    with pytest.raises(PrepareError) as caught:
        node.prepare(waits=1)
    return str(caught.value)


def test_every_pod_of_a_gang_waits_for_the_daemons_of_all_its_nodes(trays: list[Node]) -> None:
    one, two = trays
    assert any("waits for tray-b" in refusal(one) for _ in range(LONG)), "once its own daemon is ready"
    assert not one.holders()
    two.prepare(waits=LONG)
    one.prepare(waits=LONG)
    assert one.holders() == two.holders() == {uid(1)}

    first = two.daemon._process
    obj = two.claims.get("team-a", "claim-1")
    two.plugin().unprepare(ref_of(obj))
    assert first is not None
    first.wait(PATIENCE)
    assert first.returncode == 0, "it ended by SIGTERM, and told its peers"
    assert one.daemon.runs, "the other node's goes on"
