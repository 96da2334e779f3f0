"""A claim as the API has it: koordra's parameters in its allocation, by precedence, and its pods.

`status.allocation.devices.config` holds entries of the class and of the claim, each for some requests or for
all. If several entries of one kind cover a request, the last one in this order applies as a whole:

    class, all requests < class, naming the request < claim, all requests < claim, naming the request

but for isolation, whose policy is the operator's (koordra.api.opaque.isolation), the parts of the driver
(`driverCapabilities`), and the network of a NIC, where the class's word on whom a pod can reach holds
(koordra.api.opaque.rdma_network).

A JointAllocation covers several requests at a time; a Required one always holds, whatever else is there. A
GangMember is not a parameter of the claim: the controller writes it into the allocation of a gang's member.

Its pods, and what they and it ask of networks: network/consumers.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from koordra.api import names
from koordra.api.allocation import FROM_CLASS
from koordra.api.objects import Fields, Object
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
        return not self.requests or request in self.requests or request.partition("/")[0] in self.requests


@dataclass(frozen=True, slots=True)
class Configuration:
    """The entries for this driver, weakest first. `member`: the place in a gang, where the controller has
    written one."""

    entries: tuple[Entry, ...] = ()
    member: GangMember | None = None

    def gpu(self, request: str) -> GpuConfig:
        return self._strongest(GpuConfig(), request)

    def driver_capabilities(self, request: str) -> DriverCapabilities:
        """What the strongest entry says that says anything, empty if none does: an entry about something else
        does not take the class's word away."""
        found = [
            entry.parameters.driver_capabilities
            for entry in self._covering(request)
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
        found = [entry.parameters for entry in self._covering(request) if entry.of_class or not of_class]
        return next((each for each in reversed(found) if isinstance(each, type(default))), default)

    def isolation(self, request: str) -> AskedIsolation:
        found = list(self._covering(request))
        return asked_isolation(
            (entry.parameters for entry in found if entry.of_class),
            (entry.parameters for entry in found if not entry.of_class),
        )

    def _covering(self, request: str) -> Iterator[Entry]:
        return (entry for entry in self.entries if entry.covers(request))


def configuration(config: Iterable[Fields], *, claim: str) -> Configuration:
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
        of_class = raw.get("source") == FROM_CLASS
        parameters = decode(document, object=claim, field=field, in_claim=not of_class)
        found.append(Entry(tuple(map(str, raw.get("requests") or ())), parameters, of_class))
    found.sort(key=lambda entry: (not entry.of_class, bool(entry.requests)))
    return Configuration(tuple(found), member)


class Claims(Protocol):
    """What Prepare reads claims from."""

    def get(self, namespace: str, name: str) -> Object:
        """The claim. Raises ApiError."""
