"""Where the node keeps the files of its claims."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from koordra.kubelet_plugin import prepared
from koordra.kubelet_plugin.cdi import claim_spec, container_files
from koordra.kubelet_plugin.network import network_files


@dataclass(frozen=True, slots=True)
class NodePaths:
    """`root`: the machine ("/" but for tests and the demo); `state`: the plugin's own directory; `cdi`: dynamic CDI specs."""

    root: Path
    state: Path
    cdi: Path

    @property
    def checkpoint(self) -> Path:
        return self.state / "checkpoint.json"

    @property
    def guarded(self) -> Path:
        return self.state / prepared.GUARDED_FILE

    @property
    def prepared(self) -> Path:
        return self.state / prepared.DIRECTORY

    @property
    def lock(self) -> Path:
        return self.state / "state.lock"

    def cdi_file(self, uid: str) -> Path:
        return self.cdi / claim_spec.file_name(uid)

    def prepared_file(self, uid: str) -> Path:
        return self.prepared / prepared.file_name(uid)

    def network_file(self, uid: str) -> Path:
        return network_files.network_file(self.state, uid)

    def documents(self, uid: str) -> Path:
        return container_files.folder(self.state, uid)
