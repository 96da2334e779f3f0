"""Which policy places a group: what its claims say, before what the cluster says, before the default."""

from __future__ import annotations

import pytest

from koordra.allocator.score import POLICIES, effective_policy, policy_of
from koordra.api import names
from koordra.api.opaque.parameters import DevicePolicy, NodePolicy, PlacementPolicy

SILENT = PlacementPolicy()
SPREADS_NODES = PlacementPolicy(node=NodePolicy.SPREAD)
PACKS = PlacementPolicy(NodePolicy.BINPACK, DevicePolicy.BINPACK)


@pytest.mark.parametrize(
    ("of_claims", "policy", "expected"),
    [
        ((), None, policy_of(names.DEFAULT_POLICY)),
        ((SILENT, SILENT), None, policy_of(names.DEFAULT_POLICY)),
        ((SILENT,), PACKS, PACKS),
        ((SILENT,), SPREADS_NODES, PlacementPolicy(NodePolicy.SPREAD, DevicePolicy.TOPOLOGY_AWARE)),
        ((SILENT, SPREADS_NODES, PACKS), None, PlacementPolicy(NodePolicy.SPREAD, DevicePolicy.BINPACK)),
        ((PACKS, SPREADS_NODES), policy_of("Spread"), PACKS),
    ],
    ids=[
        "nothing",
        "silent claims",
        "the cluster's",
        "half of the cluster's",
        "halves of two claims",
        "the first claim",
    ],
)
def test_the_first_that_names_a_half_decides_it(
    of_claims: tuple[PlacementPolicy, ...], policy: PlacementPolicy | None, expected: PlacementPolicy
) -> None:
    assert effective_policy(of_claims, policy) == expected


def test_the_default_is_one_of_the_policies() -> None:
    assert names.DEFAULT_POLICY in POLICIES
