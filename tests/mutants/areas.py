"""The modules in which a wrong character costs a tenant a device, by area. A package stands for the modules
in it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

AREAS: Final[dict[str, tuple[str, ...]]] = {
    "score": (
        "koordra.allocator.score",
        "koordra.allocator.selection_terms",
        "koordra.allocator.device_table",
        "koordra.allocator.devices.gpu_nic_distance",
        "koordra.allocator.devices.partitionable_gpu",
    ),
    "search": ("koordra.allocator.search", "koordra.allocator.group_search"),
    "lease": ("koordra.controller.reconcile.leadership",),
    "evictions": ("koordra.controller.reconcile.node_evictions", "koordra.evictions"),
    "health": ("koordra.process.watchdog", "koordra.process.progress", "koordra.nesting"),
    "writer": (
        "koordra.controller.allocation.writes",
        "koordra.controller.cache.assume_cache",
        "koordra.kube.watch",
    ),
    "publisher": ("koordra.kubelet_plugin.publish.publisher", "koordra.process.wakeable"),
    "lookups": ("koordra.controller.webhook.lookups",),
    "grants": (
        "koordra.controller.cache.immediate_claims",
        "koordra.controller.cache.claim_index",
        "koordra.controller.allocation.eviction.displacement",
    ),
    "events": ("koordra.controller.reporting.event_recorder",),
    "client": (
        "koordra.kube.client",
        "koordra.kube.wire",
        "koordra.process.backoff",
        "koordra.kube.request_limit",
    ),
    "checkpoint": ("koordra.kubelet_plugin.claims.checkpoint", "koordra.kubelet_plugin.prepare.device_state"),
    "policy": (
        "koordra.api.opaque.authority",
        "koordra.api.opaque.configuration",
        "koordra.api.opaque.isolation",
        "koordra.kubelet_plugin.prepare.isolated_shares",
    ),
    "isolation": (
        "koordra.kubelet_plugin.isolation.card_calls",
        "koordra.kubelet_plugin.isolation.card_looks",
        "koordra.kubelet_plugin.isolation.card_watch",
        "koordra.kubelet_plugin.isolation.hami_core",
        "koordra.kubelet_plugin.isolation.mig",
        "koordra.kubelet_plugin.isolation.mps",
        "koordra.kubelet_plugin.isolation.realisation",
        "koordra.kubelet_plugin.isolation.shares",
        "koordra.kubelet_plugin.isolation.timeslicing",
    ),
    "gangs": (
        "koordra.controller.gangs.membership",
        "koordra.controller.gangs.phase",
        "koordra.controller.gangs.seats.recorded",
        "koordra.controller.gangs.seats.job_owner",
        "koordra.controller.gangs.expected.seat_exchange",
        "koordra.controller.gangs.declared.gang_ref",
        "koordra.controller.gangs.declared.subgroups",
        "koordra.placement.gang.role_minimums",
    ),
    "hook": (
        "koordra.nri.hook.adjust",
        "koordra.nri.hook.ungranted_access",
        "koordra.nri.hook.validation",
        "koordra.nri.hook.grants",
    ),
}


def files(area: str) -> dict[str, Path]:
    """Module -> its file. LookupError for a module that has moved, since otherwise nobody would judge it any
    more."""
    found: dict[str, Path] = {}
    for name in AREAS[area]:
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            spec = None
        if spec is None or spec.origin is None:
            raise LookupError(
                f"tests/mutants/areas.py: {area}: there is no module {name}; write its new name"
            )
        if spec.submodule_search_locations is None:
            found[name] = Path(spec.origin)
        else:
            inner = sorted(Path(spec.origin).parent.glob("*.py"))
            found |= {name if path.stem == "__init__" else f"{name}.{path.stem}": path for path in inner}
    return found
