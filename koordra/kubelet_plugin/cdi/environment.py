"""Variables of a claim beyond those of its devices: its place in a gang, and what other GPU stacks would set. Pure.

**A gang's member.** The controller writes a `GangMember` into the allocation of every member's claim
(api/opaque/gang_member.py). It becomes

    KOORDRA_GANG, KOORDRA_GANG_SIZE, KOORDRA_RANK        name of the gang, number of its members, this one's rank
    KOORDRA_GANG_NODES, KOORDRA_NODE_RANK                number of nodes, and which of them this is, in rank order
    KOORDRA_LOCAL_SIZE, KOORDRA_LOCAL_RANK               among the gang's members on this node
    KOORDRA_ZONE, _CORE, _SPINE, _BLOCK, _NVLINK         the known topology domains
    KOORDRA_RAILS                                        "0,1": rails of the member's NICs
    KOORDRA_LEADER                                       host of rank 0, for rendezvous
    KOORDRA_HOSTS                                        "host:gpus,host:gpus", by rank
    KOORDRA_HOSTFILE                                     a file with a line "host slots=gpus" per member, by rank

None of them is a launcher's own variable (RANK, MASTER_ADDR, OMPI_*): what CDI sets would override the launcher's value.
docs/gangs-containers.md says how launchers use them. The file is made from KOORDRA_HOSTS in the claim's record, so that it
can be rewritten at any time.

**A legacy pod.** The claim's label koordra.io/dialect says for which stack its pod was written; its dialect
(koordra.compat) says which variables there are. The values are those of the allocation: the request's share of each of its
cards, in the units of that stack. They are informational: the isolation backend enforces the share and reads none of them,
so a user who sets the label or the variables gains nothing. MIG instances get none, since their limit is in hardware.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from koordra.api import names
from koordra.api.opaque.gang_member import GangMember
from koordra.compat.dialect.allocation import Card
from koordra.compat.dialects import dialect_named
from koordra.compat.normalized_request import GIB, MIB
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord
from koordra.kubelet_plugin.claims.container_edits import NO_EDITS, ContainerEdits, Mount
from koordra.kubelet_plugin.publish.inventory import Inventory
from koordra.node_state.claim_ref import environment_name
from koordra.node_state.layout import claim_folder
from koordra.quantity import parse

HOSTFILE: Final = "hostfile"
JOB_FOLDER: Final = "/run/koordra.io/job"
HOSTS: Final = "KOORDRA_HOSTS"
_LATER: Final = frozenset({"KOORDRA_RAILS", "KOORDRA_LEADER", HOSTS, "KOORDRA_HOSTFILE"})
"""Reserved: a topology level named "hosts" or "rails" must not set these."""


def with_member(record: ClaimRecord, member: GangMember | None, *, state: Path) -> ClaimRecord:
    """The record with the member's variables on every device and the file on the first of each request."""
    if member is None:
        return record
    devices = []
    seen: set[str] = set()
    for device in record.devices:
        edits = device.edits + ContainerEdits(env=variables(member, record.ref.uid))
        request = device.request.partition("/")[0]
        if member.hosts and request not in seen:
            path = claim_folder(state, record.ref.uid) / HOSTFILE
            edits += ContainerEdits(mounts=(Mount(str(path), _in_container(record.ref.uid)),))
        seen.add(request)
        devices.append(replace(device, edits=edits))
    return replace(record, devices=tuple(devices))


def variables(member: GangMember, uid: str) -> tuple[tuple[str, str], ...]:
    found = [
        ("KOORDRA_GANG", member.gang),
        ("KOORDRA_GANG_SIZE", str(member.size)),
        ("KOORDRA_RANK", str(member.rank)),
        ("KOORDRA_GANG_NODES", str(member.nodes)),
        ("KOORDRA_NODE_RANK", str(member.node_rank)),
        ("KOORDRA_LOCAL_SIZE", str(member.local_size)),
        ("KOORDRA_LOCAL_RANK", str(member.local_rank)),
    ]
    own = {name for name, _ in found} | _LATER
    domains = [(f"KOORDRA_{environment_name(level)}", name) for level, name in sorted(member.domains.items())]
    found += [(variable, name) for variable, name in domains if variable not in own]
    if member.rails:
        found.append(("KOORDRA_RAILS", ",".join(member.rails)))
    if member.leader:
        found.append(("KOORDRA_LEADER", member.leader))
    if member.hosts:
        spelled = (f"{host}:{slots}" for host, slots in zip(member.hosts, member.slots, strict=True))
        found += [(HOSTS, ",".join(spelled)), ("KOORDRA_HOSTFILE", _in_container(uid))]
    return tuple(found)


def _in_container(uid: str) -> str:
    return f"{JOB_FOLDER}/{uid}/{HOSTFILE}"


def hostfile(hosts: str) -> bytes:
    """The file of Open MPI and of Horovod, from the value of KOORDRA_HOSTS. Members without a GPU (a
    launcher) have no slot and are left out."""
    lines = []
    for entry in hosts.split(","):
        host, _, slots = entry.rpartition(":")
        if slots != "0":
            lines.append(f"{host} slots={slots}\n")
    return "".join(lines).encode()


def job_documents(record: ClaimRecord, mounted: Iterable[str]) -> dict[str, bytes]:
    """The hostfile, if the record's edits mount it."""
    if HOSTFILE not in mounted:
        return {}
    hosts = next(
        (value for device in record.devices for name, value in device.edits.env if name == HOSTS), ""
    )
    return {HOSTFILE: hostfile(hosts)}


DIALECT: Final = names.DOMAIN + "dialect"
MEMORY_UNIT: Final = names.DOMAIN + "memory-unit"


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
    said = annotations.get(MEMORY_UNIT, "")
    return int(said) if said in (str(MIB), str(GIB)) else GIB
