"""The cluster: which node takes a group of claims, and which of its devices.

    plan            the public function: every pending claim of a cluster, from plain objects
    manifests       the objects by kind; groups: the claims that are placed together
    ranked_nodes    which node to ask first in a large cluster; result_cache: what was solved is not solved again
    columns/        nodes and requests as columns of integers, a key per request class and node state
    policy/         what a placement leaves for the claims that are to come, and what is known of them
    node_filter/    selectors, taints and pods' words about nodes, judged once per sort of node
    mig/            cards that are cut into slices
    gang/           pods that start together or not at all
    defragment/     the fewest moves that free a shape

Pure: no I/O, no clock, no logger, and randomness only as a generator that the caller gives.
"""

from koordra.errors import PlanError
from koordra.placement.manifests import read_inventory
from koordra.placement.plan import Plan, plan

__all__ = ["Plan", "PlanError", "plan", "read_inventory"]
