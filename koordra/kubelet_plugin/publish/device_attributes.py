"""One device as a ResourceSlice writes it: typed attributes, capacities with their policies, taints.

Unknown values, and strings longer than an attribute may be (64 bytes), are left out. Source:
resource.k8s.io/v1 Device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from koordra.api import names
from koordra.topology.machine import Device, Gpu, Location, Nic
from koordra.topology.product_names import semver

Mode = Literal["joint", "native"]

_LONGEST_STRING = 64
_LONGEST_TAINT_VALUE = 63


def document(
    name: str,
    *,
    mode: Mode,
    attributes: Mapping[str, Any],
    capacity: Mapping[str, Any],
    shared: bool,
    reason: str | None,
    consumes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """An entry of ``spec.devices``. ``shared`` devices may be allocated several times; ``reason`` is why the
    device is not healthy; ``consumes`` is its entry of ``consumesCounters``."""
    joint = mode == names.MODE_JOINT
    allocator = names.ALLOCATOR_CONTROLLER if joint else names.ALLOCATOR_SCHEDULER
    built: dict[str, Any] = {"name": name}
    if shared:
        built["allowMultipleAllocations"] = True
    built["attributes"] = typed({**attributes, names.ATTR_ALLOCATOR: allocator})
    if capacity:
        built["capacity"] = dict(capacity)
    if consumes:
        built["consumesCounters"] = [dict(consumes)]
    taints = [{"key": names.JOINT_TAINT, "effect": "NoSchedule"}] if joint else []
    if reason:
        taints.append({"key": names.UNHEALTHY_TAINT, "value": reason, "effect": "NoSchedule"})
    if taints:
        built["taints"] = taints
    return built


def unhealthy(device: Device) -> str | None:
    """The value of the device's unhealthy taint; None for a healthy device."""
    if isinstance(device, Gpu):
        # A taint's value is a label value.
        faults = re.sub(r"[^0-9A-Za-z.-]", "", ".".join(device.faults))
        return faults[:_LONGEST_TAINT_VALUE].strip(".-") or None
    if isinstance(device, Nic) and not any(port.active for port in device.ports):
        return "LinkDown" if any(port.active is not None for port in device.ports) else "LinkStateUnknown"
    return None


class Version(str):
    __slots__ = ()


def version(text: str | None) -> Version | None:
    normal = semver(text) if text else None
    return Version(normal) if normal else None


def location_attributes(location: Location) -> dict[str, Any]:
    return {
        names.ATTR_NUMA_NODE: location.numa,
        names.ATTR_SOCKET: location.socket,
        names.ATTR_PCIE_SWITCH: location.switches[0] if location.switches else None,
        names.ATTR_PCIE_PATH: _pcie_path(location.switches),
        names.STANDARD_PCIE_ROOT: location.root,
        names.STANDARD_PCI_BUS_ID: location.bus_id,
    }


def _pcie_path(switches: tuple[str, ...]) -> str | None:
    """The chain of upstream ports where switches are nested; of a chain that is too long its lower end, which
    identifies the place as well."""
    if len(switches) < 2:
        return None
    path = "/".join(switches)
    while len(path) > _LONGEST_STRING:
        path = path.partition("/")[2]
    return path


def typed(values: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in sorted(values.items()):
        match value:
            case Version():
                made[name] = {"version": str(value)}
            case str():
                if 0 < len(value.encode()) <= _LONGEST_STRING:
                    made[name] = {"string": value}
            case bool():
                made[name] = {"bool": value}
            case int():
                made[name] = {"int": value}
    return made


def capacity(value: str, *, default: str, least: str, step: str) -> dict[str, Any]:
    return {"value": value, "requestPolicy": {"default": default, "validRange": {"min": least, "step": step}}}
