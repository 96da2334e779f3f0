"""A job as text and as a picture: domains as boxes in boxes, nodes in them, members with their rank and rails."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final
from xml.sax.saxutils import quoteattr

from koordra.topology.pictures.drawing.pen import PAPER, SANS, SOCKET, Pen, number
from koordra.topology.pictures.job import Job, JobMember

_BOX_WIDTH: Final = 250.0
_LINE: Final = 22.0
_PAD: Final = 12.0
_COLUMNS: Final = 4


def summary(job: Job) -> str:
    """One line: how many of what."""
    members = f"{len(job.members)} of {max((member.place.size for member in job.members), default=0)} members"
    parts = [members, _counted(job.nodes, "node")]
    parts += [_counted(job.domains(level), level) for level in reversed(job.levels)]
    if job.rails:
        same = "all members on the same" if job.same_rails else "members on different ones"
        parts.append(f"rails {','.join(job.rails)} ({same})")
    return ", ".join(parts)


def text_tree(job: Job) -> str:
    """The tree of domains with the members by rank."""
    lines = [f"job {job.namespace}/{job.name}: {summary(job)}"]
    shown: list[tuple[str, str]] = []
    for member in sorted(
        job.members, key=lambda member: (_path(job, member), member.node, member.place.rank)
    ):
        path = [*zip(job.levels, _path(job, member), strict=True), ("node", member.node)]
        same = 0
        while same < len(path) and shown[same : same + 1] == [path[same]]:
            same += 1
        for depth in range(same, len(path)):
            level, name = path[depth]
            lines.append(f"{'  ' * (depth + 1)}{level} {name or '(not named)'}")
        shown = path
        lines.append(f"{'  ' * (len(path) + 1)}{_words(member)}")
    return "\n".join(lines) + "\n"


def document(job: Job) -> dict[str, Any]:
    return {
        "job": job.name,
        "namespace": job.namespace,
        "nodes": job.nodes,
        "domains": {level: job.domains(level) for level in job.levels},
        "rails": list(job.rails),
        "sameRails": job.same_rails,
        "members": [
            {
                "rank": member.place.rank,
                "pod": member.pod,
                "node": member.node,
                "domains": dict(member.place.domains),
                "rails": list(member.place.rails),
                "devices": list(member.devices),
            }
            for member in job.members
        ],
    }


def svg(jobs: Sequence[Job]) -> str:
    """The jobs below each other, one box per narrowest domain, in it its nodes and their members."""
    pen = Pen()
    parts: list[tuple[Job, list[tuple[tuple[str, ...], list[JobMember]]]]] = [
        (job, [(path, list(own)) for path, own in groupby(_by_place(job), key=lambda one: _path(job, one))])
        for job in jobs
    ]
    heights = [_height(boxes) for _, boxes in parts]
    width = _COLUMNS * (_BOX_WIDTH + _PAD) + _PAD
    pen.rect(0, 0, width, sum(heights) + _PAD, fill=PAPER)
    top = _PAD
    for (job, boxes), height in zip(parts, heights, strict=True):
        pen.text(_PAD, top + 16, f"{job.namespace}/{job.name}", size=16, bold=True)
        pen.text(_PAD, top + 36, summary(job), size=12)
        y = top + 50
        for start in range(0, len(boxes), _COLUMNS):
            row = boxes[start : start + _COLUMNS]
            for column, (path, members) in enumerate(row):
                _box(pen, (_PAD + column * (_BOX_WIDTH + _PAD), y), path, members, job)
            y += max(_box_height(members) for _, members in row) + _PAD
        top += height
    return _document(pen, width, sum(heights) + _PAD)


def _document(pen: Pen, width: float, height: float) -> str:
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{number(width)}" height="{number(height)}" '
        f'viewBox="0 0 {number(width)} {number(height)}" font-family={quoteattr(SANS)} role="img">'
    )
    return "\n".join([opening, "<title>jobs</title>", *pen.elements, "</svg>"]) + "\n"


def _box(
    pen: Pen, at: tuple[float, float], path: tuple[str, ...], members: Sequence[JobMember], job: Job
) -> None:
    x, y = at
    pen.rect(x, y, _BOX_WIDTH, _box_height(members), fill=SOCKET[0], stroke=SOCKET[1], radius=4)
    named = [f"{level} {name}" for level, name in zip(job.levels, path, strict=True) if name]
    pen.text(x + 8, y + 16, " / ".join(named[-2:]) or "all nodes", size=12)
    line = y + 16 + _LINE
    for node, own in groupby(members, key=lambda member: member.node):
        pen.text(x + 14, line, node, size=12, bold=True)
        line += _LINE
        for member in own:
            pen.text(x + 22, line, _words(member), size=11)
            line += _LINE


def _by_place(job: Job) -> list[JobMember]:
    return sorted(job.members, key=lambda member: (_path(job, member), member.node, member.place.rank))


def _path(job: Job, member: JobMember) -> tuple[str, ...]:
    return tuple(member.place.domains.get(level, "") for level in job.levels)


def _box_height(members: Sequence[JobMember]) -> float:
    return _LINE * (len(members) + len({member.node for member in members}) + 1) + _PAD


def _height(boxes: Sequence[tuple[tuple[str, ...], list[JobMember]]]) -> float:
    rows = [boxes[start : start + _COLUMNS] for start in range(0, len(boxes), _COLUMNS)]
    return 50 + sum(max(_box_height(members) for _, members in row) + _PAD for row in rows) + _PAD


def _words(member: JobMember) -> str:
    rails = f", rails {','.join(member.place.rails)}" if member.place.rails else ""
    return (
        f"rank {member.place.rank}  {member.pod}  "
        f"{_counted(member.gpus, 'GPU')}, {_counted(member.nics, 'NIC')}{rails}"
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
