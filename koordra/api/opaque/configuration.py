"""koordra's parameters for the requests of one claim, and whose word counts where several speak.

Admission, the allocator and Prepare read the configurations of class and claim through here, so that they
decide alike. Of several entries that cover a request, each field counts as the last one says it that says it:

    class, all requests < class, naming the request < claim, all requests < claim, naming the request

and among equals the later one. Not so where the operator decides, and the class stands above the claim:
isolation (isolation.py), the mode and network of a NIC, of which a claim may say little (authority.py), and
memlock, which either may take away. An entry about something else takes nothing away.

A JointAllocation covers several requests at a time; a Required one always holds, whatever else is there. A
GangMember is not a parameter of the claim: the controller writes it into the allocation of a gang's member,
and an ImexDomain into that of IMEX channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from koordra.api import names
from koordra.api.allocation import FROM_CLASS
from koordra.api.objects import Fields
from koordra.api.opaque.gang_member import GangMember, decode_gang_member, is_gang_member
from koordra.api.opaque.imex import (
    ImexChannels,
    ImexConfig,
    ImexDomain,
    decode_imex_domain,
    is_imex_domain,
)
from koordra.api.opaque.isolation import AskedIsolation, asked_isolation
from koordra.api.opaque.parameters import GpuConfig, Parameters, RdmaConfig, decode
from koordra.api.opaque.resize import Bounds

T = TypeVar("T", GpuConfig, RdmaConfig, ImexConfig)


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
    """The entries for this driver, weakest first. `member`: the place in a gang, and `imex` the domain of the
    IMEX channels, where the controller has written one."""

    entries: tuple[Entry, ...] = ()
    member: GangMember | None = None
    imex: ImexDomain | None = None

    @classmethod
    def of(
        cls, entries: Iterable[Entry], member: GangMember | None = None, imex: ImexDomain | None = None
    ) -> Configuration:
        """The entries in any order of class and claim."""
        weakest_first = sorted(entries, key=lambda entry: (not entry.of_class, bool(entry.requests)))
        return cls(tuple(weakest_first), member, imex)

    def gpu(self, request: str) -> GpuConfig:
        return self._said(GpuConfig(), request)

    def resize(self, request: str) -> Bounds | None:
        """Within which a share may be changed: what classes say, whoever wrote the rest."""
        said = [entry.parameters for entry in self.covering(request) if entry.of_class]
        bounds = [one.resize for one in said if isinstance(one, GpuConfig) and one.resize is not None]
        return bounds[-1] if bounds else None

    def imex_channels(self, request: str) -> ImexChannels:
        return self._said(ImexConfig(), request).channels or ImexChannels.ONE

    def rdma(self, request: str) -> RdmaConfig:
        given, own = (self._said(RdmaConfig(), request, of_class=of_class) for of_class in (True, False))
        network = own.network.over(given.network) if own.network and given.network else own.network
        return RdmaConfig(
            mode=given.mode or own.mode,
            memlock=given.memlock and own.memlock,
            network=network or given.network,
            fabric=given.fabric,
        )

    def _said(self, found: T, request: str, *, of_class: bool | None = None) -> T:
        """What the entries say, of class or claim, or (None) of both; what none says is as in `found`."""
        unsaid = found
        for entry in self.covering(request):
            said = entry.parameters
            if isinstance(said, type(found)) and of_class in (None, entry.of_class):
                values = ((each.name, getattr(said, each.name)) for each in fields(said))
                new = {name: value for name, value in values if value != getattr(unsaid, name)}
                found = replace(found, **new)
        return found

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
    imex: ImexDomain | None = None
    for index, raw in enumerate(config):
        opaque = raw.get("opaque") if isinstance(raw, Mapping) else None
        if not isinstance(opaque, Mapping) or opaque.get("driver") != names.DRIVER:
            continue
        field = f"status.allocation.devices.config[{index}].opaque.parameters"
        document = opaque.get("parameters")
        if isinstance(document, Mapping) and is_gang_member(document):
            member = decode_gang_member(document, object=claim, field=field)
            continue
        if isinstance(document, Mapping) and is_imex_domain(document):
            imex = decode_imex_domain(document, object=claim, field=field)
            continue
        of_class = raw.get("source") == FROM_CLASS
        parameters = decode(document, object=claim, field=field, in_claim=not of_class and not holds)
        found.append(Entry(tuple(map(str, raw.get("requests") or ())), parameters, of_class))
    return Configuration.of(found, member, imex)
