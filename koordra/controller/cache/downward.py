"""Volumes in which the kubelet shows a pod its own annotations (downward API), and keeps them up to date."""

from __future__ import annotations

from collections.abc import Iterator

from koordra.api import objects
from koordra.api.objects import Fields, Object

_PATH = "metadata.annotations['"


def items_of(volume: Fields) -> list[Object]:
    """The items that show annotations, of a volume of its own or as part of a projected one."""
    sources = [volume, *(objects.fields(volume.get("projected")).get("sources") or ())]
    items = [
        item
        for source in sources
        for item in objects.fields(objects.fields(source).get("downwardAPI")).get("items") or ()
    ]
    return [{"fieldRef": {"fieldPath": path}} for item in items if (path := _path(item)).startswith(_PATH)]


def shown_annotations(pod: Fields) -> Iterator[str]:
    """Names of the annotations that the pod's volumes show."""
    for volume in objects.spec_of(pod).get("volumes") or ():
        for item in items_of(volume):
            yield _path(item).removeprefix(_PATH).removesuffix("']")


def _path(item: Fields) -> str:
    return str(objects.fields(objects.fields(item).get("fieldRef")).get("fieldPath") or "")
