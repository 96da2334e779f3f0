"""The allocator: which devices the pending claims of a cluster get, jointly, and why some get none.

`plan()` is the one door. Pure: no I/O, no clock, no randomness, no logger. Reading order: plan (the way), groups,
requests, inventory, pools, eligibility, bounds, search, symmetry, joint, fabric, score, offer, diagnosis, relaxation.
"""

from koordra.allocator.cluster import read_inventory
from koordra.allocator.inventory import Inventory
from koordra.allocator.offer import Plan
from koordra.allocator.pairing_level import worst_level
from koordra.allocator.plan import plan
from koordra.allocator.reasons import Cause, ClaimRefused, Reason
from koordra.allocator.score import POLICIES
from koordra.errors import PlanError

__all__ = [
    "POLICIES",
    "Cause",
    "ClaimRefused",
    "Inventory",
    "Plan",
    "PlanError",
    "Reason",
    "plan",
    "read_inventory",
    "worst_level",
]
