"""The words for what a placement's written cost is made of, and for what decides between two of them. They
stand apart from `score`, so that who only prints them imports no search."""

from __future__ import annotations

from typing import Final

TERMS: Final = (
    "relaxation",
    "alternatives",
    "nearness",
    "nvlink",
    "compactness",
    "brokenGroups",
    "destroyedPlaces",
    "leftover",
)
"""The words for the terms of the written cost, in the order of the table in `score`."""
_LAST_OF_THE_CLAIM: Final = "compactness"
CLAIM_TERMS: Final = frozenset(TERMS[: TERMS.index(_LAST_OF_THE_CLAIM) + 1])
"""Those that are about the claim under TopologyAware; the rest is about the cluster."""

SOFT_TAINTS: Final = "softTaints"
SCORING_STRATEGY: Final = "scoringStrategy"
EXPECTED_WASTE: Final = "expectedWaste"
NAME: Final = "name"
"""The words besides TERMS for what decides: PreferNoSchedule taints of the node, how full it is by the
operator's weights, what the workload is expected to leave unusable, and the node that is named first."""
