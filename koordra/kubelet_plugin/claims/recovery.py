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

from collections.abc import Iterable, Mapping

from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord, State
from koordra.node_state import prepared_claim
from koordra.node_state.claim_ref import ClaimRef


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
        claim = prepared_claim.decode(data)
    except ValueError:
        return None
    record = ClaimRecord(
        ref=ClaimRef(namespace=claim.namespace, name=claim.name, uid=claim.uid),
        pool=pool,
        nonce=claim.nonce,
        boot_id=boot_id,
        state=State.RECOVERED,
        devices=tuple(
            DeviceRecord(
                request=device.request,
                device=device.device,
                type=device.type,
                identity=device.uuid or "",
                share_id=device.share_id,
                uuid=device.uuid,
                ib_device=device.ib_device,
                netdev=device.netdev,
                numa_node=device.numa_node,
                cpus=device.cpus,
                nodes=device.nodes,
            )
            for device in claim.devices
        ),
        memlock=claim.memlock,
    )
    return record if claim.uid == uid and record.ref.valid and record.devices else None
