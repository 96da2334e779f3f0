"""What `koordra explain` says of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import cache, partial

from koordra.allocator.explain.telling import lines
from koordra.allocator.request.templates import applied_uid
from koordra.api import names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Fields, Object
from koordra.cli.cluster.admitted import as_admitted
from koordra.cli.cluster.answers import DEFAULT_NAMESPACE, Answers, nobody, place, question_about
from koordra.cli.manifest_files import notes_on, read_objects, unmade_pods
from koordra.cli.options import Scope, say
from koordra.cli.output import Document
from koordra.cli.progress import progress
from koordra.controller import claims as claims_of
from koordra.controller.cache.changes import tables_of
from koordra.controller.explain.answer import answer
from koordra.controller.explain.claims import claim_entry, doubts, waits_for_gang
from koordra.controller.explain.question import Question, Subject, question_of
from koordra.controller.explain.view import ClusterView, view_of
from koordra.controller.gangs.declared.gang_ref import gang_of
from koordra.controller.gangs.phase import GangPhase
from koordra.errors import NotFound
from koordra.placement import Plan, plan
from koordra.topology.network_topology import Levels


def of_files(
    files: Sequence[str],
    words: Sequence[str],
    scope: Scope,
    *,
    policy: str,
    features: str | None,
    levels: Levels | None = None,
) -> Answers:
    """What waits is planned: also claims of which no pod is in the files. Raises InvalidManifest."""
    with progress("reading the files", line=False):
        manifests = as_admitted(read_objects(files))
    for note in (*notes_on(manifests), *unmade_pods(manifests)):
        say(f"koordra: {note}", err=True)
    with progress("planning", line=False):
        return _answers(manifests, words, scope, policy=policy, features=features, levels=levels)


def _answers(
    manifests: Sequence[Fields],
    words: Sequence[str],
    scope: Scope,
    *,
    policy: str,
    features: str | None,
    levels: Levels | None,
) -> Answers:
    planned = [
        (Subject.CLAIM, entry)
        for entry in explained(plan(manifests, policy=policy, features=features, report_errors=True))
        if scope.namespace in (None, entry["namespace"])
    ]

    @cache
    def view() -> ClusterView:
        now = datetime.now(UTC)
        tables = tables_of(map(_identified, manifests))
        return view_of(tables, refused={}, now=now, levels=levels, read=partial(_read, manifests))

    if policy == names.DEFAULT_POLICY and features is None:
        planned = _corrected(planned, view, manifests)
    planned = _completed(planned, view, manifests)
    if not words:
        gangs = _waiting_gangs(view()) if _has_gangs(manifests) else []
        there = {objects.key(obj) for obj in manifests if obj.get("kind") == "ResourceClaim"}
        lacking = [
            (Subject.POD, _answered(view(), question_about(obj, Subject.POD), manifests))
            for obj in manifests
            if obj.get("kind") == "Pod"
            and scope.namespace in (None, objects.namespace(obj))
            and not objects.pod_is_finished(obj)
            and claims_of.lacking(obj, there)
        ]
        return planned + [(Subject.GANG, entry) for entry in gangs] + lacking
    found: Answers = []
    for word in words:
        question = question_of(word, scope.namespace or DEFAULT_NAMESPACE)
        if question is None:
            question = Question(Subject.CLAIM, *place(word))
            waiting = [one for one in planned if _is_named(one[1], question)]
            ours = [
                obj
                for obj in manifests
                if obj["kind"] == "ResourceClaim" and _is_named(obj["metadata"], question)
            ]
            found += waiting or [
                (Subject.CLAIM, _answered(view(), question_about(obj), manifests)) for obj in ours
            ]
            if not waiting and not ours:
                raise nobody(question, manifests)
        else:
            found.append((question.subject, _answered(view(), question, manifests)))
    return found


def _read(manifests: Iterable[Fields], kind: Kind, name: str, namespace: str) -> Object | None:
    """A job's object, of whatever version."""
    wanted = (kind.kind, kind.group, namespace, name)
    return next((dict(obj) for obj in manifests if _place(obj) == wanted), None)


def _place(obj: Fields) -> tuple[str, str, str, str]:
    group = str(obj.get("apiVersion")).rpartition("/")[0]
    return str(obj.get("kind")), group, objects.namespace(obj), objects.name(obj)


def _answered(view: ClusterView, question: Question, known: Iterable[Fields]) -> Document:
    try:
        found: Document = answer(view, question)[question.subject]
        return found
    except NotFound as error:
        raise nobody(question, known) from error


def _corrected(planned: Answers, view: Callable[[], ClusterView], manifests: Sequence[Fields]) -> Answers:
    """A plan knows devices and nodes. Where it places a claim and the controller's next pass does not
    (affinity between pods, nodes in native mode), the pass is told of all claims that it is about: what one
    gets is what another does not."""
    fit = {(entry["namespace"], entry["name"]) for _, entry in planned if entry["status"] == "Fits"}
    if not fit or not any(obj.get("kind") == "Pod" for obj in manifests):
        return planned
    ahead = {at: view().forecast("/".join(at)) for at in fit}
    if all(found is None or found.node is not None for found in ahead.values()):
        return planned
    claims = view().cache.claims
    return [
        (subject, claim_entry(view(), claims[key]) if view().forecast(key) is not None else entry)
        for subject, entry in planned
        for key in [f"{entry['namespace']}/{entry['name']}"]
    ]


def _completed(planned: Answers, view: Callable[[], ClusterView], manifests: Sequence[Fields]) -> Answers:
    """With what a plan does not know: whether a claim is a gang's, and amounts that can hardly be meant."""
    asked = {objects.key(obj): doubts(obj) for obj in manifests if obj.get("kind") == "ResourceClaim"}
    has_gangs = _has_gangs(manifests)
    found: Answers = []
    for subject, entry in planned:
        key, more = f"{entry['namespace']}/{entry['name']}", Document()
        if questions := asked.get(key):
            more["doubts"] = questions
        if has_gangs and entry["status"] == "Fits" and (waits := waits_for_gang(view(), key)):
            more["waits"] = waits
        found.append((subject, {**entry, **more}))
    return found


def _has_gangs(manifests: Sequence[Fields]) -> bool:
    return any(obj.get("kind") == "Pod" and gang_of(obj) is not None for obj in manifests)


def _identified(obj: Fields) -> Object:
    """With the uid that it gets where it is applied: objects are told apart by it."""
    return {**obj, "metadata": {**objects.metadata(obj), "uid": applied_uid(obj)}}


def _is_named(entry: Fields, question: Question) -> bool:
    namespace = entry.get("namespace") or DEFAULT_NAMESPACE
    return entry.get("name") == question.name and question.namespace in ("", namespace)


def _waiting_gangs(view: ClusterView) -> list[Document]:
    waiting = [gang for gang in view.gangs.values() if view.statuses[gang.key].phase is not GangPhase.WHOLE]
    return [
        answer(view, Question(Subject.GANG, gang.ref.namespace, gang.ref.name))["gang"]
        for gang in sorted(waiting, key=lambda gang: (gang.urgency, gang.key))
    ]


def explained(found: Plan) -> list[Document]:
    """One entry per claim: namespace, name, status (Fits, DoesNotFit, Undecided), node, level, reasons."""
    entries = []
    for claim in sorted({*found.allocations, *found.unsatisfiable, *found.undecided}):
        namespace, _, name = claim.partition("/")
        node = found.nodes.get(claim)
        reasons = found.unsatisfiable.get(claim) or found.undecided.get(claim) or ()
        entries.append(
            {
                "namespace": namespace,
                "name": name,
                "status": "Fits" if node else "Undecided" if claim in found.undecided else "DoesNotFit",
                "node": node,
                "level": found.levels.get(claim),
                "reasons": [reason.to_dict() for reason in reasons],
                "told": lines(reasons),
            }
        )
    return entries
