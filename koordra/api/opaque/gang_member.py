"""What a claim's allocation says about the member that holds it: `GangMember`, koordra.io/v1alpha1.

The controller writes it into `status.allocation.devices.config` when it places a gang; the node turns it into
variables and files. It is no parameter that a claim or class may carry (`parameters.decode` does not know
it): only the writer of an allocation can say which rank somebody has.

    gang        name of the gang
    rank, size  of the member, and of the gang when this member was placed
    nodeRank, nodes            of its node among the gang's nodes, in rank order
    localRank, localSize       among the members on its node
    domains     level of the fabric -> name of the domain
    rails       of the member's NICs
    leader      host of rank 0
    hosts       hosts by rank, slots the number of GPUs of each; left out where they would not fit (some
                hundred members)
    hostRanks   ranks of the hosts, if they do not count from 0 without a gap: a lost member has none

An opaque document may have 10 KiB; `hosts` is left out rather than cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeGuard

from koordra.api import names
from koordra.api.allocation import FROM_CLAIM
from koordra.api.objects import Fields, Object
from koordra.api.opaque.parameters import API_VERSION
from koordra.api.reader import Reader, snake_case
from koordra.errors import InvalidParameters

KIND: Final = "GangMember"
MOST_BYTES: Final = 9 * 1024

_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
"""Hosts are written with commas and colons between them, so neither can be in one. All names end up in files
and variables of containers, line by line."""

_NUMBERS: Final = ("rank", "size", "nodeRank", "nodes", "localRank", "localSize")
_FIELDS: Final = (
    "apiVersion",
    "kind",
    "gang",
    *_NUMBERS,
    "domains",
    "rails",
    "leader",
    "hosts",
    "slots",
    "hostRanks",
)


@dataclass(frozen=True, slots=True)
class GangMember:
    gang: str
    rank: int
    size: int
    node_rank: int = 0
    nodes: int = 1
    local_rank: int = 0
    local_size: int = 1
    domains: Mapping[str, str] = field(default_factory=dict, hash=False)
    rails: tuple[str, ...] = ()
    leader: str = ""
    hosts: tuple[str, ...] = ()
    slots: tuple[int, ...] = ()
    host_ranks: tuple[int, ...] = ()

    def to_dict(self) -> Object:
        """The parameters document; what says nothing is left out."""
        found: Object = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "gang": self.gang,
            **{name: getattr(self, snake_case(name)) for name in _NUMBERS},
        }
        rest = {"domains": dict(self.domains), "rails": list(self.rails), "leader": self.leader}
        found |= {name: value for name, value in rest.items() if value}
        if not self.hosts or sum(map(len, self.hosts)) > MOST_BYTES:
            return found
        with_hosts = {**found, "hosts": list(self.hosts), "slots": list(self.slots)}
        if self.host_ranks:
            with_hosts["hostRanks"] = list(self.host_ranks)
        return with_hosts if len(json.dumps(with_hosts).encode()) <= MOST_BYTES else found

    def entry(self) -> Object:
        """As an entry of `status.allocation.devices.config`."""
        return {"source": FROM_CLAIM, "opaque": {"driver": names.DRIVER, "parameters": self.to_dict()}}


def is_gang_member(parameters: object) -> TypeGuard[Fields]:
    return isinstance(parameters, Mapping) and parameters.get("kind") == KIND


def decode_gang_member(parameters: Fields, *, object: str, field: str) -> GangMember:
    """Raises InvalidParameters for anything that `to_dict` does not write."""
    read = Reader(parameters, object=object, field=field, error=InvalidParameters)
    if read.data.get("apiVersion") != API_VERSION:
        raise read.wrong(f"is not {API_VERSION}", at="apiVersion")
    read.only(*_FIELDS, problem=f"{KIND} has no such field")
    numbers = {}
    for name in _NUMBERS:
        number = read.between(name, 0)
        if number is None:
            raise read.wrong("is missing", at=name)
        numbers[snake_case(name)] = number
    member = GangMember(
        gang=read.text("gang"),
        **numbers,
        domains=dict(read.inner("domains").data),
        rails=read.texts("rails"),
        leader=read.text("leader"),
        hosts=read.texts("hosts"),
        slots=tuple(read.sequence("slots")),
        host_ranks=tuple(read.sequence("hostRanks")),
    )
    for name, found in (
        ("domains", [*member.domains, *member.domains.values()]),
        ("rails", member.rails),
        ("gang", [member.gang]),
        ("leader", [member.leader]),
    ):
        if not all(isinstance(each, str) and each.isprintable() and " " not in each for each in found):
            raise read.wrong("is not a name, or holds what is none", at=name)
    for name, hosts in (("hosts", member.hosts), ("leader", filter(None, [member.leader]))):
        if not all(map(_HOST.fullmatch, hosts)):
            raise read.wrong("is not a host name, or holds what is none", at=name)
    for name, listed in (("slots", member.slots), ("hostRanks", member.host_ranks)):
        if not all(type(number) is int and number >= 0 for number in listed):
            raise read.wrong("is not a list of numbers", at=name)
        if len(listed) != len(member.hosts) and (listed or name == "slots"):
            raise read.wrong("are not one for each host", at=name)
    return member
