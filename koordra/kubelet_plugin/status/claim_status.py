"""Writes `status.devices` of the claims that this node has prepared: the state of a NIC in its pod, and of a
GPU's memory limit.

    networkData   interface name, addresses and MAC in the pod
    Ready         True once the device is usable in the pod; False while its network is not attached yet, or
                  where nobody attaches one (NoNetworkInPod, also an Event); Unknown where Multus attaches it
                  and the hook does not look
    GIDReady      (RDMA over Ethernet) whether the RDMA device has an address; Unknown if the host does not
                  see it

    Present       False while the device is not what it was when the claim was prepared
                  (prepare/lost_devices.py); the claim's pods get an Event, too

    CardKept      (GPU of which a backend keeps the whole card) whether it is kept for its shares, and what
                  the backend says of it, or what is wrong (isolation/card_watch.py)

    Limited       (GPU with isolation `limiter`) whether the memory limit holds; Unknown until a process uses
                  CUDA; reasons: isolation/limiter/report.py. The message says whether cores are limited, too
    Resized       (once its limits were changed) whether all processes act by revision `observedGeneration` of
                  them (isolation/limiter/resize.py); `ResizePending` True while a wish is refused, and why

Only these devices have entries: another GPU's status says nothing beyond its allocation. Entries of other
drivers, and others' conditions on ours, stay as they are: `nri/verify/api_reporter.py` writes conditions to
the same entries (`Isolated`, `InterfacePresent`), from another process on the node.

The write is a read and a conditional merge patch of that list alone (verbs: `resourceclaims/status` patch
and, for this driver's name, `resourceclaims/driver` `associated-node:patch`). An update of the whole object
would be rejected: the API server compares the opaque parameters in the allocation byte for byte, and decoding
and encoding may change their spelling. The status is for people, so nothing waits for it and failures are
retried later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from koordra.api import kinds, names, objects
from koordra.api.device_status import device_key, merged_entry
from koordra.api.objects import Object
from koordra.api.opaque.share_limits import RESIZE_PENDING, RESIZED
from koordra.errors import ApiError, Conflict, Invalid, NotFound
from koordra.inert import inert
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord, State
from koordra.kubelet_plugin.isolation.limiter.backend import LimiterIsolation
from koordra.kubelet_plugin.isolation.limiter.report import LimiterVerdict
from koordra.kubelet_plugin.isolation.limiter.resize import ResizeState
from koordra.kubelet_plugin.isolation.realisation import CardLook
from koordra.kubelet_plugin.network.network_decision import NO_NETWORK, NO_NETWORK_MESSAGE
from koordra.kubelet_plugin.prepare.lost_devices import LostDevice, lost_devices
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.kubelet_plugin.status.pod_events import warn_pods
from koordra.logs import get_logger
from koordra.node_state.claim_network import AttachedDevice, AttachedNetwork, NetworkKind
from koordra.process.wakeable import Pause, Wakeable
from koordra.topology.machine import Nic

log = get_logger(__name__)

READY: Final = "Ready"
GID_READY: Final = "GIDReady"
LIMITED: Final = "Limited"
PRESENT: Final = "Present"
CARD_KEPT: Final = "CardKept"
PAUSE: Final = 1.0
"""Least seconds between two writes: bounds the load that a program can cause by changing its limiter's
condition."""

_OURS: Final = frozenset({READY, GID_READY, LIMITED, PRESENT, CARD_KEPT, RESIZED, RESIZE_PENDING})


def device_statuses(
    record: ClaimRecord,
    *,
    inventory: NodeInventory,
    attached: Mapping[str, AttachedDevice],
    limited: LimiterVerdict | None = None,
    resized: Callable[[str, int], ResizeState | None] = lambda _uid, _index: None,
) -> list[Object]:
    """The entries for one claim, without times. `attached`: the devices in the pod, by name; `limited`: the
    verdict on the claim's limiter; `resized`: what became of the limits of a claim's device, by its place."""
    entries = []
    for index, device in enumerate(record.devices):
        if device.type in names.NIC_TYPES:
            entries.append(
                _nic_entry(record, device, inventory=inventory, attached=attached.get(device.device))
            )
        elif device.isolation == LimiterIsolation.name and limited is not None:
            message, cores = limited.message, dict(device.consumed).get(names.CAPACITY_CORES, "0")
            if cores != "0" and (part := limited.percent(device.uuid)):
                message += f"; cores: launches are held to {part}% of the GPU's time"
            elif cores != "0":
                message += f"; cores: accounting only ({cores}% reserved, not enforced)"
            conditions = [_condition(LIMITED, limited.enforced, limited.reason, message)]
            if (state := resized(record.ref.uid, index)) is not None:
                conditions += _resize_conditions(state)
            entries.append({**_entry(record, device), "conditions": conditions})
    return entries


def _resize_conditions(state: ResizeState) -> list[Object]:
    done = _condition(RESIZED, state.done, state.reason, state.message)
    found = [{**done, "observedGeneration": state.revision}]
    if state.refused:
        reason, _, why = state.refused.partition(": ")
        found.append(_condition(RESIZE_PENDING, True, reason, why))
    return found


def with_lost(record: ClaimRecord, entries: Sequence[Object], lost: Iterable[LostDevice]) -> list[Object]:
    """The entries, which say of the lost devices that they are."""
    told = {each.device: _condition(PRESENT, False, each.reason, each.message) for each in lost}
    return _with_conditions(record, entries, told)


def with_looks(record: ClaimRecord, entries: Sequence[Object], looks: Mapping[str, CardLook]) -> list[Object]:
    """The entries, which say of the claim's cards how they are kept; of one that is kept well, what its
    backend has to say."""
    told = {}
    for device in record.devices:
        look = looks.get(device.device)
        if look is not None and look.isolation == device.isolation and (look.problem or look.status):
            said = ", ".join(f"{name} {value}" for name, value in sorted(look.status.items()))
            told[device.device] = (
                _condition(CARD_KEPT, False, "CardNotKept", look.problem)
                if look.problem
                else _condition(CARD_KEPT, True, "Kept", f"by {look.isolation}: {said}")
            )
    return _with_conditions(record, entries, told)


def _with_conditions(
    record: ClaimRecord, entries: Sequence[Object], told: Mapping[str, Object]
) -> list[Object]:
    """The entries with one more condition each, by device."""
    found = {str(entry["device"]): entry for entry in entries}
    devices = {device.device: device for device in record.devices}
    for device, condition in told.items():
        entry = found.get(device) or {**_entry(record, devices[device]), "conditions": []}
        found[device] = {**entry, "conditions": [*entry["conditions"], condition]}
    return list(found.values())


def _entry(record: ClaimRecord, device: DeviceRecord) -> Object:
    share = {"shareID": device.share_id} if device.share_id else {}
    return {"driver": names.DRIVER, "pool": record.pool_of(device), "device": device.device, **share}


def _nic_entry(
    record: ClaimRecord, device: DeviceRecord, *, inventory: NodeInventory, attached: AttachedDevice | None
) -> Object:
    entry = _entry(record, device)
    kind = _kind_of(device)
    if kind is NetworkKind.ABSENT:
        ready = _condition(READY, False, NO_NETWORK, NO_NETWORK_MESSAGE)
    elif kind is NetworkKind.OTHERS and attached is None:
        ready = _condition(READY, None, "OtherPlugin", "the pod's other network plugin attaches it")
    elif device.network is None:
        ready = _condition(READY, True, "Prepared", "the device is in the host's network")
    elif attached is None:
        ready = _condition(READY, False, "NetworkPending", "the pod's network interface is not there yet")
    else:
        shown = attached.interface or device.ib_device
        ready = _condition(READY, True, "Attached", f"{shown} is in the pod")
        entry["networkData"] = {
            **({"interfaceName": attached.interface} if attached.interface else {}),
            **({"ips": list(attached.addresses)} if attached.addresses else {}),
            **({"hardwareAddress": attached.mac} if attached.mac else {}),
        }
    entry["conditions"] = [ready]
    nic = inventory.device(device.device)
    if isinstance(nic, Nic) and nic.port is not None and nic.port.link_layer == "Ethernet":
        waits = device.network is not None and device.network.needs_gid
        of_host = bool(nic.port.gid and nic.port.gid.strip("0:")) and not waits
        there = attached.gid_ready if attached else of_host
        entry["conditions"].append(_condition(GID_READY, there, *_GID[there]))
    return entry


def _kind_of(device: DeviceRecord) -> NetworkKind | None:
    return device.network.kind if device.network else None


_GID: Final = {
    None: ("NotVisible", "whether the RDMA device has an address in the pod is not known"),
    True: ("GIDPresent", "the RDMA device has an address"),
    False: ("NoGID", "the RDMA device has no address (GID) yet"),
}


def _condition(kind: str, status: bool | None, reason: str, message: str) -> Object:
    return {
        "type": kind,
        "status": "Unknown" if status is None else str(status),
        "reason": reason,
        "message": inert(message),
    }


def merged(
    existing: Iterable[Object], wanted: Iterable[Object], *, pools: Collection[str], now: str
) -> list[Object]:
    """The list with our entries of these pools replaced. Of one that is no longer wanted others' conditions
    stay, if it has any."""
    found = {device_key(entry): entry for entry in existing}
    entries = {device_key(entry): entry for entry in wanted}
    for key, entry in list(found.items()):
        if key[0] == names.DRIVER and key[1] in pools and key not in entries:
            found[key] = merged_entry(entry, {"conditions": ()}, now=now, own=_OURS)
            if not found[key]["conditions"]:
                del found[key]
    for key, entry in entries.items():
        found[key] = merged_entry(found.get(key, {}), entry, now=now, own=_OURS)
    return list(found.values())


class ClaimStatusWriter(Wakeable):
    """Keeps the statuses current: a wake says that a claim was prepared, or that its network has changed."""

    def __init__(
        self,
        client: KubeClient,
        *,
        records: Callable[[], Iterable[ClaimRecord]],
        attached: Callable[[], Iterable[AttachedNetwork]],
        inventory: Callable[[], NodeInventory],
        limited: Callable[[str], LimiterVerdict | None] = lambda _uid: None,
        resized: Callable[[str, int], ResizeState | None] = lambda _uid, _index: None,
        looks: Callable[[], Mapping[str, CardLook]] = dict,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__()
        self._client = client
        self._records = records
        self._attached = attached
        self._inventory = inventory
        self._limited, self._resized, self._looks = limited, resized, looks
        self._clock = clock
        self._written: dict[str, list[Object] | None] = {}
        """By uid, what the API has; None where that is not known."""
        self._unwritten: list[Object] | None = None
        """What it has of other claims: nothing, once those are seen that are older than this process."""

    failed = "claim_status_sync_failed"

    def step(self) -> Pause | None:
        return Pause(PAUSE, None) if self.sync() else None

    def sync(self) -> bool:
        """Write what differs from the last write; False if something has to be retried."""
        inventory = self._inventory()
        in_pods = {
            claim.uid: {device.device: device for device in claim.devices} for claim in self._attached()
        }
        current: dict[str, list[Object] | None] = {}
        for record in self._records():
            uid, lost = record.ref.uid, lost_devices(record, inventory)
            if record.state is not State.COMPLETED:
                continue
            entries = []
            if record.boot_id == inventory.boot_id:
                attached = in_pods.get(uid, {})
                entries = device_statuses(
                    record,
                    inventory=inventory,
                    attached=attached,
                    limited=self._limited(uid),
                    resized=self._resized,
                )
                entries = with_looks(record, entries, self._looks())
            wanted = with_lost(record, entries, lost)
            there = self._written.get(uid, self._unwritten)
            current[uid] = wanted if there == wanted or self._write(record, wanted, lost) else None
        self._written = current
        if None in current.values():
            return False
        self._unwritten = []
        return True

    def _write(self, record: ClaimRecord, wanted: list[Object], lost: Sequence[LostDevice]) -> bool:
        """True when there is nothing more to do for this claim."""
        try:
            claim = self._client.get(kinds.RESOURCE_CLAIMS, record.ref.name, namespace=record.ref.namespace)
            status = objects.status_of(claim)
            if objects.uid(claim) != record.ref.uid or not status.get("allocation"):
                return True
            before = status.get("devices") or []
            now = self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")
            if any(_kind_of(device) is NetworkKind.ABSENT for device in record.devices):
                warn_pods(self._client, claim, reason=NO_NETWORK, message=NO_NETWORK_MESSAGE, now=now)
            for each in lost[:1]:
                warn_pods(self._client, claim, reason=each.reason, message=each.message, now=now)
            pools = {record.pool, *map(record.pool_of, record.devices)}
            devices = merged(before, wanted, pools=pools, now=now)
            if devices != before:
                self._client.patch(
                    kinds.RESOURCE_CLAIMS,
                    record.ref.name,
                    {
                        "metadata": {"resourceVersion": objects.resource_version(claim)},
                        "status": {"devices": devices},
                    },
                    namespace=record.ref.namespace,
                    subresource="status",
                )
        except NotFound:
            return True
        except Conflict:
            return False
        except Invalid as error:
            # A retry would not be valid either.
            log.warning("claim_status_refused", claim=str(record.ref), error=str(error)[:500])
            return True
        except ApiError as error:
            log.warning("claim_status_not_written", claim=str(record.ref), error=str(error))
            return False
        return True
