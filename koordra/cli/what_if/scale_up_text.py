"""What new nodes would do, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from koordra.allocator.explain.telling import lines
from koordra.cli.output import Document
from koordra.controller.autoscale.node_groups import NodeGroup
from koordra.controller.autoscale.scale_up import Counts, ScaleUp
from koordra.inert import inert

MOST_LINES: Final = 8
"""Of reasons for one claim."""
MOST_CLAIMS: Final = 20
"""Named in one line."""


def scale_up_document(found: ScaleUp, groups: Sequence[NodeGroup]) -> Document:
    return {
        "groups": [
            {"name": one.name, "machine": one.machine, "nodes": found.counts[one.name], "max": one.most}
            for one in groups
        ],
        "fits": {
            key: {"group": fit.group, "node": fit.planned.node, "level": fit.planned.level}
            for key, fit in sorted(found.fits.items())
        },
        "waits": {key: [reason.to_dict() for reason in why] for key, why in sorted(found.waits.items())},
        "beyondMax": {"nodes": dict(found.beyond), "claims": sorted(found.fits_beyond)},
    }


def scale_up_text(found: ScaleUp, groups: Sequence[NodeGroup]) -> str:
    """Empty where nothing waits."""
    parts = []
    if found.fits:
        nodes = _nodes(found.counts, groups)
        parts.append(f"With {nodes or 'the nodes that are there'} these claims fit:\n  {_named(found.fits)}")
    if found.fits_beyond:
        larger, named = _nodes(found.beyond, groups), _named(found.fits_beyond)
        parts.append(
            f"Beyond the max of the groups:\n  {named}\n  fit with {larger}: {_raise(found, groups)}"
        )
    for key in sorted(found.waits.keys() - set(found.fits_beyond)):
        title = f"No new node of {_one_of([one.name for one in groups])} helps: {inert(key)}"
        parts.append("\n".join([title, *(f"  {line}" for line in lines(found.waits[key], most=MOST_LINES))]))
    return "\n\n".join(parts)


def _nodes(counts: Counts, groups: Sequence[NodeGroup]) -> str:
    """`2 new nodes of group h100 (hgx-h100)`."""
    wanted = [(counts[one.name], one) for one in groups if counts[one.name]]
    texts = [
        f"{number} new node{'s' * (number > 1)} of group {one.name} ({inert(one.machine)})"
        for number, one in wanted
    ]
    return " and ".join(texts)


def _raise(found: ScaleUp, groups: Sequence[NodeGroup]) -> str:
    short = [one for one in groups if found.beyond[one.name] > found.counts[one.name]]
    return f"raise the max of {', '.join(f'{one.name} ({one.most})' for one in short)}"


def _one_of(names: Sequence[str]) -> str:
    return f"group {names[0]}" if len(names) == 1 else f"groups {', '.join(names)}"


def _named(keys: Iterable[str]) -> str:
    named = sorted(map(inert, keys))
    more = len(named) - MOST_CLAIMS
    return ", ".join(named[:MOST_CLAIMS]) + (f" and {more} more" if more > 0 else "")
