"""A gang member's place in its job: environment variables, and a hostfile for launchers. Pure.

The controller writes a `GangMember` into the allocation of every member's claim (api/opaque/gang_member.py).
It becomes

    KOORDRA_GANG, KOORDRA_GANG_SIZE, KOORDRA_RANK        name of the gang, number of its members, this one's rank
    KOORDRA_GANG_NODES, KOORDRA_NODE_RANK                number of nodes, and which of them this is, in rank order
    KOORDRA_LOCAL_SIZE, KOORDRA_LOCAL_RANK               among the gang's members on this node
    KOORDRA_ZONE, _CORE, _SPINE, _BLOCK, _NVLINK         the known topology domains
    KOORDRA_RAILS                                        "0,1": rails of the member's NICs
    KOORDRA_LEADER                                       host of rank 0, for rendezvous
    KOORDRA_HOSTS                                        "host:gpus,host:gpus", by rank
    KOORDRA_HOSTFILE                                     a file with a line "host slots=gpus" per member, by rank

None of them is a launcher's own variable (RANK, MASTER_ADDR, OMPI_*): what CDI sets would override the
launcher's value. docs/gangs-containers.md says how launchers use them.

The file is made from KOORDRA_HOSTS in the claim's record, so that it can be rewritten at any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from koordra.api.opaque.gang_member import GangMember
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.claims.container_edits import ContainerEdits, Mount
from koordra.node_state.claim_ref import environment_name
from koordra.node_state.layout import claim_folder

HOSTFILE: Final = "hostfile"
IN_CONTAINER: Final = "/run/koordra.io/job"
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
    return f"{IN_CONTAINER}/{uid}/{HOSTFILE}"


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
