"""koordra's opaque parameters in an allocation, decoded and ordered by precedence.

`status.allocation.devices.config` holds entries of the class and of the claim, each for some requests or for
all. If several entries of one kind cover a request, the last one in this order applies as a whole:

    class, all requests < class, naming the request < claim, all requests < claim, naming the request

but for isolation, whose policy is the operator's (koordra.api.opaque.isolation).

A JointAllocation covers several requests at a time; a Required one always holds, whatever else is there. A
GangMember is not a parameter of the claim: the controller writes it into the allocation of a gang's member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from koordra.api import names
from koordra.api.allocation import FROM_CLASS
from koordra.api.opaque.gang_member import GangMember, decode_gang_member, is_gang_member
from koordra.api.opaque.isolation import AskedIsolation, asked_isolation
from koordra.api.opaque.parameters import (
    Enforcement,
    GpuConfig,
    JointAllocation,
    Parameters,
    RdmaConfig,
    decode,
    reject_operator_fields,
)

T = TypeVar("T", GpuConfig, RdmaConfig)


@dataclass(frozen=True, slots=True)
class Entry:
    """One decoded entry. Requests are named as in results: `gpu`, or `gpu/a100` for one of its
    alternatives."""

    requests: tuple[str, ...]
    parameters: Parameters
    of_class: bool = False

    def covers(self, request: str) -> bool:
        return not self.requests or request in self.requests or request.partition("/")[0] in self.requests


@dataclass(frozen=True, slots=True)
class Configuration:
    """The entries for this driver, weakest first. `member`: the place in a gang, where the controller has
    written one."""

    entries: tuple[Entry, ...] = ()
    member: GangMember | None = None

    def gpu(self, request: str) -> GpuConfig:
        return self._strongest(GpuConfig(), request)

    def rdma(self, request: str) -> RdmaConfig:
        return self._strongest(RdmaConfig(), request)

    def _strongest(self, default: T, request: str) -> T:
        found = [entry.parameters for entry in self._covering(request)]
        return next((each for each in reversed(found) if isinstance(each, type(default))), default)

    def isolation(self, request: str) -> AskedIsolation:
        found = list(self._covering(request))
        return asked_isolation(
            (entry.parameters for entry in found if entry.of_class),
            (entry.parameters for entry in found if not entry.of_class),
        )

    def required_scopes(self) -> Iterator[tuple[Entry, JointAllocation]]:
        for entry in self.entries:
            wanted = entry.parameters
            if isinstance(wanted, JointAllocation) and wanted.enforcement is Enforcement.REQUIRED:
                yield entry, wanted

    def _covering(self, request: str) -> Iterator[Entry]:
        return (entry for entry in self.entries if entry.covers(request))


def configuration(config: Iterable[Mapping[str, Any]], *, claim: str) -> Configuration:
    """The configuration of an allocation; `claim` names it in errors. Raises InvalidParameters for an unknown
    kind or field."""
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
        parameters = decode(document, object=claim, field=field)
        of_class = raw.get("source") == FROM_CLASS
        if not of_class:
            reject_operator_fields(parameters, object=claim, field=field)
        entry = Entry(tuple(str(request) for request in raw.get("requests") or ()), parameters, of_class)
        found.append(((not of_class, bool(entry.requests)), entry))
    found.sort(key=lambda ranked: ranked[0])
    return Configuration(tuple(entry for _, entry in found), member)
