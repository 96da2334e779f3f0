"""NVLink as it is published: the width of a GPU's NVLinks and, where pairs differ, the width to each peer.

    nvlinkDomain   the set of GPUs that NVLink joins, directly or not
    nvlinks        active NVLinks of this GPU, 18; every pair of an NVSwitch fabric has the width of its narrower member
    nvlinkPeers    only where GPUs are wired to each other directly: links to the GPU with minor 0, 1, ...: "0,1,1,2,2"

The fabric of an HGX machine thus costs one number for each GPU, and only a mesh publishes its wiring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from koordra.api import names
from koordra.topology.levels import attribute
from koordra.topology.machine import Gpu, nvlinks_between


def published_links(gpus: Sequence[Gpu]) -> dict[str, dict[str, int | str]]:
    """GPU bus id -> attributes ``nvlinks`` and ``nvlinkPeers``; empty for a GPU without NVLink."""
    return {gpu.location.bus_id: _links(gpu, gpus) for gpu in gpus}


def links_between_published(a: Mapping[str, Any], b: Mapping[str, Any]) -> int:
    """NVLinks between two GPUs of one node, from their attributes; 1 where only the common domain is published."""
    domain = attribute(a, names.ATTR_NVLINK_DOMAIN)
    if domain is None or domain != attribute(b, names.ATTR_NVLINK_DOMAIN):
        return 0
    peers, minor = attribute(a, names.ATTR_NVLINK_PEERS), attribute(b, names.ATTR_MINOR)
    if isinstance(peers, str) and isinstance(minor, int):
        widths = peers.split(",")
        return int(widths[minor]) if minor < len(widths) and widths[minor].isdecimal() else 0
    widths_here = [attribute(gpu, names.ATTR_NVLINKS) for gpu in (a, b)]
    return min((width for width in widths_here if isinstance(width, int)), default=1)


def _links(gpu: Gpu, gpus: Sequence[Gpu]) -> dict[str, int | str]:
    active = sum(link.links for link in gpu.nvlinks)
    if not active:
        return {}
    found: dict[str, int | str] = {names.ATTR_NVLINKS: active}
    direct = any(not link.to_switch for link in gpu.nvlinks)
    widths = {
        other.minor: nvlinks_between(gpu, other) if other is not gpu else 0
        for other in gpus
        if other.minor is not None
    }
    if direct and widths:
        found[names.ATTR_NVLINK_PEERS] = ",".join(
            str(widths.get(minor, 0)) for minor in range(max(widths) + 1)
        )
    return found
