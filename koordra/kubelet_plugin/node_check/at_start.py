"""The node's checks, once, when the kubelet plugin starts: a problem is a line of the log, and a metric."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.node_check.check_node import check_node
from koordra.kubelet_plugin.node_check.readings.live_node import LiveNode
from koordra.kubelet_plugin.node_check.readings.node import read_node
from koordra.logs import get_logger
from koordra.metrics import Metrics

log = get_logger(__name__)

OWN: Final = "koordra-"
"""Checks of koordra's own parts: they start at the same time."""


class NodeCheckAtStart:
    """`host_root`: where the host's files are, as this process sees them."""

    def __init__(self, metrics: Metrics, host_root: Path, *, cdi_folder: str) -> None:
        self._host_root = host_root
        self._cdi_folder = cdi_folder
        self._problems = metrics.gauge(
            "koordra_node_check_problem",
            "Whether the check of the node found a problem when the plugin started.",
            ["check"],
        )

    def run(self, *, live: LiveNode | None = None) -> None:
        results = [
            result
            for result in check_node(read_node(self._host_root, live=live, cdi_folder=self._cdi_folder))
            if not result.name.startswith(OWN)
        ]
        for result in results:
            if result.status == "not-applicable":
                continue
            self._problems.labels(result.name).set(result.status == "problem")
            if result.status == "problem":
                log.warning("node_check_problem", check=result.name, found=result.found, remedy=result.remedy)
        problems = sum(result.status == "problem" for result in results)
        log.info("node_checked", problems=problems, checks=len(results))
