"""One pod of every workload that stands in a file and that no cluster runs yet, for what-if questions.

A Deployment in a file is a promise of pods. Its first replica is planned, under the name `<kind>-<name>`: `deployment-web`. An
object that an API server has stored (it has a uid) is left out, since its pods are among the objects too; so is a pod template
without claims, which asks nothing of koordra, and a workload of no replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Manifest = Mapping[str, Any]


def with_workload_pods(manifests: Sequence[Manifest]) -> tuple[list[Manifest], list[str]]:
    """The objects with a pod of each workload and its claims, and a line for each that tells so."""
    from koordra.allocator.request.templates import with_template_claims
    from koordra.cli.manifests.files import in_shape

    made: list[Manifest] = []
    told: list[str] = []
    for obj in manifests:
        if obj["metadata"].get("uid") or obj["kind"] == "Pod":
            continue
        for number, pod in enumerate(_pods(obj)):
            name, who = _called(obj, number), f"{obj['kind']} {obj['metadata'].get('name') or ''}".rstrip()
            metadata = {**pod["metadata"], "name": name, "namespace": _namespace(obj, pod)}
            made.append(in_shape({**pod, "metadata": metadata}, where=f"{who}: pod template"))
            told.append(f"{who}: one of its pods is planned, {name}")
    templates = [entry for entry in manifests if entry.get("kind") == "ResourceClaimTemplate"]
    with_claims = with_template_claims([*templates, *made])
    return [*manifests, *with_claims[len(templates) :]], told


def _pods(obj: Manifest) -> Iterator[Manifest]:
    from koordra.compat.manifests import at, pods_in

    spec = obj.get("spec")
    if isinstance(spec, Mapping) and spec.get("replicas") == 0:
        return
    for path in pods_in(dict(obj)):
        template = at(dict(obj), path)
        if template["spec"].get("resourceClaims"):
            metadata = template.get("metadata")
            yield {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata if isinstance(metadata, Mapping) else {},
                "spec": template["spec"],
            }


def _called(obj: Manifest, number: int) -> str:
    name = f"{obj['kind']}-{obj['metadata'].get('name') or obj['metadata'].get('generateName', '').rstrip('-')}".lower()
    return f"{name}-{number + 1}" if number else name


def _namespace(obj: Manifest, pod: Manifest) -> str:
    return str(obj["metadata"].get("namespace") or pod["metadata"].get("namespace") or "default")
