"""The operator's settings of one instance of the plugin, the command line as a value; where its files are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from koordra.kubelet_plugin.cdi import claim_spec
from koordra.kubelet_plugin.cdi.hook_program import HookProgram, folders_for
from koordra.kubelet_plugin.isolation.hami_core import FOLDER
from koordra.kubelet_plugin.nvidia_driver.driver_root import NamedRoot
from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource, HostRoot
from koordra.kubelet_plugin.publish.devices import Mode
from koordra.kubelet_plugin.publish.node_modes import NodeModes
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.node_state.layout import StateFolder


@dataclass(frozen=True, slots=True)
class NodePaths(StateFolder):
    """`state`: the plugin's own directory; `root`: the machine ("/" but for tests and the demo); `cdi`:
    dynamic CDI specs."""

    root: Path
    cdi: Path

    @property
    def checkpoint(self) -> Path:
        return self.state / "checkpoint.json"

    @property
    def lock(self) -> Path:
        return self.state / "state.lock"

    @property
    def cards(self) -> Path:
        """Locks of cards."""
        return self.state / "cards"

    def cdi_file(self, uid: str) -> Path:
        return self.cdi / claim_spec.file_name(uid)


@dataclass(frozen=True, slots=True)
class Settings:
    """`mode` None follows the node's label; `modes`: how a file says that this node's cards may be kept;
    `pod_uid` distinguishes overlapping instances; `overlay` is
    a file that completes the machine's topology; `pod_network`: NICs go into the pods' networks (with
    the NRI hook's own `--pod-network`); `roce_without_network`: what becomes of a RoCE NIC for a pod
    off the host's network without it; `network_pools`: the file of the operator's pools of addresses,
    `namespace`: that of the plugin; `host`: the host's `/`, where it is not the machine's root;
    `driver_root`: where the GPU driver lives, None to look for it; `limiter_context`: bytes that the
    limiter reserves for a context on a GPU, None to measure it; `limiter_strict`: it hides entry points
    of the driver that it does not know; `limiter_cores`: it limits device time, too;
    `legacy_node_labels`: the Node gets the labels that removed GPU stacks used to publish
    (node_labels.py); `hook_folder`: where the CDI hook is written on the node, None for the usual
    places (cdi/hook_program.py); `on_overuse`: what becomes of pods that use more than their share,
    report or evict (status/overuse_report.py); `hami_core`: the node's folder with HAMi's library."""

    node: str
    kubelet_root: Path
    paths: NodePaths
    mode: Mode | None = None
    offering: Offering = field(default_factory=Offering)
    modes: NodeModes = field(default_factory=NodeModes)
    pod_uid: str | None = None
    overlay: Path | None = None
    pod_network: bool = False
    host: HostRoot | None = None
    roce_without_network: Literal["report", "refuse"] = "report"
    network_pools: Path | None = None
    namespace: str = "koordra-system"
    driver_root: NamedRoot | None = None
    limiter_context: int | None = None
    limiter_strict: bool = False
    limiter_cores: bool = False
    legacy_node_labels: bool = False
    hook_folder: Path | None = None
    on_overuse: str = "report"
    hami_core: Path = Path(FOLDER)

    @property
    def hook_program(self) -> HookProgram:
        return HookProgram(folders_for(chosen=self.hook_folder, root=self.paths.root, state=self.paths.state))

    @property
    def homes(self) -> HomeSource:
        root = self.paths.root
        return HomeSource(self.host or HostRoot(root, root), root=root, named=self.driver_root)
