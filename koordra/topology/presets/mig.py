"""The MIG part of a machine's description: what a GPU can be cut into, and what it is cut into.

Under a GPU, or under the defaults of all GPUs::

    mig: true
    mig_profiles: A100-SXM4-40GB          # one of the cards below
    mig_instances: [[1g.5gb, 0], [3g.20gb, 4]]    # profile, first memory slice

The tables follow NVIDIA's MIG User Guide ("Supported MIG Profiles") and what ``nvidia-smi mig -lgip`` and ``-lgipp``
print; memory differs by some MiB between driver versions.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from koordra.errors import InvalidManifest
from koordra.topology.machine import DeviceNode
from koordra.topology.partitions import MigInstance, MigProfile

_MIB = 1 << 20
_IDENTITIES = uuid.UUID("0f0b4f3e-8a35-5b0a-8f0e-6d6967000000")
_MOST_COMPUTE_INSTANCES, _MOST_GPU_INSTANCES = 8, 15

_SEVEN = tuple((start, 1) for start in range(7))
_PAIRS = ((0, 2), (2, 2), (4, 2))
_FOURTHS = (*_PAIRS, (6, 2))
_HALVES = ((0, 4), (4, 4))

# name, NVML's id, MiB, compute slices, most, placements, copy engines, decoders, jpeg engines, OFAs
_Row = tuple[str, int, int, int, int, tuple[tuple[int, int], ...], int, int, int, int]
CARDS: dict[str, tuple[_Row, ...]] = {
    "A100-SXM4-40GB": (
        ("7g.40gb", 0, 40192, 7, 1, ((0, 8),), 7, 5, 1, 1),
        ("4g.20gb", 5, 20096, 4, 1, ((0, 4),), 4, 2, 0, 0),
        ("3g.20gb", 9, 20096, 3, 2, _HALVES, 3, 2, 0, 0),
        ("2g.10gb", 14, 9984, 2, 3, _PAIRS, 2, 1, 0, 0),
        ("1g.10gb", 15, 9984, 1, 4, _FOURTHS, 1, 1, 0, 0),
        ("1g.5gb", 19, 4864, 1, 7, _SEVEN, 1, 0, 0, 0),
        ("1g.5gb+me", 20, 4864, 1, 1, _SEVEN, 1, 1, 1, 1),
    ),
    "H100-SXM5-80GB": (
        ("7g.80gb", 0, 81152, 7, 1, ((0, 8),), 8, 7, 7, 1),
        ("4g.40gb", 5, 40448, 4, 1, ((0, 4),), 4, 4, 4, 0),
        ("3g.40gb", 9, 40448, 3, 2, _HALVES, 3, 3, 3, 0),
        ("2g.20gb", 14, 20096, 2, 3, _PAIRS, 2, 2, 2, 0),
        ("1g.20gb", 15, 20096, 1, 4, _FOURTHS, 1, 1, 1, 0),
        ("1g.10gb", 19, 9984, 1, 7, _SEVEN, 1, 1, 1, 0),
        ("1g.10gb+me", 20, 9984, 1, 1, _SEVEN, 1, 1, 1, 1),
    ),
}


def mig_profiles(entry: Mapping[str, Any]) -> tuple[MigProfile, ...]:
    """The table that ``mig_profiles`` names; InvalidManifest for a card without one."""
    card = entry.get("mig_profiles")
    if card is None:
        return ()
    if card not in CARDS:
        known = ", ".join(sorted(CARDS))
        raise InvalidManifest(
            f"there is no table for {card!r}", object="GPU", field="mig_profiles", remedy=f"one of {known}"
        )
    return tuple(_profile(row) for row in sorted(CARDS[card], key=lambda row: row[1]))


def _profile(row: _Row) -> MigProfile:
    name, number, mebibytes, slices, most, placements, copy, decoders, jpeg, ofa = row
    return MigProfile(
        id=number,
        name=name,
        memory_bytes=mebibytes * _MIB,
        compute_slices=slices,
        most=most,
        placements=placements,
        copy_engines=copy,
        decoders=decoders,
        jpeg_engines=jpeg,
        ofa_engines=ofa,
    )


def mig_instances(
    entry: Mapping[str, Any], *, minor: int, major: int, identity: str
) -> tuple[MigInstance, ...]:
    """The instances that ``mig_instances`` lists, numbered from 1, with the nodes that the driver gives them."""
    profiles = {profile.name: profile for profile in mig_profiles(entry)}
    found = []
    for number, (name, start) in enumerate(entry.get("mig_instances", ()), start=1):
        place = (
            next((place for place in profiles[name].placements if place[0] == start), None)
            if name in profiles
            else None
        )
        if place is None:
            raise InvalidManifest(
                f"{name} at {start} is no placement", object=f"GPU {minor}", field="mig_instances"
            )
        # The driver numbers config 1, monitor 2, then nine nodes for each of a card's fifteen instances.
        first = 3 + (minor * _MOST_GPU_INSTANCES + number) * (_MOST_COMPUTE_INSTANCES + 1)
        found.append(
            MigInstance(
                gpu_instance=number,
                compute_instance=0,
                profile_id=profiles[name].id,
                start=place[0],
                size=place[1],
                uuid=f"MIG-{uuid.uuid5(_IDENTITIES, f'{identity}/{number}')}",
                nodes=tuple(
                    DeviceNode(f"/dev/nvidia-caps/nvidia-cap{cap}", major, cap) for cap in (first, first + 1)
                ),
            )
        )
    return tuple(sorted(found, key=lambda instance: (instance.start, instance.gpu_instance)))
