"""The node's checks, once, when the kubelet plugin starts: a problem is a line of the log, and a metric."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.node_check.check_node import CHECKS, check_node
from koordra.kubelet_plugin.node_check.readings.live_node import LiveNode
from koordra.kubelet_plugin.node_check.readings.node import read_node
from koordra.logs import get_logger
from koordra.metrics import Metrics, gauge

log = get_logger(__name__)

OWN: Final = "koordra-"
"""Checks of koordra's own parts: they start at the same time."""

PROBLEM: Final = gauge(
    "koordra_node_check_problem",
    "1 for a check of the node that found a problem when the plugin started; 0 where it is ok, or concerns nothing that is here",
    check=(name for name in CHECKS if not name.startswith(OWN)),
)


class NodeCheckAtStart:
    """`host_root`: where the host's files are, as this process sees them."""

    def __init__(self, metrics: Metrics, host_root: Path, *, cdi_folder: str) -> None:
        self._host_root = host_root
        self._cdi_folder = cdi_folder
        self._problems = metrics.gauge(PROBLEM)

    def run(self, *, live: LiveNode | None = None) -> None:
        results = [
            result
            for result in check_node(read_node(self._host_root, live=live, cdi_folder=self._cdi_folder))
            if not result.name.startswith(OWN)
        ]
        for result in results:
            self._problems.labels(result.name).set(result.status == "problem")
            if result.status == "problem":
                log.warning("node_check_problem", check=result.name, found=result.found, remedy=result.remedy)
        problems = sum(result.status == "problem" for result in results)
        log.info("node_checked", problems=problems, checks=len(results))
