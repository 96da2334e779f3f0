"""Extended resources by which other programs give out NVIDIA GPUs: who they are, and what of them a node offers. Pure.

koordra publishes no extended resources, so whatever of these a Node has in status.allocatable, above zero, somebody else's
device plugin (or node agent) put there, and would give out cards that koordra gives out too.
"""

from __future__ import annotations

from koordra.api import objects
from koordra.api.objects import Object
from koordra.compat.dialects import DIALECTS
from koordra.errors import InvalidQuantity
from koordra.quantity import parse


def offered_by_others(node: Object) -> tuple[str, ...]:
    """Names of the resources, in order."""
    amounts = objects.status_of(node).get("allocatable")
    if not isinstance(amounts, dict):
        return ()
    return tuple(
        sorted(str(name) for name, value in amounts.items() if _publisher(str(name)) and _some(value))
    )


def publishers(resources: tuple[str, ...]) -> str:
    """Who is behind them, in words."""
    return " and ".join(dict.fromkeys(_publisher(name) for name in resources))


def _publisher(name: str) -> str:
    publishers = (publisher for dialect in DIALECTS for publisher in dialect.publishers)
    return next((whose for prefix, whose in publishers if name.startswith(prefix)), "")


def _some(value: object) -> bool:
    """Above zero; what cannot be read counts, since somebody wrote it."""
    try:
        return parse(value) > 0
    except InvalidQuantity:
        return True
