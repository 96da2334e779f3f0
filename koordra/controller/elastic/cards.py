"""GPU: the cards of the nodes, what of them is taken, and by whom. Pure.

    spec     index (the minor), uuid, model, path, memory (MiB), nodeName: from the ResourceSlices of koordra's plugins
    status   state Ready, or Tainted with the reasons; capacity and allocatable (what is left) in gpu-core and gpu-memory;
             allocated: by uid of the pod (of the claim where no pod has it) its containers with what they have

All claims of koordra's count, not Elastic GPU's alone. GPUs of nodes that are gone are removed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.elastic.elastic_gpu import CORE, GPUS, MEMORY, MIB
from koordra.api.objects import Object
from koordra.api.resource_class import MANAGED_BY
from koordra.controller import claims as claims_of
from koordra.controller.elastic.bindings import Card, Cards, cores_of, gpu_name, memory_of

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
