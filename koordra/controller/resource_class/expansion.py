"""ResourceClasses among manifests, with the DeviceClasses that the controller would keep for them. Pure.

    DeviceClass of that name           ResourceClass      what counts
    ---------------------------------  -----------------  ----------------------------------------------------
    none                               any                what the class means
    belongs to the class               is in a cluster    the DeviceClass: the controller has made it
    belongs to the class               is a manifest      what the class means: it would be put right
    belongs to nobody, or to another   any                the DeviceClass; the class is refused: NameTaken

Whoever plans with manifests that were never applied, or checks them, asks here, so that a class means the
same to all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from koordra.api import objects
from koordra.api.kinds import DEVICE_CLASSES, Kind
from koordra.api.objects import Fields, Object
from koordra.api.resource_class import RESOURCE_CLASSES, ClassRefused, Lookup, device_class
from koordra.cel.selectors import admission_error

OWN_NAMESPACE: Final = "koordra-system"
"""Where koordra is installed, and ConfigMaps with parameters are read."""
NAME_TAKEN: Final = "NameTaken"
"""an object of somebody else has the name of one that koordra is to make"""


def with_device_classes(
    manifests: Sequence[Fields], *, own_namespace: str = OWN_NAMESPACE
) -> tuple[list[Object], list[ClassRefused]]:
    """The manifests with DeviceClasses in the place of ResourceClasses, and what each class is refused for
    that has none, or keeps an old one."""
    there = {objects.name(obj): obj for obj in manifests if obj.get("kind") == DEVICE_CLASSES.kind}
    made: dict[str, Object] = {}
    refused: list[ClassRefused] = []
    for obj in (dict(one) for one in manifests if _is_class(one)):
        current = there.get(objects.name(obj))
        if current is not None and not _belongs(current, obj):
            refused.append(name_taken(obj))
        elif current is None or not objects.uid(obj):
            try:
                lookup = lookup_in(manifests)
                made[objects.name(obj)] = meant_by(obj, lookup=lookup, own_namespace=own_namespace)
            except ClassRefused as error:
                refused.append(error)
    kept = [
        dict(one)
        for one in manifests
        if not _is_class(one) and not (one.get("kind") == DEVICE_CLASSES.kind and objects.name(one) in made)
    ]
    return [*kept, *made.values()], refused


def meant_by(obj: Object, *, lookup: Lookup, own_namespace: str) -> Object:
    """The DeviceClass that a ResourceClass means, with selectors that the API server takes. Raises
    ClassRefused."""
    wanted = device_class(obj, lookup=lookup, own_namespace=own_namespace)
    for entry in wanted["spec"]["selectors"]:
        expression = entry["cel"]["expression"]
        problem = admission_error(expression)
        if problem is not None:
            raise ClassRefused(
                "InvalidSelector",
                f"{expression[:200]!r} is no selector: {problem}",
                object=objects.describe(obj),
                field="selectors",
                remedy="correct the expression, or the filter of the parameters that it comes from",
            )
    return wanted


def name_taken(obj: Object) -> ClassRefused:
    return ClassRefused(
        NAME_TAKEN,
        f"there is a DeviceClass {objects.name(obj)} that does not belong to this class",
        object=objects.describe(obj),
        field="metadata.name",
        remedy="delete that DeviceClass, or choose another name",
    )


def lookup_in(manifests: Sequence[Fields]) -> Callable[[Kind, str, str], Object | None]:
    """Parameters of classes among manifests."""

    def lookup(kind: Kind, namespace: str, name: str) -> Object | None:
        named = (
            one
            for one in manifests
            if one.get("kind") == kind.kind
            and objects.group_of(one) == kind.group
            and objects.name(one) == name
        )
        return next((dict(one) for one in named if objects.namespace(one) == namespace), None)

    return lookup


def _is_class(obj: Fields) -> bool:
    """Classic ones (resource.k8s.io) are for `koordra convert`."""
    return obj.get("kind") == RESOURCE_CLASSES.kind and objects.group_of(obj) == RESOURCE_CLASSES.group


def _belongs(current: Fields, obj: Object) -> bool:
    """By uid where the class is in a cluster, by name where it is a manifest, which may be applied again."""
    owners = objects.metadata(current).get("ownerReferences") or ()
    mine = [one for one in owners if one.get("controller") and one.get("kind") == RESOURCE_CLASSES.kind]
    own = objects.uid(obj)
    return any(one.get("uid") == own if own else one.get("name") == objects.name(obj) for one in mine)
