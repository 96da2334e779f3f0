"""What is inferred from a machine as a whole: which GPUs NVLink joins, which NICs are on one rail, and which parts of it
are themselves conclusions.

Domains and rails are numbered over all devices, so one that is not seen would shift the numbers of the others. From a laptop a card
that its node does not offer is not seen; there, what the node published counts (``Machine.told``).
"""

from __future__ import annotations

from koordra.topology.machine import Machine, bus_order, nvlinks_between


def nvlink_domains(machine: Machine) -> dict[str, str]:
    """GPU bus id -> name of the set of GPUs that NVLink joins, directly or not ("nvlink-0", in bus order).

    GPUs without NVLink are left out.
    """
    if machine.told is not None:
        return dict(machine.told.nvlink_domains)
    gpus = machine.gpus
    domains: dict[str, str] = {}
    for gpu in gpus:
        if gpu.location.bus_id in domains:
            continue
        members, frontier = {gpu.location.bus_id}, [gpu]
        while frontier:
            here = frontier.pop()
            for other in gpus:
                if other.location.bus_id not in members and nvlinks_between(here, other):
                    members.add(other.location.bus_id)
                    frontier.append(other)
        if len(members) > 1:
            label = f"nvlink-{len(set(domains.values()))}"
            domains.update(dict.fromkeys(members, label))
    return domains


def rails(machine: Machine) -> dict[str, int]:
    """NIC bus id -> rail number, for NICs whose switch also carries a GPU. Inferred, never read.

    A rail is a card: in bus order, the n-th card that shares a switch with a GPU is on rail n, and both ports of
    a dual-port card are on the same one. That is how HGX and DGX machines are cabled (one card per rail, one
    leaf switch per rail); nothing in the machine can confirm the cable. Machines whose switch groups carry
    unequal numbers of cards are cabled in ways that cannot be guessed and get no rails.
    """
    if machine.told is not None:
        return dict(machine.told.rails)
    nics, gpus = machine.nics, machine.gpus
    with_gpu = {gpu.location.switches[0] for gpu in gpus if gpu.location.switches}
    cards: dict[str, list[str]] = {}
    for nic in nics:
        if nic.location.switches and nic.location.switches[0] in with_gpu:
            group = cards.setdefault(nic.location.switches[0], [])
            if nic.location.card not in group:
                group.append(nic.location.card)
    if len({len(group) for group in cards.values()}) != 1:
        return {}
    number = {
        card: index
        for index, card in enumerate(
            sorted((card for group in cards.values() for card in group), key=bus_order)
        )
    }
    return {nic.location.bus_id: number[nic.location.card] for nic in nics if nic.location.card in number}


def inferred_parts(machine: Machine) -> frozenset[str]:
    """Switches and host bridges that nobody has seen: devices below them were said or inferred to be there."""
    parts: set[str] = set()
    for device in machine.devices():
        if "pcieSwitch" in device.inferred:
            parts.update(device.location.switches)
        if "pcieRoot" in device.inferred:
            parts.add(device.location.root)
    return frozenset(parts)
