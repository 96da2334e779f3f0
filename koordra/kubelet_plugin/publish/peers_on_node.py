"""Other stacks on this node: who may give out its GPUs or NICs, and who has some, as the kubelet and the Node
say.

    /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint
        Data.RegisteredDevices   resource -> devices that a plugin has registered. It is not written anew when
                                 the plugin ends, so it counts only while the Node is not known
        Data.PodDeviceEntries    what the pods have; entries of pods that ended stay until the next
                                 allocation, so one counts while <kubelet root>/pods/<uid> is there
    <kubelet root>/plugins_registry/<driver>[-...]-reg.sock
        a DRA driver that the kubelet may call, if somebody answers
    <kubelet root>/dra_manager_state
        claims that are prepared, or were begun to be, by driver; its format is the kubelet's own and may
        change, so it is only searched for the driver's name
    Node
        status.allocatable of the stacks' resources; the annotation koordra.io/no-gpus, in which the
        controller says what it sees of pods and slices

The folder of device plugins is the kubelet's own constant, whatever its root is. The kubelet writes both
files before it calls a plugin or driver, and so before any container of the pod is made. Source:
pkg/kubelet/cm/devicemanager/checkpoint, pkg/kubelet/cm/dra/state of Kubernetes 1.36.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.objects import Fields
from koordra.compat.detection import offered_by_others, publishers
from koordra.node_state.disk import read_file

DEVICE_PLUGINS: Final = "var/lib/kubelet/device-plugins"
"""Below the host's `/`."""
CHECKPOINT: Final = "kubelet_internal_checkpoint"
REGISTRY: Final = "plugins_registry"
CLAIMS: Final = "dra_manager_state"
_LARGEST: Final = 64 << 20
_NAMED: Final = 4
"""Pods that a line names."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """What is handed over as one: `type` (gpu, nic) with all `types` of claims' devices, the operator's
    label, the controller's answer, and the DRA drivers that give out the same devices."""

    type: str
    title: str
    types: frozenset[str]
    label: str
    given_to: str
    drivers: tuple[str, ...]


GPUS: Final = DeviceKind(
    names.TYPE_GPU,
    "GPUs",
    names.GPU_TYPES | {names.TYPE_IMEX},
    names.GPU_OWNER_LABEL,
    names.GPUS_GIVEN_TO,
    ("gpu.nvidia.com", "gpu.resource.nvidia.com"),
)
NICS: Final = DeviceKind(
    names.TYPE_NIC, "NICs", names.NIC_TYPES, names.NIC_OWNER_LABEL, names.NICS_GIVEN_TO, ("dra.net",)
)
KINDS: Final = (GPUS, NICS)


@dataclass(frozen=True, slots=True)
class PeersOnNode:
    """In words, a line each: who may give devices out or has some, and what could not be found out."""

    peers: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def peers_on_node(
    root: Path,
    kind: DeviceKind,
    *,
    host: Path,
    node: Fields | None,
    answers: Callable[[Path], bool | None],
) -> PeersOnNode:
    """`root`: the kubelet's folder; `host`: the host's `/`; `answers`: whether somebody accepts connections
    on a unix socket."""
    peers, unknown = list(_registered(root / REGISTRY, kind, answers)), []
    try:
        peers += _prepared(root / CLAIMS, kind)
        if kind is GPUS:
            checkpoint = host / DEVICE_PLUGINS / CHECKPOINT
            peers += _of_device_plugins(checkpoint, root / "pods", registered=node is None)
    except (OSError, ValueError, RecursionError) as error:
        unknown.append(f"what the kubelet records of other plugins cannot be read: {error}")
    if node is not None and kind is GPUS:
        peers += _of_node(node)
    return PeersOnNode(tuple(dict.fromkeys(peers)), tuple(unknown))


def _of_node(node: Fields) -> Iterator[str]:
    for resource in offered_by_others(dict(node)):
        yield f"{resource} of {publishers((resource,))} is in status.allocatable of the Node"
    if seen := objects.annotations_of(node).get(names.NO_GPUS):
        yield str(seen)


def _registered(folder: Path, kind: DeviceKind, answers: Callable[[Path], bool | None]) -> Iterator[str]:
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return
    for driver in kind.drivers:
        named = re.compile(rf"{re.escape(driver)}(-.*)?\.sock")
        if any(named.fullmatch(path.name) and answers(path) is not False for path in found):
            yield f"DRA driver {driver} is registered with the kubelet"


def _prepared(path: Path, kind: DeviceKind) -> Iterator[str]:
    text = _text(path)
    for driver in kind.drivers:
        if re.search(rf'\\?"{re.escape(driver)}\\?"\s*:', text):
            yield f"pods on the node have claims of DRA driver {driver}"


def _of_device_plugins(checkpoint: Path, folders: Path, *, registered: bool) -> Iterator[str]:
    """`folders`: of the pods that there are; `registered`: what is registered counts. Raises OSError,
    ValueError."""
    text = _text(checkpoint)
    if not text.strip():
        return
    data = _fields(_fields(json.loads(text)).get("Data"))
    offered = _fields(data.get("RegisteredDevices")) if registered else {}
    for resource, devices in sorted(offered.items()):
        if devices and (whose := publishers((str(resource),))):
            yield f"{whose} gives out {resource} on the node"
    pods: dict[str, set[str]] = {}
    for entry in data.get("PodDeviceEntries") or ():
        resource, uid = str(_fields(entry).get("ResourceName")), str(_fields(entry).get("PodUID"))
        if publishers((resource,)) and (not uid.strip("./") or (folders / Path(uid).name).exists()):
            pods.setdefault(resource, set()).add(uid)
    for resource, uids in sorted(pods.items()):
        more = f" and {len(uids) - _NAMED} more" if len(uids) > _NAMED else ""
        named = ", ".join(sorted(uids)[:_NAMED])
        yield f"pods have {resource} of {publishers((resource,))} (uids {named}{more})"


def _fields(value: Any) -> Mapping[str, Any]:
    """Raises ValueError for what is no object."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError("it is not as the kubelet writes it")
    return value


def _text(path: Path) -> str:
    """Empty where there is no file. Raises OSError."""
    try:
        return read_file(path, largest=_LARGEST)[0].decode(errors="replace")
    except FileNotFoundError:
        return ""
