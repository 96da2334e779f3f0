"""The fabrics that a machine's devices are on: NVLink among its GPUs, rails for its NICs; and which parts of
it were inferred.

Domains and rails are numbered over all devices, so one that is not seen would shift the numbers of the
others. From a laptop a card that its node does not offer is not seen; there, what the node published counts
(``Machine.published_fabrics``). NVLink is published as

    nvlinkDomain   the set of GPUs that NVLink joins, directly or not
    nvlinks        active NVLinks of this GPU, 18; every pair of an NVSwitch fabric has the width of its
                   narrower member
    nvlinkPeers    only where GPUs are wired to each other directly: links to the GPU with minor 0, 1, ...:
                   "0,1,1,2,2"

    clique         of a fabric over several nodes (GB200 NVL72), the part whose GPUs reach each other

The fabric of an HGX machine thus costs one number for each GPU, and only a mesh publishes its wiring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from koordra.api import names
from koordra.topology.levels import attribute
from koordra.topology.location import bus_order
from koordra.topology.machine import Gpu, Machine, nvlinks_between


def nvlink_domains(machine: Machine) -> dict[str, str]:
    """GPU bus id -> name of the set of GPUs that NVLink joins, directly or not ("nvlink-0", in bus order).

    GPUs without NVLink are left out.
    """
    if machine.published_fabrics is not None:
        return dict(machine.published_fabrics.nvlink_domains)
    joined = {gpu.location.bus_id: {gpu.location.bus_id} for gpu in machine.gpus}
    for one, other in combinations(machine.gpus, 2):
        if nvlinks_between(one, other):
            together = joined[one.location.bus_id] | joined[other.location.bus_id]
            joined |= dict.fromkeys(together, together)
    domains = dict.fromkeys(frozenset(members) for members in joined.values() if len(members) > 1)
    return {member: f"nvlink-{number}" for number, members in enumerate(domains) for member in members}


def cliques(machine: Machine) -> tuple[str, ...]:
    """The cliques of NVLink fabrics over several nodes that the machine's GPUs have joined."""
    return tuple(sorted({str(gpu.fabric) for gpu in machine.gpus if gpu.fabric}))


def clique(machine: Machine) -> str | None:
    """The machine's place in an NVLink fabric over several nodes, ``<cluster UUID>.<clique id>``; None
    without one, and where its GPUs are in several: which of them holds is then anybody's guess."""
    found = cliques(machine)
    return found[0] if len(found) == 1 else None


def rails(machine: Machine) -> dict[str, int]:
    """NIC bus id -> rail number, for NICs whose switch also carries a GPU. Inferred, never read.

    A rail is a card: in bus order, the n-th card that shares a switch with a GPU is on rail n, and both ports
    of a dual-port card are on the same one. That is how HGX and DGX machines are cabled (one card per rail,
    one leaf switch per rail); nothing in the machine can confirm the cable. Machines whose switch groups
    carry unequal numbers of cards are cabled in ways that cannot be guessed and get no rails.
    """
    if machine.published_fabrics is not None:
        return dict(machine.published_fabrics.rails)
    with_gpu = {gpu.location.switch for gpu in machine.gpus} - {None}
    places = [nic.location for nic in machine.nics if nic.location.switch in with_gpu]
    cards = {location.card: location.switch for location in places}
    if len(set(Counter(cards.values()).values())) != 1:
        return {}
    numbers = {card: number for number, card in enumerate(sorted(cards, key=bus_order))}
    return {location.bus_id: numbers[location.card] for location in places}


def inferred_parts(machine: Machine) -> set[str]:
    """Switches and host bridges that were not read from the machine: an overlay or inference puts devices
    below them."""
    devices = list(machine.devices())
    roots = {device.location.root for device in devices if "pcieRoot" in device.location.inferred}
    return roots.union(
        *(device.location.switches for device in devices if "pcieSwitch" in device.location.inferred)
    )


def links_between_published(a: Mapping[str, Any], b: Mapping[str, Any]) -> int:
    """NVLinks between two GPUs of one node, from their attributes; 1 if only the domain is published."""
    domain = attribute(a, names.ATTR_NVLINK_DOMAIN)
    if domain is None or domain != attribute(b, names.ATTR_NVLINK_DOMAIN):
        return 0
    peers, minor = attribute(a, names.ATTR_NVLINK_PEERS), attribute(b, names.ATTR_MINOR)
    if isinstance(peers, str) and isinstance(minor, int):
        widths = peers.split(",")
        return int(widths[minor]) if minor < len(widths) and widths[minor].isdecimal() else 0
    numbers = (attribute(gpu, names.ATTR_NVLINKS) for gpu in (a, b))
    return min((number for number in numbers if isinstance(number, int)), default=1)


def published_links(gpus: Sequence[Gpu]) -> dict[str, dict[str, int | str]]:
    """GPU bus id -> attributes ``nvlinks`` and ``nvlinkPeers``; empty for a GPU without NVLink."""
    most = max((gpu.minor for gpu in gpus if gpu.minor is not None), default=-1)
    found: dict[str, dict[str, int | str]] = {gpu.location.bus_id: {} for gpu in gpus}
    for gpu in (gpu for gpu in gpus if any(link.links for link in gpu.nvlinks)):
        own = found[gpu.location.bus_id]
        own[names.ATTR_NVLINKS] = sum(link.links for link in gpu.nvlinks)
        if most >= 0 and not all(link.to_switch for link in gpu.nvlinks):
            widths = {other.minor: nvlinks_between(gpu, other) for other in gpus if other is not gpu}
            own[names.ATTR_NVLINK_PEERS] = ",".join(str(widths.get(minor, 0)) for minor in range(most + 1))
    return found
