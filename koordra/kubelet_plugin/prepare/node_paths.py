"""Where the node keeps the files of its claims."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from koordra.kubelet_plugin.cdi import claim_spec
from koordra.node_state import layout


@dataclass(frozen=True, slots=True)
class NodePaths:
    """`root`: the machine ("/" but for tests and the demo); `state`: the plugin's own directory; `cdi`:
    dynamic CDI specs."""

    root: Path
    state: Path
    cdi: Path

    @property
    def checkpoint(self) -> Path:
        return self.state / "checkpoint.json"

    @property
    def guarded(self) -> Path:
        return layout.guarded_file(self.state)

    @property
    def prepared(self) -> Path:
        return self.state / layout.PREPARED

    @property
    def lock(self) -> Path:
        return self.state / "state.lock"

    def cdi_file(self, uid: str) -> Path:
        return self.cdi / claim_spec.file_name(uid)

    def prepared_file(self, uid: str) -> Path:
        return layout.prepared_file(self.state, uid)

    def network_file(self, uid: str) -> Path:
        return layout.network_file(self.state, uid)

    def documents(self, uid: str) -> Path:
        return layout.claim_folder(self.state, uid)
