"""The checks, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from koordra.kubelet_plugin.node_check.checks import (
    cgroup,
    driver,
    gpu_devices,
    gpu_state,
    koordra_node,
    kubelet,
    pcie,
    rdma,
    runtime,
)
from koordra.kubelet_plugin.node_check.readings.node import NodeReadings
from koordra.kubelet_plugin.node_check.result import CheckResult, Outcome, not_applicable

_LONGEST: Final = 2000


CHECKS: Final[dict[str, Callable[[NodeReadings], Outcome]]] = {
    "driver": driver.driver,
    "platform": driver.platform,
    "nvml": driver.nvml,
    "device-nodes": gpu_devices.device_nodes,
    "device-permissions": gpu_devices.device_permissions,
    "dev-char": gpu_devices.char_links,
    "gpu-memory": gpu_state.memory,
    "mig": gpu_state.mig,
    "mps": gpu_state.mps,
    "fabricmanager": gpu_state.fabricmanager,
    "imex": gpu_state.imex,
    "holders": gpu_devices.holders,
    "runtime": runtime.runtime,
    "cdi": runtime.cdi,
    "cdi-folder": runtime.cdi_folder,
    "nri": runtime.nri,
    "default-runtime": runtime.default_runtime,
    "oci-runtime": runtime.oci_runtime,
    "cgroup": cgroup.cgroup,
    "cgroup-driver": cgroup.cgroup_driver,
    "memlock": runtime.memlock,
    "access-control": cgroup.access_control,
    "rdma": rdma.rdma,
    "rdma-mode": rdma.mode,
    "rdma-ports": rdma.ports,
    "gpudirect": rdma.gpudirect,
    "pcie-links": pcie.links,
    "acs": pcie.acs,
    "iommu": pcie.iommu,
    "kubelet": kubelet.configuration,
    "cpu-manager": kubelet.cpu_manager,
    "memory-manager": kubelet.memory_manager,
    "topology-manager": kubelet.topology_manager,
    "device-plugins": koordra_node.device_plugins,
    "hami-core": koordra_node.hami_core,
    "koordra-plugin": koordra_node.plugin,
    "koordra-cdi-hook": koordra_node.cdi_hook,
    "koordra-nri": koordra_node.hook,
}
"""By name; docs/node-check.md says of each what is read and how it has to be."""


def check_node(node: NodeReadings) -> tuple[CheckResult, ...]:
    """What was found is one printable line: names of processes and values of files may be anything."""
    outcomes = {name: _outcome(check, node) for name, check in CHECKS.items()}
    return tuple(
        CheckResult(name, outcome.status, _printable(outcome.found), _printable(outcome.remedy))
        for name, outcome in outcomes.items()
    )


def _outcome(check: Callable[[NodeReadings], Outcome], node: NodeReadings) -> Outcome:
    """One check that fails takes neither the others nor the plugin's start with it."""
    try:
        return check(node)
    except Exception as error:  # noqa: BLE001  (a node that nobody has seen yet)
        return not_applicable(f"koordra's own check failed, report it: {type(error).__name__}: {error}")


def _printable(text: str) -> str:
    """Bounded, without line ends and escape sequences."""
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
