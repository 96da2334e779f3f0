"""The cluster: which node takes a group of claims, and which of its devices.

    plan            the public function: every pending claim of a cluster, from plain objects (`manifests`)
    decide          the engine: one group, the best node and its devices, or why there is none
    explain         why a group fits nowhere
    index           the cluster, kept by the changes of its objects
    holders         what claims hold of pools, and pods of nodes
    node_class      which nodes are the same to a request
    request/        which claims are placed together, and which groups ask the same
    candidates/     the nodes for a request class, best first, and what the search said of them
    policy/         what a placement leaves for the claims that are to come, and what is known of them
    free_amounts/   nodes and requests as whole numbers
    mig/            cards that are cut into slices
    gang/           pods that start together or not at all
    defragment/     the fewest moves that free a shape

`policy` imports `free_amounts`, which imports `mig`, never the other way.

Pure: no I/O, no clock, no logger, and randomness only as a generator that the caller gives.
"""

from koordra.errors import PlanError
from koordra.placement.manifests import read_inventory
from koordra.placement.plan import Plan, engine_for, plan

__all__ = ["Plan", "PlanError", "engine_for", "plan", "read_inventory"]
