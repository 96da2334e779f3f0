"""A node whose hook does everything it can: it verifies every second, tells the API, and validates where the
runtime can ask. Containers that nobody adjusted are counted here; what the hook says of them is read from its
log and metrics."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from koordra_devcluster.demo.installation import free_port
from tests.e2e.containerd import Containerd
from tests.e2e.node import NODE, KoordraNode, Process
from tests.patience import PATIENCE

BUNDLES = "state/io.containerd.runtime.v2.task/k8s.io"


class WatchedNode(KoordraNode):
    """`folder` as in KoordraNode; `runtime` is where the containers run."""

    def __init__(self, folder: Path, runtime: Containerd, *, extra: Sequence[object] = ()) -> None:
        super().__init__(folder, cdi=runtime.cdi, nri_socket=runtime.nri_socket)
        self.port = free_port()
        self._hook_arguments = [
            "nri",
            *("--node-name", NODE, "--state-dir", self.state, "--socket", runtime.nri_socket),
            *("--bundles", runtime.folder / BUNDLES, "--verify-period", "1", "--root", self.root),
            *("--kubeconfig", folder / "api" / "kubeconfig"),
            *extra,
        ]
        self._folder_of_logs = folder
        self.hook = self.another_hook("nri", port=self.port)

    def another_hook(self, name: str, *, port: int | None = None, extra: Sequence[object] = ()) -> Process:
        """One more process with the same arguments; two of them take turns."""
        address = ["--metrics-address", f"127.0.0.1:{port or free_port()}"]
        return Process(name, [*self._hook_arguments, *address, *extra], self._folder_of_logs)

    def metric(self, name: str) -> float:
        """One sample of the first hook's metrics, by its name with labels; 0 where there is none."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE) as answer:
            text = answer.read().decode()
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0
