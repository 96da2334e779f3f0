"""`RdmaConfig.network`: what a NIC's network interface looks like in the pod.

    network:
      interface: rail0                       its name in the pod, none that the host has; absent: the NIC's own, with `pod` or `p` behind it where that stays
      addresses: [192.168.10.5/24]           with prefix length
      routes: [{destination: 10.0.0.0/8, gateway: 192.168.10.1}]
      mtu: 4200
      vlan: 100                              the pod's interface is a VLAN on top of the NIC's
      guid: "0011:2233:4455:6677"            InfiniBand: the virtual function's GUID
      pkey: "0x8001"                         InfiniBand: the partition
      attachment: {name: rail0, namespace: networks}    a NetworkAttachmentDefinition, in place of all else but `interface`

Strict, as all of koordra's parameters: what is misspelt is an InvalidParameters that names it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordra.errors import InvalidParameters

_INTERFACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
_GUID: Final = re.compile(r"[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3}|[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){7}")
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_FIELDS: Final = ("interface", "addresses", "routes", "mtu", "vlan", "guid", "pkey", "attachment")


@dataclass(frozen=True, slots=True)
class Attachment:
    """A NetworkAttachmentDefinition; without a namespace it is looked for in the claim's."""

    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class RdmaNetwork:
    """`routes` are pairs of destination and gateway, which is empty for a destination on the link."""

    interface: str | None = None
    addresses: tuple[str, ...] = ()
    routes: tuple[tuple[str, str], ...] = ()
    mtu: int | None = None
    vlan: int | None = None
    guid: str | None = None
    pkey: int | None = None
    attachment: Attachment | None = None


def decode_network(value: object, *, object: str, field: str) -> RdmaNetwork:
    """Raises InvalidParameters naming the field and what it may be."""
    read = _Reading(object, field)
    data = read.mapping(value, _FIELDS)
    network = RdmaNetwork(
        interface=read.matching(data, "interface", _INTERFACE, "an interface name of at most 15 characters"),
        addresses=tuple(
            read.address(item, f"addresses[{n}]") for n, item in enumerate(read.list(data, "addresses"))
        ),
        routes=tuple(read.route(item, f"routes[{n}]") for n, item in enumerate(read.list(data, "routes"))),
        mtu=read.whole(data, "mtu", 68, 65535),
        vlan=read.whole(data, "vlan", 1, 4094),
        guid=read.matching(data, "guid", _GUID, "a GUID such as 0011:2233:4455:6677"),
        pkey=read.pkey(data),
        attachment=read.attachment(data),
    )
    if network.attachment is not None and data.keys() - {"attachment", "interface"}:
        others = ", ".join(sorted(data.keys() - {"attachment", "interface"}))
        raise read.wrong(
            "attachment", f"stands beside {others}", "the attachment says all of that; leave one out"
        )
    if network.interface in {"lo", "eth0", "all", "default"}:
        raise read.wrong("interface", f"{network.interface!r} is taken in every pod", "use another name")
    return network


class _Reading:
    """One document; every complaint names its place."""

    def __init__(self, object: str, field: str) -> None:
        self._object = object
        self._field = field

    def wrong(self, name: str, problem: str, remedy: str = "") -> InvalidParameters:
        place = f"{self._field}.{name}" if name else self._field
        return InvalidParameters(problem, object=self._object, field=place, remedy=remedy)

    def mapping(self, value: object, fields: tuple[str, ...], name: str = "") -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self.wrong(
                name, f"{type(value).__name__} is not an object", f"fields are {', '.join(fields)}"
            )
        unknown = sorted(str(key) for key in value if key not in fields)
        if unknown:
            place = f"{name}.{unknown[0]}" if name else unknown[0]
            raise self.wrong(place, "there is no such field", f"fields are {', '.join(fields)}")
        return value

    def list(self, data: Mapping[str, Any], name: str) -> list[Any]:
        value = data.get(name, [])
        if not isinstance(value, list) or len(value) > 16:
            raise self.wrong(name, "it is not a list of at most 16 entries")
        return value

    def matching(
        self, data: Mapping[str, Any], name: str, pattern: re.Pattern[str], meaning: str
    ) -> str | None:
        value = data.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise self.wrong(name, f"{value!r} is not {meaning}")
        return value

    def whole(self, data: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
        value = data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(name, f"{value!r} is not a whole number from {low} to {high}")
        return value

    def address(self, value: object, name: str) -> str:
        try:
            if isinstance(value, str) and "/" in value:
                return str(ipaddress.ip_interface(value))
        except ValueError:
            pass
        raise self.wrong(name, f"{value!r} is not an address with prefix length", "write 192.168.10.5/24")

    def route(self, value: object, name: str) -> tuple[str, str]:
        data = self.mapping(value, ("destination", "gateway"), name)
        try:
            destination = ipaddress.ip_network(str(data.get("destination", "")), strict=True)
        except ValueError as error:
            raise self.wrong(f"{name}.destination", str(error), "write 10.0.0.0/8") from error
        gateway = data.get("gateway")
        if gateway is None:
            return str(destination), ""
        try:
            via = ipaddress.ip_address(str(gateway))
        except ValueError as error:
            raise self.wrong(f"{name}.gateway", str(error)) from error
        if via.version != destination.version:
            raise self.wrong(f"{name}.gateway", f"{via} and {destination} are of two kinds")
        return str(destination), str(via)

    def pkey(self, data: Mapping[str, Any]) -> int | None:
        value = data.get("pkey")
        if value is None:
            return None
        try:
            number = int(value, 16) if isinstance(value, str) and value.lower().startswith("0x") else -1
        except ValueError:
            number = -1
        if not 1 <= number <= 0xFFFF:
            raise self.wrong("pkey", f"{value!r} is not a partition key", 'write "0x8001"')
        return number

    def attachment(self, data: Mapping[str, Any]) -> Attachment | None:
        if data.get("attachment") is None:
            return None
        found = self.mapping(data["attachment"], ("name", "namespace"), "attachment")
        name = self.matching(found, "name", _LABEL, "the name of a NetworkAttachmentDefinition")
        if name is None:
            raise self.wrong("attachment.name", "it is missing")
        return Attachment(name, self.matching(found, "namespace", _LABEL, "a namespace"))
