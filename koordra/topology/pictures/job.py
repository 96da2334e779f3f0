"""A placed job as values (its members by rank, the domains they are in, their rails), as text and as a
picture.

Read from claims with an allocation: the controller's `GangMember` entry says rank and domains, the results
say node and devices, `reservedFor` the pod. In the picture domains are boxes in boxes, nodes in them, members
with their rank and rails.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.allocation import Allocation
from koordra.api.objects import Fields
from koordra.api.opaque.gang_member import GangMember, decode_gang_member, is_gang_member
from koordra.topology.pictures.drawing.pen import PAPER, SOCKET, Pen

_Placed = tuple[Fields, GangMember, Allocation]


@dataclass(frozen=True, slots=True)
class JobMember:
    """`devices` are those of koordra's that the member holds, by name."""

    pod: str
    node: str
    place: GangMember
    devices: tuple[str, ...]

    @property
    def gpus(self) -> int:
        return sum(device.startswith("gpu-") for device in self.devices)

    @property
    def nics(self) -> int:
        return sum(device.startswith("nic-") for device in self.devices)


@dataclass(frozen=True, slots=True)
class Job:
    """`members` by rank. Members without a claim (a launcher) hold nothing that could be read, and are not
    there."""

    name: str
    namespace: str
    members: tuple[JobMember, ...]

    @property
    def levels(self) -> tuple[str, ...]:
        """Wide to narrow, as the members' domains name them."""
        return tuple(dict.fromkeys(level for member in self.members for level in member.place.domains))

    @property
    def nodes(self) -> int:
        return len({member.node for member in self.members})

    @property
    def rails(self) -> tuple[str, ...]:
        """Those with numbers first, in their order."""
        found = {rail for member in self.members for rail in member.place.rails}
        numbers = sorted(filter(str.isdecimal, found), key=int)
        return *numbers, *sorted(found.difference(numbers))

    def path(self, member: JobMember) -> tuple[str, ...]:
        """The member's domain on each level."""
        return tuple(member.place.domains.get(level, "") for level in self.levels)

    def domains(self, level: str) -> int:
        at = self.levels.index(level) + 1
        return len({self.path(member)[:at] for member in self.members})

    def by_place(self) -> list[JobMember]:
        return sorted(self.members, key=lambda member: (self.path(member), member.node, member.place.rank))

    @property
    def same_rails(self) -> bool:
        """Whether all members are on the same rails."""
        return len({frozenset(member.place.rails) for member in self.members if member.nics}) <= 1


def jobs_of(claims: Iterable[Fields]) -> list[Job]:
    """All jobs that the claims belong to, by namespace and name. Raises InvalidInput for an entry that cannot
    be read."""
    members: defaultdict[tuple[str, str, int], list[_Placed]] = defaultdict(list)
    for claim in sorted(claims, key=objects.key):
        allocation = Allocation.of_claim(claim)
        if allocation and (place := member_of(allocation, claim=objects.key(claim))):
            members[objects.namespace(claim), place.gang, place.rank].append((claim, place, allocation))
    return [
        Job(name, namespace, tuple(_member(members[key]) for key in keys))
        for (namespace, name), keys in groupby(sorted(members), key=itemgetter(0, 1))
    ]


def member_of(allocation: Allocation, *, claim: str) -> GangMember | None:
    """What the allocation says of the gang's member that holds it."""
    for index, entry in enumerate(allocation.config):
        opaque = entry.get("opaque")
        if isinstance(opaque, Mapping) and opaque.get("driver") == names.DRIVER:
            parameters = opaque.get("parameters")
            if is_gang_member(parameters):
                field = f"status.allocation.devices.config[{index}].opaque.parameters"
                return decode_gang_member(parameters, object=f"ResourceClaim {claim}", field=field)
    return None


def _member(claims: Sequence[_Placed]) -> JobMember:
    first, place, _ = claims[0]
    held = [
        result.device
        for _, _, allocation in claims
        for result in allocation.results
        if result.device.driver == names.DRIVER
    ]
    consumers = objects.status_of(first).get("reservedFor") or ()
    pods = [str(entry.get("name")) for entry in consumers if entry.get("resource") == "pods"]
    owners = [str(entry.get("name")) for entry in objects.metadata(first).get("ownerReferences") or ()]
    return JobMember(
        pod=", ".join(pods or owners) or objects.name(first),
        node=held[0].pool if held else "",
        place=place,
        devices=tuple(dict.fromkeys(device.device for device in held)),
    )


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
    for member in job.by_place():
        path = [*zip(job.levels, job.path(member), strict=True), ("node", member.node)]
        for depth, (level, name) in enumerate(path, start=1):
            if shown[:depth] != path[:depth]:
                lines.append(f"{'  ' * depth}{level} {name or '(not named)'}")
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
    width, top = _COLUMNS * (_BOX_WIDTH + _PAD) + _PAD, _PAD
    for job in jobs:
        pen.text(_PAD, top + 16, f"{job.namespace}/{job.name}", size=16, bold=True)
        pen.text(_PAD, top + 36, summary(job), size=12)
        top += 50
        boxes = [(path, list(own)) for path, own in groupby(job.by_place(), key=job.path)]
        for start in range(0, len(boxes), _COLUMNS):
            row = boxes[start : start + _COLUMNS]
            for column, (path, members) in enumerate(row):
                _box(pen, (_PAD + column * (_BOX_WIDTH + _PAD), top), path, members, job)
            top += max(_box_height(members) for _, members in row) + _PAD
        top += _PAD
    # The paper lies below everything, and how long it is is known now.
    pen.rect(0, 0, width, top, fill=PAPER)
    pen.elements.insert(0, pen.elements.pop())
    return pen.document(width, top, title="jobs")


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


def _box_height(members: Sequence[JobMember]) -> float:
    return _LINE * (len(members) + len({member.node for member in members}) + 1) + _PAD


def _words(member: JobMember) -> str:
    devices = f"{_counted(member.gpus, 'GPU')}, {_counted(member.nics, 'NIC')}"
    rails = f", rails {','.join(member.place.rails)}" if member.place.rails else ""
    return f"rank {member.place.rank}  {member.pod}  {devices}{rails}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
