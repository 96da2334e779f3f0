"""The share that was recommended, given to a claim in place of the one that it asks for, where its class says
so.

    DeviceClass   metadata.annotations["koordra.io/apply-recommendation"]: Smaller, Either, or Tell
    claim         made for a pod whose template (koordra.profiles.template) has a recommendation
                  ──> capacity.requests of its one share: memory, cores
                  ──> annotation koordra.io/asked-share: what was asked

What the words do is said in koordra/profiles/applied. Without the annotation, which is the operator's,
nothing is changed and nothing is looked up.

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
from koordra.profiles.applied import EITHER, SMALLER, TELL, ShareRequest, amounts_by, share_request
from koordra.profiles.config_map import CONFIG_MAP, Known, Recommended, read_recommended
from koordra.profiles.template import template_of

FRESH: Final = 60.0


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
        share = share_request(objects.spec_of(claim))
        word = "" if share is None else self._word(share.device_class)
        pod_name = _pod_of(claim)
        if share is None or not word or not pod_name:
            return claim
        known = self._recommended().get(objects.namespace(claim))
        pod = self.lookups.ask(PODS, objects.namespace(claim), pod_name) if known else None
        if known is None or pod is None or not _is_of(claim, pod):
            return claim
        template = template_of(pod)
        found = known.get(template)
        return claim if found is None else with_share(claim, share, word, found, template=template)

    def _word(self, device_class: str) -> str:
        """Empty where the class does not say it."""
        marks = objects.annotations_of(self.lookups.classes().get(device_class) or {})
        word = str(marks.get(names.APPLY_RECOMMENDATION))
        return word if word in (SMALLER, EITHER, TELL) else ""

    def _recommended(self) -> Known:
        with self._lock:
            if self.clock() >= self._until:
                self._known = read_recommended(
                    self.lookups.ask(CONFIG_MAPS, self.namespace, CONFIG_MAP) or {}
                )
                self._until = self.clock() + FRESH
            return self._known


def _owner(claim: Object) -> Fields:
    owners = objects.mappings(objects.metadata(claim).get("ownerReferences"))
    return next((one for one in owners if one.get("controller") and one.get("kind") == PODS.kind), {})


def _pod_of(claim: Object) -> str:
    return str(_owner(claim).get("name") or "")


def _is_of(claim: Object, pod: Object) -> bool:
    return _owner(claim).get("uid") == objects.uid(pod)


def with_share(claim: Object, share: ShareRequest, word: str, found: Recommended, *, template: str) -> Object:
    """The claim with what is recommended; the very same one where that is no other amount."""
    try:
        given = amounts_by(word, share.amounts, found)
    except InvalidInput:
        return claim  # the API server says what is wrong with it
    if not given:
        return claim
    if word == TELL:
        return _told(claim, names.RECOMMENDED_SHARE, {"request": share.name, **given, "template": template})
    devices = objects.fields(objects.spec_of(claim)["devices"])
    requests = [dict(each) for each in objects.mappings(devices["requests"])]
    exactly = objects.fields(requests[share.at]["exactly"])
    capacity = objects.fields(exactly["capacity"])
    amounts = {**objects.fields(capacity["requests"]), **given}
    requests[share.at]["exactly"] = {**exactly, "capacity": {**capacity, "requests": amounts}}
    asked = {"request": share.name, **share.amounts, "template": template}
    spec = {**objects.spec_of(claim), "devices": {**devices, "requests": requests}}
    return {**_told(claim, names.ASKED_SHARE, asked), "spec": spec}


def _told(claim: Object, annotation: str, said: Mapping[str, str]) -> Object:
    metadata = objects.metadata(claim)
    annotations = {
        **objects.fields(metadata.get("annotations")),
        annotation: json.dumps(said, sort_keys=True),
    }
    return {**claim, "metadata": {**metadata, "annotations": annotations}}
