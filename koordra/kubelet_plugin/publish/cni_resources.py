"""The names by which Multus finds a NIC of koordra's allocation for one of its networks.

A NetworkAttachmentDefinition says in `k8s.v1.cni.cncf.io/resourceName` which resource its CNI plugin needs a
device of. For a pod with claims Multus looks the allocated devices up in their ResourceSlices: the one whose
attribute `k8s.cni.cncf.io/resourceName` is that name gives its `k8s.cni.cncf.io/deviceID`, the PCI address,
to the plugin (multus-cni 4.3, pkg/draclient; docs/how-to-use.md there). So a node that publishes both lets
unmodified networks, those that the SR-IOV Network Operator makes among them, have the very device that was
allocated; koordra then leaves the device's network alone (network/network_decision.py).

The names are the operator's: `--cni-resource vf=openshift.io/rails`, or one for each rail,
`--cni-resource vf/0=openshift.io/rail0`, of which the one with the rail counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from koordra.api import names
from koordra.api.objects import Object
from koordra.errors import InvalidInput
from koordra.topology.machine import Nic

_OPTION: Final = re.compile(
    r"(?P<type>nic|vf)(?:/(?P<rail>[0-9]{1,3}))?"
    r"=(?P<name>[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?/[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)",
    re.ASCII,
)
_LONGEST: Final = 64
"""Characters of an attribute's value."""


@dataclass(frozen=True, slots=True)
class CniResource:
    """`rail` None: of any rail."""

    type: str
    name: str
    rail: int | None = None


def cni_resources(options: Iterable[str]) -> tuple[CniResource, ...]:
    """Of the command line. Raises InvalidInput."""
    found = []
    for text in options:
        match = _OPTION.fullmatch(text)
        if match is None or len(match["name"]) > _LONGEST:
            raise InvalidInput(
                f"{text!r} names no resource", field="--cni-resource", remedy="write vf=example.com/rails"
            )
        found.append(CniResource(match["type"], match["name"], int(match["rail"]) if match["rail"] else None))
    return tuple(found)


def cni_attributes(nic: Nic, *, rail: int | None, resources: Iterable[CniResource]) -> Object:
    """Both attributes, or none: Multus passes over a device that has only one."""
    fitting = [each for each in resources if each.type == nic.type and each.rail in {None, rail}]
    chosen = next((each for each in fitting if each.rail is not None), next(iter(fitting), None))
    if chosen is None:
        return {}
    return {names.CNI_DEVICE_ID: nic.location.bus_id, names.CNI_RESOURCE_NAME: chosen.name}
