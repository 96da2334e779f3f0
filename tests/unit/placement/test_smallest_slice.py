"""A slice that is asked for by amounts is the smallest that has them, on every card that there is a table
for: no other with so much memory and so many cores takes less of the card. Also where the first device that
does is taken, as kube-scheduler does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordra.kubelet_plugin.publish.offering import WITHOUT_POLICY
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.placement import plan
from koordra.quantity import parse
from koordra.topology import presets
from koordra.topology.presets.mig import cards, mig_profiles
from tests.long import mostly_long
from tests.unit.allocator import machines

Dict = dict[str, Any]
MIB = 1 << 20
ENGINES = ("compute_slices", "copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")


@pytest.mark.parametrize("policy", ["koordra", "FirstFit"])
@pytest.mark.parametrize("card", mostly_long(sorted(cards())))
def test_amounts_are_met_by_the_smallest_slice_that_has_them(card: str, policy: str) -> None:
    profiles = {one.name: one for one in mig_profiles({"mig_profiles": card})}
    takes = {
        name: (one.placements[0][1], *(getattr(one, kind) for kind in ENGINES))
        for name, one in profiles.items()
    }
    objects, has = published(card, tuple(profiles.values()))

    def chosen(memory: int, cores: int) -> str | None:
        amounts = {"memory": str(memory), "cores": str(cores)}
        claim = machines.claim("c", machines.request("slice", "mig", capacity=amounts))
        found = plan([*objects, claim], policy=policy).allocations.get("default/c")
        return of_device[found["devices"]["results"][0]["device"]] if found else None

    of_device = {device: name for name, (devices, _, _) in has.items() for device in devices}
    amounts = {
        (max(MIB, memory + more), cores) for _, memory, cores in has.values() for more in (-MIB, 0, MIB)
    } | {(MIB, cores + more) for _, _, cores in has.values() for more in (-1, 0, 1) if cores + more > 0}
    for memory, cores in sorted(amounts):
        fitting = [name for name, (_, room, part) in has.items() if room >= memory and part >= cores]
        got = chosen(memory, cores)
        if got is None:
            assert not fitting, (memory, cores)
            continue
        assert got in fitting, (memory, cores)
        less = [
            name
            for name in fitting
            if takes[name] != takes[got]
            and all(mine <= its for mine, its in zip(takes[name], takes[got], strict=True))
        ]
        assert not less, (memory // MIB, cores, got)


def published(
    card: str, profiles: tuple[Any, ...]
) -> tuple[list[Dict], dict[str, tuple[list[str], int, int]]]:
    """The objects of a node with one uncut card; and of each profile its places, and what each has."""
    machine = presets.load("hgx-h100").machine(serial="a")
    gpu = replace(
        machine.gpus[0],
        mig_enabled=True,
        mig_profiles=profiles,
        mig_instances=(),
        multiprocessors=cards()[card].get("multiprocessors"),
    )
    slices = build_slices(
        replace(machine, gpus=(gpu,), nics=()),
        node_name="node-1",
        node_uid=None,
        mode="joint",
        generation=1,
        offering=replace(WITHOUT_POLICY, mig=True, mig_on_demand=True),
    )
    has: dict[str, tuple[list[str], int, int]] = {}
    for device in (one for part in slices for one in part["spec"].get("devices", ())):
        name = device["attributes"]["koordra.io/profile"]["string"]
        memory, cores = (int(parse(device["capacity"][kind]["value"])) for kind in ("memory", "cores"))
        devices, room, part = has.setdefault(name, ([], memory, cores))
        devices.append(device["name"])
        has[name] = devices, min(room, memory), min(part, cores)
    return [machines.node(), *machines.device_classes(), *slices], has
