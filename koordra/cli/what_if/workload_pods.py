"""The pods that workloads in files would have, if they were applied: of a Deployment, Job, StatefulSet, or
what else holds pod templates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from koordra.allocator.request.templates import applied_uid
from koordra.api import objects
from koordra.api.objects import Fields, Object
from koordra.api.pods import Path, at, pods_in
from koordra.cli.manifest_files import objects_in
from koordra.compat.rewrite import names_devices
from koordra.compat.settings import Settings
from koordra.controller.gangs.declared.workload_kind import COMPLETION_INDEX, LWS

MOST_PODS: Final = 1_000
"""Of one template."""


def workload_pods(manifests: Iterable[Fields], settings: Settings) -> tuple[list[Fields], list[str]]:
    """The pods that ask for devices, of every workload that no cluster has stored (it has no uid, so its pods
    are not among the objects), and a line for people about each of its templates.

    They are called `<kind>-<name>`, after that what the template is for where there are several, and then a
    number. Of a DaemonSet there is one. Raises InvalidManifest.
    """
    made: list[Fields] = []
    notes: list[str] = []
    for workload in manifests:
        if objects.uid(workload) or workload["kind"] == "Pod":
            continue
        obj, who = dict(workload), f"{workload['kind']} {objects.name(workload)}".rstrip()
        asking = [path for path in pods_in(obj) if _asks(at(obj, path), settings)]
        for path in asking:
            wanted = _replicas(obj, path)
            named = f"{_called(obj)}-{_role(obj, path)}" if len(asking) > 1 else _called(obj)
            names = [f"{named}-{number}" if wanted > 1 else named for number in range(min(wanted, MOST_PODS))]
            for number, name in enumerate(names):
                pod = _pod(obj, at(obj, path), name, _labels(obj, path, number))
                made.extend(objects_in(pod, where=f"{who}: pod template"))
            if names:
                notes.append(f"{who}: {_planned(names, wanted, obj)}")
    return made, notes


def _called(obj: Fields) -> str:
    metadata = objects.metadata(obj)
    name = metadata.get("name") or str(metadata.get("generateName", "")).rstrip("-")
    return f"{obj['kind']}-{name}".lower()


def _role(obj: Object, path: Path) -> str:
    """`worker`, of a field or an entry of a list with a name."""
    depth = max(at for at, part in enumerate(path) if part not in ("spec", "template"))
    part = path[depth]
    named = at(obj, path[: depth + 1]).get("name") if isinstance(part, int) else part.removesuffix("Template")
    return str(named or part).lower()


def _planned(names: list[str], wanted: int, obj: Fields) -> str:
    if obj["kind"] == "DaemonSet":
        return f"one of its pods is planned, {names[0]}"
    if len(names) == 1:
        return f"its pod is planned, {names[0]}"
    number = f"{len(names)} of its {wanted} pods" if wanted > len(names) else f"its {wanted} pods"
    return f"{number} are planned, {names[0]} to {names[-1]}"


def _asks(template: Fields, settings: Settings) -> bool:
    return bool(objects.spec_of(template).get("resourceClaims")) or names_devices(template, settings)


def _replicas(obj: Object, path: Path) -> int:
    """How many pods the template stands for: what the fields around it multiply to."""
    found = 1
    for depth in range(len(path)):
        around = at(obj, path[:depth])
        for name, value in _counts(around, str(path[depth])) if isinstance(around, Mapping) else ():
            if isinstance(value, int) and not isinstance(value, bool):
                most = around.get("completions") if name == "parallelism" else None
                found *= min(value, most) if isinstance(most, int) else value
    return max(found, 0)


def _counts(around: Fields, towards: str) -> Iterator[tuple[str, Any]]:
    yield from ((name, around[name]) for name in ("replicas", "parallelism") if name in around)
    if towards == "workerTemplate" and isinstance(around.get("size"), int):  # of a LeaderWorkerSet
        yield "size", around["size"] - ("leaderTemplate" in around)


def _labels(obj: Object, path: Path, number: int) -> dict[str, str]:
    """By which gangs know the members: what the workload's own controller puts on its pods."""
    spec = objects.spec_of(obj)
    if obj["kind"] == "Job" and spec.get("completionMode") == "Indexed":
        return {COMPLETION_INDEX: str(number)}
    if obj["kind"] == "StatefulSet":
        return {"apps.kubernetes.io/pod-index": str(number)}
    if obj["kind"] != "LeaderWorkerSet":
        return {}
    template = objects.fields(spec.get("leaderWorkerTemplate"))
    size, leads = int(template.get("size") or 1), "leaderTemplate" in template
    workers = max(size - leads, 1)
    group, index = (number, 0) if path[-1] == "leaderTemplate" else divmod(number, workers)
    own = {"name": objects.name(obj), "group-index": str(group), "size": str(size)}
    at_work = 0 if path[-1] == "leaderTemplate" else index + leads
    return {LWS + name: value for name, value in {**own, "worker-index": str(at_work)}.items()}


def _pod(obj: Fields, template: Fields, name: str, labels: Mapping[str, str]) -> Object:
    inner = objects.metadata(template)
    namespace = objects.metadata(obj).get("namespace") or inner.get("namespace") or "default"
    owner = {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj["kind"],
        "name": objects.name(obj),
        "uid": applied_uid(obj),
        "controller": True,
    }
    metadata: Object = {**inner, "name": name, "namespace": str(namespace), "ownerReferences": [owner]}
    if labels:
        metadata["labels"] = {**objects.labels_of(template), **labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
