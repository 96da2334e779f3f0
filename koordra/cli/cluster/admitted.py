"""Manifests that were never applied, as a cluster of koordra's would have them: pods of other stacks as the
webhook rewrites them (--legacy-pods), and the DeviceClasses that ResourceClasses mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from koordra.allocator.request.templates import with_template_claims
from koordra.api import objects
from koordra.api.classic.notes import Notes
from koordra.api.kinds import Kind
from koordra.api.objects import Fields, Object
from koordra.api.resource_class import RESOURCE_CLASSES, device_class
from koordra.cli.convert import settings_from
from koordra.compat.rewrite import names_devices
from koordra.compat.settings import Settings
from koordra.controller.legacy.translation import translated

_OWN_NAMESPACE = "koordra-system"


def as_admitted(manifests: Sequence[Fields]) -> list[Fields]:
    """What has a uid comes from a cluster and stays as it is. Raises InvalidInput with the words of who would
    refuse it."""
    there = {objects.name(obj) for obj in manifests if obj.get("kind") == "DeviceClass"}
    settings = settings_from((), None, manifests)

    def admitted() -> Iterator[Fields]:
        for obj in manifests:
            if obj.get("kind") == RESOURCE_CLASSES.kind:
                yield from () if objects.name(obj) in there else (_class_of(dict(obj), manifests),)
            elif _is_to_be_rewritten(obj, settings):
                yield from _rewritten(dict(obj), settings)
            else:
                yield obj

    return with_template_claims(admitted())


def _class_of(obj: Object, manifests: Sequence[Fields]) -> Object:
    def lookup(kind: Kind, namespace: str, name: str) -> Object | None:
        named = (one for one in manifests if one.get("kind") == kind.kind and objects.name(one) == name)
        return next((dict(one) for one in named if objects.namespace(one) == namespace), None)

    return device_class(obj, lookup=lookup, own_namespace=_OWN_NAMESPACE)


def _is_to_be_rewritten(obj: Fields, settings: Settings) -> bool:
    return obj.get("kind") == "Pod" and not objects.uid(obj) and names_devices(obj, settings)


def _rewritten(pod: Object, settings: Settings) -> list[Fields]:
    found = translated(pod, settings, Notes.about(pod), classes=None)
    return [found.pod] if found.template is None else [found.pod, found.template]
