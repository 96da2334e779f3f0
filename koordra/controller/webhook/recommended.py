"""The share that was recommended, given to a claim in place of the one that it asks for, where its class says
so.

    DeviceClass   metadata.annotations["koordra.io/apply-recommendation"]: Smaller, Either, or Tell
    claim         made for a pod whose template (koordra.profiles.template) has a recommendation
                  ──> capacity.requests of its one share: memory, cores
                  ──> annotation koordra.io/asked-share: what was asked

`Smaller` gives never more than was asked; `Either` also more, to a job that asks for less than it used the
last time; `Tell` gives what was asked, and says beside what would have done. Without the annotation, which is
the operator's, nothing is changed and nothing is looked up. Only amounts that the claim names are changed, so
that a whole GPU is never made a share of one.

Recommendations are in the ConfigMap that the profiler writes, read again after FRESH seconds. A claim of
which the pod, or the recommendation, is not known in time is stored as it asks: that works as well.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from koordra.api import names, objects
from koordra.api.kinds import PODS, RESOURCE_CLAIMS
from koordra.api.objects import Fields, Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.controller.webhook.lookups import KnownObjects
from koordra.errors import InvalidInput
from koordra.profiles.config_map import CONFIG_MAP, KEY, Known, Recommended, read_recommended
from koordra.profiles.template import template_of
from koordra.quantity import canonical, parse

FRESH: Final = 60.0
SMALLER: Final = "Smaller"
EITHER: Final = "Either"
TELL: Final = "Tell"


@dataclass(slots=True)
class Recommendations:
    """Thread-safe. `namespace`: koordra's own; `clock`: monotonic."""

    lookups: KnownObjects
    namespace: str
    clock: Callable[[], float]
    _known: Known = field(default_factory=dict)
    _until: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def applied(self, claim: Object) -> Object:
        """The very same claim where nothing is to be changed."""
        if claim.get("kind") != RESOURCE_CLAIMS.kind:
            return claim
        share = _share(claim, self.lookups.classes())
        pod_name = _pod_of(claim)
        if share is None or not pod_name:
            return claim
        known = self._recommended().get(objects.namespace(claim))
        pod = self.lookups.ask(PODS, objects.namespace(claim), pod_name) if known else None
        if known is None or pod is None or not _is_of(claim, pod):
            return claim
        template = template_of(pod)
        found = known.get(template)
        return claim if found is None else with_share(claim, share, found, template=template)

    def _recommended(self) -> Known:
        with self._lock:
            if self.clock() >= self._until:
                config_map = self.lookups.ask(CONFIG_MAPS, self.namespace, CONFIG_MAP)
                data = {} if config_map is None else objects.fields(config_map.get("data"))
                self._known = read_recommended(str(data.get(KEY) or ""))
                self._until = self.clock() + FRESH
            return self._known


@dataclass(frozen=True, slots=True)
class _Share:
    """The one request of a claim that names amounts of a GPU, of a class that lets them be changed."""

    at: int
    request: str
    asked: Mapping[str, str]
    word: str


def _share(claim: Object, classes: Mapping[str, Object]) -> _Share | None:
    """None also where there are several, of which nobody knows what each used."""
    found = list[_Share]()
    devices = objects.fields(objects.spec_of(claim).get("devices"))
    for at, each in enumerate(objects.mappings(devices.get("requests"))):
        exactly = objects.fields(each.get("exactly"))
        said = objects.fields(objects.fields(exactly.get("capacity")).get("requests"))
        asked = {
            name: str(said[name]) for name in (names.CAPACITY_MEMORY, names.CAPACITY_CORES) if name in said
        }
        allows = objects.annotations_of(classes.get(str(exactly.get("deviceClassName"))) or {})
        word = allows.get(names.APPLY_RECOMMENDATION)
        if asked and word not in (SMALLER, EITHER, TELL):
            return None
        if asked:
            found.append(_Share(at, str(each.get("name")), asked, str(word)))
    return found[0] if len(found) == 1 else None


def _owner(claim: Object) -> Fields:
    owners = objects.mappings(objects.metadata(claim).get("ownerReferences"))
    return next((one for one in owners if one.get("controller") and one.get("kind") == PODS.kind), {})


def _pod_of(claim: Object) -> str:
    return str(_owner(claim).get("name") or "")


def _is_of(claim: Object, pod: Object) -> bool:
    return _owner(claim).get("uid") == objects.uid(pod)


def with_share(claim: Object, share: _Share, found: Recommended, *, template: str) -> Object:
    """The claim with what is recommended; the very same one where that is no other amount."""
    wanted = {names.CAPACITY_MEMORY: found.memory, names.CAPACITY_CORES: found.cores}
    try:
        given = {
            name: canonical(wanted[name])
            for name, asked in share.asked.items()
            if wanted[name]
            and (wanted[name] < parse(asked) or (share.word != SMALLER and wanted[name] > parse(asked)))
        }
    except InvalidInput:
        return claim  # the API server says what is wrong with it
    if not given:
        return claim
    if share.word == TELL:
        return _told(claim, names.RECOMMENDED_SHARE, share, given, template)
    devices = objects.fields(objects.spec_of(claim)["devices"])
    requests = [dict(each) for each in objects.mappings(devices["requests"])]
    exactly = objects.fields(requests[share.at]["exactly"])
    capacity = objects.fields(exactly["capacity"])
    amounts = {**objects.fields(capacity["requests"]), **given}
    requests[share.at]["exactly"] = {**exactly, "capacity": {**capacity, "requests": amounts}}
    told = _told(claim, names.ASKED_SHARE, share, share.asked, template)
    return {**told, "spec": {**objects.spec_of(claim), "devices": {**devices, "requests": requests}}}


def _told(claim: Object, annotation: str, share: _Share, amounts: Mapping[str, str], template: str) -> Object:
    metadata = objects.metadata(claim)
    text = json.dumps({"request": share.request, **amounts, "template": template}, sort_keys=True)
    annotations = {**objects.fields(metadata.get("annotations")), annotation: text}
    return {**claim, "metadata": {**metadata, "annotations": annotations}}
