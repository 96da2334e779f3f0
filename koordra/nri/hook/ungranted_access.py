"""Access to devices that a container does not hold by a claim: annotations, mounts, device nodes and device
rules.

Explicit access is refused, so that the container's author learns of it; access that comes with being
privileged is denied silently, by device rules:

    annotation of a CDI device of a GPU or NIC       refused
    mount of GPU or RDMA nodes, sockets or the
      driver's root, by name                         refused
    mount of all of /dev                             refused, unless privileged (then the rules below decide)
    mount that requests GPUs of NVIDIA's toolkit     refused
    mount of the CDI directories, koordra's state,
      or the runtime's plugin socket                 refused
    device node, or exact rule, of a device not held refused, unless privileged
    rules with wildcards that cover such a device    a rule that denies it is appended

The kernel enforces the device cgroup; a mount of `/` alone makes no device usable that the rules deny. A rule
denies "rw" only: the runtimes' default lists allow "m" (mknod) with wildcards, and may not accept exceptions
to those.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from koordra.api import names
from koordra.node_state.layout import mps_namespace
from koordra.node_state.prepared_claim import DeviceGuard
from koordra.nri.hook.grants import Grants
from koordra.nri.hook.oci import Container, DeviceRule, Mount, Refusal, can_open
from koordra.topology.location import DeviceNode

TOOLKIT_MOUNTS: Final = "/run/nvidia-container-devices"
"""Volumes mounted below it request GPUs of NVIDIA's toolkit."""

NVIDIA_MAJOR: Final = 195
UVERBS_MAJOR: Final = 231

_CDI_ANNOTATIONS: Final = ("cdi.k8s.io/", "nvidia.cdi.k8s.io")
_FOREIGN_VENDORS: Final = re.compile(r"(?:[^/]*\.)?(?:nvidia\.com|mellanox\.com|koordra\.io)")
_DEVICE_SHAPE: Final = re.compile(r"/dev/(?:nvidia[0-9]+|infiniband/[a-z]+[0-9]+|nvidia-caps/.*)")
_NAMED_MOUNT: Final = re.compile(
    r"/dev/(?:nvidia[^/]*|infiniband)(?:/.*)?|/run/nvidia[^/]*(?:/.*)?|/tmp/nvidia-mps(?:/.*)?"
)
_SERVICE_MOUNT: Final = re.compile(
    r"/run/nvidia-[^/]+(?:/.*)?|/tmp/nvidia-mps(?:/.*)?|/run/nvidia/driver/(?!(?:dev|proc|sys|run)(?:/|$)).+"
)
"""Mounts of a GPU's own CDI edits: sockets of the driver's daemons, libraries of a containerised driver."""
PRIVATE: Final = ("/run/cdi", "/etc/cdi", "/run/nri", "/var/lib/kubelet/plugins/koordra.io")
"""Paths of the claims' nonces and of the runtime's plugin socket; a node may add to them."""
_ANY_DEVICE: Final = ("c", 1 << 20, 1 << 20)
"""Numbers of no device: only rules with wildcards cover them."""

_ASK = "ask for the device with a ResourceClaim of class gpu.koordra.io or nic.koordra.io"


def is_privileged(container: Container) -> bool:
    """Whether the container's own rules open every device to it."""
    return can_open(container.rules, _ANY_DEVICE)


def check_annotations(container: Container, *, gpus_left: bool = False) -> None:
    """Refuse annotations that request a CDI device of a GPU or NIC without a claim. `gpus_left`: those of
    GPUs are another stack's."""
    for key, value in (*container.annotations.items(), *_pod_annotations_for(container)):
        if not key.startswith(_CDI_ANNOTATIONS):
            continue
        for name in value.split(","):
            if names_foreign_device(name) and not (gpus_left and of_nvidia(name)):
                raise Refusal(
                    "ForeignCDIDevice",
                    f"{container}: annotation {key} names CDI device {name.strip()!r}, which is not given out that way on "
                    f"this node; remove the annotation and {_ASK}",
                )


def names_foreign_device(name: str) -> bool:
    """Whether a CDI name is that of a GPU or NIC, ours or the vendor's."""
    return bool(_FOREIGN_VENDORS.fullmatch(name.strip().partition("/")[0]))


def of_nvidia(name: str) -> bool:
    """Whether a CDI name is of NVIDIA's vendor."""
    return name.strip().partition("/")[0].endswith("nvidia.com")


def _pod_annotations_for(container: Container) -> Iterator[tuple[str, str]]:
    """The pod's annotations without those addressed to another of its containers
    (`<key>/container.<name>`)."""
    for key, value in container.pod_annotations.items():
        prefix, scoped, name = key.partition("/container.")
        if not scoped or prefix == "cdi.k8s.io" or name == container.name:
            yield key, value


def check_mounts(
    container: Container,
    *,
    gpu: bool,
    claims: frozenset[str],
    devices: frozenset[str],
    guarded: DeviceGuard | None,
    private: tuple[str, ...] = PRIVATE,
) -> None:
    """Refuse mounts that expose devices. `gpu`: the container holds a GPU, whose CDI edits mount sockets of
    its driver; `claims` and `devices`: uids of the claims that it holds, and names of their devices, whose
    edits mount parts of koordra's state. (NRI before 0.7 silently ignores the removal of a mount.)"""
    reaching = _reaching(guarded) if guarded is not None and container.mounts else frozenset()
    left = guarded.left if guarded is not None else ()
    for mount in container.mounts:
        if mount.bind and any(_is_private(mount, place, claims, devices) for place in private):
            raise Refusal(
                "NodeState",
                f"{container} has a volume at {mount.destination} that brings {mount.source} of the host, with which it could "
                "pass for the holder of other pods' devices; remove that hostPath volume, or exempt the namespace",
            )
        if _below(host_path(mount.destination), TOOLKIT_MOUNTS) and names.TYPE_GPU not in left:
            what = f"asks NVIDIA's toolkit for GPUs by a mount at {mount.destination}; remove that volume"
        elif mount.bind and _brings_devices(mount, container, reaching, gpu=gpu, left=left):
            what = (
                f"has a volume at {mount.destination} that brings {mount.source} of the host, and with it GPU or RDMA devices; "
                "remove that hostPath volume"
            )
        else:
            continue
        raise Refusal("ForeignMount", f"{container} {what} and {_ASK}")


MPS_SOCKETS: Final = "CUDA_MPS_PIPE_DIRECTORY"
"""Variable of a share that MPS keeps: where its card's daemon listens."""
HAMI_COUNTS: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
"""Variable of a share that HAMi's library keeps: where a container's processes are counted."""


def check_one_way(container: Container, grants: Grants) -> None:
    """Refuse a container with several cards, one of them kept by MPS: it would be the client of that card's
    daemon, and the others would be closed to it without a word. And one with a share that HAMi's library
    keeps beside a card that it does not, since the library tells them apart by numbers of CUDA's own."""
    cards = {grant.device.device for grant in grants.held if grant.device.type in names.GPU_TYPES}
    by_mps, by_hami = (
        {grant.device.device for grant in grants.held if variable in dict(grant.device.env)}
        for variable in (MPS_SOCKETS, HAMI_COUNTS)
    )
    if by_hami and cards - by_hami:
        raise Refusal(
            "HamiCoreCards",
            f"{container} has {', '.join(sorted(cards - by_hami))} beside {', '.join(sorted(by_hami))}, whose limits HAMi's library "
            "would hold all cards to; give each to a container of its own",
        )
    if by_mps and len(cards | by_mps) > 1:
        raise Refusal(
            "MpsDaemons",
            f"{container} has {', '.join(sorted(cards | by_mps))}, of which MPS keeps {', '.join(sorted(by_mps))}, and a process is "
            "the client of one card's daemon; give each to a container of its own, or ask for whole cards",
        )


def claim_mounts(container: Container, private: tuple[str, ...] = PRIVATE) -> tuple[Mount, ...]:
    """The mounts of koordra's state by the claims' CDI edits, in a container that passed `check_mounts`."""
    return tuple(
        mount
        for mount in container.mounts
        if mount.bind and any(_below(host_path(mount.source), host_path(place)) for place in private)
    )


def _is_private(mount: Mount, place: str, claims: frozenset[str], devices: frozenset[str]) -> bool:
    """Whether the mount exposes a private path other than by the claims' own CDI edits."""
    source, place = host_path(mount.source), host_path(place)
    if not _below(source, place):
        return False
    return not _comes_with_claims(
        source.removeprefix(place).strip("/").split("/"),
        read_only=mount.read_only,
        claims=claims,
        devices=devices,
    )


def _comes_with_claims(
    parts: list[str], *, read_only: bool, claims: frozenset[str], devices: frozenset[str]
) -> bool:
    """Whether a path below koordra's state is mounted by the CDI edits of a held claim: what the claim itself
    has there, or an isolation backend has in a folder of its own for it, or for a card that it holds; limits
    and sockets never writable."""
    match parts:
        case ["mps", "cards", device, "pipe"]:
            return read_only and device in devices
        case ["mps", "cards", device, "v3", _, namespace]:
            return read_only and device in devices and namespace in map(mps_namespace, claims)
        case ["mps", "cards", device, "shm"]:
            return device in devices
        case ["limiter", "library", *_]:
            return read_only and bool(claims)
        case ["limiter", "claims", uid, "usage"]:
            return uid in claims
        case ["claims", uid, _, *_] | [_, "claims", uid, *_]:
            return read_only and uid in claims
        case _:
            return False


def _brings_devices(
    mount: Mount, container: Container, reaching: frozenset[str], *, gpu: bool, left: tuple[str, ...]
) -> bool:
    source = host_path(mount.source)
    if _NAMED_MOUNT.fullmatch(source):
        kind = names.TYPE_NIC if _below(source, "/dev/infiniband") else names.TYPE_GPU
        return kind not in left and not (gpu and _SERVICE_MOUNT.fullmatch(source))
    return source in reaching and not (source == "/dev" and is_privileged(container))


@functools.lru_cache(maxsize=4)
def _reaching(guarded: DeviceGuard) -> frozenset[str]:
    """The guarded nodes and all folders above them but the root."""
    return frozenset(
        str(each)
        for path in (PurePosixPath(host_path(node.path)) for node in guarded.nodes)
        for each in (path, *path.parents)
    ) - {"/"}


def host_path(path: str) -> str:
    """An absolute path in one spelling; /var/run is /run."""
    return _spelled(path) if len(path) <= LONGEST_PATH else _spelled.__wrapped__(path)


LONGEST_PATH: Final = 4096
"""Bytes of a path that the kernel takes (PATH_MAX). The API server takes longer ones, and they are not
kept."""


@functools.lru_cache(maxsize=1024)
def _spelled(path: str) -> str:
    path = posixpath.normpath("/" + path.lstrip("/"))
    return path.removeprefix("/var") if _below(path, "/var/run") else path


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def check_devices(
    container: Container, *, grants: Grants, guarded: DeviceGuard | None
) -> tuple[DeviceRule, ...]:
    """The rules to append. Raises Refusal."""
    held = {node.number for node in grants.nodes}
    privileged = is_privileged(container)
    opened = control_nodes(guarded, grants)
    refused = [] if guarded is None else [node for device in guarded.devices for node in device.nodes]
    refused += [node for node in (guarded.control if guarded else ()) if node not in opened]
    numbers, paths = {node.number for node in refused}, {node.path for node in refused}
    left = guarded.left if guarded is not None else ()
    foreign = [
        node
        for node in container.devices
        if node.number not in held
        and (node.number in numbers or node.path in paths or _looks_guarded(node, left))
    ]
    if foreign and not privileged:
        raise Refusal(
            "UngrantedDevice",
            f"{container}: it was given {foreign[0]}, which no claim of it holds; {_REMOVE}",
        )
    for rule in () if privileged else container.rules:
        number = (rule.type or "a", rule.major, rule.minor)
        if rule.allow and number not in held and number in numbers:
            raise Refusal(
                "UngrantedDevice",
                f"{container}: a device rule opens {rule.type} {rule.major}:{rule.minor} to it; {_REMOVE}",
            )
    deny = [
        DeviceRule(False, *number, "rw")
        for number in sorted(numbers - held | {node.number for node in foreign})
        if can_open(container.rules, number)
    ]
    if guarded is None and privileged and not held:
        deny += [DeviceRule(False, "c", major, None, "rw") for major in (NVIDIA_MAJOR, UVERBS_MAJOR)]
    return tuple(deny)


_REMOVE = f"remove what brings it (a device plugin's resource, a CDI device, a hostPath) and {_ASK}"


def _looks_guarded(node: DeviceNode, left: tuple[str, ...]) -> bool:
    """By name and number of such nodes, for a card that the inventory does not know (yet)."""
    if (names.TYPE_NIC if _below(node.path, "/dev/infiniband") else names.TYPE_GPU) in left:
        return False
    return bool(_DEVICE_SHAPE.fullmatch(node.path)) or (
        node.type == "c" and node.major == NVIDIA_MAJOR and node.minor < 254
    )


def control_nodes(guarded: DeviceGuard | None, grants: Grants) -> frozenset[DeviceNode]:
    """The control nodes that the held devices need: nvidiactl with a GPU, rdma_cm with a NIC."""
    return frozenset(
        node
        for node in (guarded.control if guarded else ())
        if (grants.nic if _below(node.path, "/dev/infiniband") else grants.gpu)
    )
