"""What can be known of prepared claims without the checkpoint.

The checkpoint holds everything twice (two versions), and every claim that a container may have also has a record for the NRI
hook, `prepared/<uid>.json`, which was written before the kubelet was answered and goes only with Unprepare. So when the
checkpoint is damaged or missing:

    a section of it that is whole           its claims, complete
    else, claims with a record for the hook  State.RECOVERED: which devices they hold, not how much of each

A recovered claim holds each of its devices as far as the policy's defaults go, for a GPU all of its memory, so nothing can
be given out twice. Its files stay as they are, its containers go on; the next Prepare of the claim, or its Unprepare, makes
it an ordinary one again. Damage is over when every claim that has a file of any kind is accounted for; while one is not, Prepare fails closed.

Records of an earlier boot cannot be told from those of this one here and count as this one's: they go when the kubelet
unprepares them, or as orphans (claim_audit.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from koordra.kubelet_plugin import prepared
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, ClaimRef, DeviceRecord, State
from koordra.topology.machine import DeviceNode


def accounted_for(
    intact: Iterable[ClaimRecord], *, for_hook: Mapping[str, bytes], pool: str, boot_id: str
) -> tuple[ClaimRecord, ...]:
    """The claims of a whole section, and those that only have a record for the hook (uid -> bytes of the file)."""
    found = {record.ref.uid: record for record in intact}
    for uid, data in for_hook.items():
        if uid not in found:
            record = recovered(uid, data, pool=pool, boot_id=boot_id)
            if record is not None:
                found[uid] = record
    return tuple(found[uid] for uid in sorted(found))


def recovered(uid: str, data: bytes, *, pool: str, boot_id: str) -> ClaimRecord | None:
    """The claim behind a record for the hook; None when the record is damaged too."""
    try:
        document = json.loads(data)
        claim = document["claim"]
        if document["schema"] != prepared.SCHEMA or claim["uid"] != uid:
            return None
        record = ClaimRecord(
            ref=ClaimRef(namespace=str(claim["namespace"]), name=str(claim["name"]), uid=uid),
            pool=pool,
            nonce=str(document["nonce"]),
            boot_id=boot_id,
            state=State.RECOVERED,
            devices=tuple(_device(device) for device in document["devices"]),
            memlock=bool(document["memlock"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return record if record.ref.valid and record.devices else None


def _device(raw: Mapping[str, Any]) -> DeviceRecord:
    return DeviceRecord(
        request=str(raw["request"]),
        device=str(raw["device"]),
        type=str(raw["type"]),
        identity=str(raw["uuid"] or ""),
        share_id=raw["shareID"],
        uuid=raw["uuid"],
        ib_device=raw["ibDevice"],
        netdev=raw["netdev"],
        numa_node=raw["numaNode"],
        cpus=raw["cpus"],
        nodes=tuple(
            DeviceNode(
                path=str(node["path"]),
                major=int(node["major"]),
                minor=int(node["minor"]),
                type=str(node["type"]),
            )
            for node in raw["deviceNodes"]
        ),
    )
