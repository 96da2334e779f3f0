"""On what terms a gang starts: what its members say together, and its pod group. Pure.

koordra's further annotations (koordra.io/gang-by, -max, -timeout and the others) count with every source,
and koordra.io/gang-min overrides what a pod group says. All members say the same, or the gang is refused:
nobody can tell which of them is right.

A PodGroup that does not exist (yet) is "not known", and the gang waits. A Kubernetes PodGroup with the policy
`basic` is no gang, unless its pods end together (disruptionMode) or belong in one domain: then each starts
when there is room for it. One that is part of a CompositePodGroup (1.37, alpha, KEP 6012; preview, read in
kubernetes/api v0.37 and tested on no server) is one gang with the others, if that wants anything of its
groups together (gang_ref), else starts by itself. As in the KEP a tree that is deeper than four, or in which
a gang has a group that is none, is invalid, and nothing of it starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from koordra.api import objects
from koordra.api.kinds import COMPOSITE
from koordra.api.objects import Fields, Object
from koordra.controller import claims as claims_of
from koordra.controller.gangs.declared.annotations import (
    GANG_BY,
    GANG_HOLD,
    GANG_MAX,
    GANG_MIN,
    GANG_POLICY,
    GANG_SHRINK,
    GANG_START,
    GANG_TIMEOUT,
)
from koordra.controller.gangs.declared.disruption import (
    NOT_SAID,
    Disruption,
    DisruptionMode,
    disruption_of,
)
from koordra.controller.gangs.declared.gang_by import replica_of
from koordra.controller.gangs.declared.gang_ref import (
    COSCHEDULING_OLD,
    KOORDINATOR,
    KUEUE,
    MOST_AROUND,
    GangRef,
    Source,
    composites_around,
)
from koordra.controller.gangs.declared.roles import RoleTerms, roles_of, start_order
from koordra.controller.gangs.declared.said import LONGEST_TIMEOUT, Said
from koordra.controller.gangs.declared.subgroups import subgroups_of
from koordra.controller.gangs.declared.topology_of_others import topology_terms
from koordra.controller.gangs.declared.topology_terms import ANYWHERE, TopologyTerms
from koordra.controller.gangs.declared.workload_kind import kind_of, role_of
from koordra.quantity import seconds_of

TIMEOUT: Final = 300.0
HOLD: Final = 600.0
"""Until pods of a dead node are replaced it takes 340 s (40 until it is NotReady, 300 that pods tolerate it);
a Job makes a pod anew after 10 s to 10 min."""
LONGEST_HOLD: Final = 3600.0
_LONGEST_NAME: Final = 253


class TimeoutPolicy(StrEnum):
    """What happens to a gang that has members running and cannot complete itself within its timeout."""

    RESTART = "Restart"
    """All its members are evicted, so that whoever made them makes them anew and they start together."""
    KEEP = "Keep"
    """Those that run go on and keep their devices."""


class Start(StrEnum):
    """Who starts when the least have their places."""

    TOGETHER = "Together"
    """All of them: nobody before the least are there."""
    LEADER_FIRST = "LeaderFirst"
    """Those that are there; places are kept for the others, who are made later."""


class Shrink(StrEnum):
    NEVER = "Never"
    FOR_OTHERS = "ForOthers"
    """Members above the least are evicted for a gang that waits and is not less urgent."""


_POD_GROUPS: Final = {
    Source.KUBERNETES: ("scheduling.k8s.io",),
    Source.COSCHEDULING: ("scheduling.x-k8s.io", "scheduling.sigs.k8s.io"),
    Source.VOLCANO: ("scheduling.volcano.sh",),
    Source.KAI: ("scheduling.run.ai",),
    Source.GROVE: ("scheduler.grove.io",),
}
"""API groups whose PodGroups (Workloads) a system means."""

_LEAST_BY: Final = {
    Source.KOORDINATOR: (KOORDINATOR + "min-available", objects.annotations_of),
    Source.COSCHEDULING: (COSCHEDULING_OLD + "/min-available", objects.labels_of),
    Source.KUEUE: (KUEUE + "total-count", objects.annotations_of),
}
"""What on a pod says how many are needed."""
_POLICIES: Final = {Source.GROVE: TimeoutPolicy.KEEP}
"""Of systems that end gangs which lack members by themselves: Grove after its terminationDelay (4 h)."""


@dataclass(frozen=True, slots=True)
class Terms:
    """`least`: members that have to be placed before any starts; None while not known. `most`: None is no
    bound. `hold`: for how long what a started gang lost is kept for it, 0 for not at all. `start`: None is as
    it is known of the workload. `order`: by uid of a pod, those that are Ready before it starts."""

    least: int | None
    most: int | None = None
    timeout: float = TIMEOUT
    policy: TimeoutPolicy = TimeoutPolicy.RESTART
    shrink: Shrink = Shrink.NEVER
    topology: TopologyTerms = ANYWHERE
    problems: tuple[str, ...] = ()
    hold: float = HOLD
    start: Start | None = None
    disruption: Disruption = NOT_SAID
    roles: tuple[RoleTerms, ...] = ()
    order: Mapping[str, frozenset[str]] = field(default_factory=dict)


def terms_of(
    ref: GangRef,
    pods: Iterable[Object],
    pod_groups: Mapping[str, Object],
    *,
    labelled: bool = True,
    ended: Collection[str] = (),
) -> Terms | None:
    """The terms that all members agree on; None where the pod group says that it is no gang.

    `pod_groups`: `API group/namespace/name` -> object. `labelled`: the pods have all their labels; not while
    they are being created. `ended`: as `Gang` has it.
    """
    said = Said(list(pods), [])
    problems = said.problems
    where = f"{COMPOSITE}/{ref.namespace}" if ref.part == COMPOSITE else ref.namespace
    keys = [f"{domain}/{where}/{ref.group}" for domain in _POD_GROUPS.get(ref.source, ())]
    group = next((pod_groups[key] for key in keys if key in pod_groups), {})
    spec = objects.spec_of(group)
    policy = _policy_of(ref, spec)
    is_whole = ref.source is Source.KUBERNETES and ref.part in ("", COMPOSITE)
    tree = list(_tree(ref, said.pods, pod_groups)) if is_whole else []
    disruption = _disruption(spec, tree) if is_whole else NOT_SAID
    is_basic = ref.source is Source.KUBERNETES and ref.part != COMPOSITE and _is_basic(policy)
    composite = next(filter(None, (_composite_problem(one, pod_groups) for one in tree)), "")
    is_loose = disruption.mode is not DisruptionMode.ALL and not spec.get("schedulingConstraints")
    if is_basic and is_loose and not composite:
        return None
    problems.extend(filter(None, [composite]))
    problems.extend(_name_problems(ref))
    problems.extend(_replica_problems(said.pods, labelled=labelled))
    least = said.number(GANG_MIN)
    if least is None and ref.replica and ref.source is not Source.KOORDRA:
        problems.append(
            f"{GANG_BY} divides a pod group that counts all: say with {GANG_MIN} how many of each start together"
        )
    elif least is None:
        is_kubernetes = ref.source is Source.KUBERNETES
        least = _positive(
            objects.fields(policy.get("gang")).get("minCount") if is_kubernetes else spec.get("minMember")
        ) or (1 if is_basic else None)
        if least is not None and least > 1 and _launcher_comes(group, said.pods):
            least -= 1
    if least is None and ref.source in _LEAST_BY and not ref.joined:
        least = said.number(*_LEAST_BY[ref.source])
    most = said.number(GANG_MAX)
    if most is not None and least is not None and most < least:
        problems.append(f"{GANG_MAX} is {most} and {GANG_MIN} is {least}")
    timeout = said.seconds(GANG_TIMEOUT)
    if timeout is None and (seconds := _positive(spec.get("scheduleTimeoutSeconds"))) is not None:
        timeout = min(float(seconds), LONGEST_TIMEOUT)
    if timeout is None:
        timeout = (
            seconds_of(said.text(KOORDINATOR + "waiting-time") or "", longest=LONGEST_TIMEOUT) or TIMEOUT
        )
    if ref.source is Source.KOORDRA and least is None and not problems:
        problems.append(f"{GANG_MIN} is missing: say how many members have to start together")
    order = start_order(said.pods, problems, ended)
    subgroups = subgroups_of(ref, said.pods, spec, pod_groups)
    problems.extend(filter(None, [subgroups.problem]))
    roles = roles_of(ref, said, spec, order, subgroups)
    if subgroups.all:
        least = max(least or 0, subgroups.least)
    elif any(role.least for role in roles):
        least = max(least or 0, sum(role.least for role in roles))
    hold, start = _hold(said), said.word(GANG_START, Start)
    topology = topology_terms(ref, said, spec, subgroups, least=least)
    if topology.least is not None:
        least = max(least or 0, topology.least)
    return Terms(
        least,
        most,
        timeout,
        said.word(GANG_POLICY, TimeoutPolicy) or _POLICIES.get(ref.source, TimeoutPolicy.RESTART),
        said.word(GANG_SHRINK, Shrink) or Shrink.NEVER,
        topology,
        tuple(problems),
        hold,
        start,
        disruption,
        roles,
        order.before,
    )


def _name_problems(ref: GangRef) -> Iterator[str]:
    longest = max(ref.groups, key=len)
    if len(longest) > _LONGEST_NAME:
        yield f"its name has {len(longest)} letters: {_LONGEST_NAME} at most"
    if any(" " in group or not group.isprintable() for group in ref.groups):
        yield f"its name {ref.name[:_LONGEST_NAME]!r} has blanks or unprintable signs, which containers could not be told"


def _disruption(spec: Fields, tree: Iterable[Object]) -> Disruption:
    """Of a group of Kubernetes with those in it: all end together where one of them says so."""
    found = disruption_of(spec)
    modes = {disruption_of(objects.spec_of(one)).mode for one in tree}
    return replace(found, mode=DisruptionMode.ALL) if DisruptionMode.ALL in modes else found


def _tree(ref: GangRef, pods: Iterable[Object], pod_groups: Mapping[str, Object]) -> Iterator[Object]:
    """The PodGroups that the pods name, and the CompositePodGroups around them up to the gang's own."""
    names = {
        str(objects.fields(objects.spec_of(pod).get("schedulingGroup")).get("podGroupName")) for pod in pods
    }
    keys = [f"{claims_of.POD_GROUPS}/{ref.namespace}/{name}" for name in sorted(names)]
    groups = [pod_groups[key] for key in keys if key in pod_groups]
    around = {objects.key(one): one for group in groups for one in composites_around(group, pod_groups)}
    yield from groups
    if ref.part == COMPOSITE:
        yield from around.values()


def _composite_problem(group: Object, pod_groups: Mapping[str, Object]) -> str:
    """What is wrong with the tree that the PodGroup, or CompositePodGroup, is in; "" where nothing is.
    `pod_groups`: as in the cache."""
    kind = COMPOSITE if group.get("kind") == COMPOSITE else "PodGroup"
    who, around = f"{kind} {objects.name(group)}", composites_around(group, pod_groups)
    if len(around) > MOST_AROUND:
        return f"{who} is more than {MOST_AROUND} {COMPOSITE}s deep"
    at = around[-1] if around else group
    if above := objects.spec_of(at).get("parentCompositePodGroupName"):
        return f"{who} is part of {COMPOSITE} {above}, which is not there, or not for koordra to read"
    policies = [objects.fields(objects.spec_of(one).get("schedulingPolicy")) for one in (group, *around[:1])]
    if around and _is_basic(policies[0]) and "gang" in policies[1]:
        outer = objects.name(around[0])
        return f"{who} is basic, and part of {COMPOSITE} {outer}, which is a gang: Kubernetes calls that invalid, and starts neither"
    return ""


def _is_basic(policy: Mapping[str, Any]) -> bool:
    return "basic" in policy and "gang" not in policy


def _launcher_comes(group: Mapping[str, Any], pods: Iterable[Object]) -> bool:
    """Whether the group counts the launcher of an MPIJob that is not there: mpi-operator may make it once its
    workers are Ready (launcherCreationPolicy, kubeflow/mpi-operator issue 608)."""
    owners = objects.metadata(group).get("ownerReferences") or ()
    if not any(one.get("controller") and one.get("kind") == "MPIJob" for one in owners):
        return False
    kinds = [(pod, kind) for pod in pods if (kind := kind_of(pod)) is not None]
    return not any(role_of(pod, kind) == "launcher" for pod, kind in kinds)


def _replica_problems(pods: Iterable[Object], *, labelled: bool) -> list[str]:
    """Why some member's replica is not known, once."""
    found = (replica_of(pod, default=False) for pod in pods)
    texts = filter(None, (one.invalid or (one.missing if labelled else "") for one in found))
    return list(islice(texts, 1))


def _hold(said: Said) -> float:
    text = said.text(GANG_HOLD)
    if text is None or text in ("0", "0s"):
        return HOLD if text is None else 0.0
    seconds = seconds_of(text, longest=LONGEST_TIMEOUT)
    if seconds is None or seconds > LONGEST_HOLD:
        said.problems.append(
            f"{GANG_HOLD} is {text[:40]!r}: write a time such as 90s or 10m, 1 hour at most, or 0"
        )
        return HOLD
    return seconds


def _policy_of(ref: GangRef, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The policy of a PodGroup of Kubernetes, or of the part of a Workload."""
    if ref.part in ("", COMPOSITE):
        return objects.fields(spec.get("schedulingPolicy"))
    named = ref.part.partition("/")[0]
    named_so = (entry for entry in spec.get("podGroups") or () if entry.get("name") == named)
    return next((entry.get("policy") for entry in named_so), None) or {}


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
