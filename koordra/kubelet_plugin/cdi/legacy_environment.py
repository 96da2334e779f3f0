"""Variables that other stacks' device plugins set, for applications that read them. Pure.

The claim's label koordra.io/dialect says for which stack its pod was written; its dialect (koordra.compat) says which variables there
are. The values are those of the allocation: the request's share of each of its cards, in the units of that stack.

They are informational: the isolation backend enforces the share and reads none of them, so a user who sets
the label or the variables gains nothing. MIG instances get none, since their limit is in hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordra.api import names
from koordra.compat.dialect.allocation import Card
from koordra.compat.dialects import dialect_named
from koordra.compat.normalized_request import GIB, MIB
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord
from koordra.kubelet_plugin.claims.container_edits import NO_EDITS, ContainerEdits
from koordra.kubelet_plugin.publish.inventory import Inventory
from koordra.quantity import parse

DIALECT: Final = names.DOMAIN + "dialect"
UNIT: Final = names.DOMAIN + "memory-unit"


def legacy_edits(
    record: ClaimRecord, *, labels: Mapping[str, str], annotations: Mapping[str, str], inventory: Inventory
) -> tuple[ContainerEdits, ...]:
    """The edits of each device of the claim; empty for a claim without a dialect."""
    dialect = dialect_named(labels.get(DIALECT, ""))
    if dialect is None or dialect.environment is None:
        return (NO_EDITS,) * len(record.devices)
    cards: dict[str, list[Card]] = {}
    for device in record.devices:
        found = _card(device, inventory)
        if found is not None:
            cards.setdefault(_request(device), []).append(found)
    unit = _unit(annotations)
    pod = [card for listed in cards.values() for card in listed]
    variables = {
        request: ContainerEdits(env=dialect.environment(listed, pod, unit))
        for request, listed in cards.items()
    }
    return tuple(
        variables.get(_request(device), NO_EDITS) if device.type == names.TYPE_GPU else NO_EDITS
        for device in record.devices
    )


def _request(device: DeviceRecord) -> str:
    return device.request.partition("/")[0]


def _card(device: DeviceRecord, inventory: Inventory) -> Card | None:
    published = inventory.published.get(device.device)
    if device.type != names.TYPE_GPU or device.admin_access or published is None:
        return None
    capacity = published.capacity.get(names.CAPACITY_MEMORY)
    total = int(capacity.value) if capacity else 0
    consumed = dict(device.consumed) if device.share_id else {}
    memory = int(parse(consumed[names.CAPACITY_MEMORY])) if names.CAPACITY_MEMORY in consumed else total
    minor = inventory.attributes(device.device).get(names.ATTR_MINOR)
    return Card(
        minor=minor if isinstance(minor, int) else -1,
        memory=memory,
        total=total,
    )


def _unit(annotations: Mapping[str, str]) -> int:
    said = annotations.get(UNIT, "")
    return int(said) if said in (str(MIB), str(GIB)) else GIB
