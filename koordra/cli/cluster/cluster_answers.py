"""What `koordra explain` says of a cluster: its controller's answers, or where it gives none what comes of
the objects (whole_cluster). What is imported here is the start of the command: nothing that allocates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from koordra.api import kinds, objects
from koordra.api.objects import Object
from koordra.cli.cluster.answers import KINDS, Answers, nobody, place, question_about
from koordra.cli.cluster.cluster_objects import Listed, Source, latest_events, listed
from koordra.cli.cluster.controller_answers import Controller
from koordra.cli.options import Scope
from koordra.cli.output import Document
from koordra.controller import claims as claims_of
from koordra.controller.explain.question import Question, Subject, question_of
from koordra.controller.gangs.declared.gang_ref import gang_of
from koordra.controller.gangs.phase import GangPhase
from koordra.errors import InvalidInput, NotFound
from koordra.kube.client import KubeClient

if TYPE_CHECKING:
    from koordra.cli.cluster.whole_cluster import WholeCluster
    from koordra.controller.autoscale.node_groups import NodeGroup
    from koordra.controller.autoscale.scale_up import ScaleUp
    from koordra.placement.candidates.node_scoring import ScoringStrategy
    from koordra.topology.network_topology import Levels


class Cluster:
    """Asks the controller, and where it does not answer works the answer out from all objects. `found`: those
    that were read already; `levels`: of the network, and `scoring`: how nodes are weighed, as somebody wrote
    them. `when`: answers say when what
    waits will fit, which the controller does not work out."""

    def __init__(
        self,
        client: KubeClient,
        found: Listed | None = None,
        levels: Levels | None = None,
        *,
        scoring: ScoringStrategy | None = None,
        when: bool = False,
    ) -> None:
        self._client = client
        self._levels, self._scoring = levels, scoring
        self._found = found
        self._when = when
        self._controller = Controller(client) if found is None and not when else None

    def ask(self, question: Question) -> Document:
        """The answer, with what the controller said last in Events. Raises NotFound."""
        found = self._controller and self._controller.answer(question)
        if found:
            _add_last_words(question, found, self._events_about)
            return found
        found, words = self._objects.answer(question)
        _add_last_words(question, found, lambda _kind, entry: words.get(entry["uid"]))
        return found

    def scale_up(self, groups: Sequence[NodeGroup]) -> ScaleUp:
        """What new nodes would do, worked out of the objects: the controller is not asked."""
        return self._objects.scale_up(groups)

    @cached_property
    def _objects(self) -> WholeCluster:
        from koordra.cli.cluster.whole_cluster import WholeCluster

        return WholeCluster(self._client, self._found, self._levels, scoring=self._scoring, when=self._when)

    def _events_about(self, kind: kinds.Kind, entry: Document) -> str | None:
        chosen = f"involvedObject.uid={entry['uid']}"
        source = Source(kinds.EVENTS, entry["namespace"], fields=chosen, optional=True)
        return latest_events(listed(self._client, [source])[kinds.EVENTS]).get(entry["uid"])

    def names(self, question: Question) -> list[Object]:
        """Who may have been meant."""
        kind = KINDS[question.subject]
        place = question.namespace if kind.namespaced else None
        return listed(self._client, [Source(kind, place, optional=True)])[kind]


def of_cluster(
    client: KubeClient, words: Sequence[str], namespace: str | None, scope: Scope, cluster: Cluster
) -> Answers:
    """Every question answered; of what nobody named, what waits."""
    named = [(word, question_of(word, namespace or "")) for word in words]
    if namespace is None and any(q and q.subject is not Subject.NODE for _, q in named):
        raise InvalidInput(
            "a name is of one namespace", object="explain", field="-A", remedy="name it with -n"
        )
    questions: list[Question] = []
    for word, question in named:
        questions += [question] if question else _claims_named(client, word, scope)
    if words:
        return [(question.subject, _asked(question, cluster)) for question in questions]
    answers: Answers = []
    for question in _everything(client, namespace, scope):
        with suppress(NotFound):  # gone since, or a gang that is not koordra's
            answers.append((question.subject, _asked(question, cluster)))
    return [
        (subject, entry)
        for subject, entry in answers
        if entry.get("status") != "Foreign" and entry.get("stage") != GangPhase.WHOLE
    ]


def _claims_named(client: KubeClient, word: str, scope: Scope) -> list[Question]:
    """`namespace/name`, or a name in any namespace that the caller may read."""
    namespace, name = place(word)
    within = namespace or scope.namespace
    named = Source(kinds.RESOURCE_CLAIMS, within, scope.selector, fields=f"metadata.name={name}")
    found = [question_about(claim) for claim in listed(client, [named])[named.kind]]
    if not found:
        claims, _ = client.list(kinds.RESOURCE_CLAIMS, namespace=within, label_selector=scope.selector)
        raise nobody(Question(Subject.CLAIM, within or "", name), claims)
    return found


def _everything(client: KubeClient, namespace: str | None, scope: Scope) -> list[Question]:
    """The claims without devices, the gangs, and the pods that lack claims, by name; with a selector the
    claims that have these labels alone."""
    claims, _ = client.list(kinds.RESOURCE_CLAIMS, namespace=namespace, label_selector=scope.selector)
    waiting = [question_about(claim) for claim in claims if not claims_of.is_allocated(claim)]
    pods = [] if scope.selector else client.list(kinds.PODS, namespace=namespace)[0]
    named = set(filter(None, map(gang_of, pods)))
    gangs = [Question(Subject.GANG, ref.namespace, ref.name) for ref in named]
    there = {objects.key(claim) for claim in claims}
    lacking = [
        question_about(pod, Subject.POD)
        for pod in pods
        if not (objects.pod_is_finished(pod) or objects.is_deleting(pod)) and claims_of.lacking(pod, there)
    ]
    return [one for several in (waiting, gangs, lacking) for one in sorted(several, key=lambda one: one.key)]


def _asked(question: Question, cluster: Cluster) -> Document:
    try:
        return cluster.ask(question)
    except NotFound as error:
        raise nobody(question, cluster.names(question)) from error


def _add_last_words(
    question: Question, entry: Document, words: Callable[[kinds.Kind, Document], str | None]
) -> None:
    """What the controller said last of the claim, or of the pod and its claims."""
    told = []
    if question.subject in (Subject.CLAIM, Subject.POD):
        told = [(kinds.RESOURCE_CLAIMS, one) for one in entry.get("claims", [entry])]
    if question.subject is Subject.POD:
        told.append((kinds.PODS, entry))
    for kind, one in told:
        if (said := words(kind, one)) is not None:
            one["controller"] = said
