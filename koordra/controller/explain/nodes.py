"""One node: what it has, who holds what, what is free, and who waits that could run there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from koordra.api import kinds, names, objects
from koordra.api.objects import Fields, Object
from koordra.api.opaque.isolation import published_policy
from koordra.controller import claims as claims_of
from koordra.controller.cache.groups import Group
from koordra.controller.explain.claims import published
from koordra.controller.explain.device_rows import device_rows
from koordra.controller.explain.view import ClusterView

MOST_TRIED: Final = 64
"""Groups that wait, the most urgent, of which it is found out whether they fit."""


def node_document(view: ClusterView, node: Object) -> Object:
    name = objects.name(node)
    held = view.placer.engine.index.allocations.on(
        {(names.DRIVER, name)} | {_pool(one) for one in view.cache.slice_index.published(name)}
    )
    rules = view.cache.taint_rules.values()
    claims = [dict(one.claim) | {"kind": "ResourceClaim"} for one in held.values()]
    rows = device_rows([{**node, "kind": "Node"}, *_slices(view, name), *rules, *claims])
    tried = sorted(view.waiting.values(), key=lambda group: group.urgency)
    return {
        "name": name,
        "mode": _mode(node, rows),
        "ready": _is_ready(node),
        "schedulable": not objects.spec_of(node).get("unschedulable"),
        "taints": [_taint(taint) for taint in objects.spec_of(node).get("taints") or ()],
        "isolation": _backends(view, name),
        "devices": rows,
        "holders": [_holder(view, key, one.claim, name) for key, one in sorted(held.items())],
        "waiting": [_could_run(view, group, name) for group in tried[:MOST_TRIED]],
        "waitingMore": max(0, len(tried) - MOST_TRIED),
    }


def _slices(view: ClusterView, node: str) -> Iterable[Object]:
    return ({**one, "kind": kinds.RESOURCE_SLICES.kind} for one in view.cache.slice_index.published(node))


def _pool(entry: Fields) -> tuple[str, str]:
    spec = objects.spec_of(entry)
    return str(spec.get("driver")), str(objects.fields(spec.get("pool")).get("name"))


def _mode(node: Object, rows: Iterable[Fields]) -> str:
    """By what is published, for a change of the label takes a while; by the label where nothing is."""
    allocators = {row["allocator"] for row in rows} - {None}
    if names.ALLOCATOR_NOBODY in allocators:
        return "changing"
    if names.ALLOCATOR_SCHEDULER in allocators:
        return names.MODE_NATIVE
    return objects.labels_of(node).get(names.MODE_LABEL) or names.MODE_JOINT


def _is_ready(node: Object) -> bool:
    conditions = objects.status_of(node).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _taint(taint: Fields) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"


def _backends(view: ClusterView, node: str) -> list[str] | None:
    """The isolation backends that its GPUs are published with; None where they say nothing."""
    for one in published(view, [node]).values():
        policy = published_policy(one.plain)
        if policy is not None:
            return list(policy.allowed or ())
    return None


def _holder(view: ClusterView, key: str, claim: Fields, node: str) -> Object:
    return {
        "claim": key,
        "pods": [objects.name(pod) for pod in view.cache.pod_index.users.get(key, ())],
        "devices": [dict(result) for result in claims_of.results(claim) if result.get("pool") == node],
    }


def _could_run(view: ClusterView, group: Group, node: str) -> Object:
    """`fits`: it would have its devices here now."""
    off = view.excluded(group).get(node)
    info = view.placer.nodes.get(node)
    fits = off is None and info is not None and view.placer.fits(group, info, frozenset())
    why = off.detail if off is not None else None
    empty = not fits and off is None and info is not None and view.placer.fits_when_empty(group, info)
    return {
        "pods": [objects.key(pod) for pod in group.pods],
        "claims": [objects.key(claim) for claim in group.pending],
        "fits": fits,
        "fitsWhenEmpty": fits or empty,
        "why": why,
    }
