"""Koordinator's Reservation as one of koordra's: the devices that its template asks for, kept for its owners.

It is cluster-wide there and of a namespace here, which its owners or its template name. CPUs and memory are
not kept by koordra. What decides who may take how much of it, and koordra decides otherwise, is refused.
"""

from __future__ import annotations

from typing import Final

from koordra.api import objects
from koordra.api.classic.notes import Notes, fresh_metadata
from koordra.api.objects import Object
from koordra.api.opaque.parameters import API_VERSION
from koordra.api.reader import Reader

KIND: Final = "Reservation.scheduling.koordinator.sh"
_READ: Final = ("template", "owners", "ttl", "expires", "allocateOnce")
_REFUSED: Final = (
    ("preAllocation", "takes devices over from pods that run"),
    ("preAllocationPolicy", "takes devices over from pods that run"),
    ("unschedulable", "lets nobody in"),
    ("taints", "lets only some of the owners in"),
)


def reservation(obj: Object, template: Object, notes: Notes) -> Object:
    """`template` is the ResourceClaimTemplate of the pod that it holds. Raises Refused or InvalidManifest."""
    read = notes.read(obj).inner("spec")
    for name, what in _REFUSED:
        if read.data.get(name):
            raise read.wrong(f"{what}, which koordra's reservations do not", "take it out", at=name)
    if read.text("allocatePolicy") == "Restricted":
        raise read.wrong(
            "Restricted: an owner takes from the reservation and from what is free together in koordra",
            "write Aligned",
            at="allocatePolicy",
        )
    read.only(
        *_READ, *(name for name, _ in _REFUSED), "allocatePolicy", problem="is no field of a Reservation"
    )
    owners = [_owner(each) for each in read.each("owners")]
    if not owners:
        raise read.wrong("names nobody", "write for whom it is", at="owners")
    spec: Object = {
        "owners": [owner for owner, _ in owners],
        "claims": [{"name": "devices", "devices": template["spec"]["spec"]["devices"]}],
        "allocateOnce": read.data.get("allocateOnce", True) is not False,
        **_until(read),
        **_nodes(read.inner("template").inner("spec"), notes),
    }
    metadata = {**fresh_metadata(obj), "namespace": _namespace(read, owners)}
    notes.warn("spec.template", "its CPUs and memory are not kept, its devices are", "keep them by priority")
    return {"apiVersion": API_VERSION, "kind": "Reservation", "metadata": metadata, "spec": spec}


def _owner(read: Reader) -> tuple[Object, str]:
    """One entry, and the namespace that it names."""
    read.only("object", "controller", "labelSelector", problem="is no field of an owner")
    owner: Object = {}
    pod, controller = read.inner("object"), read.inner("controller")
    if pod.data:
        if pod.text("kind") not in ("", "Pod") or not pod.text("name"):
            raise pod.wrong("is no pod by its name", "write kind Pod and a name")
        owner["pod"] = pod.text("name")
    if controller.data:
        owner["controller"] = {"kind": controller.required("kind"), "name": controller.required("name")}
    if read.data.get("labelSelector"):
        owner["labelSelector"] = read.data["labelSelector"]
    if not owner:
        raise read.wrong("describes nobody", "write object, controller or labelSelector")
    return owner, pod.text("namespace") or controller.text("namespace")


def _namespace(read: Reader, owners: list[tuple[Object, str]]) -> str:
    template = read.inner("template").inner("metadata").text("namespace")
    found = sorted({name for _, name in owners if name} or ({template} if template else set()))
    if len(found) != 1:
        raise read.wrong(
            f"are of {', '.join(found) or 'every namespace'}, and a reservation of koordra's is of one",
            "write one for each namespace, with it in owners[].object.namespace or template.metadata.namespace",
            at="owners",
        )
    return found[0]


def _until(read: Reader) -> Object:
    if read.data.get("expires"):
        return {"expires": read.data["expires"]}
    ttl = str(read.data.get("ttl") or ("0" if "ttl" in read.data else "24h"))
    if ttl.rstrip("smh") in ("0", ""):
        raise read.wrong("never ends, and koordra keeps devices for 30 days at most", "write 720h", at="ttl")
    return {"ttl": ttl}


def _nodes(read: Reader, notes: Notes) -> Object:
    if read.data.get("affinity"):
        raise read.wrong("cannot be said of a reservation", "write nodeSelector", at="affinity")
    selector = dict(read.inner("nodeSelector").data)
    if read.text("nodeName"):
        selector["kubernetes.io/hostname"] = read.text("nodeName")
    for name in ("priorityClassName", "priority"):
        if read.data.get(name):
            notes.warn(
                read.place(name), "is not taken over: it needs the right to prioritize", "write priority"
            )
    found: Object = {"nodeSelector": selector} if selector else {}
    if read.data.get("tolerations"):
        found["tolerations"] = read.data["tolerations"]
    return found


def is_reservation(obj: Object) -> bool:
    return f"{obj.get('kind')}.{objects.group_of(obj)}" == KIND
