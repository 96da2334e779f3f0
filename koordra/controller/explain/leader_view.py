"""The leader's view: its indices as the last pass has left them."""

from __future__ import annotations

from functools import partial
from typing import Final

from koordra.api import objects
from koordra.controller.allocation.waiting_reasons import GroupPlacement
from koordra.controller.explain.view import ClusterView
from koordra.controller.reconcile.best_placement import best_placement
from koordra.controller.reconcile.reconciler import Reconciler

MOST_PARTS: Final = 8
"""Of a group that waits: the whole, and pods of it alone."""


def leader_view(reconciler: Reconciler) -> ClusterView:
    """Only between two passes, in the worker's thread."""
    allocation = reconciler.allocation
    return ClusterView(
        reconciler.cache,
        allocation.placer,
        allocation.queue.groups,
        allocation.gangs.all,
        allocation.gangs.statuses,
        allocation.excluded,
        partial(_forecast, reconciler),
        allocation.queue.beyond_quota,
        quotas=allocation.queue.quotas,
    )


def _forecast(reconciler: Reconciler, key: str) -> GroupPlacement | None:
    allocation = reconciler.allocation
    for group in allocation.queue.groups.values():
        if any(objects.key(claim) == key for claim in group.pending):
            parts = group.parts[:MOST_PARTS]
            return best_placement(
                parts, allocation.placer, [allocation.excluded(group, part) for part in parts]
            )
    return None
