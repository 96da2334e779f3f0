"""NICs under the names of device plugins, beside GPUs of any dialect: `rdma/hca_shared_devices_a: 1`.

    k8s-rdma-shared-dev-plugin   rdma/<name>             a share of a NIC
    NVIDIA's network operator    nvidia.com/mlnxnics     the same
    SR-IOV device plugin         <prefix>/<name>         a virtual function, where the settings say so

The requests of the pod's containers are one request `rdma`: as many NICs as are asked for, different ones,
near the pod's GPUs if they can be (PCIe root; `required` in the settings demands it). Init containers use
what the others have. Which NICs a plugin's name means is set on its nodes, so it is said in the settings by
their interfaces; where it is not, any NIC is taken, with a warning. In a cluster names are taken over only
where the settings have them: the plugins may go on serving theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from koordra.api import names
from koordra.api.reader import Reader
from koordra.compat.dialect.pod_view import Container, PodView
from koordra.compat.dialect.vgpu import cel_text
from koordra.compat.normalized_request import ContainerPhase, Joint, Nics, NormalizedRequest, Sharing
from koordra.compat.settings import NicName, Settings

LEAST_SHARE: Final = 1
"""Percent of a NIC that pods get who share it with many."""
OF_PLUGINS: Final[Mapping[str, NicName]] = {
    "rdma/": NicName(virtual=False),
    "nvidia.com/mlnxnics": NicName(virtual=False),
}
"""Names, or beginnings of names, whose meaning needs no settings."""


def nic_of(resource: str, settings: Settings) -> NicName | None:
    if settings.nics is not None:
        return settings.nics.get(resource)
    found = (known for name, known in OF_PLUGINS.items() if resource.startswith(name))
    return next(found, None)


def nics_section(settings: Settings, read: Reader) -> Settings:
    """`nics`: a name and what it means. Raises InvalidManifest."""
    found = {}
    for name in map(str, read.data):
        entry = read.inner(name)
        entry.only("kind", "share", "interfaces", "required", problem="is no field of a NIC's name")
        kind = entry.choice("kind", ("Share", "VF")) or "Share"
        required = entry.data.get("required", False)
        if not isinstance(required, bool):
            raise entry.wrong(f"{required!r} is neither true nor false", at="required")
        found[name] = NicName(
            virtual=kind == "VF",
            share=entry.between("share", 1, 100),
            interfaces=entry.texts("interfaces"),
            required=required,
        )
    return replace(settings, nics={**(settings.nics or {}), **found})


def asks_for_nics(view: PodView) -> bool:
    return any(nic_of(name, view.settings) for each in view.containers for name in each.resources)


@dataclass(frozen=True, slots=True)
class _Asked:
    container: Container
    field: str
    amount: int
    nic: NicName


def with_nics(normalized: NormalizedRequest, view: PodView) -> NormalizedRequest:
    """What the pod asks for, with NICs under the names of their plugins. Raises Refused."""
    asked = [
        _Asked(request.container, request.container.field(name), request.amount(name) or 0, nic)
        for request in view.requests()
        for name in request.container.resources
        if (nic := nic_of(name, view.settings)) is not None
    ]
    asked = [each for each in asked if each.amount]
    if not asked:
        return normalized
    first = asked[0]
    if normalized.nics is not None:
        raise view.notes.refuse(
            first.field, f"stands beside NICs of {normalized.dialect}", "ask under one of the names"
        )
    for each in asked:
        if replace(each.nic, interfaces=()) != replace(first.nic, interfaces=()):
            raise view.notes.refuse(
                each.field, f"is another kind of NIC than {first.field}", "use several pods, or one kind"
            )
        if not each.nic.interfaces:
            view.notes.warn(
                each.field,
                "takes any NIC: which ones the name means is set on its device plugin",
                "say their interfaces in the settings: nics",
            )
    interfaces = sorted({name for each in asked for name in each.nic.interfaces})
    if any(each.nic.interfaces != first.nic.interfaces for each in asked) and any(
        each.amount != len(each.nic.interfaces) for each in asked
    ):
        raise view.notes.refuse(
            first.field,
            "and other names are on different interfaces",
            "ask for all interfaces of each, or one",
        )
    count = _number(asked)
    cards = sum(share.count for share in normalized.shares)
    return replace(
        normalized,
        nics=Nics(
            count,
            None if first.nic.virtual else first.nic.share or LEAST_SHARE,
            most=count,
            virtual=first.nic.virtual,
            distinct=True,
            selectors=(_on(interfaces),) if interfaces else (),
        ),
        nic_users=tuple(dict.fromkeys(each.container.name for each in asked)),
        joint=Joint(required=first.nic.required, per_device=count >= cards) if cards else None,
        users=normalized.users if normalized.together is Sharing.POD else (),
    )


def _number(asked: Sequence[_Asked]) -> int:
    """Those of the containers together, or the most of an init container."""
    by_container: dict[str, int] = {}
    for each in asked:
        by_container[each.container.name] = by_container.get(each.container.name, 0) + each.amount
    inits = {each.container.name for each in asked if each.container.phase is ContainerPhase.INIT}
    together = sum(amount for name, amount in by_container.items() if name not in inits)
    return max(together, *(by_container[name] for name in inits)) if inits else together


def _on(interfaces: list[str]) -> str:
    """NICs by the names of their interfaces on the node; a virtual function by its own."""
    attributes = f'device.attributes["{names.DRIVER}"]'
    listed = ", ".join(map(cel_text, interfaces))
    return f'"netdev" in {attributes} && {attributes}.netdev in [{listed}]'
