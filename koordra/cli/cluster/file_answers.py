"""What `koordra explain` says of files: the answers of a controller that has done what is to be done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from koordra.allocator.explain.telling import lines
from koordra.api import objects
from koordra.api.objects import Object
from koordra.cli.cluster.answers import DEFAULT_NAMESPACE, Answers, nobody, place, question_about, with_later
from koordra.cli.manifest_files import read_objects
from koordra.cli.options import Scope, say
from koordra.cli.output import Document
from koordra.cli.progress import progress
from koordra.cli.what_if.machines import machine_nodes
from koordra.cli.what_if.manifests import Assumed, WhatIf, what_if
from koordra.controller import claims as claims_of
from koordra.controller.autoscale.scale_up import ScaleUp
from koordra.controller.claims import Owner
from koordra.controller.explain.forecast.later import fits_later
from koordra.controller.explain.forecast.stand_ins import stands_in
from koordra.controller.explain.question import Question, Subject, question_of
from koordra.controller.gangs.phase import GangPhase
from koordra.errors import NotFound


def of_files(
    files: Sequence[str],
    machines: Sequence[str],
    words: Sequence[str],
    scope: Scope,
    assumed: Assumed,
    *,
    when: bool = False,
) -> tuple[Answers, ScaleUp | None]:
    """What waits, where nothing is named; and what new nodes of the assumed groups would do. Raises
    InvalidManifest, and InvalidInput for an unknown machine."""
    with progress("reading the files", line=False):
        manifests = [*read_objects(files), *machine_nodes(machines)]
    with progress("planning", line=False):
        found = what_if(manifests, assumed, datetime.now(UTC))
        for note in found.notes:
            say(note, err=True)
        questions = [one for word in words for one in _questions(found, word, scope)]
        answers = [(one.subject, _answered(found, one)) for one in questions or _waiting(found, scope)]
        if when:
            later = fits_later(found.forecast)
            answers = [(subject, with_later(entry, subject, later)) for subject, entry in answers]
        return answers, found.scale_up(assumed.groups) if assumed.groups else None


def _questions(found: WhatIf, word: str, scope: Scope) -> Iterator[Question]:
    """`claim/NAME` and the like; a claim's name, or namespace/name, in any namespace."""
    question = question_of(word, scope.namespace or DEFAULT_NAMESPACE)
    if question is not None:
        yield question
        return
    namespace, name = place(word)
    keys = {*found.forecast.view.cache.claims, *found.refused, *found.missing}
    named = [key for key in sorted(keys) if key == word or (not namespace and key.endswith(f"/{name}"))]
    if not named:
        raise nobody(Question(Subject.CLAIM, namespace, name), found.given)
    for key in named:
        yield Question(Subject.CLAIM, *place(key))


def _waiting(found: WhatIf, scope: Scope) -> Iterator[Question]:
    """Claims without devices, gangs that are not whole, and pods that lack claims, of the namespace."""
    view = found.forecast.view
    claims = [
        question_about(claim)
        for key, claim in view.cache.claims.items()
        if key in found.forecast.planned
        or (
            not claims_of.is_allocated(claim)
            and claims_of.owner(claim, view.cache.classes) is not Owner.FOREIGN
        )
    ]
    claims += [
        Question(Subject.CLAIM, *place(key)) for key in found.refused.keys() - view.cache.claims.keys()
    ]
    gangs = [
        Question(Subject.GANG, gang.ref.namespace, gang.ref.name)
        for gang in sorted(view.gangs.values(), key=lambda gang: (gang.urgency, gang.key))
        if view.statuses[gang.key].phase is not GangPhase.WHOLE
    ]
    pods = [
        question_about(pod, Subject.POD)
        for pod in view.cache.pods.values()
        if not objects.pod_is_finished(pod) and claims_of.lacking(pod, view.cache.claims)
    ]
    for question in (*sorted(claims, key=lambda one: one.key), *gangs, *pods):
        if scope.namespace in (None, question.namespace):
            yield question


def _answered(found: WhatIf, question: Question) -> Document:
    lacking = {**found.missing, **found.refused}
    if question.subject is Subject.CLAIM and (why := lacking.get(question.key)):
        outcome = {"status": "DoesNotFit", "node": None, "level": None}
        told = {"reasons": [one.to_dict() for one in why], "told": lines(why)}
        return {"namespace": question.namespace, "name": question.name, "pods": [], **outcome, **told}
    try:
        entry: Document = found.forecast.answer(question)[question.subject]
    except NotFound as error:
        raise nobody(question, found.given) from error
    return _without_stand_ins(entry, found.forecast.view.cache.pods)


def _without_stand_ins(entry: Document, pods: Mapping[str, Object]) -> Document:
    """Of a claim, or of the claims of a pod, and of those that wait where a node is told of."""
    made = {key for key, pod in pods.items() if stands_in(pod)}
    if "claims" in entry:
        return {**entry, "claims": [_without_stand_ins(one, pods) for one in entry["claims"]]}
    found = dict(entry)
    if "waiting" in entry:
        found["waiting"] = [
            {**one, "pods": [key for key in one["pods"] if key not in made]} for one in entry["waiting"]
        ]
    elif "status" in entry:
        namespace = entry["namespace"]
        found["pods"] = [name for name in entry["pods"] if f"{namespace}/{name}" not in made]
        if len(found["pods"]) < len(entry["pods"]) and entry["uid"] and not entry.get("waits"):
            found["waits"] = "no pod uses the claim yet; it is placed together with its pod"
    return found
