"""The pod groups of others, which say how many members a gang needs. Each is read only where the server has it."""

from __future__ import annotations

from typing import Final

from koordra.api.kinds import Kind

POD_GROUPS_BETA: Final = Kind("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", namespaced=True)
POD_GROUPS_ALPHA: Final = Kind("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup", namespaced=True)
WORKLOADS_ALPHA: Final = Kind("scheduling.k8s.io", "v1alpha1", "workloads", "Workload", namespaced=True)
COSCHEDULING: Final = Kind("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", namespaced=True)
COSCHEDULING_OLD: Final = Kind("scheduling.sigs.k8s.io", "v1alpha1", "podgroups", "PodGroup", namespaced=True)
VOLCANO: Final = Kind("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", namespaced=True)

POD_GROUPS: Final = (
    POD_GROUPS_BETA,
    POD_GROUPS_ALPHA,
    WORKLOADS_ALPHA,
    COSCHEDULING,
    COSCHEDULING_OLD,
    VOLCANO,
)
