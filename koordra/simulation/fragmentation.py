"""FGD's fragmentation: the free GPU of the cluster that pods of the target workload cannot use.

    F_n(m) = R if m wants no GPU, or its model is not there, or cores or fitting GPUs do not suffice;
             otherwise the sum of g_i over GPUs with less free than m asks of each
    F_n    = sum over the target workload of p_m F_n(m);       the cluster's F is the sum over nodes

R is the node's free GPU, g_i that of GPU i.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from koordra.placement.columns.fleet import Fleet
from koordra.placement.policy.workload import Popular


def fragmented(fleet: Fleet, target: Sequence[Popular]) -> float:
    """F of the cluster, in thousandths of GPU."""
    slots = fleet.slots
    used = [slot for slot, state in enumerate(slots.states) if state is not None]
    counts = np.bincount(fleet.slot_of_node[fleet.slot_of_node >= 0], minlength=slots.used)[used]
    gpus, cpu, kind = np.maximum(slots.gpus[used], 0), slots.cpu[used], slots.kind[used]
    rest = gpus.sum(axis=1)
    total = np.zeros(len(used))
    for request, part in target:
        if not request.gpus:
            total += part * rest
            continue
        models = np.array([not request.models or one.model in request.models for one in fleet.kinds])
        fits = (gpus >= request.milli).sum(axis=1) >= request.gpus
        fits &= (cpu >= request.cpu) & models[kind]
        small = np.where(gpus < request.milli, gpus, 0).sum(axis=1)
        total += part * np.where(fits, small, rest)
    return float(total @ counts)
