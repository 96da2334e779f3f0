"""Templates of legacy pods: made sure of while a pod is admitted; made again and deleted by a leader.

    known, same content       marked as used now, if the last mark is older than half the grace
    known, other content      refused: the name is a digest of the content, so somebody has planted it
    not known                 made; if it was there all the same, it is read and compared
    the API server does not answer, or says no        refused, with its words; the pod's owner tries again

What was made a moment ago and is not in the watch yet is remembered, so that a burst of equal pods makes one
request.

A leader decides from what it sees (pure):

    again      a pod that has not finished, of which a claim is still to be made, refers to a template of ours
               that is not there
    planted    ... that is there and has other content: nothing is made; reported on the pod
    delete     a template that the webhook made, that no unfinished pod refers to, unused for the whole grace
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from koordra.api import names, objects
from koordra.api.elastic import elastic_pods
from koordra.api.kinds import RESOURCE_CLAIM_TEMPLATES
from koordra.api.objects import Fields, Object
from koordra.compat import original_request
from koordra.compat.dialect.allocation import DIALECT_LABEL, UNIT
from koordra.compat.quota_charges import canonical_spec, dialect_of
from koordra.compat.rewrite import template_name
from koordra.compat.settings import Settings
from koordra.controller.legacy.translation import native_form
from koordra.controller.quota.usage import MALFORMED, legacy_entries
from koordra.errors import ApiError, Conflict, NotFound
from koordra.kube.client import KubeClient

MADE_BY: Final = names.DOMAIN + "made-by"
"""Label on templates that the webhook or the controller made; only those are ever deleted."""
WEBHOOK: Final = "legacy-pods"
LAST_USED: Final = names.DOMAIN + "last-used"
"""Annotation: when a pod was admitted that refers to the template (RFC 3339), to half the grace."""
RECENT: Final = 5.0
"""Seconds in which the watch shows what was made."""
MOST_RECENT: Final = 4096


class NotMade(Exception):
    """There is no such template that a pod could refer to; the text says why. `planted`: its name has other
    content."""

    def __init__(self, problem: str, *, planted: bool = False) -> None:
        super().__init__(problem)
        self.planted = planted


class TemplateStore(Protocol):
    @property
    def known(self) -> Callable[[str], Object | None]: ...

    def ensure(self, template: Object) -> None:
        """Raises NotMade."""


@dataclass(slots=True)
class Templates:
    """`known` looks into the watch, by key; `now` is the wall clock in seconds. Safe to use from several
    threads."""

    client: KubeClient
    _: KW_ONLY
    known: Callable[[str], Object | None]
    now: Callable[[], float]
    grace: float
    count: Callable[[str], None] = lambda _: None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _recent: dict[str, tuple[float, Object]] = field(default_factory=dict)

    def ensure(self, template: Object) -> None:
        """Raises NotMade."""
        key = objects.key(template)
        found = self._seen(key) or self.known(key)
        try:
            if found is None or objects.is_deleting(found):
                self._make(template)
            else:
                refuse_other_content(found, template)
                self._mark(found, template)
        except ApiError as error:
            with self._lock:
                self._recent.pop(key, None)
            raise NotMade(f"ResourceClaimTemplate {key} could not be made: {error.message}") from error

    def _make(self, template: Object) -> None:
        place = objects.namespace(template)
        try:
            made = self.client.create(RESOURCE_CLAIM_TEMPLATES, marked(template, self.now()), namespace=place)
            self.count("made")
        except Conflict:
            made = self.client.get(RESOURCE_CLAIM_TEMPLATES, objects.name(template), namespace=place)
            refuse_other_content(made, template)
        self._remember(made)

    def _mark(self, found: Object, template: Object) -> None:
        """Nobody deletes it from under the pod."""
        now = self.now()
        if not is_ours(found) or now - last_used(found) < self.grace / 2:
            return
        change = {"metadata": {"annotations": {LAST_USED: stamp(now)}}}
        try:
            changed = self.client.patch(
                RESOURCE_CLAIM_TEMPLATES, objects.name(found), change, namespace=objects.namespace(found)
            )
        except NotFound:
            self._make(template)
        else:
            self.count("marked")
            self._remember(changed)

    def _seen(self, key: str) -> Object | None:
        """What this replica made or marked within a few seconds."""
        with self._lock:
            at, found = self._recent.get(key, (0.0, None))
            return found if self.now() - at < RECENT else None

    def _remember(self, made: Object) -> None:
        now = self.now()
        with self._lock:
            self._recent[objects.key(made)] = (now, made)
            if len(self._recent) > MOST_RECENT:
                self._recent = {key: one for key, one in self._recent.items() if now - one[0] < RECENT}


def refuse_other_content(found: Object, wanted: Object) -> None:
    """Raises NotMade where the stored template says something else than its name promises."""
    if content(found) != content(wanted):
        raise NotMade(OTHER_CONTENT.format(objects.key(found)), planted=True)


OTHER_CONTENT: Final = (
    "ResourceClaimTemplate {} has other content than its name promises: "
    "somebody made it by hand; delete it, and pods can be made"
)


def keeps_promise(template: Object) -> bool:
    """Whether the content is what the name is a digest of, and nothing is said to claims besides."""
    name = objects.name(template)
    spec, metadata = content(template)
    dialect = dialect_of(name)
    said = metadata.get("labels") == {DIALECT_LABEL: dialect} and set(metadata.get("annotations", {})) <= {
        UNIT
    }
    return said and template_name(dialect, spec) == name


def content(template: Fields) -> tuple[Any, Any]:
    """What decides about claims made from it."""
    spec = objects.spec_of(template)
    metadata = spec.get("metadata") or {}
    return canonical_spec(spec.get("spec") or {}), {
        kind: metadata[kind] for kind in ("labels", "annotations") if metadata.get(kind)
    }


def marked(template: Object, now: float) -> Object:
    """The template as koordra makes it: its own to delete, used now."""
    return {
        **template,
        "metadata": {
            **objects.metadata(template),
            "labels": {**objects.labels_of(template), MADE_BY: WEBHOOK},
            "annotations": {**objects.annotations_of(template), LAST_USED: stamp(now)},
        },
    }


def is_ours(template: Fields) -> bool:
    return objects.labels_of(template).get(MADE_BY) == WEBHOOK


def last_used(template: Fields) -> float:
    """Seconds since 1970; 0 where it does not say, or says what cannot be read."""
    said = objects.annotations_of(template).get(LAST_USED) or objects.metadata(template).get(
        "creationTimestamp"
    )
    try:
        return datetime.fromisoformat(str(said)).timestamp()
    except ValueError:
        return 0.0


def stamp(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Lost:
    """A pod whose template is not there, or is not what its name promises. `template` is None where it cannot
    be made again."""

    pod: Object
    name: str
    template: Object | None
    why: str = ""


def lost_templates(
    pods: Sequence[Object], templates: Mapping[str, Object], classes: Mapping[str, Object], settings: Settings
) -> Iterator[Lost]:
    """`templates` by namespace/name. What is there is compared with its name once; what is not is worked out
    again from the first pod that can."""
    compared: dict[str, bool] = {}
    again: set[str] = set()
    for pod in pods:
        if objects.pod_is_finished(pod) or objects.is_deleting(pod):
            continue
        claimed = {str(one.get("name")) for one in objects.status_of(pod).get("resourceClaimStatuses") or ()}
        for entry, name in legacy_entries(pod).items():
            key = f"{objects.namespace(pod)}/{name}"
            there = templates.get(key)
            if entry in claimed or key in again:
                continue
            if there is None:
                found = _again(pod, entry, name, classes, settings)
                if found is not None:
                    again.add(key)
                yield Lost(pod, name, found, "" if found else _why(pod, entry, name))
                continue
            if key not in compared:
                compared[key] = keeps_promise(there)
            if not compared[key]:
                yield Lost(pod, name, None, OTHER_CONTENT.format(key))


def _again(
    pod: Object, entry: str, name: str, classes: Mapping[str, Object], settings: Settings
) -> Object | None:
    """The template of that very name, worked out from what the pod carries."""
    bare = elastic_pods.without_annotations(pod)
    for native in (None, native_form(classes)):
        try:
            found = original_request.rewritten_again(bare, entry, settings, native)
        except MALFORMED:
            return None
        if found is not None and found.template is not None and objects.name(found.template) == name:
            return found.template
    return None


def _why(pod: Object, entry: str, name: str) -> str:
    if entry not in original_request.entries(pod):
        return f"ResourceClaimTemplate {name} is not there, and the pod does not carry what it asked for"
    return (
        f"ResourceClaimTemplate {name} is not there, and what the pod asked for gives another one now "
        "(settings or annotations have changed); delete the pod, and its owner makes it anew"
    )


def unused(
    pods: Sequence[Object], templates: Sequence[Object], *, now: float, grace: float
) -> Iterator[Object]:
    needed = {
        f"{objects.namespace(pod)}/{name}"
        for pod in pods
        if not objects.pod_is_finished(pod)
        for name in legacy_entries(pod).values()
    }
    for template in templates:
        if (
            is_ours(template)
            and dialect_of(objects.name(template))
            and not objects.is_deleting(template)
            and objects.key(template) not in needed
            and now - last_used(template) >= grace
        ):
            yield template
