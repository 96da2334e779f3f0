"""Pods in manifests: where an object holds them, their containers, and what these request. Pure.

A Pod is one; a workload carries pod templates: at `spec.template` (Deployment, StatefulSet, DaemonSet,
ReplicaSet, Job), deeper (CronJob), or several of them (a Volcano Job's tasks, a training operator's replica
specs, a JobSet). Wherever a field inside an object holds a `spec` with a list of containers, that is a pod
template; nothing needs a list of kinds.

What users write may have any shape: a part of another type than it should have is read as absent, and stays
where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from koordra.api.objects import Fields, Object

Path = tuple[str | int, ...]
CONTAINER_LISTS: Final = ("initContainers", "containers")
SIDES: Final = ("limits", "requests")


def pods_in(obj: Object) -> list[Path]:
    """Where the pods are: `()` for a Pod, paths to pod templates otherwise."""
    if obj.get("kind") == "Pod" and obj.get("apiVersion", "v1") == "v1":
        return [()]
    return list(_templates(obj, (), depth=0))


def _templates(value: Any, path: Path, *, depth: int) -> Iterator[Path]:
    if depth > 12:
        return
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if key in ("metadata", "status"):
                continue
            if _is_pod(entry):
                yield (*path, str(key))
            else:
                yield from _templates(entry, (*path, str(key)), depth=depth + 1)
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _templates(entry, (*path, index), depth=depth + 1)


def _is_pod(value: Any) -> bool:
    spec = value.get("spec") if isinstance(value, Mapping) else None
    return isinstance(spec, Mapping) and isinstance(spec.get("containers"), list)


def at(obj: Object, path: Path) -> Any:
    """What stands at the path, None for a field that is absent."""
    found: Any = obj
    for part in path:
        found = found.get(part) if isinstance(found, Mapping) else found[part]
    return found


def replaced(value: Any, path: Path, new: Any) -> Any:
    """A copy with another value at the path; everything else is the very same."""
    if not path:
        return new
    if isinstance(value, list):
        return [
            replaced(entry, path[1:], new) if index == path[0] else entry for index, entry in enumerate(value)
        ]
    return {key: replaced(entry, path[1:], new) if key == path[0] else entry for key, entry in value.items()}


def spelled(path: Path) -> str:
    """`spec.tasks[0].template.`, ready for a field's name; "" for a Pod."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return f"{text}." if text else ""


def containers(pod: Fields) -> Iterator[Fields]:
    """Init containers, then the others."""
    spec = pod.get("spec")
    for group in CONTAINER_LISTS:
        listed = spec.get(group) if isinstance(spec, (dict, Mapping)) else None
        if isinstance(listed, list):
            yield from (raw for raw in listed if isinstance(raw, (dict, Mapping)))


def with_containers(spec: Fields, change: Callable[[Object], Object]) -> Object:
    changed = {
        group: [change(raw) if isinstance(raw, dict) else raw for raw in spec[group]]
        for group in CONTAINER_LISTS
        if isinstance(spec.get(group), list)
    }
    return {**spec, **changed}


def amounts(container: Fields, side: str) -> Fields:
    """The `limits` or `requests` of a container, by resource."""
    resources = container.get("resources")
    found = resources.get(side) if isinstance(resources, (dict, Mapping)) else None
    return found if isinstance(found, (dict, Mapping)) else {}


def resource_names(container: Fields) -> list[str]:
    """Every name in limits and requests, each once."""
    return [str(name) for name in dict.fromkeys(name for side in SIDES for name in amounts(container, side))]
