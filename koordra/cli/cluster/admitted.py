"""Manifests that were never applied, as a cluster of koordra's would have them: pods of other stacks as the
webhook rewrites them (--legacy-pods), and the DeviceClasses that ResourceClasses mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from koordra.allocator.request.templates import with_template_claims
from koordra.api import objects
from koordra.api.classic.notes import Notes
from koordra.api.objects import Fields, Object
from koordra.cli.convert import settings_from
from koordra.compat.rewrite import names_devices
from koordra.compat.settings import Settings
from koordra.controller.legacy.translation import translated
from koordra.controller.resource_class.expansion import with_device_classes


def as_admitted(manifests: Sequence[Fields]) -> list[Fields]:
    """What has a uid comes from a cluster and stays as it is. Raises InvalidInput with the words of who would
    refuse it."""
    expanded, refused = with_device_classes(manifests)
    if refused:
        raise refused[0]
    settings = settings_from((), None, manifests)

    def admitted() -> Iterator[Fields]:
        for obj in expanded:
            if _is_to_be_rewritten(obj, settings):
                yield from _rewritten(dict(obj), settings)
            else:
                yield obj

    return with_template_claims(admitted())


def _is_to_be_rewritten(obj: Fields, settings: Settings) -> bool:
    return obj.get("kind") == "Pod" and not objects.uid(obj) and names_devices(obj, settings)


def _rewritten(pod: Object, settings: Settings) -> list[Fields]:
    found = translated(pod, settings, Notes.about(pod), classes=None)
    return [found.pod] if found.template is None else [found.pod, found.template]
