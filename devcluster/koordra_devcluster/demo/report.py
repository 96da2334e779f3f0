"""What the demo shows at the end, read from the cluster's objects and from what each container finally got.

`observe` reads the objects once; everything else here is a function of that observation. A claim is *done*
when it is allocated and every pod that uses it runs. Claims that are not done are given to `plan()`, the same
function that the controller asks, whose reasons are the report's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koordra.allocator.devices.gpu_nic_distance import level_of
from koordra.allocator.explain.telling import lines
from koordra.allocator.reasons import Cause, Reason, reason_of
from koordra.api import kinds, names, objects
from koordra.api.allocation import Allocation, pinned_node
from koordra.api.objects import Object
from koordra.errors import NotFound, PlanError
from koordra.kube.client import KubeClient
from koordra.placement import Plan, plan, read_inventory
from koordra_devcluster.container_runtime.commands import OUTPUT
from koordra_devcluster.demo import gangs
from koordra_devcluster.demo.manifests import Refused

READ = (
    kinds.NODES,
    kinds.PODS,
    kinds.RESOURCE_SLICES,
    kinds.DEVICE_CLASSES,
    kinds.RESOURCE_CLAIMS,
    kinds.RESOURCE_CLAIM_TEMPLATES,
    kinds.EVENTS,
)
"""What is read of the cluster."""


MOST_OUTPUT = 8192
"""Bytes of what one container has printed."""
NO_REQUEST = "the claim asks for no device, so koordra leaves it alone; give it requests of a class such as gpu.koordra.io"
NO_POD = (
    "no pod refers to the claim, and a claim is placed on the node of its pods; create a pod that uses it"
)


@dataclass(frozen=True, slots=True)
class Observation:
    """The cluster's objects at one moment."""

    by_kind: Mapping[kinds.Kind, Sequence[Object]]

    @property
    def pods(self) -> Sequence[Object]:
        return self.by_kind[kinds.PODS]

    @property
    def claims(self) -> Sequence[Object]:
        return self.by_kind[kinds.RESOURCE_CLAIMS]

    @property
    def slices(self) -> Sequence[Object]:
        return self.by_kind[kinds.RESOURCE_SLICES]

    def all(self) -> list[Object]:
        """What `plan()` looks at."""
        return [obj for kind, found in self.by_kind.items() if kind != kinds.EVENTS for obj in found]


def observe(client: KubeClient) -> Observation:
    """Read every kind once; what is held, where that is served. Raises ApiUnreachable while the server is
    away."""
    found = {kind: client.list(kind)[0] for kind in READ}
    with suppress(NotFound):
        found[kinds.DEVICE_HOLDS] = client.list(kinds.DEVICE_HOLDS)[0]
    return Observation(found)


def expects_pending(obj: Object) -> bool:
    return objects.annotations_of(obj).get(names.DEMO_EXPECT) == "Pending"


def consumers(observation: Observation, claim: Object) -> list[Object]:
    """The pods that use a claim."""
    return [
        pod
        for pod in observation.pods
        if objects.namespace(pod) == objects.namespace(claim)
        and objects.name(claim) in objects.pod_claim_names(pod).values()
    ]


def is_allocated(claim: Object) -> bool:
    return bool(objects.status_of(claim).get("allocation"))


def may_wait(observation: Observation, claim: Object) -> bool:
    """True where waiting is the point: the claim, or a pod that uses it, says so."""
    return expects_pending(claim) or any(expects_pending(pod) for pod in consumers(observation, claim))


def outstanding(observation: Observation) -> list[str]:
    """What has still to happen, as sentences: claims to be allocated, pods to run, template claims to
    appear."""
    claims = [
        f"{objects.describe(claim)} is not allocated"
        for claim in observation.claims
        if not is_allocated(claim) and not may_wait(observation, claim)
    ]
    known = {objects.key(claim) for claim in observation.claims}
    pods = [
        f"{objects.describe(pod)} does not run yet{_unknown_claims(pod, known)}"
        for pod in observation.pods
        if not _pod_may_wait(observation, pod)
        and objects.status_of(pod).get("phase") not in {"Running", "Succeeded"}
    ]
    return claims + pods


def _unknown_claims(pod: Object, known: Collection[str]) -> str:
    """What the scheduler does not say of a pod that it never looks at."""
    missing = [
        name
        for name in objects.pod_claim_names(pod).values()
        if name is not None and f"{objects.namespace(pod)}/{name}" not in known
    ]
    return f": ResourceClaim {', '.join(missing)} does not exist" if missing else ""


def _pod_may_wait(observation: Observation, pod: Object) -> bool:
    return expects_pending(pod) or any(
        expects_pending(claim) and pod in consumers(observation, claim) for claim in observation.claims
    )


def broken_expectations(observation: Observation) -> list[str]:
    """Claims that were to wait and were placed all the same."""
    return [
        f"{objects.describe(claim)} was expected to wait and was placed"
        for claim in observation.claims
        if expects_pending(claim) and is_allocated(claim)
    ]


def waiting(observation: Observation, refused: Iterable[Refused]) -> list[dict[str, Any]]:
    """Every claim that waits, with plan()'s reasons; a claim with no reason could be placed at this moment.

    Objects that the API server refused are listed with its words, since they wait for their author.
    """
    entries = [
        _refused_entry(entry)
        for entry in refused
        if entry.manifest.get("kind", "").startswith("ResourceClaim")
    ]
    pending = [claim for claim in observation.claims if not is_allocated(claim)]
    if pending:
        entries += _planned_entries(observation, pending)
    return entries


def _planned_entries(observation: Observation, pending: Iterable[Object]) -> list[dict[str, Any]]:
    unasked = [claim for claim in pending if not _asks(claim)]
    unused = unasked + [claim for claim in pending if _asks(claim) and not consumers(observation, claim)]
    entries = [
        _entry(
            claim,
            [
                reason_of(Cause.FOREIGN_DRIVER, NO_REQUEST)
                if claim in unasked
                else reason_of(Cause.NODE_UNSUITABLE, NO_POD)
            ],
        )
        for claim in unused
    ]
    try:
        result = plan(observation.all(), report_errors=True)
    except PlanError as error:
        return entries + [
            _entry(claim, [reason_of(Cause.POOL_INCOMPLETE, str(error))])
            for claim in pending
            if claim not in unused
        ]
    return entries + [
        _entry(claim, _reasons(result, objects.key(claim))) for claim in pending if claim not in unused
    ]


def _asks(claim: Object) -> bool:
    return bool((objects.spec_of(claim).get("devices") or {}).get("requests"))


def _reasons(result: Plan, claim: str) -> Sequence[Reason]:
    return result.unsatisfiable.get(claim) or result.undecided.get(claim) or ()


def _entry(claim: Object, reasons: Sequence[Reason]) -> dict[str, Any]:
    """`told`: the reasons in lines."""
    return {
        "namespace": objects.namespace(claim),
        "name": objects.name(claim),
        "reasons": [reason.to_dict() for reason in reasons],
        "told": lines(reasons),
    }


def _refused_entry(refused: Refused) -> dict[str, Any]:
    wrong = ".cel.expression" in refused.message
    cause = Cause.SELECTOR_ERROR if wrong else Cause.CONSTRAINT_VIOLATED
    return _entry(refused.manifest, [reason_of(cause, refused.message)])


def placed(observation: Observation) -> list[dict[str, Any]]:
    """Every allocated claim: who has what, where, and at which level."""
    types = _device_types(observation.slices)
    return [_placed_entry(observation, claim, types) for claim in observation.claims if is_allocated(claim)]


def _placed_entry(
    observation: Observation, claim: Object, types: Mapping[tuple[str, str], str]
) -> dict[str, Any]:
    allocation = objects.status_of(claim)["allocation"]
    results = allocation["devices"]["results"]
    users = consumers(observation, claim)
    return {
        "namespace": objects.namespace(claim),
        "name": objects.name(claim),
        "pods": [objects.name(pod) for pod in users],
        "node": pinned_node(allocation.get("nodeSelector")) or (results[0]["pool"] if results else None),
        "allocated": allocation.get("allocationTimestamp"),
        "devices": [
            {
                "request": result["request"],
                "device": result["device"],
                "type": types.get((result["pool"], result["device"])),
                "consumedCapacity": result.get("consumedCapacity") or {},
            }
            for result in results
        ],
        "level": worst_level(claim, list(observation.slices)),
    }


def worst_level(claim: Object, slices: Iterable[Object]) -> str | None:
    """The worst GPU-NIC level of a claim that has its allocation, from published attributes; None without NIC
    or GPU."""
    allocation, given = Allocation.of_claim(claim), list(slices)
    held = {result.device for result in allocation.results} if allocation else set()
    inventory, nodes = read_inventory(given), {str(one["spec"].get("nodeName") or "") for one in given}
    pools = [pool for name in sorted(nodes) for pool in inventory.pools({"metadata": {"name": name}})]
    found = {one.id: one.plain for pool in pools for one in pool.devices if one.id in held}
    return level_of(list(found.values()))


def _device_types(slices: Iterable[Object]) -> dict[tuple[str, str], str]:
    """(pool, device) -> gpu | mig | nic | vf."""
    return {
        (entry["spec"]["pool"]["name"], device["name"]): attributes["type"]["string"]
        for entry in slices
        if entry["spec"].get("driver") == names.DRIVER
        for device in entry["spec"].get("devices") or ()
        if (
            attributes := {
                k.removeprefix(names.DOMAIN): v for k, v in (device.get("attributes") or {}).items()
            }
        )
        and "type" in attributes
    }


def containers(nodes: Iterable[Path]) -> list[dict[str, Any]]:
    """What each running container finally got, from the records of the nodes' runtimes."""
    found = []
    for node in nodes:
        for path in sorted((node / "containers").glob("*.json")):
            record = json.loads(path.read_text())
            if record.get("state") != "running":
                continue
            found.append(
                {
                    "pod": record["pod"]["name"],
                    "container": record["container"],
                    "node": record["node"],
                    "cdiDevices": record["cdiDevices"],
                    "env": record["env"],
                    "deviceNodes": [entry["path"] for entry in record["deviceNodes"]],
                }
            )
    return sorted(found, key=lambda entry: (entry["pod"], entry["container"]))


def output(nodes: Iterable[Path]) -> list[dict[str, str]]:
    """The end of what containers' commands have printed, where they are run."""
    found = []
    for node in nodes:
        for path in sorted((node / OUTPUT).glob("*.log")):
            record = node / "containers" / f"{path.stem}.json"
            text = path.read_bytes()[-MOST_OUTPUT:].decode(errors="replace")
            if text and record.exists():
                told = json.loads(record.read_text())
                found.append({"pod": told["pod"]["name"], "container": told["container"], "text": text})
    return sorted(found, key=lambda entry: (entry["pod"], entry["container"]))


def document(
    observation: Observation, refused: Iterable[Refused], *, nodes: Mapping[str, str], folders: Sequence[Path]
) -> dict[str, Any]:
    """The whole report as one JSON document. `nodes`: node name -> machine; `folders`: the nodes'
    directories. `events` are those of gangs, and of what failed."""
    return {
        "nodes": [{"name": name, "machine": machine} for name, machine in nodes.items()],
        "pods": gangs.pods(observation.pods, observation.claims, observation.by_kind[kinds.NODES]),
        "claims": placed(observation),
        "containers": containers(folders),
        "output": output(folders),
        "pending": waiting(observation, refused),
        "events": gangs.told(observation.by_kind[kinds.EVENTS]),
    }
