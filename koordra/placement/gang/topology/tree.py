"""The tree of domains that a gang's nodes stand in, cut down to the levels that tell nodes apart.

    all nodes ─▶ zone ─▶ core ─▶ spine ─▶ block ─▶ nvlink ─▶ nodes of one kind

Levels that no node knows are left out. Of a domain only what placement needs is kept: its level, its path, its parts (by name, as people
count), how many fixed members are in it, and whether it is untouched (nobody holds a device in it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from koordra.placement.gang.member_classes import natural

Path = tuple[str, ...]


@dataclass(slots=True)
class Domain:
    """`level` numbers the levels that are left, -1 is the root; `nodes` only below the narrowest level."""

    level: int
    path: Path
    parts: list[Domain] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    fixed: int = 0
    untouched: bool = True
    known: bool = True
    """Whether a label names the domain; what is not known cannot be promised (a required level)."""


def tree_of(
    places: Mapping[str, Path],
    *,
    fixed: Mapping[str, int],
    touched: frozenset[str],
) -> Domain:
    """The tree of these nodes. `fixed` counts fixed members by node, `touched` are nodes whose devices somebody holds."""
    root = Domain(-1, ())
    known: dict[Path, Domain] = {(): root}
    for node in sorted(places, key=natural):
        path = places[node]
        chain = [root]
        for depth in range(1, len(path) + 1):
            domain = known.get(path[:depth])
            if domain is None:
                domain = known[path[:depth]] = Domain(depth - 1, path[:depth], known=bool(path[depth - 1]))
                chain[-1].parts.append(domain)
            chain.append(domain)
        chain[-1].nodes.append(node)
        for domain in chain:
            domain.fixed += fixed.get(node, 0)
            domain.untouched = domain.untouched and node not in touched
    _sort(root)
    return root


def _sort(domain: Domain) -> None:
    domain.parts.sort(key=lambda part: natural(part.path[-1]))
    for part in domain.parts:
        _sort(part)


def domains_at(root: Domain, level: int) -> list[Domain]:
    """All domains of one level, in order."""
    if root.level == level:
        return [root]
    return [found for part in root.parts for found in domains_at(part, level)]
