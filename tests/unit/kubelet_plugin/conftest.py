"""A node of the HGX H100 preset: its machine on disk, its state directory, its CDI directory, and fresh
plugins on it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from koordra.api.objects import Object
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.checkpoint import Checkpoint, decode
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.isolation.card_calls import CardCalls, Runner, answered
from koordra.kubelet_plugin.isolation.packages import backends
from koordra.kubelet_plugin.network.consumers import Consumers
from koordra.kubelet_plugin.network.network_decision import UNMANAGED, NetworkPolicy
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory, inventory_of
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.settings import NodePaths
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.disk import Disk
from koordra.node_state.locks import CardLocks, StateLock
from koordra.topology.presets import write_machine
from koordra.topology.problems import Discovery
from tests.fakes.disks import StepDisk
from tests.fakes.node_claims import ANY_ISOLATION, NODE, FakeClaims
from tests.patience import PATIENCE

_patient = partial(answered, within=PATIENCE)


class PluginNode:
    """One node over several lives of the plugin. `inventory` may be replaced; `claims` is the API server."""

    def __init__(self, folder: Path, inventory: NodeInventory) -> None:
        self.paths = NodePaths(root=Path("/"), state=folder / "state", cdi=folder / "cdi")
        self.inventory = inventory
        self.name = NODE
        self.claims = FakeClaims()
        self.consumers: Callable[[Object], Consumers] | None = None
        self.backends = backends()
        self.policy = UNMANAGED
        self.hook: str | None = None
        self._nonces = itertools.count(1)

    def plugin(self, disk: Disk | None = None) -> DeviceState:
        """A freshly started process: nothing in memory, repaired."""
        state = self.unrepaired(disk)
        state.repair()
        return state

    def networked(
        self,
        consumers: Consumers | None,
        *,
        policy: NetworkPolicy | None = None,
        disk: Disk | None = None,
        hook: str | None = None,
    ) -> DeviceState:
        """One that gives the pods of these consumers their networks, if nothing else is said."""
        self.consumers = None if consumers is None else lambda _claim: consumers
        self.policy, self.hook = policy or NetworkPolicy(managed=True), hook
        return self.plugin(disk)

    def unrepaired(
        self,
        disk: Disk | None = None,
        *,
        lock: StateLock | None = None,
        patience: float = PATIENCE,
        run: Runner = _patient,
    ) -> DeviceState:
        """`patience`: seconds to wait for a card; `run` makes calls of backends."""
        hook = self.hook
        return DeviceState(
            node=self.name,
            paths=self.paths,
            claims=self.claims,
            consumers=self.consumers,
            inventory=lambda: self.inventory,
            backends=self.backends,
            disk=disk or StepDisk(),
            lock=lock,
            new_nonce=lambda: f"{next(self._nonces):032x}",
            policy=self.policy,
            hook_program=lambda: hook,
            calls=CardCalls(CardLocks(self.paths.cards, timeout=patience), run=run),
        )

    def checkpoint(self) -> Checkpoint:
        data = self.paths.checkpoint.read_bytes() if self.paths.checkpoint.exists() else None
        return decode(data) if data is not None else Checkpoint()

    def holders(self) -> set[str]:
        return {record.ref.uid for record in self.checkpoint().of_boot(self.inventory.boot_id)}

    def files(self) -> set[str]:
        """Every file in the CDI and prepared directories, and every claim's folder of documents."""
        return {
            str(path.relative_to(self.paths.state.parent))
            for folder in (self.paths.cdi, self.paths.prepared, self.paths.state / "claims")
            if folder.exists()
            for path in folder.iterdir()
        }

    def spec(self, uid: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.paths.cdi_file(uid).read_text())
        return found

    def shown(self, file: Path) -> str:
        """The file's text with the node's own folder written as `/node`."""
        return file.read_text().replace(str(self.paths.state.parent), "/node")

    def record(self, uid: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.paths.prepared_file(uid).read_text())
        return found


def ref_of(claim: dict[str, Any]) -> ClaimRef:
    metadata = claim["metadata"]
    return ClaimRef(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])


def prepare(node: PluginNode, obj: dict[str, Any]) -> Any:
    node.claims.put(obj)
    return node.plugin().prepare(ref_of(obj))


def refusal(node: PluginNode, obj: dict[str, Any]) -> str:
    with pytest.raises(PrepareError) as caught:
        prepare(node, obj)
    assert obj["metadata"]["uid"] not in node.holders()
    assert not any(obj["metadata"]["uid"] in name for name in node.files())
    return str(caught.value)


@pytest.fixture(scope="session")
def machine_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("machine")
    write_machine("hgx-h100", root, serial=NODE)
    return root


@pytest.fixture(scope="session")
def discovery(machine_root: Path) -> Discovery:
    return discover(machine_root)


@pytest.fixture(scope="session")
def inventory(discovery: Discovery) -> NodeInventory:
    return inventory_of(discovery, offering=Offering(isolation=ANY_ISOLATION))


@pytest.fixture
def node(tmp_path: Path, inventory: NodeInventory) -> PluginNode:
    return PluginNode(tmp_path, inventory)
