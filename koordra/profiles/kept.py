"""A pod's profile as history keeps it: with whose it was, and what it asked for. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api import names, objects
from koordra.api.objects import Fields, Object
from koordra.compat.dialects import DIALECTS
from koordra.compat.settings import Settings
from koordra.profiles.asked import asked_of
from koordra.profiles.profile import JobRef, PodProfile, Profile, pod_document, read_pod
from koordra.profiles.recommendation import recommend
from koordra.profiles.share import Recommendation
from koordra.profiles.template import template_of

MOST_ASKED: Final = 16 << 10
"""Characters of what a pod asked for; of a pod that says more it is not kept."""


@dataclass(frozen=True, slots=True)
class KeptProfile:
    """`asked`: what a pod asks for of devices, and nothing else of it; `claims`: specs of its claims, by
    name."""

    job: JobRef
    template: str
    profile: PodProfile
    asked: Object = field(default_factory=dict)
    claims: Mapping[str, Fields] = field(default_factory=dict)


def kept_of(profile: PodProfile, pod: Object | None, claims: Mapping[str, Fields]) -> KeptProfile:
    """`pod`: as the API has it, None where it is gone; then it is a job of its own."""
    if pod is None or objects.uid(pod) != profile.uid:
        return KeptProfile(JobRef(profile.namespace, "Pod", profile.pod, profile.uid), "", profile)
    asked = _asked(pod)
    if len(json.dumps([asked, claims], default=str)) > MOST_ASKED:
        asked, claims = {}, {}
    return KeptProfile(job_of(pod), template_of(pod), profile, asked, claims)


def job_of(pod: Object) -> JobRef:
    """What controls the pod, or the pod itself."""
    place = objects.namespace(pod)
    for owner in objects.mappings(objects.metadata(pod).get("ownerReferences")):
        if owner.get("controller") is True:
            return JobRef(place, *(str(owner.get(name)) for name in ("kind", "name", "uid")))
    return JobRef(place, "Pod", objects.name(pod), objects.uid(pod))


def _asked(pod: Object) -> Object:
    """No variables, and no annotations of others: secrets may stand there."""
    meta = {
        "name": objects.name(pod),
        "annotations": _of_stacks(objects.annotations_of(pod)),
        "labels": _of_stacks(objects.labels_of(pod)),
    }
    containers = [
        {name: raw[name] for name in ("name", "resources") if name in raw}
        for raw in objects.mappings(objects.spec_of(pod).get("containers"))
    ]
    return {"metadata": meta, "spec": {"containers": containers}}


_DOMAINS: Final = (names.DOMAIN, *(domain for dialect in DIALECTS for domain in dialect.domains))


def _of_stacks(words: Mapping[str, str]) -> dict[str, str]:
    return {key: str(value) for key, value in words.items() if key.startswith(_DOMAINS)}


def profiles_of(kept: Iterable[KeptProfile]) -> list[tuple[Profile, KeptProfile]]:
    """By job and template, those whose use was last first; each with the last of its pods."""
    found = dict[tuple[JobRef, str], list[KeptProfile]]()
    for one in kept:
        found.setdefault((one.job, one.template), []).append(one)
    made = []
    for (job, template), own in found.items():
        ordered = sorted(own, key=lambda one: (one.profile.until, one.profile.pod))
        made.append((Profile(job, template, tuple(one.profile for one in ordered)), ordered[-1]))
    return sorted(made, key=lambda each: (-each[1].profile.until, each[0].job, each[0].template))


def recommended(profiles: Sequence[Profile], last: KeptProfile, settings: Settings) -> Recommendation | None:
    """For pods like the `last`, by what these used."""
    asked = asked_of(last.asked, last.claims, settings, card=last.profile.card) if last.asked else None
    if asked is None:
        return None
    whole = Profile(last.job, last.template, tuple(pod for one in profiles for pod in one.pods))
    return recommend(last.asked, asked, whole.use, settings)


def kept_document(kept: KeptProfile) -> dict[str, Any]:
    """What was asked is one text, since its names hold dots, which some databases do not take."""
    asked = json.dumps({"pod": kept.asked, "claims": dict(kept.claims)}, default=str, separators=(",", ":"))
    return {
        "job": kept.job._asdict(),
        "template": kept.template,
        "profile": pod_document(kept.profile),
        "asked": asked,
    }


def read_kept(document: Any) -> KeptProfile:
    """Raises ValueError, TypeError or KeyError for what is none."""
    asked = json.loads(document["asked"])
    job = JobRef(**{name: str(document["job"][name]) for name in JobRef._fields})
    profile = read_pod(document["profile"])
    return KeptProfile(job, str(document["template"]), profile, asked["pod"], asked["claims"])
