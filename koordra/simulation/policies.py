"""Policies by name, made for a target workload."""

from __future__ import annotations

from typing import Final

from koordra.errors import PlanError
from koordra.placement.columns.fleet import Policy
from koordra.placement.policy.expected_waste import ExpectedWaste
from koordra.placement.policy.workload import Workload
from koordra.placement.policy.workload_table import Table
from koordra.simulation.baseline_policies import SCORES, BaselinePolicy
from koordra.simulation.fgd import Fgd

DEFAULT: Final = "koordra"
NAMES: Final = (*SCORES, "fgd", DEFAULT)


def policy_named(name: str, workload: Workload, table: Table | None = None) -> Policy:
    """A fresh policy; `table` is what `koordra` knows. Raises PlanError for an unknown name."""
    if name in SCORES:
        return BaselinePolicy(name, SCORES[name])
    if name not in NAMES:
        raise PlanError(f"{name!r} is not a policy; policies are {', '.join(NAMES)}")
    return Fgd(workload.popular()) if name == "fgd" else ExpectedWaste(table)
