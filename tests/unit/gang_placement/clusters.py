"""Small clusters and gangs for the tests of their placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from koordra.placement.gang import (
    Fixed,
    GangAnswer,
    GangPlaced,
    GangRequest,
    NewMember,
    gang_members,
    place_gang,
)
from tests.fakes.gang_engine import gang_engine, member
from tests.unit.allocator.machines import allocated, claim, device_classes, joint, machine, pod, request

Dict = dict[str, Any]
BLOCK, SPINE, NVLINK = (f"fabric.koordra.io/{level}" for level in ("block", "spine", "nvlink"))


def cluster(**blocks: int) -> list[Dict]:
    """Blocks with so many nodes of 8 GPUs and 8 NICs, each NIC on its rail; nodes are named block-number."""
    found: list[Dict] = []
    for block, count in blocks.items():
        for number in range(count):
            found += node_in(f"{block}-{number}", {BLOCK: block})
    return found


def node_in(name: str, labels: Mapping[str, str], *, gpus: int = 8) -> list[Dict]:
    found = machine(gpus, gpus, name=name, labels=labels)
    for device in found[1]["spec"]["devices"]:
        kind, _, number = device["name"].partition("-")
        if kind == "nic":
            device["attributes"]["rail"] = {"int": int(number)}
    return found


def workers(count: int, gpus: int, *, prefix: str = "w", scope: str = "Required") -> list[NewMember]:
    found = []
    for index in range(count):
        name = f"{prefix}{index}"
        own = claim(
            name,
            request("gpu", "gpu", gpus),
            request("nic", "nic", gpus),
            configs=[joint("PCIeRoot", enforcement=scope)],
        )
        found.append(member(f"default/{name}", [pod(name, name)], [own], index=index))
    return found


def launcher() -> NewMember:
    return member("default/launcher", [pod("launcher", requests={"cpu": "1"})])


def placed(objects: Sequence[Dict], gang: GangRequest) -> GangPlaced:
    answer = answered(objects, gang)
    assert isinstance(answer, GangPlaced), answer
    return answer


def answered(objects: Sequence[Dict], gang: GangRequest) -> GangAnswer:
    return place_gang(gang, gang_engine([*device_classes(), *objects]))


def written(answer: GangPlaced, members: Sequence[NewMember], *, gang: str = "job") -> list[Dict]:
    """The members' claims as the controller writes them."""
    entries = gang_members(gang, answer)
    found = []
    for asker in members:
        one = next((entry for entry in answer.members if entry.key == asker.key), None)
        for asked in asker.group.claims if one else ():
            assert one is not None
            allocation: Dict = dict(one.allocations[asked.key])
            devices = allocation["devices"]
            allocation["devices"] = {**devices, "config": [*devices.get("config", ()), entries[asked.key]]}
            obj = allocated(claim(asked.name, request("r")), allocation)
            obj["status"]["reservedFor"] = [
                {"resource": "pods", "name": asker.key.partition("/")[2], "uid": "u"}
            ]
            found.append(obj)
    return found


def fixed(answer: GangPlaced, claims: Sequence[Dict]) -> tuple[Fixed, ...]:
    by_key = {f"default/{entry['metadata']['name']}": entry for entry in claims}
    return tuple(
        Fixed(one.key, one.node, tuple(by_key[key] for key in one.allocations), rank=one.rank)
        for one in answer.members
    )
