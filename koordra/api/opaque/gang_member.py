"""What a claim's allocation says about the member that holds it: `GangMember`, koordra.io/v1alpha1.

The controller writes it into `status.allocation.devices.config` when it places a gang; the node turns it into variables and files.
It is no parameter that a claim or class may carry (`parameters.decode` does not know it): only the writer of an allocation can say which
rank somebody has.

    gang        name of the gang
    rank, size  of the member, and of the gang when this member was placed
    nodeRank, nodes            of its node among the gang's nodes, in rank order
    localRank, localSize       among the members on its node
    domains     level of the fabric -> name of the domain
    rails       of the member's NICs
    leader      host of rank 0
    hosts       hosts by rank, slots the number of GPUs of each; left out where they would not fit (some hundred members)

An opaque document may have 10 KiB; `hosts` is left out rather than cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api import names
from koordra.api.allocation import FROM_CLAIM
from koordra.api.opaque.parameters import API_VERSION
from koordra.errors import InvalidParameters

KIND: Final = "GangMember"
MOST_BYTES: Final = 9 * 1024

_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
"""Hosts are written with commas and colons between them, so neither can be in one."""

_NUMBERS: Final = ("rank", "size", "nodeRank", "nodes", "localRank", "localSize")


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

    def to_dict(self) -> dict[str, Any]:
        """The parameters document; what says nothing is left out."""
        found: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "gang": self.gang,
            "rank": self.rank,
            "size": self.size,
            "nodeRank": self.node_rank,
            "nodes": self.nodes,
            "localRank": self.local_rank,
            "localSize": self.local_size,
        }
        if self.domains:
            found["domains"] = dict(self.domains)
        if self.rails:
            found["rails"] = list(self.rails)
        if self.leader:
            found["leader"] = self.leader
        if not self.hosts or sum(map(len, self.hosts)) > MOST_BYTES:
            return found
        with_hosts = {**found, "hosts": list(self.hosts), "slots": list(self.slots)}
        return with_hosts if len(json.dumps(with_hosts).encode()) <= MOST_BYTES else found

    def entry(self) -> dict[str, Any]:
        """As an entry of `status.allocation.devices.config`."""
        return {"source": FROM_CLAIM, "opaque": {"driver": names.DRIVER, "parameters": self.to_dict()}}


def is_gang_member(parameters: object) -> bool:
    return isinstance(parameters, Mapping) and parameters.get("kind") == KIND


def decode_gang_member(parameters: Mapping[str, Any], *, object: str, field: str) -> GangMember:
    """Raises InvalidParameters for anything that `to_dict` does not write."""

    def wrong(name: str, problem: str) -> InvalidParameters:
        return InvalidParameters(problem, object=object, field=f"{field}.{name}")

    if parameters.get("apiVersion") != API_VERSION:
        raise wrong("apiVersion", f"is not {API_VERSION}")
    known = {
        "apiVersion",
        "kind",
        "gang",
        *_NUMBERS,
        "domains",
        "rails",
        "leader",
        "hosts",
        "slots",
    }
    for name in sorted(map(str, parameters)):
        if name not in known:
            raise wrong(name, f"{KIND} has no such field")
    numbers = [parameters.get(name) for name in _NUMBERS]
    for name, number in zip(_NUMBERS, numbers, strict=True):
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise wrong(name, f"{number!r} is not a whole number")
    domains, hosts, slots = parameters.get("domains") or {}, parameters.get("hosts"), parameters.get("slots")
    if not isinstance(domains, Mapping) or not _texts([*domains, *domains.values()]):
        raise wrong("domains", "is not a map of names")
    if not isinstance(slots or [], list) or not all(
        type(number) is int and number >= 0 for number in slots or ()
    ):
        raise wrong("slots", "is not a list of numbers")
    for name in ("hosts", "rails"):
        if not isinstance(parameters.get(name) or [], list) or not _texts(parameters.get(name) or []):
            raise wrong(name, "is not a list of names")
    for name in ("gang", "leader"):
        if not _texts([parameters.get(name, "")]):
            raise wrong(name, "is not a name")
    if not all(map(_HOST.fullmatch, hosts or ())):
        raise wrong("hosts", "is not a list of host names")
    if parameters.get("leader") and not _HOST.fullmatch(parameters["leader"]):
        raise wrong("leader", "is not a host name")
    if len(slots or ()) != len(hosts or ()):
        raise wrong("slots", "are not one for each host")
    rank, size, node_rank, nodes, local_rank, local_size = (int(number or 0) for number in numbers)
    return GangMember(
        gang=str(parameters.get("gang", "")),
        rank=rank,
        size=size,
        node_rank=node_rank,
        nodes=nodes,
        local_rank=local_rank,
        local_size=local_size,
        domains=dict(domains),
        rails=tuple(parameters.get("rails") or ()),
        leader=str(parameters.get("leader") or ""),
        hosts=tuple(hosts or ()),
        slots=tuple(slots or ()),
    )


def _texts(values: Sequence[object]) -> bool:
    """Names end up in files and variables of containers, line by line."""
    return all(isinstance(value, str) and value.isprintable() and " " not in value for value in values)
