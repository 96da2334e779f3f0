"""`koordra explain`: why a claim waits, or why it is where it is; a pod, a gang or a node.

words ─▶ questions ─▶ the cluster's controller answers (controller_answers), or where it does not
                      the objects are read, and the answers worked out from them as it would
files ─▶ a forecast of what its controller would do with them, and the same answers
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import click

from koordra.api import names
from koordra.cli import options
from koordra.cli.cluster.answers import Answers
from koordra.cli.cluster.claim_text import claim_text
from koordra.cli.cluster.cluster_answers import Cluster, of_cluster
from koordra.cli.cluster.cluster_objects import Listed, connect, followed, namespace_of
from koordra.cli.cluster.object_text import gang_text, node_text, pod_text
from koordra.cli.options import Access, Scope, say
from koordra.cli.output import Document, show_document
from koordra.controller.explain.question import Subject
from koordra.errors import InvalidInput

if TYPE_CHECKING:
    from koordra.controller.autoscale.node_groups import NodeGroup
    from koordra.controller.autoscale.scale_up import ScaleUp
    from koordra.placement.candidates.node_scoring import ScoringStrategy
    from koordra.topology.network_topology import Levels

Told = tuple[Answers, Document, str]
"""Answers, and what is said besides of new nodes: as a document, and as text."""

_TEXTS: Final[dict[Subject, Callable[..., str]]] = {
    Subject.CLAIM: claim_text,
    Subject.POD: pod_text,
    Subject.GANG: gang_text,
    Subject.NODE: node_text,
}


@click.command("explain")
@click.argument("words", nargs=-1, metavar="[CLAIM | claim/NAME | pod/NAME | gang/NAME | node/NAME]...")
@options.manifests("YAML or JSON with the objects to plan with, in place of the cluster's")
@options.machines
@options.autoscale
@options.access
@options.scope
@options.policy
@options.features
@options.topology_levels
@options.scoring_strategy
@options.flag("--when", "Say when what waits is expected to fit, by when what runs is expected to end.")
@options.watch
@options.output("text", "wide", "json", "yaml")
def explain(
    words: Sequence[str],
    files: Sequence[str],
    machines: Sequence[str],
    autoscale: Sequence[str],
    access: Access,
    scope: Scope,
    policy: str,
    features: str | None,
    topology_levels: str,
    scoring_strategy: str,
    when: bool,
    watch: bool,
    output: str,
) -> None:
    """Why a claim waits: the clause that failed on which nodes and devices, with both figures, and the
    nearest miss. Why one that has devices has these, and how they are kept from others.

    claim/NAME, pod/NAME and gang/NAME are of the namespace (-n). A claim with devices is shown with the terms
    of its placement beside the next best node, and with what is enforced of its isolation; a pod with all of
    its claims, also in the words of another stack that it was written for; a node with what it has, who holds
    what, and who waits that could run there.

    CLAIM is a name or namespace/name; without a word, all claims and gangs that wait in the namespace are
    explained (-A: in every one), of files all in them. The cluster's controller is asked; where it does not
    answer, its next pass is worked out from the objects, without writing: also nodes that are left out after
    a refusal of kube-scheduler, kept free for claims that come first, or barred by ports, spread, volumes and
    affinity between pods. The newest Event of the controller stands beside it. --topology-levels
    and --scoring-strategy are those of that controller, for what is worked out without it. --autoscale tells
    besides what new nodes would do for all that waits. --when tells a forecast: from declared ends
    (activeDeadlineSeconds, annotation koordra.io/expected-duration), and from how long claims that asked the
    same have run.
    """
    levels = _levels(topology_levels) if topology_levels else None
    scoring = _scoring(scoring_strategy) if scoring_strategy else None
    groups = _groups(autoscale) if autoscale else []
    if files:
        if watch or scope.selector:
            raise InvalidInput(
                "go with a cluster", object="explain", field="--watch and -l", remedy="leave out -f"
            )
        from koordra.cli.cluster.file_answers import of_files
        from koordra.cli.what_if.manifests import Assumed

        assumed = Assumed(policy, features, levels=levels, scoring=scoring, groups=groups)
        answers, grown = of_files(files, machines, words, scope, assumed, when=when)
        _show(_with(answers, grown, groups), output)
        return
    if policy != names.DEFAULT_POLICY or features or machines:
        text = "go with -f: a cluster's controller has a policy of its own, and its nodes"
        fields = "--policy, --features and --machine"
        raise InvalidInput(text, object="explain", field=fields, remedy="leave them out")
    client, namespace = connect(access), namespace_of(access, scope)
    shown: Told | None = None
    moments: Iterable[Listed | None] = [None]
    if watch:
        from koordra.cli.cluster.whole_cluster import EVERYTHING

        moments = followed(client, EVERYTHING)
    for moment in moments:
        cluster = Cluster(client, moment, levels, scoring=scoring, when=when)
        answers = of_cluster(client, words, namespace, scope, cluster)
        found = _with(answers, cluster.scale_up(groups) if groups else None, groups)
        if found != shown:
            _show(found, output, again=shown is not None)
        shown = found


def _levels(text: str) -> Levels:
    """Raises InvalidInput."""
    from koordra.controller.cache.fabrics import written_levels

    return written_levels(text)


def _scoring(text: str) -> ScoringStrategy:
    """Raises InvalidInput."""
    from koordra.placement.candidates.node_scoring import written_strategy

    return written_strategy(text)


def _groups(autoscale: Sequence[str]) -> list[NodeGroup]:
    """Raises InvalidInput."""
    from koordra.cli.what_if.node_groups import node_groups

    return node_groups(autoscale)


def _with(answers: Answers, grown: ScaleUp | None, groups: Sequence[NodeGroup]) -> Told:
    if grown is None:
        return answers, {}, ""
    from koordra.cli.what_if.scale_up_text import scale_up_document, scale_up_text

    return answers, {"autoscale": scale_up_document(grown, groups)}, scale_up_text(grown, groups)


def _show(found: Told, output: str, *, again: bool = False) -> None:
    answers, more, text = found
    if output in ("json", "yaml"):
        document: Document = {} if answers else {"claims": []}
        for subject, entry in answers:
            document.setdefault(f"{subject}s", []).append(entry)
        say("---\n" if again and output == "yaml" else "", nl=False)
        show_document({**document, **more}, output)
        return
    wide = output == "wide"
    texts = [_TEXTS[subject](entry, wide=wide) for subject, entry in answers]
    told = "\n\n".join(texts) or "no claim is waiting for devices"
    say(("\n" if again else "") + "\n\n".join(filter(None, [told, text])))
