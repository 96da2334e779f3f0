"""The record of one prepared claim: the decision of Prepare, complete enough to write every file of the claim
again.

The CDI spec (cdi/claim_spec.py) and the record for the NRI hook (node_state/prepared_claim.py) are pure
functions of a `ClaimRecord`; the checkpoint stores nothing else. The types are koordra's own: neither the
claim object nor other drivers' results are kept.

A record belongs to one boot of the machine. A record of an earlier boot holds no device, since no container
has survived; it is kept until the kubelet unprepares the claim, only to detect a different card under the old
name.

Container edits are the part of CDI's containerEdits that koordra uses: environment, device nodes, mounts, hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

from koordra.errors import CheckpointError
from koordra.node_state.claim_network import NETWORK_PLAN, NetworkKind, NetworkPlan
from koordra.node_state.claim_ref import CLAIM_REF, ClaimRef
from koordra.node_state.strict_json import (
    BOOLEAN,
    INTEGER,
    PAIR,
    STRING,
    Kind,
    Table,
    listed,
    mapping,
    optional,
    record,
    typed,
    word,
)
from koordra.topology.machine import DeviceNode

_T = TypeVar("_T")

READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
"""Mount options of everything koordra mounts, as nvidia-ctk writes them."""


@dataclass(frozen=True, slots=True, order=True)
class Mount:
    """A bind mount of a host file; `host_path` is the path as the runtime sees it, root prefix included."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = READ_ONLY


@dataclass(frozen=True, slots=True, order=True)
class Hook:
    """A program of the host that the runtime runs at one of CDI's hook points (`createContainer`,
    `createRuntime`, ...); if it fails, the container does not start. `arguments` start with the program's own
    name, as argv does."""

    name: str
    path: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """`env` holds (name, value) pairs; of a repeated name the last one counts."""

    env: tuple[tuple[str, str], ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()

    def __add__(self, other: ContainerEdits) -> ContainerEdits:
        """The union; nodes, mounts and hooks are deduplicated, and the later value of a variable wins."""
        return ContainerEdits(
            env=tuple(dict([*self.env, *other.env]).items()),
            device_nodes=_once([*self.device_nodes, *other.device_nodes]),
            mounts=_once([*self.mounts, *other.mounts]),
            hooks=_once([*self.hooks, *other.hooks]),
        )


NO_EDITS = ContainerEdits()


def _once(values: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(values))


T = TypeVar("T")

NO_BOOT: Final = ""
"""`boot_id` of a record that was rolled back: remembered, but not prepared in any boot."""


class State(StrEnum):
    """STARTED: files may be half there and no container has them. COMPLETED: the kubelet may have been
    answered. RECOVERED: the checkpoint was lost, and the claim is known from its record for the hook alone
    (checkpoint.py)."""

    STARTED = "PrepareStarted"
    COMPLETED = "PrepareCompleted"
    RECOVERED = "Recovered"


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """One allocated device. `identity` is the GPU's UUID or the NIC's GUID; `nodes` are the device's own
    nodes.

    `consumed` holds exact amounts as canonical quantities, sorted by name. `edits` is everything that a
    container gets with the device, its own nodes included, apart from the claim's markers. `network` is what
    is done to a NIC once the pod's network namespace exists; None if nothing is.
    """

    request: str
    device: str
    type: str
    identity: str
    share_id: str | None = None
    admin_access: bool = False
    consumed: tuple[tuple[str, str], ...] = ()
    isolation: str | None = None
    uuid: str | None = None
    ib_device: str | None = None
    netdev: str | None = None
    numa_node: int | None = None
    cpus: str | None = None
    nodes: tuple[DeviceNode, ...] = ()
    edits: ContainerEdits = NO_EDITS
    network: NetworkPlan | None = None

    @property
    def assignment(self) -> tuple[str, str, str | None]:
        """The request, and the device and share that serve it."""
        return self.request, self.device, self.share_id

    @property
    def allocated(self) -> tuple[str, str, str | None, bool, tuple[tuple[str, str], ...]]:
        """The fields that come from the allocation, without those that the node added."""
        return self.request, self.device, self.share_id, self.admin_access, self.consumed


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """`nonce`: 32 hex digits that only the node and the claim's CDI file know. `pool` is the node's name.
    `pods` are the uids of the pods for which the claim was reserved when it was prepared; `pod_claim` is the
    name under which its pod refers to a claim that was made from a template."""

    ref: ClaimRef
    pool: str
    nonce: str
    boot_id: str
    state: State
    devices: tuple[DeviceRecord, ...]
    memlock: bool = False
    pods: tuple[str, ...] = ()
    pod_claim: str | None = None

    @property
    def networked(self) -> bool:
        """Whether Prepare planned a network interface for the claim's pod."""
        return any(device.network is not None for device in self.devices)

    def cdi_name(self, index: int) -> str:
        """CDI device name of devices[index]: unique in the claim, and never used by another claim."""
        device = self.devices[index]
        name = f"{self.ref.uid}-{device.device}"
        if device.share_id:
            name += f"-{device.share_id[:8]}"
        earlier = [other for other in self.devices[:index] if other.device == device.device]
        return f"{name}-{index}" if earlier else name

    def completed(self) -> ClaimRecord:
        return replace(self, state=State.COMPLETED)

    def rolled_back(self) -> ClaimRecord:
        return replace(self, state=State.STARTED, boot_id=NO_BOOT)


def moved_nics(claims: Iterable[ClaimRecord]) -> frozenset[str]:
    """The NICs that the claims have, or may have, in their pods."""
    return frozenset(
        device.device
        for claim in claims
        for device in claim.devices
        if device.network is not None and device.network.kind is NetworkKind.MOVE
    )


# The forms in the checkpoint. Version 1, of the release before, lacks network plans, consumers and hooks.
# Both are strict.

OLDER: Final = 1
CURRENT: Final = 2


def _strings(
    made: Callable[[str, str, tuple[str, ...]], T], write: Callable[[T], list[str]]
) -> Kind[tuple[T, ...]]:
    """Values of two strings and a tuple of strings, each as one list."""

    def read(item: Any, where: str) -> T:
        first, second, *rest = listed(STRING).read(item, where)
        return made(first, second, tuple(rest))

    return listed(Kind(read, write))


_NODES: Final = listed(
    record(DeviceNode, {"path": STRING, "type": STRING, "major": INTEGER, "minor": INTEGER})
)
_EDITS: Final[Table] = {
    "env": listed(PAIR),
    "deviceNodes": _NODES,
    "mounts": _strings(Mount, lambda mount: [mount.host_path, mount.container_path, *mount.options]),
}
_DEVICE: Final[Table] = {
    "request": STRING,
    "device": STRING,
    "type": STRING,
    "identity": STRING,
    "shareID": optional(STRING),
    "adminAccess": BOOLEAN,
    "consumed": mapping(STRING),
    "isolation": optional(STRING),
    "uuid": optional(STRING),
    "ibDevice": optional(STRING),
    "netdev": optional(STRING),
    "numaNode": optional(INTEGER),
    "cpus": optional(STRING),
    "nodes": _NODES,
}
_CLAIM: Final[Table] = {
    "pool": STRING,
    "nonce": STRING,
    "bootID": STRING,
    "state": word(State),
    "memlock": BOOLEAN,
}
_OLDER_DEVICE: Final = record(DeviceRecord, {**_DEVICE, "edits": record(ContainerEdits, _EDITS)})
_DEVICE_NOW: Final = record(
    DeviceRecord,
    {
        **_DEVICE,
        "edits": record(
            ContainerEdits,
            {**_EDITS, "hooks": _strings(Hook, lambda hook: [hook.name, hook.path, *hook.arguments])},
        ),
        "network": optional(NETWORK_PLAN),
    },
)
_FORMS: Final[Mapping[int, Kind[Any]]] = {
    OLDER: record(dict, {**_CLAIM, "devices": listed(_OLDER_DEVICE)}),
    CURRENT: record(
        dict,
        {**_CLAIM, "devices": listed(_DEVICE_NOW), "pods": listed(STRING), "podClaim": optional(STRING)},
    ),
}
_REF: Final = ("namespace", "name", "uid")


def claim_to_dict(claim: ClaimRecord, *, version: int = CURRENT) -> dict[str, Any]:
    """The record in one version of its form. A version that lacks a field writes the record without it."""
    if version < CURRENT and claim.state is State.RECOVERED:
        # Version 1 knows no recovered claims; to it they are prepared, which holds their devices as well.
        claim = claim.completed()
    return {**CLAIM_REF.write(claim.ref), **_FORMS[version].write(claim)}


def claim_from_dict(raw: object, *, version: int = CURRENT) -> ClaimRecord:
    """Raises CheckpointError for anything that `claim_to_dict` does not write in that version."""
    try:
        found = typed(raw, dict, "claim")
        ref = CLAIM_REF.read({name: found[name] for name in _REF if name in found}, "")
        fields = _FORMS[version].read({name: found[name] for name in found.keys() - _REF}, "")
        if not ref.valid:
            raise ValueError(f"uid {ref.uid!r}")
    except ValueError as error:
        raise CheckpointError(f"a claim in it is malformed: {error!r}") from error
    return ClaimRecord(ref=ref, **fields)
