"""What a pod used, and what those pods of a job used that were made from one template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from koordra.profiles.condensed import Use, condensed
from koordra.profiles.series import Series
from koordra.profiles.summary import Summary, merged, read_summary, summary_document

Summaries = Mapping[Series, Summary]


class JobRef(NamedTuple):
    """Whose pods: what controls them, or the pod itself where nothing does."""

    namespace: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PodProfile:
    """`began` and `until`: of its samples, in seconds since 1970; `card`: bytes of memory of its largest GPU,
    0 where that is not known."""

    namespace: str
    pod: str
    uid: str
    node: str
    began: int
    until: int
    summaries: Summaries = field(default_factory=dict)
    card: int = 0

    @property
    def use(self) -> Use:
        return use_of(self.summaries)


@dataclass(frozen=True, slots=True)
class Profile:
    """`template`: the hash of what the pods run (template.py), by which the same job is known when it comes
    again; empty where that is not known."""

    job: JobRef
    template: str
    pods: tuple[PodProfile, ...]

    @property
    def summaries(self) -> dict[Series, Summary]:
        return pooled(pod.summaries for pod in self.pods)

    @property
    def use(self) -> Use:
        return use_of(self.summaries)


def pooled(pods: Iterable[Summaries]) -> dict[Series, Summary]:
    """Of several pods together."""
    found: dict[Series, list[Summary]] = {}
    for summaries in pods:
        for series, summary in summaries.items():
            found.setdefault(series, []).append(summary)
    return {series: merged(found[series]) for series in Series if series in found}


def use_of(summaries: Summaries) -> Use:
    return {series: condensed(summaries[series]) for series in Series if series in summaries}


def pod_document(profile: PodProfile) -> dict[str, Any]:
    return {
        **{name: getattr(profile, name) for name in _TEXTS},
        "began": profile.began,
        "until": profile.until,
        "card": profile.card,
        "series": {series.value: summary_document(one) for series, one in profile.summaries.items()},
    }


_TEXTS: Final = ("namespace", "pod", "uid", "node")


def read_pod(document: Any) -> PodProfile:
    """Raises ValueError, TypeError, KeyError or AttributeError for what is none."""
    texts = [document[name] for name in _TEXTS]
    numbers = [document["began"], document["until"], document["card"]]
    if not all(isinstance(each, str) for each in texts) or not all(type(each) is int for each in numbers):
        raise ValueError("a pod has texts and numbers")
    namespace, pod, uid, node = texts
    began, until, card = numbers
    return PodProfile(namespace, pod, uid, node, began, until, read_summaries(document["series"]), card)


def read_summaries(document: Any) -> dict[Series, Summary]:
    """Series of a later koordra are left out. Raises as `read_pod`."""
    known = {series for series in Series if series.value in document}
    return {each: read_summary(document[each.value], each.resolution) for each in Series if each in known}
