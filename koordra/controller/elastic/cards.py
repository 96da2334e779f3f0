"""The objects of Elastic GPU that koordra writes: ElasticGPU, what a claim has, and GPU, the cards of the nodes. Pure.

    ResourceClaim with devices ──> one ElasticGPU, egpu-<uid of the ResourceClaim>
        capacity      gpu-core and gpu-memory (MiB) of it, of all its cards together
        gpuShare      the card of a share; physicalGPU: the cards of a claim for whole ones; by the names of their GPU objects
        claimRef      the ElasticGPUClaim
        status        Bound while its claim exists, Released afterwards (Retain), Failed where the card is gone

    card of a ResourceSlice ──> one GPU
        spec     index (the minor), uuid, model, path, memory (MiB), nodeName
        status   state Ready, or Tainted with the reasons; capacity and allocatable (what is left) in gpu-core and gpu-memory;
                 allocated: by uid of the pod (of the claim where no pod has it) its containers with what they have

An ElasticGPU of a retained claim carries a finalizer: deleting it is how an administrator gives its devices back once its
claim is gone; while the claim exists the deletion waits. All claims of koordra's count on a card, not Elastic GPU's alone. GPUs
of nodes that are gone are removed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.elastic.elastic_gpu import CORE, ELASTIC_CLAIMS, ELASTIC_GPUS, GPUS, MEMORY, MIB
from koordra.api.objects import Object
from koordra.api.resource_class import MANAGED_BY
from koordra.controller import claims as claims_of
from koordra.controller.elastic import labels
from koordra.errors import InvalidQuantity
from koordra.quantity import parse

BOUND: Final = "Bound"
RELEASED: Final = "Released"
FAILED: Final = "Failed"
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Card:
    """A published GPU (or MIG instance), as far as Elastic GPU's objects speak of it. `memory` in bytes."""

    pool: str
    device: str
    node: str
    uuid: str = ""
    minor: int = -1
    model: str = ""
    memory: int = 0
    trouble: str = ""

    @property
    def index(self) -> str:
        return str(self.minor) if self.minor >= 0 else ""


Cards = Mapping[tuple[str, str], Card]


def published_devices(slices: Iterable[Object]) -> Iterator[tuple[tuple[str, str], str, Mapping[str, Any]]]:
    """((pool, name), node, device) of every device that koordra's plugins publish."""
    for entry in slices:
        spec = objects.spec_of(entry)
        if spec.get("driver") == names.DRIVER:
            pool = str((spec.get("pool") or {}).get("name"))
            for device in spec.get("devices") or ():
                yield (pool, str(device.get("name"))), str(spec.get("nodeName") or ""), device


def cards_of(slices: Iterable[Object]) -> dict[tuple[str, str], Card]:
    """Every GPU that koordra's plugins publish, by pool and device."""
    return {
        place: _card(device, pool=place[0], node=node)
        for place, node, device in published_devices(slices)
        if attribute(device, "type") in (names.TYPE_GPU, names.TYPE_MIG)
    }


def elastic_gpu(claim: Object, owner: Object | None, cards: Cards) -> Object:
    """The ElasticGPU of an allocated ResourceClaim; `owner`: its ElasticGPUClaim, None where that is gone."""
    results = claims_of.results(claim)
    had = [cards.get((str(result.get("pool")), str(result.get("device")))) for result in results]
    known = [card for card in had if card is not None]
    node = claims_of.node_of(claim) or (known[0].node if known else "")
    whole = all(consumed(result, "memory") is None or _is_whole(result, cards) for result in results)
    on_node = {"key": "metadata.name", "operator": "In", "values": [node]}
    spec: Object = {
        "capacity": _capacity(results, cards),
        "claimRef": {
            "apiVersion": ELASTIC_CLAIMS.api_version,
            "kind": ELASTIC_CLAIMS.kind,
            "namespace": objects.namespace(claim),
            "name": objects.name(claim),
            "uid": labels.claim_uid(claim),
        },
        "nodeName": node,
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchFields": [on_node]}]}},
    }
    sources = [{"index": card.index, "uuid": card.uuid} for card in known]
    if whole or len(sources) != 1:
        spec["physicalGPU"] = {"gpuNames": [gpu_name(card) for card in known], "devices": sources}
    else:
        spec["gpuShare"] = {"gpuName": gpu_name(known[0]), **sources[0]}
    metadata: Object = {
        "name": labels.binding_name(claim),
        "labels": {MANAGED_BY: names.FIELD_COMPONENT, **_class_label(claim)},
    }
    if labels.is_retained(claim):
        metadata["finalizers"] = [labels.CARD]
    return {
        "apiVersion": ELASTIC_GPUS.api_version,
        "kind": ELASTIC_GPUS.kind,
        "metadata": metadata,
        "spec": spec,
        "status": _status(claim, owner, missing=len(had) - len(known)),
    }


def gpu_name(card: Card) -> str:
    """The GPU object of a card."""
    return f"{card.node}-{card.device}"


def is_freed(binding: Object | None, claim: Object, owner: Object | None) -> bool:
    """Whether the administrator has given a retained claim's devices back by deleting its ElasticGPU."""
    return (
        owner is None
        and binding is not None
        and objects.is_deleting(binding)
        and labels.managed(binding)
        and labels.is_retained(claim)
    )


def memory_of(result: Mapping[str, Any], cards: Cards) -> int:
    """Bytes of a card that an allocation result takes."""
    taken = consumed(result, "memory")
    if taken is not None:
        return taken
    card = cards.get((str(result.get("pool")), str(result.get("device"))))
    return card.memory if card is not None else 0


def cores_of(result: Mapping[str, Any], cards: Cards) -> int:
    """Percent of a card that an allocation result takes; a whole card is 100, whatever was said."""
    return 100 if _is_whole(result, cards) else consumed(result, "cores") or 0


def _status(claim: Object, owner: Object | None, *, missing: int) -> Object:
    if missing:
        text = "its card is not published any more; it waits for it to come back"
        return {"phase": FAILED, "reason": "DeviceGone", "message": text}
    if owner is not None:
        return {"phase": BOUND, "reason": "Bound", "message": f"bound to {objects.key(claim)}"}
    if not labels.is_retained(claim):
        text = "its claim was deleted; it goes when the last pod has ended"
        return {"phase": RELEASED, "reason": "BeingDeleted", "message": text}
    if claims_of.reserved_for(claim):
        text = "its claim was deleted, pods still use it"
    else:
        text = "its claim was deleted; the devices are kept until this object is deleted"
    return {"phase": RELEASED, "reason": "Retained", "message": text}


def _class_label(claim: Object) -> Object:
    """The class's name, where it can be a label's value: a class's name may be longer, and the annotation can be edited."""
    name = objects.annotations_of(claim).get(labels.CLASS, "")
    return {labels.CLASS: name} if _LABEL_VALUE.fullmatch(name) else {}


def _capacity(results: Iterable[Mapping[str, Any]], cards: Cards) -> Object:
    entries = list(results)
    return {
        CORE: str(sum(cores_of(result, cards) for result in entries)),
        MEMORY: str(sum(memory_of(result, cards) for result in entries) // MIB),
    }


def _is_whole(result: Mapping[str, Any], cards: Cards) -> bool:
    card = cards.get((str(result.get("pool")), str(result.get("device"))))
    taken = consumed(result, "memory")
    return taken is None or (card is not None and card.memory > 0 and taken >= card.memory)


def consumed(result: Mapping[str, Any], name: str) -> int | None:
    """What an allocation result takes of a capacity, None where it says nothing."""
    found = claims_of.consumed(result)
    return _number(found.get(name, found.get(names.DOMAIN + name)))


def memory_of_device(device: Mapping[str, Any]) -> int:
    """Bytes, 0 where the device publishes none."""
    capacity = device.get("capacity") or {}
    memory = capacity.get(names.CAPACITY_MEMORY) or capacity.get(names.DOMAIN + names.CAPACITY_MEMORY) or {}
    return _number(memory.get("value")) or 0


def attribute(device: Mapping[str, Any], name: str) -> object:
    attributes = device.get("attributes") or {}
    found = attributes.get(names.DOMAIN + name) or attributes.get(name) or {}
    return next(iter(found.values()), None)


def _number(value: object) -> int | None:
    try:
        return None if value is None else int(parse(value))
    except InvalidQuantity:
        return None


def _card(device: Mapping[str, Any], *, pool: str, node: str) -> Card:
    minor = attribute(device, "minor")
    taints = {str(taint.get("key")) for taint in device.get("taints") or ()} - {names.JOINT_TAINT}
    return Card(
        pool=pool,
        device=str(device.get("name")),
        node=node,
        uuid=str(attribute(device, "uuid") or ""),
        minor=minor if isinstance(minor, int) else -1,
        model=str(attribute(device, "productName") or attribute(device, "model") or ""),
        memory=memory_of_device(device),
        trouble=", ".join(sorted(taints)),
    )


READY: Final = "Ready"
TAINTED: Final = "Tainted"

_Taken = tuple[Object, Mapping[str, Any]]
"""A claim and one of its results."""


def gpus(cards: Cards, claims: Iterable[Object], pods: Iterable[Object]) -> list[Object]:
    """The GPU objects, by name."""
    taken = _taken(claims)
    by_uid = {objects.uid(pod): pod for pod in pods} if taken else {}
    found = [_gpu(card, taken.get(place, ()), cards, by_uid) for place, card in cards.items() if card.node]
    return sorted(found, key=objects.name)


def _taken(claims: Iterable[Object]) -> dict[tuple[str, str], list[_Taken]]:
    found = defaultdict(list)
    for claim in claims:
        for result in claims_of.results(claim):
            if result.get("driver") == names.DRIVER and not result.get("adminAccess"):
                found[str(result.get("pool")), str(result.get("device"))].append((claim, result))
    return found


def _gpu(card: Card, taken: Iterable[_Taken], cards: Cards, pods: Mapping[str, Object]) -> Object:
    entries = list(taken)
    memory = card.memory // MIB
    cores_left = 100 - sum(cores_of(result, cards) for _, result in entries)
    memory_left = memory - sum(memory_of(result, cards) for _, result in entries) // MIB
    spec: Object = {"index": max(card.minor, 0), "memory": memory, "nodeName": card.node}
    if card.uuid:
        spec["uuid"] = card.uuid
    if card.model:
        spec["model"] = card.model
    if card.minor >= 0:
        spec["path"] = f"/dev/nvidia{card.minor}"
    status: Object = {
        "state": f"{TAINTED}: {card.trouble}" if card.trouble else READY,
        "capacity": {CORE: "100", MEMORY: str(memory)},
        "allocatable": {CORE: str(max(cores_left, 0)), MEMORY: str(max(memory_left, 0))},
    }
    allocated = _allocated(entries, cards, pods)
    if allocated:
        status["allocated"] = allocated
    return {
        "apiVersion": GPUS.api_version,
        "kind": GPUS.kind,
        "metadata": {"name": gpu_name(card), "labels": {MANAGED_BY: names.FIELD_COMPONENT}},
        "spec": spec,
        "status": status,
    }


def _allocated(entries: Iterable[_Taken], cards: Cards, pods: Mapping[str, Object]) -> Object:
    found: Object = {}
    for claim, result in entries:
        amount = {
            CORE: str(cores_of(result, cards)),
            MEMORY: str(memory_of(result, cards) // MIB),
        }
        using = [uid for uid in claims_of.reserved_for(claim) if uid in pods]
        for uid in using:
            pod = pods[uid]
            place = found.setdefault(
                uid, {"namespace": objects.namespace(pod), "pod": objects.name(pod), "containers": []}
            )
            place["containers"] += [
                {"container": container, "resource": amount}
                for container in containers_using(pod, claim, str(result.get("request")))
            ]
        if not using:
            place = {"namespace": objects.namespace(claim), "containers": [{"resource": amount}]}
            found[objects.uid(claim)] = place
    return found


def containers_using(pod: Object, claim: Object, request: str) -> list[str]:
    """The containers of a pod that use a request of a claim, in the pod's order."""
    entries = {entry for entry, name in objects.pod_claim_names(pod).items() if name == objects.name(claim)}
    top = request.partition("/")[0]
    found = []
    spec = objects.spec_of(pod)
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for use in (container.get("resources") or {}).get("claims") or ():
            if use.get("name") in entries and use.get("request") in (None, "", top, request):
                found.append(str(container.get("name")))
                break
    return found
