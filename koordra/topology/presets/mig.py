"""The MIG part of a machine's description: what a GPU can be cut into, and what it is cut into.

Under a GPU, or under the defaults of all GPUs::

    mig: true
    mig_profiles: A100-SXM4-40GB          # one of the cards in mig_profiles.json
    mig_instances: [[1g.5gb, 0], [3g.20gb, 4]]    # profile, first memory slice

Each table names its sources: NVIDIA's MIG User Guide ("Supported MIG Profiles"), and what ``nvidia-smi mig
-lgip`` and ``-lgipp`` print on such cards. A card's own answer always comes first: memory, and even the names
of profiles, differ between drivers and boards. ``inferred`` lists what no source says of a profile (of twice
the slices twice as much was taken); multiprocessors that no listing shows are left out.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from koordra.errors import InvalidManifest
from koordra.topology.location import DeviceNode
from koordra.topology.partitions import MigInstance, MigProfile

_MIB = 1 << 20
_TABLES = Path(__file__).parent / "mig_profiles.json"
_IDENTITIES = uuid.UUID("0f0b4f3e-8a35-5b0a-8f0e-6d6967000000")
_OF_TABLES = frozenset({"index", "inferred", "mebibytes", "placements"})
_MOST_COMPUTE_INSTANCES, _MOST_GPU_INSTANCES = 8, 15


@cache
def cards() -> Mapping[str, Mapping[str, Any]]:
    """What is known of each card that there is a table for."""
    found: dict[str, dict[str, Any]] = json.loads(_TABLES.read_text(encoding="utf-8"))
    return found


def mig_profiles(entry: Mapping[str, Any]) -> tuple[MigProfile, ...]:
    """The table that ``mig_profiles`` names; InvalidManifest for a card without one."""
    card = entry.get("mig_profiles")
    if card is None:
        return ()
    known = cards()
    if card not in known:
        raise InvalidManifest(
            f"there is no table for {card!r}",
            object="GPU",
            field="mig_profiles",
            remedy=f"one of {', '.join(sorted(known))}",
        )
    return tuple(_profile(row) for row in sorted(known[card]["profiles"], key=itemgetter("id")))


def _profile(row: Mapping[str, Any]) -> MigProfile:
    places = tuple((start, size) for start, size in row["placements"])
    rest = {name: value for name, value in row.items() if name not in _OF_TABLES}
    return MigProfile(memory_bytes=row["mebibytes"] * _MIB, placements=places, **rest)


def multiprocessors(entry: Mapping[str, Any]) -> int | None:
    """Those of the whole card that ``mig_profiles`` names."""
    return cards().get(str(entry.get("mig_profiles")), {}).get("multiprocessors")


def mig_instances(
    entry: Mapping[str, Any], *, minor: int, major: int, identity: str
) -> tuple[MigInstance, ...]:
    """The instances that ``mig_instances`` lists, numbered from 1, with the nodes the driver gives them."""
    profiles = {profile.name: profile for profile in mig_profiles(entry)}
    found = []
    for number, (name, start) in enumerate(entry.get("mig_instances", ()), start=1):
        places = dict(profiles[name].placements) if name in profiles else {}
        if start not in places:
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
                start=start,
                size=places[start],
                uuid=f"MIG-{uuid.uuid5(_IDENTITIES, f'{identity}/{number}')}",
                nodes=tuple(
                    DeviceNode(f"/dev/nvidia-caps/nvidia-cap{cap}", major, cap) for cap in (first, first + 1)
                ),
            )
        )
    return tuple(sorted(found, key=lambda instance: (instance.start, instance.gpu_instance)))
