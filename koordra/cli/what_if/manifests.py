"""Manifests in files, and what koordra's controller would do if they were applied: for `koordra plan` and
`koordra explain -f`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from koordra.allocator.reasons import Cause, Reason, reason_of
from koordra.api import names, objects
from koordra.api.kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_QUOTAS, Kind
from koordra.api.objects import Fields, Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.cli.convert import settings_from
from koordra.cli.manifest_files import notes_on
from koordra.cli.what_if.workload_pods import workload_pods
from koordra.compat.detection import dialects_with
from koordra.compat.original_request import entries
from koordra.compat.quota_charges import dialect_of
from koordra.compat.settings import Settings
from koordra.controller.allocation.learned.leftover_store import NAME, durations_of, learned_of
from koordra.controller.autoscale.node_groups import NodeGroup
from koordra.controller.autoscale.scale_up import ScaleUp, scale_up
from koordra.controller.cache.changes import Tables
from koordra.controller.explain.forecast.admission import Admitted, Refused, admitted
from koordra.controller.explain.forecast.forecast import Forecast, forecast
from koordra.controller.explain.forecast.intake import Terms
from koordra.controller.explain.forecast.refusals import refusals
from koordra.controller.explain.forecast.stand_ins import with_stand_ins
from koordra.controller.legacy.settings import in_a_cluster
from koordra.controller.quota.bounds import bounded
from koordra.controller.quota.usage import legacy_entries
from koordra.controller.reporting.claim_events import CLAIM_MISSING
from koordra.placement import Plan
from koordra.placement.candidates.node_scoring import ScoringStrategy
from koordra.topology.network_topology import Levels

Lacking = Mapping[str, tuple[Reason, ...]]
"""Why a claim gets nothing that no decision is made about, by its key."""


@dataclass(frozen=True, slots=True)
class Assumed:
    """What a person says about the cluster besides the files. `together`: claims that no pod uses have one
    pod in each namespace; `levels`: of the network; `scoring`: how nodes are weighed; `groups`: to which
    nodes can be added."""

    policy: str = names.DEFAULT_POLICY
    features: str | None = None
    together: bool = False
    levels: Levels | None = None
    scoring: ScoringStrategy | None = None
    groups: Sequence[NodeGroup] = ()


@dataclass(frozen=True)
class WhatIf:
    """`given`: the manifests with the pods of workloads. `refused`: claims that would not be stored, or whose
    pods would not; `missing`: claims that pods name and that are not there. `notes`: what people are told."""

    given: Sequence[Fields]
    forecast: Forecast
    cluster: Tables
    terms: Terms
    refused: Lacking
    missing: Lacking
    notes: Sequence[str]

    def plan(self) -> Plan:
        """What every claim that waits gets, or why it gets nothing."""
        found = Plan()
        for key, planned in sorted(self.forecast.planned.items()):
            found.allocations[key] = dict(planned.allocation)
            found.nodes[key], found.levels[key] = planned.node or "", planned.level
            if planned.score is not None:
                found.scores[key] = planned.score
        for key in self.forecast.lacking:
            if key not in self.refused:
                told = self.forecast.reasons_of(key)
                (found.undecided if told.undecided else found.unsatisfiable)[key] = told.reasons[key]
        found.unsatisfiable.update({**self.missing, **self.refused})
        return found

    def scale_up(self, groups: Sequence[NodeGroup]) -> ScaleUp:
        return scale_up(self.cluster, self.terms, groups, now=self.forecast, beyond=True)


def what_if(manifests: Sequence[Fields], assumed: Assumed, now: datetime) -> WhatIf:
    """Raises InvalidManifest, PlanError for an unknown policy or gate, and InvalidInput for settings that
    cannot be read."""
    settings = in_a_cluster(settings_from((), None, manifests))
    made, planned = workload_pods(manifests, settings)
    given = [*manifests, *made]
    stored = admitted(given, settings)
    there = stored.cluster[RESOURCE_CLAIMS]
    refused = {key: why for key, why in _refused(stored.refused) if key not in there}
    cluster = with_stand_ins(
        stored.cluster,
        together=assumed.together,
        left_out=frozenset(refused),
        taints=[taint for group in assumed.groups for taint in group.taints],
    )
    events = refusals([dict(one) for one in given if one.get("kind") == "Event"], now)
    kept = _kept(manifests)
    terms = Terms(
        now,
        events,
        stored.quotas,
        policy=assumed.policy,
        features=assumed.features,
        levels=assumed.levels,
        scoring=assumed.scoring,
        learned=learned_of(kept),
        durations=durations_of(kept),
        read=partial(_read, given),
    )
    said = [f"koordra: {note}" for note in (*notes_on(manifests), *map(str, stored.refused))]
    warned = [f"koordra: warning: {text}" for text in dict.fromkeys(stored.warnings)]
    found = forecast(cluster, terms)
    evicted = [f"koordra: pod {key} would be evicted" for key in dict.fromkeys(found.evicted)]
    told = (*said, *planned, *warned, *_counted_with_legacy(given, settings), *evicted)
    return WhatIf(given, found, cluster, terms, refused, dict(_missing(stored)), told)


def _counted_with_legacy(given: Iterable[Fields], settings: Settings) -> Iterator[str]:
    """Lines of quotas on names of other stacks that count converted pods, of which nobody says whether their
    cluster has what counts them. A pod that the webhook rewrote comes from one that has."""
    spoken: dict[str, set[str]] = {}
    for pod in (one for one in given if one.get("kind") == PODS.kind):
        mine = [template for name, template in legacy_entries(pod).items() if name not in entries(pod)]
        spoken.setdefault(objects.namespace(pod), set()).update(map(dialect_of, mine))
    for quota in (one for one in given if one.get("kind") == RESOURCE_QUOTAS.kind):
        for line in bounded(quota):
            if spoken.get(objects.namespace(quota), set()) & dialects_with(line.name, settings):
                yield (
                    f"koordra: {objects.describe(quota)}: spec.hard[{line.key}]: counts converted pods "
                    "where component legacy is installed, as is assumed here; elsewhere it counts none of them"
                )


def _kept(manifests: Iterable[Fields]) -> Object:
    """What the cluster's controller has learned, where its table is among the objects."""
    found = (one for one in manifests if one.get("kind") == CONFIG_MAPS.kind and objects.name(one) == NAME)
    return next((dict(one.get("data") or {}) for one in found), {})


def _read(manifests: Iterable[Fields], kind: Kind, name: str, namespace: str) -> Object | None:
    """A job's object, of whatever version."""
    wanted = (kind.kind, kind.group, namespace, name)
    return next((dict(obj) for obj in manifests if _place(obj) == wanted), None)


def _place(obj: Fields) -> tuple[str, str, str, str]:
    return str(obj.get("kind")), objects.group_of(obj), objects.namespace(obj), objects.name(obj)


def _refused(refused: Iterable[Refused]) -> Iterator[tuple[str, tuple[Reason, ...]]]:
    """Of a pod all of its claims, and where it has none its own name."""
    for one in refused:
        if one.object["kind"] in (RESOURCE_CLAIMS.kind, PODS.kind):
            named = [key for key, _ in _named(one.object)] or [objects.key(one.object)]
            yield from ((key, (reason_of(Cause.CONSTRAINT_VIOLATED, str(one)),)) for key in named)


def _missing(stored: Admitted) -> Iterator[tuple[str, tuple[Reason, ...]]]:
    not_made = {f"{one.object['kind']} {objects.key(one.object)}": f": {one.why}" for one in stored.refused}
    for pod in stored.cluster[PODS].values():
        if objects.pod_is_finished(pod) or objects.is_deleting(pod):
            continue
        for key, template in _named(pod):
            if template or key not in stored.cluster[RESOURCE_CLAIMS]:
                what = template or f"{RESOURCE_CLAIMS.kind} {key}"
                text = f"pod {objects.key(pod)} names {what}, which is not there{not_made.get(what, '')}"
                yield key, (Reason(None, None, None, CLAIM_MISSING, text),)


def _named(pod: Fields) -> Iterator[tuple[str, str]]:
    """The keys of the pod's claims, each with the template from which it is still to be made."""
    namespace, known = objects.namespace(pod), objects.pod_claim_names(pod)
    for entry in objects.spec_of(pod).get("resourceClaims") or ():
        name = known.get(str(entry.get("name")))
        template = f"{RESOURCE_CLAIM_TEMPLATES.kind} {namespace}/{entry.get('resourceClaimTemplateName')}"
        made = f"{namespace}/{name or objects.name(pod) + '-' + str(entry.get('name'))}"
        yield made, "" if name else template
