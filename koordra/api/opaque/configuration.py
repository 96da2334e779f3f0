"""koordra's parameters for the requests of one claim, and whose word counts where several speak.

Admission, the allocator and Prepare read the configurations of class and claim through here, so that they
decide alike. If several entries of one kind cover a request, the last one in this order applies as a whole:

    class, all requests < class, naming the request < claim, all requests < claim, naming the request

and among equals the later one; but for isolation, whose policy is the operator's (isolation.py), the parts of
the driver (`driverCapabilities`), and the network of a NIC, of which a claim may say little (authority.py).

A JointAllocation covers several requests at a time; a Required one always holds, whatever else is there. A
GangMember is not a parameter of the claim: the controller writes it into the allocation of a gang's member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from koordra.api import names
from koordra.api.allocation import FROM_CLASS
from koordra.api.objects import Fields
from koordra.api.opaque.driver_capabilities import DriverCapabilities
from koordra.api.opaque.gang_member import GangMember, decode_gang_member, is_gang_member
from koordra.api.opaque.isolation import AskedIsolation, asked_isolation
from koordra.api.opaque.parameters import (
    GpuConfig,
    Parameters,
    RdmaConfig,
    decode,
)

T = TypeVar("T", GpuConfig, RdmaConfig)


@dataclass(frozen=True, slots=True)
class Entry:
    """One decoded entry. Requests are named as in results: `gpu`, or `gpu/a100` for an alternative."""

    requests: tuple[str, ...]
    parameters: Parameters
    of_class: bool = False

    def covers(self, request: str) -> bool:
        return covers(self.requests, request)


def covers(requests: Iterable[str], request: str) -> bool:
    """Whether an entry for these requests, for all if none, is about the one that results call so."""
    named = set(requests)
    return not named or not named.isdisjoint((request, request.partition("/")[0]))


@dataclass(frozen=True, slots=True)
class Configuration:
    """The entries for this driver, weakest first. `member`: the place in a gang, where the controller has
    written one."""

    entries: tuple[Entry, ...] = ()
    member: GangMember | None = None

    @classmethod
    def of(cls, entries: Iterable[Entry], member: GangMember | None = None) -> Configuration:
        """The entries in any order of class and claim."""
        weakest_first = sorted(entries, key=lambda entry: (not entry.of_class, bool(entry.requests)))
        return cls(tuple(weakest_first), member)

    def gpu(self, request: str) -> GpuConfig:
        return self._strongest(GpuConfig(), request)

    def driver_capabilities(self, request: str) -> DriverCapabilities:
        """What the strongest entry says that says anything, empty if none does: an entry about something else
        does not take the class's word away."""
        found = [
            entry.parameters.driver_capabilities
            for entry in self.covering(request)
            if isinstance(entry.parameters, GpuConfig) and entry.parameters.driver_capabilities
        ]
        return found[-1] if found else frozenset()

    def rdma(self, request: str) -> RdmaConfig:
        of_class = self._strongest(RdmaConfig(), request, of_class=True)
        config, given = self._strongest(RdmaConfig(), request), of_class.network
        own = config.network
        return replace(
            config, network=own.over(given) if own and given else own or given, fabric=of_class.fabric
        )

    def _strongest(self, default: T, request: str, *, of_class: bool = False) -> T:
        """`of_class`: what the class alone says."""
        found = [entry.parameters for entry in self.covering(request) if entry.of_class or not of_class]
        return next((each for each in reversed(found) if isinstance(each, type(default))), default)

    def isolation(self, request: str) -> AskedIsolation:
        found = list(self.covering(request))
        return asked_isolation(
            (entry.parameters for entry in found if entry.of_class),
            (entry.parameters for entry in found if not entry.of_class),
        )

    def covering(self, request: str) -> Iterator[Entry]:
        """The entries about the request, or alternative, weakest first."""
        return (entry for entry in self.entries if entry.covers(request))


def configuration(config: Iterable[Fields], *, claim: str, holds: bool = False) -> Configuration:
    """The configuration of an allocation; `claim` names it in errors. `holds`: the claim has its devices
    already, so that a word which claims may not say any more changes nothing. Raises InvalidParameters for an
    unknown kind or field, and for what a claim may not say."""
    found = []
    member: GangMember | None = None
    for index, raw in enumerate(config):
        opaque = raw.get("opaque") if isinstance(raw, Mapping) else None
        if not isinstance(opaque, Mapping) or opaque.get("driver") != names.DRIVER:
            continue
        field = f"status.allocation.devices.config[{index}].opaque.parameters"
        document = opaque.get("parameters")
        if isinstance(document, Mapping) and is_gang_member(document):
            member = decode_gang_member(document, object=claim, field=field)
            continue
        of_class = raw.get("source") == FROM_CLASS
        parameters = decode(document, object=claim, field=field, in_claim=not of_class and not holds)
        found.append(Entry(tuple(map(str, raw.get("requests") or ())), parameters, of_class))
    return Configuration.of(found, member)
