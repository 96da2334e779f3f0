"""Reading plain Kubernetes dicts: who an object is, and what it belongs to.

Hot paths hold API objects as the dicts that came off the wire; these few functions are the only places that
know where the identifying fields sit, so that a missing `metadata` reads the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordra.api import names

Object = dict[str, Any]
"""A Kubernetes object as decoded JSON."""

Fields = Mapping[str, Any]
"""An object, or an object within one, that is read and not changed."""


def without(fields: Fields, *names: str) -> Object:
    """A copy without some of the fields."""
    return {name: value for name, value in fields.items() if name not in names}


def without_none(fields: Fields) -> Object:
    """A copy without the fields that are None: what says nothing is left out, as the API server does."""
    return {name: value for name, value in fields.items() if value is not None}


def fields(value: object) -> Fields:
    """`value` where it is an object, else one without fields: nobody has judged yet what stands there."""
    return value if isinstance(value, (dict, Mapping)) else {}


def mappings(value: object) -> list[Fields]:
    """The objects of a list; none where it is no list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, (list, tuple)) else []


def texts(value: object) -> list[str]:
    """The texts of a list; none where it is no list."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, (list, tuple)) else []


def metadata(obj: Fields) -> Fields:
    return fields(obj.get("metadata"))


def name(obj: Fields) -> str:
    return str(metadata(obj).get("name", ""))


def namespace(obj: Fields) -> str:
    """The namespace, `default` where a manifest leaves it out."""
    return str(metadata(obj).get("namespace") or "default")


def uid(obj: Fields) -> str:
    return str(metadata(obj).get("uid", ""))


def resource_version(obj: Fields) -> str:
    return str(metadata(obj).get("resourceVersion", ""))


def is_newer(version: str, other: str) -> bool:
    """Whether a resourceVersion is later than another of the same kind (numbers: KEP 5504). Of those that are
    no numbers any other is."""
    if version.isdecimal() and other.isdecimal():
        return int(version) > int(other)
    return version != other


def key(obj: Fields) -> str:
    """`namespace/name`: how namespaced objects are told apart in maps and messages."""
    found = metadata(obj)
    return f"{found.get('namespace') or 'default'}/{found.get('name', '')}"


def identity(obj: Fields) -> str:
    """The object's uid; the key of a manifest that was never applied."""
    return uid(obj) or key(obj)


def describe(obj: Fields) -> str:
    """`ResourceClaim team-a/train-0`: the object's name in messages."""
    kind = str(obj.get("kind") or "object")
    place, called = metadata(obj).get("namespace"), name(obj) or "without a name"
    return f"{kind} {place}/{called}" if place else f"{kind} {called}"


def group_of(obj: Fields) -> str:
    """`resource.k8s.io` of `resource.k8s.io/v1`; "" for the core group."""
    return str(obj.get("apiVersion") or "").rpartition("/")[0]


def is_deleting(obj: Fields) -> bool:
    return metadata(obj).get("deletionTimestamp") is not None


def annotations_of(obj: Fields) -> Mapping[str, str]:
    found = metadata(obj).get("annotations")
    return found if isinstance(found, (dict, Mapping)) else {}


def labels_of(obj: Fields) -> Mapping[str, str]:
    found = metadata(obj).get("labels")
    return found if isinstance(found, (dict, Mapping)) else {}


def finalizers_of(obj: Fields) -> list[str]:
    return [str(entry) for entry in metadata(obj).get("finalizers") or ()]


def spec_of(obj: Fields) -> Fields:
    return fields(obj.get("spec"))


def status_of(obj: Fields) -> Fields:
    return fields(obj.get("status"))


def is_native(obj: Fields, in_native: bool) -> bool:
    """Whether the object is meant for native nodes: its own word first, for a pod also its node selector's,
    then its namespace's."""
    for found in (annotations_of(obj), labels_of(obj), spec_of(obj).get("nodeSelector")):
        mode = found.get(names.MODE_LABEL) if isinstance(found, Mapping) else None
        if mode in (names.MODE_NATIVE, names.MODE_JOINT):
            return bool(mode == names.MODE_NATIVE)
    return in_native


def pod_is_ready(pod: Fields) -> bool:
    conditions = status_of(pod).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def pod_is_finished(pod: Fields) -> bool:
    """True once no container of the pod can run again (phase Succeeded or Failed)."""
    return status_of(pod).get("phase") in {"Succeeded", "Failed"}


def pod_claim_names(pod: Fields) -> dict[str, str | None]:
    """pod.spec.resourceClaims entry name -> ResourceClaim name; None while a template's claim does not exist
    yet.

    Template claims are found through pod.status.resourceClaimStatuses, as the kubelet and the scheduler do;
    an entry there without a name means that no claim is needed and the entry is left out.
    """
    statuses = {
        str(entry.get("name")): entry.get("resourceClaimName")
        for entry in status_of(pod).get("resourceClaimStatuses") or ()
    }
    found: dict[str, str | None] = {}
    for entry in spec_of(pod).get("resourceClaims") or ():
        entry_name = str(entry.get("name"))
        if entry.get("resourceClaimName"):
            found[entry_name] = str(entry["resourceClaimName"])
        elif entry_name in statuses:
            if statuses[entry_name]:
                found[entry_name] = str(statuses[entry_name])
        else:
            found[entry_name] = None
    return found
