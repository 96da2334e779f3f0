"""Recovery of prepared claims without the checkpoint.

The checkpoint holds everything twice (two versions), and every claim that a container may hold also has a
record for the NRI hook, `prepared/<uid>.json`, which is written before the kubelet is answered and removed
only by Unprepare. If the checkpoint is damaged or missing, claims are recovered from:

    a section of the checkpoint that is intact    the claim, complete
    otherwise its record for the hook             State.RECOVERED: which devices it holds, not how much of each

A recovered claim holds the default amount of each capacity of its devices, for a GPU all of its memory, so
nothing can be given out twice. Its files and its containers stay; the next Prepare or Unprepare of the claim
makes it an ordinary one again. Recovery is complete when every claim that has a file of any kind has a
record; until then Prepare fails closed.

Records for the hook carry no boot id, so all of them count as this boot's: they go when the kubelet
unprepares them, or as orphans (prepare/claim_audit.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord, State
from koordra.node_state import prepared_claim
from koordra.node_state.claim_ref import ClaimRef


def recover_records(
    intact: Iterable[ClaimRecord], *, for_hook: Mapping[str, bytes], pool: str, boot_id: str
) -> tuple[ClaimRecord, ...]:
    """The claims of a whole section, and those that only have a record for the hook (uid -> bytes of the
    file)."""
    found = {record.ref.uid: record for record in intact}
    for uid, data in for_hook.items():
        if uid not in found:
            record = recover_record(uid, data, pool=pool, boot_id=boot_id)
            if record is not None:
                found[uid] = record
    return tuple(found[uid] for uid in sorted(found))


def recover_record(uid: str, data: bytes, *, pool: str, boot_id: str) -> ClaimRecord | None:
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
