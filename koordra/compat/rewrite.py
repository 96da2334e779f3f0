"""A legacy pod becomes one that refers to a claim: what `koordra convert` and the webhook share. Pure.

    pod ──> signs: which dialect ──> the dialect's normalized ──> claim spec ──> ResourceClaimTemplate, named after its content
                                                              └──> pod: resourceClaims, containers' claims; legacy names out

In the pod nothing changes but this: legacy resources leave limits and requests, containers that asked get `resources.claims`,
`spec.resourceClaims` gets one entry; annotations that only a scheduler may write are taken out, and so is the name of a
scheduler that was the dialect's own, or that the settings say is gone; runtime classes likewise. What the user wrote stays, also annotations that were understood: they ask nobody any more.

A template's name is a digest of its spec, so that equal pods share one, and other content has another name. A pod that asks for
nothing is returned as it is, which makes a second pass change nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordra.api import names
from koordra.api.classic.notes import Notes
from koordra.api.objects import Object
from koordra.api.opaque.parameters import NO_EFFECT
from koordra.api.pods import containers, resource_names, with_containers
from koordra.compat import detection
from koordra.compat.claims import Asked, asked_by
from koordra.compat.dialect import Dialect, PodView, tell_environment
from koordra.compat.dialect.containers import Container, containers_of, without
from koordra.compat.dialect.vocabulary import Place
from koordra.compat.dialects import DIALECTS
from koordra.compat.foreign_names import foreign, is_like_one, strange, tell_annotations, tell_resources
from koordra.compat.normalized_request import NormalizedRequest, Phase, Together
from koordra.compat.settings import Settings

ENTRY: Final = "koordra-devices"
"""Name of the pod's entry in spec.resourceClaims; with a number where the pod has one of that name."""
VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
DIALECT_LABEL: Final = names.DOMAIN + "dialect"
"""Label on a template and on the claims made from it: the dialect of the pods that it serves. The node reads it there, and
gives containers the variables that the dialect's plugin used to set."""
UNIT: Final = names.DOMAIN + "memory-unit"
"""Annotation on such claims: the bytes of one unit of the dialect's memory, where that is a setting."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """`pod` as it should be; `template` is None (and `pod` the very same) where nothing was asked for.

    `explained` has a line for every container, `entry` is the name in the pod's spec.resourceClaims.
    """

    pod: Object
    template: Object | None = None
    dialect: str = ""
    explained: tuple[str, ...] = ()
    entry: str = ""
    normalized: NormalizedRequest | None = field(default=None, compare=False)


def speaks(pod: Mapping[str, Any], settings: Settings) -> bool:
    """Whether some container asks for a device under a name that a dialect or another vendor has, or one like it. Cheap."""
    return speaks_a_dialect(pod, settings) or any(
        bool(foreign([name])) or strange(name, DIALECTS, settings)
        for container in containers(pod)
        for name in resource_names(container)
    )


def speaks_a_dialect(pod: Mapping[str, Any], settings: Settings) -> bool:
    """Whether some container asks under a name that a dialect has; names of other vendors and misspelt ones do not count."""
    return detection.asks_by_annotation(_texts(pod, "annotations"), DIALECTS) or any(
        detection.has_resource(dialect, name, settings)
        for container in containers(pod)
        for name in resource_names(container)
        for dialect in DIALECTS
    )


def rewrite(
    pod: Object, settings: Settings, notes: Notes, *, namespace: str | None = None, where: str = ""
) -> Rewritten:
    """The pod, or pod template, in koordra's words. `where` is its field in the object that holds it, ending in a dot.

    Raises Refused for what cannot be honoured; what is lost otherwise is a warning in `notes`.
    """
    view = view_of(pod, notes, where=where)
    others = foreign([name for container in view.containers for name in container.resources()])
    if others:
        name, vendor = others[0]
        asking = next(container for container in view.containers if name in container.resources())
        raise notes.refuse(
            asking.field(name),
            f"is of another vendor ({vendor}); koordra serves NVIDIA GPUs and RDMA NICs",
            "leave this pod to that vendor's device plugin and scheduler",
        )
    tell_resources(view, DIALECTS, settings, notes)
    if not detection.asks(view, DIALECTS, settings):
        return Rewritten(pod)
    for each in DIALECTS:
        if each.opt_out is not None and view.labels.get(each.opt_out[0]) == each.opt_out[1]:
            (key, word), title = each.opt_out, each.vocabulary.title
            notes.warn(
                f"{view.meta}.labels[{key}]", f"{word}: the pod is left as it is, as {title} leaves it"
            )
            return Rewritten(pod)
    dialect = detection.dialect_of(view, DIALECTS, settings, notes)
    normalized = dialect.parse(view, settings, notes)
    if not normalized.shares and normalized.nics is None:
        return Rewritten(pod)
    tell_annotations(view, DIALECTS, notes)
    tell_environment(view, normalized, dialect.vocabulary, notes)
    _tell_pod(view, normalized, dialect, settings, notes)
    fields = {container.name: container.where for container in view.containers}
    asked = asked_by(normalized, where=fields, pod=view.where, notes=notes)
    template = template_of(asked.spec, dialect, namespace=namespace, settings=settings)
    entry = _free_entry(view, notes)
    refers: Object = {"name": entry, "resourceClaimTemplateName": template["metadata"]["name"]}
    return Rewritten(
        _with_claims(pod, view, asked, normalized, refers=refers, settings=settings),
        template,
        normalized.dialect,
        _explained(view, asked, normalized),
        entry,
        normalized,
    )


def view_of(pod: Object, notes: Notes, *, where: str = "") -> PodView:
    spec = pod.get("spec")
    if not isinstance(spec, (dict, Mapping)):
        raise notes.refuse(f"{where}spec", "is not an object", "write containers")
    metadata = pod.get("metadata")
    for kind in ("annotations", "labels"):
        found = metadata.get(kind) if isinstance(metadata, (dict, Mapping)) else None
        if found is not None and not isinstance(found, (dict, Mapping)):
            raise notes.refuse(f"{where}metadata.{kind}", "is not an object", "write names and texts")
        for key, value in (found or {}).items():
            if not isinstance(value, str):
                raise notes.refuse(
                    f"{where}metadata.{kind}[{key}]", f"{value!r} is not a text", "put it in quotes"
                )
    return PodView(
        containers=containers_of(spec, where=f"{where}spec", notes=notes),
        annotations=_texts(pod, "annotations"),
        labels=_texts(pod, "labels"),
        spec=spec,
        where=f"{where}spec",
        meta=f"{where}metadata",
    )


def is_read(key: str) -> bool:
    """Whether an annotation or label of that name may say something to the rewriting."""
    return is_like_one(key, DIALECTS) or any(
        dialect.vocabulary.covering(key, place)
        for dialect in DIALECTS
        for place in (Place.ANNOTATION, Place.LABEL)
    )


def _texts(pod: Mapping[str, Any], name: str) -> dict[str, str]:
    metadata = pod.get("metadata")
    found = metadata.get(name) if isinstance(metadata, (dict, Mapping)) else None
    return (
        {str(key): str(value) for key, value in found.items()} if isinstance(found, (dict, Mapping)) else {}
    )


def template_of(spec: Object, dialect: Dialect, *, namespace: str | None, settings: Settings) -> Object:
    """The template of a claim spec, named after what it says."""
    metadata: Object = {"name": template_name(dialect.name, spec)}
    if namespace:
        metadata["namespace"] = namespace
    metadata["labels"] = {DIALECT_LABEL: dialect.name}
    inner: Object = {"labels": {DIALECT_LABEL: dialect.name}}
    if dialect.memory_unit is not None:
        inner["annotations"] = {UNIT: str(dialect.memory_unit(settings))}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": {"metadata": inner, "spec": spec},
    }


def template_name(dialect: str, spec: Mapping[str, Any]) -> str:
    """Equal specs have one name, other content another: 128 bits, since users write parts of a spec, and could look for two
    specs of one shorter digest."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return f"koordra-{dialect}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _tell_pod(
    view: PodView, normalized: NormalizedRequest, dialect: Dialect, settings: Settings, notes: Notes
) -> None:
    """What else in the pod will not do what it did."""
    asking = {share.container for share in normalized.shares} | set(normalized.users)
    told = dialect.vocabulary.covering(VISIBLE, Place.ENVIRONMENT)
    for container in view.containers:
        if container.name in asking and container.privileged:
            notes.warn(
                f"{container.where}.securityContext.privileged",
                "a privileged container sees every device of the node, whatever it was given",
                "take it out",
            )
        if container.name in asking and VISIBLE in container.environment() and not told:
            notes.warn(
                container.where, f"sets {VISIBLE}; it sees what its claim was given, whatever that says"
            )
    for share in normalized.shares:
        for name, value in (("coresPolicy", share.cores_policy), ("priority", share.priority)):
            if value is not None and not share.partition:
                notes.warn(f"{view.where}: {share.phase} {share.container}", f"{name} {NO_EFFECT[name]}")
    if view.spec.get("nodeName"):
        notes.warn(
            f"{view.where}.nodeName",
            "goes past the scheduler, and with it past the claim's allocation",
            "write a nodeSelector on kubernetes.io/hostname",
        )
    for key in sorted(_results(view)):
        notes.warn(view.field(key), "is taken out: allocations are never believed from a manifest")
    runtime = view.spec.get("runtimeClassName")
    if runtime in (settings.runtime_classes or ()):
        notes.warn(f"{view.where}.runtimeClassName", f"{runtime} is taken out: devices come with the claim")
    called = view.spec.get("schedulerName")
    if called in _gone(settings):
        notes.warn(f"{view.where}.schedulerName", f"{called} is taken out: kube-scheduler places the pod")
    elif any(called in each.schedulers for each in DIALECTS):
        notes.warn(
            f"{view.where}.schedulerName",
            f"{called} stays, and has to honour ResourceClaims",
            "take it out for kube-scheduler",
        )


def _gone(settings: Settings) -> tuple[str, ...]:
    """Names of schedulers that are taken out of pods."""
    if settings.schedulers is not None:
        return settings.schedulers
    return tuple(name for dialect in DIALECTS for name, always in dialect.schedulers.items() if always)


def _results(view: PodView) -> frozenset[str]:
    """Annotations that only some scheduler may write."""
    return frozenset(
        key for dialect in DIALECTS for key in dialect.vocabulary.results(list(view.annotations))
    )


def _free_entry(view: PodView, notes: Notes) -> str:
    entries = view.spec.get("resourceClaims") or []
    if not isinstance(entries, list):
        raise notes.refuse(
            f"{view.where}.resourceClaims", "is not a list", "write a list of names and templates"
        )
    return _free_name({str(known.get("name")) for known in entries if isinstance(known, (dict, Mapping))})


def _with_claims(
    pod: Object,
    view: PodView,
    asked: Asked,
    normalized: NormalizedRequest,
    *,
    refers: Object,
    settings: Settings,
) -> Object:
    spec = with_containers(pod["spec"], lambda raw: _container(raw, asked, normalized, str(refers["name"])))
    spec["resourceClaims"] = [*(spec.get("resourceClaims") or ()), refers]
    if spec.get("schedulerName") in _gone(settings):
        del spec["schedulerName"]
    if spec.get("runtimeClassName") in (settings.runtime_classes or ()):
        del spec["runtimeClassName"]
        spec.pop("overhead", None)  # the class's; the API server refuses it without the class
    changed: Object = {**pod, "spec": spec}
    written = _results(view)
    if written:
        annotations = pod["metadata"]["annotations"]
        kept = {key: value for key, value in annotations.items() if key not in written}
        metadata = {key: value for key, value in pod["metadata"].items() if key != "annotations"}
        changed["metadata"] = {**metadata, "annotations": kept} if kept else metadata
    return changed


def _free_name(taken: set[str]) -> str:
    number, name = 1, ENTRY
    while name in taken:
        number += 1
        name = f"{ENTRY}-{number}"
    return name


def _container(raw: Object, asked: Asked, normalized: NormalizedRequest, entry: str) -> Object:
    requests = asked.used.get(str(raw.get("name") or ""), ())
    found = {name for name in resource_names(raw) if name in normalized.names}
    if not requests and not found:
        return raw
    changed = without(raw, frozenset(found))
    resources = changed["resources"]
    if requests:
        claims = [*(resources.get("claims") or []), *({"name": entry, "request": name} for name in requests)]
        resources = {**resources, "claims": claims}
    if resources:
        return {**changed, "resources": resources}
    return {key: value for key, value in changed.items() if key != "resources"}


def _explained(view: PodView, asked: Asked, normalized: NormalizedRequest) -> tuple[str, ...]:
    return tuple(_line(container, asked, normalized) for container in view.containers)


def _line(container: Container, asked: Asked, normalized: NormalizedRequest) -> str:
    called = f"{container.phase} {container.name}"
    used = asked.used.get(container.name, ())
    if not used:
        return f"{called}: asks for no device"
    own = [str(share) for share in normalized.shares if share.container == container.name]
    if normalized.together is Together.POD:
        own = [
            *(str(share) for share in normalized.shares),
            *([str(normalized.nics)] if normalized.nics else []),
        ]
    asks = "; ".join(own)
    how = {
        Together.POD: ", seen by all containers of the pod",
        Together.ONE_CARD: ", on one card with the pod's other containers",
        Together.PER_CONTAINER: "",
    }[normalized.together]
    plural = "request" if len(used) == 1 else "requests"
    reused = ", used before the containers need it" if container.phase is Phase.INIT else ""
    return f"{called}: {normalized.dialect}: {asks}{how}; {plural} {', '.join(used)}{reused}"
