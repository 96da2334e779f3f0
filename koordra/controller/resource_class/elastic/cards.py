"""The objects of Elastic GPU that koordra writes: ElasticGPU, what a claim has, and GPU, the cards of the
nodes. Pure.

    ResourceClaim with devices ──> one ElasticGPU, egpu-<uid of the ResourceClaim>
        capacity      gpu-core and gpu-memory (MiB) of it, of all its cards together
        gpuShare      the card of a share; physicalGPU: the cards of a claim for whole ones; by the names of
                      their GPU objects
        claimRef      the ElasticGPUClaim
        nodeName      the node of cards that are on one; nodeAffinity: that to which the claim is bound
        status        Bound while its claim exists, Released afterwards (Retain), Failed where the card is
                      gone

    card of a ResourceSlice ──> one GPU
        spec     index (the minor), uuid, model, path, memory (MiB), nodeName
        status   state Ready, or Tainted with the reasons; capacity and allocatable (what is left) in gpu-core
                 and gpu-memory; allocated: by uid of the pod (of the claim where no pod has it) its
                 containers with what they have

An ElasticGPU of a retained claim carries a finalizer: deleting it is how an administrator gives its devices
back once its claim is gone; while the claim exists the deletion waits. All claims of koordra's count on a
card, not Elastic GPU's alone. GPUs of nodes that are gone are removed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.api import names, objects
from koordra.api.elastic.elastic_gpu import CORE, ELASTIC_CLAIMS, ELASTIC_GPUS, GPUS, MEMORY, MIB
from koordra.api.objects import Fields, Object
from koordra.api.opaque.isolation_words import backend_of
from koordra.api.pods import containers
from koordra.api.resource_class import MANAGED_BY
from koordra.controller import claims as claims_of
from koordra.controller.resource_class.elastic.claims import (
    CARD,
    CLASS,
    binding_name,
    claim_uid,
    is_retained,
    managed,
    place_of,
)
from koordra.errors import InvalidQuantity
from koordra.inert import inert
from koordra.quantity import parse

BOUND: Final = "Bound"
RELEASED: Final = "Released"
FAILED: Final = "Failed"
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Card:
    """A published GPU (or MIG instance), as far as Elastic GPU's objects speak of it. `node`: empty where it
    is on none. `memory` in bytes."""

    device: str
    node: str
    uuid: str = ""
    minor: int = -1
    model: str = ""
    memory: int = 0
    trouble: str = ""


Cards = Mapping[tuple[str, str], Card]


def published_devices(slices: Iterable[Object]) -> Iterator[tuple[tuple[str, str], str, Fields]]:
    """((pool, name), node, device) of every device that koordra's plugins publish."""
    for entry in slices:
        spec = objects.spec_of(entry)
        if spec.get("driver") == names.DRIVER:
            pool = str((spec.get("pool") or {}).get("name"))
            for device in spec.get("devices") or ():
                yield (pool, str(device.get("name"))), str(spec.get("nodeName") or ""), device


def _is_of_other_mode(device: Fields) -> bool:
    taints = ((one.get("key"), one.get("value")) for one in device.get("taints") or ())
    return (names.MIG_MODE_TAINT, names.MIG_MODE_NEEDED) in taints


def cards_of(slices: Iterable[Object]) -> dict[tuple[str, str], Card]:
    """Every GPU that is published, by pool and device, in the MIG mode that it is in, and what is on no
    node."""
    return {
        place: _card(device, name=place[1], node=node)
        for place, node, device in published_devices(slices)
        if attribute(device, "type") in names.GPU_TYPES or backend_of(place[0]) is not None
        if not _is_of_other_mode(device)
    }


def elastic_gpu(claim: Object, owner: Object | None, cards: Cards) -> Object:
    """The ElasticGPU of an allocated ResourceClaim; `owner`: its ElasticGPUClaim, None where that is gone."""
    results = claims_of.results(claim)
    places = [place_of(result) for result in results]
    known = [cards[place] for place in places if place in cards]
    node = claims_of.node_of(claim) or (known[0].node if known else "")
    spec: Object = {
        "capacity": _capacity(results, cards),
        "claimRef": {
            **ELASTIC_CLAIMS.type_meta,
            "namespace": objects.namespace(claim),
            "name": objects.name(claim),
            "uid": claim_uid(claim),
        },
    }
    if node:
        on_node = {"key": "metadata.name", "operator": "In", "values": [node]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchFields": [on_node]}]}}
    if any(backend_of(pool) is None for pool, _ in places):
        spec["nodeName"] = node
    sources = [{"index": str(card.minor) if card.minor >= 0 else "", "uuid": card.uuid} for card in known]
    if len(sources) != 1 or all(_is_whole(result, cards) for result in results):
        spec["physicalGPU"] = {"gpuNames": [gpu_name(card) for card in known], "devices": sources}
    else:
        spec["gpuShare"] = {"gpuName": gpu_name(known[0]), **sources[0]}
    metadata: Object = {"name": binding_name(claim), "labels": {MANAGED_BY: names.FIELD_COMPONENT}}
    class_name = objects.annotations_of(claim).get(CLASS, "")
    if _LABEL_VALUE.fullmatch(class_name):  # it may be longer, and the annotation can be edited
        metadata["labels"][CLASS] = class_name
    if is_retained(claim):
        metadata["finalizers"] = [CARD]
    return {
        **ELASTIC_GPUS.type_meta,
        "metadata": metadata,
        "spec": spec,
        "status": _status(claim, owner, missing=len(known) < len(results)),
    }


def gpu_name(card: Card) -> str:
    """A device that is on no node has no GPU object, and a name that no other one has."""
    return f"{card.node}-{card.device}" if card.node else card.device


def is_freed(binding: Object | None, claim: Object, owner: Object | None) -> bool:
    """Whether the administrator has given a retained claim's devices back by deleting its ElasticGPU."""
    return (
        owner is None
        and binding is not None
        and objects.is_deleting(binding)
        and managed(binding)
        and is_retained(claim)
    )


def _status(claim: Object, owner: Object | None, *, missing: bool) -> Object:
    phase, reason = RELEASED, "Retained"
    if missing:
        phase, reason = FAILED, "DeviceGone"
        text = "its card is not published any more; it waits for it to come back"
    elif owner is not None:
        phase, reason, text = BOUND, "Bound", f"bound to {objects.key(claim)}"
    elif not is_retained(claim):
        reason, text = "BeingDeleted", "its claim was deleted; it goes when the last pod has ended"
    elif claims_of.reserved_for(claim):
        text = "its claim was deleted, pods still use it"
    else:
        text = "its claim was deleted; the devices are kept until this object is deleted"
    return {"phase": phase, "reason": reason, "message": inert(text)}


def _capacity(results: Iterable[Fields], cards: Cards) -> Object:
    """What allocation results take together: percent of cards, of which a whole one is 100, whatever was
    said, and MiB."""
    cores = memory = 0
    for result in results:
        card, taken = cards.get(place_of(result)), consumed(result, "memory")
        memory += taken if taken is not None else card.memory if card is not None else 0
        cores += 100 if _is_whole(result, cards) else consumed(result, "cores") or 0
    return {CORE: str(cores), MEMORY: str(memory // MIB)}


def _is_whole(result: Fields, cards: Cards) -> bool:
    card, taken = cards.get(place_of(result)), consumed(result, "memory")
    return taken is None or (card is not None and 0 < card.memory <= taken)


def consumed(result: Fields, name: str) -> int | None:
    """What an allocation result takes of a capacity, None where it says nothing."""
    found = claims_of.consumed(result)
    return _number(found.get(name, found.get(names.DOMAIN + name)))


def memory_of_device(device: Fields) -> int:
    """Bytes, 0 where the device publishes none."""
    capacity = device.get("capacity") or {}
    memory = capacity.get(names.CAPACITY_MEMORY) or capacity.get(names.DOMAIN + names.CAPACITY_MEMORY) or {}
    return _number(memory.get("value")) or 0


def attribute(device: Fields, name: str) -> object:
    attributes = device.get("attributes") or {}
    found = attributes.get(names.DOMAIN + name) or attributes.get(name) or {}
    return next(iter(found.values()), None)


def _number(value: object) -> int | None:
    try:
        return None if value is None else int(parse(value))
    except InvalidQuantity:
        return None


def _card(device: Fields, *, name: str, node: str) -> Card:
    minor = attribute(device, "minor")
    taints = {str(taint.get("key")) for taint in device.get("taints") or ()} - {names.JOINT_TAINT}
    return Card(
        device=name,
        node=node,
        uuid=str(attribute(device, "uuid") or ""),
        minor=minor if isinstance(minor, int) else -1,
        model=str(attribute(device, "productName") or attribute(device, "model") or ""),
        memory=memory_of_device(device),
        trouble=", ".join(sorted(taints)),
    )


_Taken = tuple[Object, Fields]
"""A claim and one of its results."""


def gpus(cards: Cards, claims: Iterable[Object], pods: Iterable[Object]) -> list[Object]:
    taken: defaultdict[tuple[str, str], list[_Taken]] = defaultdict(list)
    for claim in claims:
        for result in claims_of.results(claim):
            if result.get("driver") == names.DRIVER and not result.get("adminAccess"):
                taken[place_of(result)].append((claim, result))
    by_uid = {objects.uid(pod): pod for pod in pods} if taken else {}
    found = [_gpu(card, taken.get(place, ()), cards, by_uid) for place, card in cards.items() if card.node]
    return sorted(found, key=objects.name)


def _gpu(card: Card, taken: Sequence[_Taken], cards: Cards, pods: Mapping[str, Object]) -> Object:
    memory = card.memory // MIB
    used = _capacity([result for _, result in taken], cards)
    left = {CORE: 100 - int(used[CORE]), MEMORY: memory - int(used[MEMORY])}
    spec: Object = {
        "index": max(card.minor, 0),
        "memory": memory,
        "nodeName": card.node,
        "uuid": card.uuid or None,
        "model": card.model or None,
        "path": f"/dev/nvidia{card.minor}" if card.minor >= 0 else None,
    }
    status: Object = {
        "state": f"Tainted: {card.trouble}" if card.trouble else "Ready",
        "capacity": {CORE: "100", MEMORY: str(memory)},
        "allocatable": {name: str(max(amount, 0)) for name, amount in left.items()},
    }
    if taken:
        status["allocated"] = _allocated(taken, cards, pods)
    return {
        **GPUS.type_meta,
        "metadata": {"name": gpu_name(card), "labels": {MANAGED_BY: names.FIELD_COMPONENT}},
        "spec": objects.without_none(spec),
        "status": status,
    }


def _allocated(taken: Iterable[_Taken], cards: Cards, pods: Mapping[str, Object]) -> Object:
    found: Object = {}
    for claim, result in taken:
        amount = _capacity([result], cards)
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
            found[objects.uid(claim)] = {
                "namespace": objects.namespace(claim),
                "containers": [{"resource": amount}],
            }
    return found


def containers_using(pod: Object, claim: Object, request: str) -> list[str]:
    """The containers of a pod that use a request of a claim, in the pod's order."""
    entries = {entry for entry, name in objects.pod_claim_names(pod).items() if name == objects.name(claim)}
    asked = (None, "", request.partition("/")[0], request)
    return [
        str(container.get("name"))
        for container in containers(pod)
        if any(
            use.get("name") in entries and use.get("request") in asked
            for use in (container.get("resources") or {}).get("claims") or ()
        )
    ]
