"""The record of one prepared claim: the decision of Prepare, complete enough to write every file of the claim
again.

The CDI spec (cdi/claim_spec.py) and the record for the NRI hook (node_state/prepared_claim.py) are pure
functions of a `ClaimRecord`; the checkpoint stores nothing else. The types are koordra's own: neither the
claim object nor other drivers' results are kept.

A record belongs to one boot of the machine. A record of an earlier boot holds no device, since no container
has survived; it is kept until the kubelet unprepares the claim, only to detect a different card under the old
name.

Container edits are the part of CDI's containerEdits that koordra uses: environment, device nodes, mounts,
hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final, TypeVar

from koordra.api import names
from koordra.api.opaque.imex import ImexDomain
from koordra.node_state.claim_network import NETWORK_PLAN, NetworkKind, NetworkPlan
from koordra.node_state.claim_ref import CLAIM_REF, ClaimRef
from koordra.node_state.imex import IMEX_DOMAIN
from koordra.node_state.prepared_claim import CLAIM_DEVICE, ClaimDevice
from koordra.node_state.strict_json import (
    BOOLEAN,
    INTEGER,
    PAIR,
    STRING,
    Codec,
    Pairs,
    later,
    listed,
    mapping,
    optional,
    record,
    word,
)
from koordra.topology.location import DeviceNode

T = TypeVar("T")

READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
"""Mount options of everything koordra mounts, as nvidia-ctk writes them."""


OWN_TMPFS: Final = "tmpfs"
"""In place of a mount's `host_path`: a file system in memory, of each container alone."""


@dataclass(frozen=True, slots=True, order=True)
class Mount:
    """A bind mount of a host file; `host_path` is the path as the runtime sees it, root prefix included. Or
    one of OWN_TMPFS."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = READ_ONLY


@dataclass(frozen=True, slots=True, order=True)
class Hook:
    """A program of the host that the runtime runs at one of CDI's hook points (`createContainer`,
    `createRuntime`, ...); if it fails, the container does not start. `arguments` start with the program's own
    name, as argv does. `env` is never empty: a hook without an environment of its own inherits the image's,
    with its LD_PRELOAD, from runc up to 1.3 and from crun (CVE-2025-23266)."""

    name: str
    path: str
    arguments: tuple[str, ...] = ()
    env: Pairs = (("LC_ALL", "C"),)


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """A symbolic link in the container, at `path`; `target` is its text."""

    target: str
    path: str


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """`env` holds (name, value) pairs; of a repeated name the last one counts. CDI has no word for `links`
    and for `library_folders` (those that the container's loader is to search): a hook makes them."""

    env: Pairs = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    links: tuple[Link, ...] = ()
    library_folders: tuple[str, ...] = ()
    additional_gids: tuple[int, ...] = ()

    def __add__(self, other: ContainerEdits) -> ContainerEdits:
        """The union; everything is deduplicated, and the later value of a variable wins."""
        return ContainerEdits(
            env=tuple(dict([*self.env, *other.env]).items()),
            device_nodes=_once([*self.device_nodes, *other.device_nodes]),
            mounts=_once([*self.mounts, *other.mounts]),
            hooks=_once([*self.hooks, *other.hooks]),
            links=_once([*self.links, *other.links]),
            library_folders=_once([*self.library_folders, *other.library_folders]),
            additional_gids=_once([*self.additional_gids, *other.additional_gids]),
        )


NO_EDITS = ContainerEdits()


def _once(values: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


Assignment = tuple[str, str, str | None]
"""A request, and the device and share that serve it."""

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
class DeviceRecord(ClaimDevice):
    """One allocated device. `identity` is the GPU's UUID or the NIC's GUID, empty where it is not known.

    `consumed` holds exact amounts as canonical quantities, sorted by name. `edits` is everything that a
    container gets with the device, its own nodes included, apart from the claim's markers. `network` is what
    is done to a NIC once the pod's network namespace exists; None if nothing is. `fabric` is what libraries
    are to know of its network (network/fabric_files.py), by name. `journal` is what the isolation backend
    wrote down for itself.
    """

    identity: str = ""
    admin_access: bool = False
    consumed: Pairs = ()
    isolation: str | None = None
    edits: ContainerEdits = NO_EDITS
    network: NetworkPlan | None = None
    fabric: Pairs = ()
    journal: Pairs = ()

    @property
    def assignment(self) -> Assignment:
        """The request, and the device and share that serve it."""
        return self.request, self.device, self.share_id

    @property
    def allocated(self) -> tuple[object, ...]:
        """The fields that come from the allocation, without those that the node added."""
        return *self.assignment, self.admin_access, self.consumed


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """`nonce`: 32 hex digits that only the node and the claim's CDI file know. `pool` is the node's name.
    `hooks` run once in each container of the claim, whichever of its devices it has.
    `pods` are the uids of the pods for which the claim was reserved when it was prepared; `pod_claim` is the
    name under which its pod refers to a claim that was made from a template. `imex` is the domain that its
    IMEX channels are in; a record that was rolled back is in it still, so that the node's daemon waits for
    the others while the kubelet tries again."""

    ref: ClaimRef
    pool: str
    nonce: str
    boot_id: str
    state: State
    devices: tuple[DeviceRecord, ...]
    memlock: bool = False
    pods: tuple[str, ...] = ()
    pod_claim: str | None = None
    hooks: tuple[Hook, ...] = ()
    imex: ImexDomain | None = None

    def pool_of(self, device: DeviceRecord) -> str:
        return device.pool or self.pool

    @property
    def networked(self) -> bool:
        """Whether Prepare planned a network interface for the claim's pod."""
        return any(device.network is not None for device in self.devices)

    @property
    def in_unknown_domain(self) -> bool:
        """Whether it has IMEX channels, of which it was lost with the checkpoint in which domain they are."""
        return self.imex is None and any(device.type == names.TYPE_IMEX for device in self.devices)

    def cdi_name(self, index: int) -> str:
        """CDI device name of devices[index]: unique in the claim, and never used by another claim."""
        device = self.devices[index]
        name = f"{self.ref.uid}-{device.device}"
        if device.share_id:
            name += f"-{device.share_id[:8]}"
        earlier = [other for other in self.devices[:index] if other.device == device.device]
        return f"{name}-{index}" if earlier else name

    def has_devices_of(self, other: ClaimRecord) -> bool:
        """Whether both have the same devices in the same order; of a recovered claim it is not known how much
        it has of each."""
        known = attrgetter("assignment" if self.state is State.RECOVERED else "allocated")
        return list(map(known, self.devices)) == list(map(known, other.devices))

    def with_journal(self, index: int, journal: Pairs) -> ClaimRecord:
        """With what the isolation backend of devices[index] wrote down."""
        devices = list(self.devices)
        devices[index] = replace(devices[index], journal=journal)
        return replace(self, devices=tuple(devices))

    def completed(self) -> ClaimRecord:
        return replace(self, state=State.COMPLETED)

    def rolled_back(self) -> ClaimRecord:
        devices = tuple(replace(device, journal=()) for device in self.devices)
        return replace(self, state=State.STARTED, boot_id=NO_BOOT, devices=devices)


def imex_domain(claims: Iterable[ClaimRecord]) -> ImexDomain | None:
    """The domain that the node is in by its claims, prepared or on the way to it."""
    return next((claim.imex for claim in claims if claim.imex is not None), None)


def moved_nics(claims: Iterable[ClaimRecord]) -> frozenset[str]:
    """The NICs that the claims have, or may have, in their pods."""
    return frozenset(
        device.device
        for claim in claims
        for device in claim.devices
        if device.network is not None and device.network.kind is NetworkKind.MOVE
    )


def gpu_claims(claims: Iterable[ClaimRecord]) -> list[str]:
    """namespace/name of the claims that have GPUs, or instances of them."""
    return sorted(
        str(claim.ref) for claim in claims if any(device.type in names.GPU_TYPES for device in claim.devices)
    )


def _strings(
    made: Callable[[str, str, tuple[str, ...]], T], write: Callable[[T], list[str]]
) -> Codec[tuple[T, ...]]:
    """Values of two strings and a tuple of strings, each as one list."""

    def read(item: Any, where: str) -> T:
        first, second, *rest = listed(STRING).read(item, where)
        return made(first, second, tuple(rest))

    return listed(Codec(read, write))


# Of any kind: backends of others name them, and a record that is written must be read again
# (cdi/claim_spec.py refuses what no runtime accepts).
_NODES: Final = listed(
    record(DeviceNode, {"path": STRING, "type": STRING, "major": INTEGER, "minor": INTEGER})
)
_LINK: Final = Codec(lambda item, where: Link(*PAIR.read(item, where)), lambda link: [link.target, link.path])
_HOOK: Final = record(
    Hook,
    {
        "hookName": ("name", STRING),
        "path": STRING,
        "args": ("arguments", listed(STRING)),
        "env": listed(PAIR),
    },
)
CONTAINER_EDITS: Final = record(
    ContainerEdits,
    {
        "env": listed(PAIR),
        "deviceNodes": _NODES,
        "mounts": _strings(Mount, lambda mount: [mount.host_path, mount.container_path, *mount.options]),
        "hooks": listed(_HOOK),
        "links": later(listed(_LINK), ()),
        "libraryFolders": later(listed(STRING), ()),
        "additionalGids": later(listed(INTEGER), ()),
    },
)
_DEVICE: Final = record(
    DeviceRecord,
    {
        **CLAIM_DEVICE,
        "request": STRING,
        "identity": STRING,
        "adminAccess": BOOLEAN,
        "consumed": mapping(STRING),
        "isolation": optional(STRING),
        "edits": CONTAINER_EDITS,
        "network": optional(NETWORK_PLAN),
        "fabric": later(listed(PAIR), ()),
        "journal": later(listed(PAIR), ()),
    },
)
CLAIM_RECORD: Final = record(
    ClaimRecord,
    {
        "claim": ("ref", CLAIM_REF),
        "pool": STRING,
        "nonce": STRING,
        "bootID": STRING,
        "state": word(State),
        "devices": listed(_DEVICE),
        "memlock": BOOLEAN,
        "pods": listed(STRING),
        "podClaim": optional(STRING),
        "hooks": later(listed(_HOOK), ()),
        "imex": later(optional(IMEX_DOMAIN), None),
    },
)
"""The form in the checkpoint."""
