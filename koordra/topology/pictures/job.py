"""A placed job as values: its members by rank, the domains they are in, their rails. Pure.

Read from claims with an allocation: the controller's `GangMember` entry says rank and domains, the results say node and devices,
`reservedFor` the pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from koordra.api import names, objects
from koordra.api.allocation import Allocation
from koordra.api.opaque.gang_member import GangMember, decode_gang_member, is_gang_member

Object = Mapping[str, Any]


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
    """`members` by rank. Members without a claim (a launcher) hold nothing that could be read, and are not there."""

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
        return tuple(sorted({rail for member in self.members for rail in member.place.rails}, key=_number))

    def domains(self, level: str) -> int:
        at = self.levels.index(level) + 1
        paths = {
            tuple(member.place.domains.get(one, "") for one in self.levels[:at]) for member in self.members
        }
        return len(paths)

    @property
    def same_rails(self) -> bool:
        """Whether all members are on the same rails."""
        return len({frozenset(member.place.rails) for member in self.members if member.nics}) <= 1


def jobs_of(claims: Iterable[Object]) -> list[Job]:
    """All jobs that the claims tell of, by namespace and name. Raises InvalidInput for an entry that cannot be read."""
    found: dict[tuple[str, str], dict[int, list[tuple[Object, GangMember, Allocation]]]] = {}
    for claim in claims:
        allocation = Allocation.of_claim(claim)
        place = None if allocation is None else member_of(allocation, claim=objects.key(claim))
        if allocation is not None and place is not None:
            of_job = found.setdefault((objects.namespace(claim), place.gang), {})
            of_job.setdefault(place.rank, []).append((claim, place, allocation))
    return [
        Job(name, namespace, tuple(_member(by_rank[rank]) for rank in sorted(by_rank)))
        for (namespace, name), by_rank in sorted(found.items())
    ]


def member_of(allocation: Allocation, *, claim: str) -> GangMember | None:
    """What the allocation says of the gang's member that holds it."""
    for index, entry in enumerate(allocation.config):
        opaque = entry.get("opaque")
        if isinstance(opaque, Mapping) and opaque.get("driver") == names.DRIVER:
            parameters = opaque.get("parameters")
            if isinstance(parameters, Mapping) and is_gang_member(parameters):
                field = f"status.allocation.devices.config[{index}].opaque.parameters"
                return decode_gang_member(parameters, object=f"ResourceClaim {claim}", field=field)
    return None


def _member(claims: list[tuple[Object, GangMember, Allocation]]) -> JobMember:
    claims.sort(key=lambda entry: objects.key(entry[0]))
    first, place, _ = claims[0]
    results = [
        result
        for _, _, allocation in claims
        for result in allocation.results
        if result.device.driver == names.DRIVER
    ]
    pods = [
        str(entry.get("name"))
        for entry in objects.status_of(first).get("reservedFor") or ()
        if entry.get("resource") == "pods"
    ]
    owners = [str(entry.get("name")) for entry in objects.metadata(first).get("ownerReferences") or ()]
    return JobMember(
        pod=", ".join(pods or owners) or objects.name(first),
        node=results[0].device.pool if results else "",
        place=place,
        devices=tuple(dict.fromkeys(result.device.device for result in results)),
    )


def _number(rail: str) -> tuple[int, str]:
    return (int(rail), "") if rail.isdecimal() else (1 << 30, rail)
