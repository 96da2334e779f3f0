"""The devices that a pod holds by Koordinator's device-allocated annotation. Pure except `PodClaims`.

    scheduling.koordinator.sh/device-allocated:
      {"gpu":  [{"minor": 0, "id": "GPU-<uuid>",
                 "resources": {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "11520Mi",
                               "koordinator.sh/gpu-memory-ratio": "50"}}],
       "rdma": [{"minor": 1, "id": "0000:1f:00.0", "resources": {...},
                 "extension": {"vfs": [{"minor": 0, "busID": "..."}]}}]}

This replaces koordlet's `gpu` and `rdma` hooks and the runtime proxy. All containers of the pod hold the
devices, as there. A GPU is identified by its UUID and must have the annotation's minor; a NIC by its bus id,
or by those of its virtual functions. A mismatch with this node is refused: the scheduler's view is wrong.

    koordlet                                       here
    NVIDIA_VISIBLE_DEVICES = minors                = UUIDs (minors change when a driver is loaded anew)
    no device rule                                 device nodes and their rules; every other GPU and NIC stays
                                                   closed
    /dev/infiniband/rdma_cm, uverbsN of NIC or VF  the same, and RLIMIT_MEMLOCK
    HAMi-core, where the pod's label asks          the same variables and mounts, for every part of a card
                                                   or for none: the operator's word
    an error starts the container without devices  an error fails the container

As with koordlet, the driver's libraries come from the pod's runtime class (NVIDIA's).

A pod that holds devices by claims of koordra's holds nothing by annotation. A container without a marker may
be the first of a pod whose next one holds a claim, and the runtime does not report claims. So the API is
asked, once per pod, and only for pods with the annotation. If it does not answer, the container is refused
and the kubelet retries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from koordra.api import kinds, names, objects
from koordra.api.objects import Object
from koordra.api.opaque.isolation import AskedIsolation, IsolationPolicy
from koordra.api.opaque.isolation_words import NO_ISOLATION
from koordra.errors import InvalidQuantity, KoordraError, NotFound
from koordra.kube.client import KubeClient
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.prepared_claim import DeviceGuard, PreparedClaim, PreparedDevice
from koordra.nri.hook.adjust import Annotated
from koordra.nri.hook.environment import VISIBLE_DEVICES
from koordra.nri.hook.node_devices import NodeDevices
from koordra.nri.hook.oci import Container, Mount, Refusal
from koordra.quantity import parse
from koordra.topology.location import DeviceNode

ANNOTATION: Final = "scheduling.koordinator.sh/device-allocated"
ISOLATION_LABEL: Final = "koordinator.sh/gpu-isolation-provider"
HAMI_CORE: Final = "HAMi-core"
PROVIDED: Final = "hami-core"
"""What the label's word is among koordra's."""
HAMI_LIBRARY: Final = "/usr/local/vgpu/libvgpu.so"
HAMI_LOCKS: Final = "/tmp/vgpulock"

_CORE, _MEMORY, _RATIO = (
    "koordinator.sh/gpu-core",
    "koordinator.sh/gpu-memory",
    "koordinator.sh/gpu-memory-ratio",
)
_BUS_ID: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def granted_by_annotation(
    container: Container, *, guarded: DeviceGuard | None, node: NodeDevices, policy: IsolationPolicy
) -> Annotated | None:
    """What the container holds by its pod's annotation; None where there is none or it names nothing of
    ours. `policy`: what keeps parts of cards. Raises Refusal."""
    text = container.pod_annotations.get(ANNOTATION)
    if not text:
        return None
    try:
        document = json.loads(text)
        devices = tuple(_devices(document, guarded=guarded, node=node))
        asked = _asked(document, devices)
        env, mounts = _hami_core(container, document, policy)
    except _MismatchError as error:
        why = f"{container}: {ANNOTATION} and this node disagree: {error}"
        raise Refusal("KoordinatorMismatch", why) from error
    except (
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        ArithmeticError,
        RecursionError,
        InvalidQuantity,
    ) as error:
        raise Refusal("KoordinatorAnnotation", f"{container}: {ANNOTATION} is unusable: {error}") from error
    if not devices:
        return None
    return Annotated(
        PreparedClaim(
            ref=ClaimRef(namespace=container.namespace, name="", uid=container.pod_uid),
            nonce="",
            marker="",
            devices=tuple(_with_env(device, env if n == 0 else ()) for n, device in enumerate(devices)),
            memlock=any(device.type in names.NIC_TYPES for device in devices),
        ),
        asked=asked,
        mounts=mounts,
        taken_over=koordlet_traces(container, devices),
    )


class _MismatchError(Exception):
    """The annotation names what the node does not have."""


def _guarded_at(guarded: DeviceGuard, path: str, what: str) -> tuple[str, DeviceNode]:
    """The device that a path is the first node of, with that node."""
    for device in guarded.devices:
        if device.nodes and device.nodes[0].path == path:
            return device.name, device.nodes[0]
    raise _MismatchError(f"{path} is not a {what} of this node")


def _devices(document: Any, *, guarded: DeviceGuard | None, node: NodeDevices) -> Iterator[PreparedDevice]:
    if not isinstance(document, dict):
        raise TypeError("it is not an object")
    if guarded is None and (document.get("gpu") or document.get("rdma")):
        raise _MismatchError("the kubelet plugin has not written what devices there are")
    yield from (_gpu(entry, guarded, node) for entry in document.get("gpu") or () if guarded)
    for entry in document.get("rdma") or ():
        functions = [
            (str(vf["busID"]), names.TYPE_VF) for vf in (entry.get("extension") or {}).get("vfs") or ()
        ]
        for bus_id, kind in functions or [(str(entry["id"]), names.TYPE_NIC)]:
            if guarded:
                yield _nic(bus_id.lower(), kind, guarded, node)


def _gpu(entry: Mapping[str, Any], guarded: DeviceGuard, node: NodeDevices) -> PreparedDevice:
    minor, uuid = int(entry["minor"]), str(entry.get("id") or "")
    there = node.minor_of(uuid) if uuid else None
    if there is None:
        raise _MismatchError(f"there is no GPU with UUID {uuid!r}")
    if there != minor:
        raise _MismatchError(f"GPU {uuid} has minor {there}, not {minor}")
    name, card = _guarded_at(guarded, f"/dev/nvidia{minor}", "GPU")
    return PreparedDevice(request="", device=name, type=names.TYPE_GPU, uuid=uuid, nodes=(card,))


def _asked(
    document: Mapping[str, Any], devices: tuple[PreparedDevice, ...]
) -> dict[str, tuple[tuple[str, int], ...]]:
    """By device: cores and memory, in percent of the card; all of it where no amount is said."""
    called = {each.uuid: each.device for each in devices if each.uuid}
    words = ((names.CAPACITY_CORES, _CORE), (names.CAPACITY_MEMORY, _RATIO))
    found = {}
    for entry in document.get("gpu") or ():
        amounts = entry.get("resources") or {word: 100 for _, word in words}
        percents = ((name, int(parse(str(amounts.get(word, 0))))) for name, word in words)
        found[called[str(entry["id"])]] = tuple((name, min(max(0, each), 100)) for name, each in percents)
    return found


def _nic(bus_id: str, kind: str, guarded: DeviceGuard, node: NodeDevices) -> PreparedDevice:
    verbs = node.verbs_of(bus_id) if _BUS_ID.fullmatch(bus_id) else None
    if verbs is None:
        raise _MismatchError(f"there is no RDMA device at {bus_id!r}")
    found = _guarded_at(guarded, verbs[0], "NIC")
    return PreparedDevice(
        request="",
        device=found[0],
        type=kind,
        ib_device=verbs[1],
        nodes=found[1:],
        env=(("NCCL_IB_HCA", f"={verbs[1]}"), ("UCX_NET_DEVICES", f"{verbs[1]}:1")),
    )


def _with_env(device: PreparedDevice, env: tuple[tuple[str, str], ...]) -> PreparedDevice:
    return replace(device, env=(*device.env, *env)) if env else device


def _hami_core(
    container: Container, document: Mapping[str, Any], policy: IsolationPolicy
) -> tuple[tuple[tuple[str, str], ...], tuple[Mount, ...]]:
    """Variables and mounts of HAMi-core, for a part of a card. Raises Refusal where the pod asks for what the
    policy does not allow."""
    found = (entry.get("resources") or {} for entry in document.get("gpu") or ())
    parts = [resources for resources in found if parse(str(resources.get(_RATIO, "100"))) < 100]
    if not parts:
        return (), ()
    asked = AskedIsolation(PROVIDED if container.pod_labels.get(ISOLATION_LABEL) == HAMI_CORE else None)
    refused = asked.refusal(policy, share=True)
    if refused is not None:
        raise Refusal("KoordinatorIsolation", f"{container}: label {ISOLATION_LABEL}: {refused}")
    if asked.on(policy, share=True) == NO_ISOLATION:
        return (), ()
    limits = ((_MEMORY, "CUDA_DEVICE_MEMORY_LIMIT"), (_CORE, "CUDA_DEVICE_SM_LIMIT"))
    env = [
        ("LD_PRELOAD", HAMI_LIBRARY),
        *((name, str(int(parse(str(parts[0][part]))))) for part, name in limits if part in parts[0]),
    ]
    # Read-only, unlike koordlet's mount: root in one container could change the library of all others.
    return tuple(env), (
        Mount(HAMI_LIBRARY, HAMI_LIBRARY, bind=True, read_only=True),
        Mount(HAMI_LOCKS, HAMI_LOCKS, bind=True),
    )


def koordlet_traces(container: Container, devices: tuple[PreparedDevice, ...]) -> tuple[str, ...]:
    """Variables and device nodes that koordlet's own hooks, running before ours, have set.

    Its GPU hook writes the minors into NVIDIA_VISIBLE_DEVICES, its RDMA hook adds nodes without rules of
    their own. Both are taken over, since the runtime fails a container for which two plugins set the same
    field; the operator is warned.
    """
    traces = []
    visible = dict(container.env).get(VISIBLE_DEVICES, "")
    if visible and set(visible.split(",")) <= {
        str(node.minor) for device in devices if device.uuid for node in device.nodes
    }:
        traces.append(VISIBLE_DEVICES)
    mine = {node.path for device in devices for node in device.nodes} | {"/dev/infiniband/rdma_cm"}
    return (
        *traces,
        *sorted(
            path
            for path in mine & {node.path for node in container.devices}
            if path.startswith("/dev/infiniband/")
        ),
    )


_REMEMBERED: Final = 1024


class PodClaims:
    """Asks the API server. A pod's claims do not change once it runs on a node."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._known: dict[str, bool] = {}

    def of_koordra(self, *, namespace: str, pod: str, uid: str) -> bool:
        """Whether one of the pod's claims has a device of koordra's. KoordraError if that is unknown."""
        if uid not in self._known:
            found = self._client.get(kinds.PODS, pod, namespace=namespace)
            if (found.get("metadata") or {}).get("uid") != uid:
                raise KoordraError(f"pod {namespace}/{pod} is not the one with uid {uid} any more")
            answer = any(self._has_ours(namespace, name) for name in claim_names(found))
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[uid] = answer
        return self._known[uid]

    def _has_ours(self, namespace: str, name: str) -> bool:
        try:
            claim = self._client.get(kinds.RESOURCE_CLAIMS, name, namespace=namespace)
        except NotFound:
            return False
        devices = (objects.status_of(claim).get("allocation") or {}).get("devices") or {}
        return any(result.get("driver") == names.DRIVER for result in devices.get("results") or ())


def claim_names(pod: Object) -> Iterator[str]:
    """The claims of a pod: named in it, made from its templates, and made for its extended resources."""
    extended = objects.status_of(pod).get("extendedResourceClaimStatus") or {}
    for name in (*objects.pod_claim_names(pod).values(), extended.get("resourceClaimName")):
        if name:
            yield str(name)
