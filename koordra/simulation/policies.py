"""Policies by name, made for a target workload."""

from __future__ import annotations

from typing import Final

from koordra.errors import PlanError
from koordra.placement.columns.fleet import Policy
from koordra.placement.policy.expected_waste import ExpectedLeftover
from koordra.placement.policy.workload import Workload
from koordra.placement.policy.workload_table import Table
from koordra.simulation.baseline_policies import BestFit, DotProduct, GpuClustering, GpuPacking, Random
from koordra.simulation.fgd import Fgd

DEFAULT: Final = "koordra"
BASELINES: Final = ("random", "best-fit", "dot-product", "gpu-packing", "gpu-clustering", "fgd")
NAMES: Final = (*BASELINES, DEFAULT)


def policy_named(name: str, workload: Workload, table: Table | None = None) -> Policy:
    """A fresh policy; `table` is what `koordra` knows. Raises PlanError for an unknown name."""
    if name == "fgd":
        return Fgd(workload.popular())
    if name == DEFAULT:
        return ExpectedLeftover(table)
    for known in (Random, BestFit, DotProduct, GpuPacking, GpuClustering):
        if known.name == name:
            return known()
    raise PlanError(f"{name!r} is not a policy; policies are {', '.join(NAMES)}")
