"""docs/reference/devices.md: what nodes publish of devices, with the values of the machines of the tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from koordra.api import names
from koordra.api.opaque.isolation import IsolationPolicy
from koordra.kubelet_plugin.publish.resource_slices import Offering, build_devices
from tests.machines import catalogue
from tests.reference.docstrings import documented, table

ABOVE = """\
# Devices

What koordra publishes in ResourceSlices: one pool a node, named after it. Attributes are read by the selectors of claims and classes
(`device.attributes["koordra.io"].model`), capacities by `capacity.requests`. The examples are of the machines in `tests/machines`.

"""
_STANDARD = {
    names.STANDARD_PCIE_ROOT: "Kubernetes' own: the PCIe root complex",
    names.STANDARD_PCI_BUS_ID: "Kubernetes' own: the PCI address",
    names.STANDARD_NUMA_NODE: "Kubernetes' own: the NUMA node",
}
OFFERING = Offering(
    mig=True,
    vfs=True,
    imex=True,
    mps_shared=True,
    mps_protocol=3,
    isolation=IsolationPolicy(("limiter", "mps")),
)


def page() -> str:
    attributes, capacities = _found()
    meanings = {
        getattr(names, name): text
        for name, text in documented(names).items()
        if name.startswith(("ATTR_", "CAPACITY_"))
    }
    prefix = names.ATTR_ISOLATION
    rows = []
    for name, of in sorted(attributes.items()):
        meaning = (
            _STANDARD.get(name)
            or meanings.get(name)
            or (_isolation(meanings[prefix]) if name.startswith(prefix) else "")
        )
        assert meaning, f"{name} has no docstring in koordra/api/names.py"
        rows.append((f"`{name}`", " ".join(of), f"{meaning}.", f"`{next(iter(of.values()))}`"))
    never = (
        {getattr(names, name) for name in documented(names) if name.startswith("ATTR_")}
        - attributes.keys()
        - {prefix}
    )
    assert not never - {names.ATTR_INFERRED, names.ATTR_CLIQUE}, f"no machine publishes {never}"
    offered = [
        (f"`{name}`", " ".join(of), f"{meanings[name]}.", _policy(next(iter(of.values()))))
        for name, of in sorted(capacities.items())
    ]
    return (
        ABOVE
        + "## Attributes\n\n"
        + table(("attribute", "of", "meaning", "example"), rows)
        + "\n## Capacities\n\n"
        + table(("capacity", "of", "meaning", "example: all, default, step"), offered)
    )


def _isolation(meaning: str) -> str:
    return meaning.replace("Prefix of the attributes by backend: whether", "Whether").replace(
        "lets it", "lets this backend"
    )


def _found() -> tuple[dict[str, dict[str, str]], dict[str, dict[str, Any]]]:
    attributes: dict[str, dict[str, str]] = {}
    capacities: dict[str, dict[str, Any]] = {}
    for device in _devices():
        sort = device["attributes"][names.ATTR_TYPE]["string"]
        for name, value in device["attributes"].items():
            (shown,) = value.values()
            attributes.setdefault(name, {}).setdefault(sort, str(shown))
        for name, value in device.get("capacity", {}).items():
            capacities.setdefault(name, {}).setdefault(sort, value)
    return attributes, capacities


def _devices() -> Iterator[Mapping[str, Any]]:
    for name in ("hgx-h100", *catalogue.NAMES):
        yield from build_devices(catalogue.machine(name), mode="joint", offering=OFFERING)


def _policy(value: Mapping[str, Any]) -> str:
    policy = value.get("requestPolicy", {})
    words = (value["value"], policy.get("default"), policy.get("validRange", {}).get("step"))
    return ", ".join(f"`{word}`" for word in words if word is not None)
