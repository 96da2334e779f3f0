"""What is asked of an autoscaler, as the API has it. Pure.

For each node that is wanted there is one pod in a namespace of its own that nothing but such a node has room
for: it has the group's labels as nodeSelector, its tolerations, and the size of a node; no claims. It is the
lowest that autoscalers heed, so any pod may take its place. Whoever adds nodes for pods that do not fit adds
one for it: cluster-autoscaler, Karpenter, and what else watches unschedulable pods.

    asked ──its node came──▶ came ──devices published──▶ done: it goes, and who waits is placed
      │                        └── too late ──▶ expired
      ├── too late ──▶ expired
      └── bound to a node that was there, and has devices ──▶ misfit: the group's `resources` are less than
                                                              a node has, or that node is of no use
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from koordra.api import names, objects
from koordra.api.kinds import NODES, PODS, RESOURCE_SLICES
from koordra.api.objects import Fields, Object
from koordra.controller.autoscale.node_groups import NodeGroup
from koordra.controller.cache.changes import Tables
from koordra.controller.cache.placeholders import ASKED_FOR, GROUP, NAMESPACE, Ask, Stage, created

PRIORITY_CLASS: Final = "koordra-placeholder"
MOST_CLAIMS: Final = 16
_NOT_ASKED_FOR: Final = ("pods",)


def stage_of(ask: Ask, cluster: Tables, published: Set[str], *, within: float, now: datetime) -> Stage:
    """`published`: nodes whose devices are known; `within`: seconds in which a node has to come, and as many
    again until it has published."""
    age = (now - ask.created).total_seconds()
    if ask.has_ended:
        return Stage.ENDED
    if not ask.node:
        return Stage.EXPIRED if age > within else Stage.ASKED
    node = cluster[NODES].get(ask.node)
    if ask.node in published and node is not None:
        return Stage.MISFIT if created(node) < ask.created else Stage.DONE
    return Stage.EXPIRED if age > 2 * within else Stage.CAME


def published_nodes(cluster: Tables) -> set[str]:
    """Nodes of which all ResourceSlices of koordra's are there."""
    pools: dict[str, dict[tuple[str, int], list[Fields]]] = {}
    for one in cluster[RESOURCE_SLICES].values():
        spec = objects.spec_of(one)
        pool = objects.fields(spec.get("pool"))
        if spec.get("driver") == names.DRIVER and (node := spec.get("nodeName")):
            place = str(pool.get("name")), int(pool.get("generation") or 0)
            pools.setdefault(str(node), {}).setdefault(place, []).append(pool)
    return {node for node, found in pools.items() if _is_whole(found)}


def _is_whole(pools: Mapping[tuple[str, int], Sequence[Fields]]) -> bool:
    newest = {name: max(number for other, number in pools if other == name) for name, _ in pools}
    return all(
        len(pools[place]) >= int(pools[place][0].get("resourceSliceCount") or 0) for place in newest.items()
    )


def placeholder(group: NodeGroup, number: int, claims: Iterable[str], *, image: str) -> Object:
    requests = objects.without(group.resources, *_NOT_ASKED_FOR)
    main = {
        "name": "placeholder",
        "image": image,
        "resources": {"requests": requests, "limits": requests},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        **PODS.type_meta,
        "metadata": {
            "name": called(group, number),
            "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/name": PRIORITY_CLASS, GROUP: group.name},
            "annotations": {
                ASKED_FOR: asked_for(claims),
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
            },
        },
        "spec": {
            "nodeSelector": dict(group.labels),
            "tolerations": [_toleration(taint) for taint in group.taints],
            "priorityClassName": PRIORITY_CLASS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65535,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [main],
        },
    }


def called(group: NodeGroup, number: int) -> str:
    return f"{group.name}-{number}"


def asked_for(claims: Iterable[str]) -> str:
    return ",".join(sorted(claims)[:MOST_CLAIMS])


def _toleration(taint: Fields) -> Object:
    return {
        "key": taint["key"],
        "operator": "Equal",
        "value": taint.get("value", ""),
        "effect": taint["effect"],
    }


@dataclass(frozen=True, slots=True)
class Changes:
    """`make`: numbers and claims of new placeholders; `mark`: whom one that is there is for by now."""

    make: Sequence[tuple[int, tuple[str, ...]]]
    drop: Sequence[Ask]
    mark: Sequence[tuple[Ask, tuple[str, ...]]]


def changes_of(
    group: NodeGroup, wanted: Sequence[tuple[str, ...]], asks: Sequence[Ask], came: Set[str]
) -> Changes:
    """`wanted`: the claims of each node that is wanted; `asks`: those of the group that are under way;
    `came`: by uid, those that have a node. A need that is asked for is not asked for again, whoever it is
    for."""
    left = [tuple(sorted(claims)[:MOST_CLAIMS]) for claims in wanted]

    def rank(ask: Ask) -> tuple[bool, bool, datetime, str]:
        return ask.uid not in came, ask.claims not in left, ask.created, ask.name

    kept = sorted(asks, key=rank)[: len(wanted)]
    others = []
    for ask in kept:
        if ask.claims in left:
            left.remove(ask.claims)
        else:
            others.append(ask)
    taken = {ask.name for ask in asks}
    free = (number for number in range(len(wanted) + len(asks)) if called(group, number) not in taken)
    return Changes(
        list(zip(free, left[len(others) :], strict=False)),
        [ask for ask in asks if ask not in kept],
        list(zip(others, left, strict=False)),
    )
