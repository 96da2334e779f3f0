"""Policies by name, made for a target workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from koordra.errors import PlanError
from koordra.placement.columns.state import Kind
from koordra.placement.policy.workload import Workload
from koordra.placement.policy.workload_table import Table
from koordra.simulation.baseline_policies import SCORES, BaselinePolicy
from koordra.simulation.expected_waste import NAME, ExpectedWaste
from koordra.simulation.fgd import Fgd, Target
from koordra.simulation.fleet import Policy

NAMES: Final = (*SCORES, "fgd", NAME)


def policy_named(name: str, kinds: Sequence[Kind], workload: Workload, table: Table | None = None) -> Policy:
    """A fresh policy; `table` is what `koordra` knows. Raises PlanError for an unknown name."""
    if name in SCORES:
        return BaselinePolicy(name, SCORES[name])
    if name not in NAMES:
        raise PlanError(f"{name!r} is not a policy; policies are {', '.join(NAMES)}")
    return Fgd(Target(workload.popular(), kinds)) if name == "fgd" else ExpectedWaste(kinds, table)
