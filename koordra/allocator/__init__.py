"""The allocator: the devices that one group of claims gets on one node, jointly, or why it gets none.

Pure: no I/O, no clock, no randomness, no logger. Which node of a cluster is `koordra.placement`. Reading order: requests,
inventory, pools, eligibility, bounds, search, symmetry, joint, fabric, score, offer, diagnosis, relaxation.
"""

from koordra.allocator.inventory import Inventory
from koordra.allocator.pairing_level import worst_level
from koordra.allocator.reasons import Cause, ClaimRefused, Reason
from koordra.allocator.score import POLICIES

__all__ = ["POLICIES", "Cause", "ClaimRefused", "Inventory", "Reason", "worst_level"]
