"""NVLink below the GPUs: one bar for a fabric that joins all alike, arcs for GPUs that are wired to each
other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import Final

from koordra.topology.machine import level
from koordra.topology.pictures.drawing.pen import NVLINK, NVLINK_DARK, PAPER, Pen
from koordra.topology.pictures.drawing.plan import GPU_SIZE, Plan, Tile

_FABRIC_HEIGHT: Final = 46.0
_DEEPEST: Final = 150.0


def nvlink_height(plan: Plan) -> float:
    """How much room the links take below the panels."""
    pairs = _pairs(plan.gpus())
    if _is_fabric(plan.gpus(), pairs):
        return _FABRIC_HEIGHT
    return max((_depth(a, b) + 10 for a, b, _ in pairs), default=0)


def draw_nvlinks(pen: Pen, plan: Plan) -> None:
    """Links from the lower edges of the GPU tiles."""
    tiles = plan.gpus()
    pairs = _pairs(tiles)
    top = plan.gpu_row + GPU_SIZE[1]
    if _is_fabric(tiles, pairs):
        _fabric(pen, tiles, pairs[0][2], top, plan.bottom)
    else:
        _mesh(pen, pairs, top, plan.bottom)


def _pairs(tiles: Sequence[Tile]) -> list[tuple[Tile, Tile, int]]:
    return [(a, b, links) for a, b in combinations(tiles, 2) if (links := level(a.device, b.device)[1])]


def _is_fabric(tiles: Sequence[Tile], pairs: Sequence[tuple[Tile, Tile, int]]) -> bool:
    everyone = len(tiles) * (len(tiles) - 1) // 2
    return len(tiles) > 2 and len(pairs) == everyone and len({links for _, _, links in pairs}) == 1


def _fabric(pen: Pen, tiles: Sequence[Tile], links: int, top: float, panels_end: float) -> None:
    bar = panels_end + 28
    left, right = min(tile.x for tile in tiles), max(tile.x + tile.width for tile in tiles)
    for tile in tiles:
        for offset in (-9, -3, 3, 9):
            pen.line(tile.middle + offset, top, tile.middle + offset, bar, stroke=NVLINK, width=2.6)
    pen.rect(left, bar, right - left, 34, fill=NVLINK_DARK, radius=9)
    text = f"NVSwitch fabric: NV{links} between every pair, {links} links from each GPU"
    pen.text((left + right) / 2, bar + 22.5, text, size=16, fill=PAPER, bold=True, anchor="middle")


def _mesh(pen: Pen, pairs: Sequence[tuple[Tile, Tile, int]], top: float, panels_end: float) -> None:
    """Wide arcs first, so that the short ones lie on top of them. Feet are spread along the tile, nearest
    inside."""
    y = panels_end + 6
    feet = _feet(pairs)
    for a, b, links in sorted(pairs, key=lambda pair: -_depth(pair[0], pair[1])):
        x1, x2 = feet[a, b], feet[b, a]
        depth = _depth(a, b)
        width, colour = (5.0, NVLINK_DARK) if links > 1 else (2.4, NVLINK)
        d = (
            f"M{x1:.1f} {top:.1f} V{y:.1f} C{x1:.1f} {y + depth * 1.33:.1f} "
            f"{x2:.1f} {y + depth * 1.33:.1f} {x2:.1f} {y:.1f} V{top:.1f}"
        )
        pen.add("path", d=d, fill="none", stroke=colour, stroke_width=width, stroke_linecap="round")
        pen.note(f"NV{links}")
    few = len(pairs) <= len({tile for tile, _ in feet})
    for a, b, links in pairs if few else ():
        middle = (feet[a, b] + feet[b, a]) / 2
        pen.rect(middle - 22, y + _depth(a, b) - 9, 44, 18, fill=PAPER, stroke=NVLINK_DARK, radius=9)
        pen.text(middle, y + _depth(a, b) + 4, f"NV{links}", size=11, bold=True, anchor="middle")


def _feet(pairs: Sequence[tuple[Tile, Tile, int]]) -> dict[tuple[Tile, Tile], float]:
    """Where on a tile's edge the arc to another starts: arcs to the left on the left, longer ones further
    inside."""
    joined: defaultdict[Tile, list[Tile]] = defaultdict(list)
    for one, other, _ in pairs:
        joined[one].append(other)
        joined[other].append(one)
    feet = {}
    for tile, others in joined.items():
        # Those on the left first; on each side from right to left.
        others.sort(key=lambda other: (other.x > tile.x, -other.x))
        step = (tile.width - 24) / max(1, len(others) - 1)
        for place, other in enumerate(others):
            feet[tile, other] = tile.middle if len(others) == 1 else tile.x + 12 + place * step
    return feet


def _depth(a: Tile, b: Tile) -> float:
    return min(_DEEPEST, 18 + 0.11 * abs(a.middle - b.middle))
