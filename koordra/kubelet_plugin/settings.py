"""The operator's settings of one instance of the plugin, the command line as a value; where its files are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from koordra.kubelet_plugin.cdi import claim_spec
from koordra.kubelet_plugin.publish.devices import Mode
from koordra.kubelet_plugin.publish.resource_slices import Offering
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

    def cdi_file(self, uid: str) -> Path:
        return self.cdi / claim_spec.file_name(uid)


@dataclass(frozen=True, slots=True)
class Settings:
    """`mode` None follows the node's label; `pod_uid` distinguishes overlapping instances; `overlay` is a
    file that completes the machine's topology; `pod_network`: NICs go into the pods' networks (with the NRI
    hook's own `--pod-network`); `driver_root`: where the GPU driver's files are, `driver_root_on_host` what
    that folder is called on the host, where it is not the same; `limiter_context`: bytes that the limiter
    reserves for a context on a GPU, None to measure it; `limiter_strict`: it hides entry points of the driver
    that it does not know; `legacy_node_labels`: the Node gets the labels that removed GPU stacks used to
    publish (node_labels.py)."""

    node: str
    kubelet_root: Path
    paths: NodePaths
    mode: Mode | None = None
    offering: Offering = field(default_factory=Offering)
    pod_uid: str | None = None
    overlay: Path | None = None
    pod_network: bool = False
    driver_root: Path | None = None
    driver_root_on_host: Path | None = None
    limiter_context: int | None = None
    limiter_strict: bool = False
    legacy_node_labels: bool = False
