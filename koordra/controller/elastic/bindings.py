"""ElasticGPU: what a claim has, and where. Pure.

    ResourceClaim with devices ──> one ElasticGPU, egpu-<uid of the ResourceClaim>
        capacity      gpu-core and gpu-memory (MiB) of it, of all its cards together
        gpuShare      the card of a share; physicalGPU: the cards of a claim for whole ones; by the names of their GPU objects
        claimRef      the ElasticGPUClaim
        status        Bound while its claim exists, Released afterwards (Retain), Failed where the card is gone

An ElasticGPU of a retained claim carries a finalizer: deleting it is how an administrator gives its devices back once its
claim is gone; while the claim exists the deletion waits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.elastic.elastic_gpu import CORE, ELASTIC_CLAIMS, ELASTIC_GPUS, MEMORY, MIB
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


def cards_of(slices: Iterable[Object]) -> dict[tuple[str, str], Card]:
    """Every GPU that koordra's plugins publish, by pool and device."""
    found = {}
    for entry in slices:
        spec = objects.spec_of(entry)
        if spec.get("driver") != names.DRIVER:
            continue
        pool = str((spec.get("pool") or {}).get("name"))
        for device in spec.get("devices") or ():
            if _attribute(device, "type") in (names.TYPE_GPU, names.TYPE_MIG):
                card = _card(device, pool=pool, node=str(spec.get("nodeName") or ""))
                found[pool, card.device] = card
    return found


def elastic_gpu(claim: Object, owner: Object | None, cards: Cards) -> Object:
    """The ElasticGPU of an allocated ResourceClaim; `owner`: its ElasticGPUClaim, None where that is gone."""
    results = claims_of.results(claim)
    had = [cards.get((str(result.get("pool")), str(result.get("device")))) for result in results]
    known = [card for card in had if card is not None]
    node = claims_of.node_of(claim) or (known[0].node if known else "")
    whole = all(_consumed(result, "memory") is None or _is_whole(result, cards) for result in results)
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
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchFields": [_on(node)]}]}},
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
    taken = _consumed(result, "memory")
    if taken is not None:
        return taken
    card = cards.get((str(result.get("pool")), str(result.get("device"))))
    return card.memory if card is not None else 0


def cores_of(result: Mapping[str, Any], cards: Cards) -> int:
    """Percent of a card that an allocation result takes; a whole card is 100, whatever was said."""
    return 100 if _is_whole(result, cards) else _consumed(result, "cores") or 0


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
    taken = _consumed(result, "memory")
    return taken is None or (card is not None and card.memory > 0 and taken >= card.memory)


def _consumed(result: Mapping[str, Any], name: str) -> int | None:
    consumed = claims_of.consumed(result)
    return _number(consumed.get(name, consumed.get(names.DOMAIN + name)))


def _number(value: object) -> int | None:
    try:
        return None if value is None else int(parse(value))
    except InvalidQuantity:
        return None


def _on(node: str) -> Object:
    return {"key": "metadata.name", "operator": "In", "values": [node]}


def _card(device: Mapping[str, Any], *, pool: str, node: str) -> Card:
    capacity = device.get("capacity") or {}
    memory = (
        capacity.get(names.CAPACITY_MEMORY) or capacity.get(names.DOMAIN + names.CAPACITY_MEMORY) or {}
    ).get("value")
    minor = _attribute(device, "minor")
    taints = sorted(
        str(taint.get("key"))
        for taint in device.get("taints") or ()
        if taint.get("key") not in (names.JOINT_TAINT,)
    )
    return Card(
        pool=pool,
        device=str(device.get("name")),
        node=node,
        uuid=str(_attribute(device, "uuid") or ""),
        minor=minor if isinstance(minor, int) else -1,
        model=str(_attribute(device, "productName") or _attribute(device, "model") or ""),
        memory=_number(memory) or 0,
        trouble=", ".join(taints),
    )


def _attribute(device: Mapping[str, Any], name: str) -> object:
    attributes = device.get("attributes") or {}
    value = attributes.get(names.DOMAIN + name) or attributes.get(name) or {}
    return next((found for found in value.values()), None)
