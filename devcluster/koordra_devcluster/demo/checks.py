"""What is wrong with manifests, found before anything is started.

Every object is created in an API server's registry in memory, with the kinds, classes and definitions that
the cluster will have: what it refuses the cluster would refuse, in the same words. Then come koordra's own
rules (parameters, selectors; ResourceClasses; legacy pods), and references to claims, templates, classes and
ConfigMaps that nobody makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from koordra.api import kinds, objects
from koordra.api.classic.notes import Notes
from koordra.api.elastic.elastic_gpu import ELASTIC_CLAIMS, ELASTIC_CLASSES
from koordra.api.objects import Object
from koordra.api.pods import at, pods_in, spelled
from koordra.api.resource_class import RESOURCE_CLASSES
from koordra.cel.selectors import admission_error
from koordra.compat.detection import asks_by_annotation
from koordra.compat.manifests import LegacyPods
from koordra.controller.resource_class.expansion import with_device_classes
from koordra.controller.webhook.claims import AskedDevices
from koordra.errors import ClusterError, InvalidInput, InvalidManifest, KoordraError
from koordra.spelling import meant
from koordra_devcluster.apiserver.fields.decoding import WriteOptions
from koordra_devcluster.apiserver.resources import CONFIG_MAPS, Served
from koordra_devcluster.apiserver.server import create_first_objects
from koordra_devcluster.apiserver.status import Refusal
from koordra_devcluster.apiserver.storage.registry import Registry
from koordra_devcluster.apiserver.storage.store import Store
from koordra_devcluster.demo import manifests
from koordra_devcluster.kubelet.volumes import config_maps_of

_ASKED = (kinds.RESOURCE_CLAIMS.kind, kinds.RESOURCE_CLAIM_TEMPLATES.kind, kinds.DEVICE_CLASSES.kind)
_CLASSES = (kinds.DEVICE_CLASSES.kind, RESOURCE_CLASSES.kind, ELASTIC_CLASSES.kind)


def problems(
    documents: Sequence[Object], *, installed: Iterable[Object], gates: Iterable[str] = ()
) -> list[KoordraError]:
    """Everything that is wrong, by object. `installed`: what the cluster has before: definitions, classes."""
    registry = Registry(
        Store(None), compile_cel=partial(admission_error, list_attributes=False), gates=frozenset(gates)
    )
    create_first_objects(registry)
    before = sorted(installed, key=manifests.rank)
    for obj in before:
        if refused := _create(registry, obj):
            raise ClusterError(f"what the demo installs is refused: {refused[0]}")
    there = [*before, *documents]
    found: list[KoordraError] = []
    twice = Counter(map(_named, documents))
    for obj in sorted(documents, key=manifests.rank):
        refused = _create(registry, obj, twice=twice[_named(obj)] > 1)
        found += refused or [*_own_rules(obj), *_references(obj, there)]
    return [*found, *with_device_classes(there)[1]]


def _named(obj: Object) -> tuple[object, str, str]:
    return obj.get("kind"), objects.namespace(obj), objects.name(obj)


def _create(registry: Registry, obj: Object, *, twice: bool = False) -> list[KoordraError]:
    """Why the API server does not take the object."""
    served = manifests.served(registry.kinds.everything(), obj)
    if served is None:
        return [_unserved(registry, obj)]
    place = objects.namespace(obj) if served.kind.namespaced else ""
    try:
        registry.create(served, place, obj, WriteOptions(field_validation="Strict"))
    except Refusal as refusal:
        return _refusals(served, obj, refusal, twice=twice)
    return []


def _refusals(served: Served, obj: Object, refusal: Refusal, *, twice: bool) -> list[KoordraError]:
    """One for each broken rule, where the server names fields."""
    causes = (refusal.details or {}).get("causes") or ()
    if causes:
        return [
            InvalidManifest(str(cause["message"]), object=objects.describe(obj), field=str(cause["field"]))
            for cause in causes
        ]
    remedy = ""
    if refusal.reason == "NotFound" and served.kind.namespaced:
        remedy = "put a Namespace of that name into the file"
    if refusal.reason == "AlreadyExists":
        remedy = "every cluster of the demo has it; take it out, or give yours another name"
        if twice:
            remedy = "the manifests have it twice; take one out, or give it another name"
    return [InvalidManifest(refusal.message, object=objects.describe(obj), remedy=remedy)]


def _unserved(registry: Registry, obj: Object) -> KoordraError:
    told = f"{obj.get('apiVersion')} {obj.get('kind')}"
    known = [f"{one.kind.api_version} {one.kind.kind}" for one in registry.kinds.everything()]
    same = [one for one in known if one.rpartition(" ")[2] == obj.get("kind")]
    near = same or ([found] if (found := meant(told, known)) else [])
    remedy = "put its CustomResourceDefinition into the file, or take the object out"
    if near:
        remedy = f"write {' or '.join(near)}"
    if str(obj.get("apiVersion")).startswith(f"{kinds.RESOURCE_GROUP}/v1alpha") and same:
        remedy = f"koordra convert -f FILE translates what classic DRA said; or {remedy}"
    return InvalidManifest(
        f"the demo serves no {told}", object=objects.describe(obj), field="kind", remedy=remedy
    )


def _own_rules(obj: Object) -> Iterator[KoordraError]:
    """What koordra's webhooks would say."""
    if obj.get("kind") in _ASKED:
        yield from AskedDevices.of(obj).problems()
    legacy = LegacyPods()
    # An ElasticGPUClaim is looked up in the cluster; that it is there is a reference's matter.
    by_claim = any(asks_by_annotation(objects.annotations_of(at(obj, path))) for path in pods_in(obj))
    if legacy.handles(obj) and not by_claim:
        try:
            legacy.translate(obj, Notes.about(obj))
        except InvalidInput as error:
            yield error


def _references(obj: Object, there: Sequence[Object]) -> Iterator[KoordraError]:
    """Claims, templates and classes that the object names and nobody makes."""
    what = objects.describe(obj)
    for path in pods_in(obj):
        pod = at(obj, path)
        elastic = _names(there, (ELASTIC_CLAIMS.kind,), objects.namespace(obj))
        for key, name in objects.annotations_of(pod).items():
            if asks_by_annotation((key,)):
                field = f"{spelled(path)}metadata.annotations[{key}]"
                yield from _absent(name, elastic, ELASTIC_CLAIMS.kind, object=what, field=field)
        maps = _names(there, (CONFIG_MAPS.kind,), objects.namespace(obj))
        for number, volume in enumerate((pod.get("spec") or {}).get("volumes") or ()):
            for name in config_maps_of(volume):
                field = f"{spelled(path)}spec.volumes[{number}]"
                yield from _absent(name, maps, CONFIG_MAPS.kind, object=what, field=field)
        for number, entry in enumerate((pod.get("spec") or {}).get("resourceClaims") or ()):
            field = f"{spelled(path)}spec.resourceClaims[{number}]"
            for name, wanted in (
                ("resourceClaimName", (kinds.RESOURCE_CLAIMS.kind, ELASTIC_CLAIMS.kind)),
                ("resourceClaimTemplateName", (kinds.RESOURCE_CLAIM_TEMPLATES.kind,)),
            ):
                if entry.get(name):
                    known = _names(there, wanted, objects.namespace(obj))
                    yield from _absent(
                        str(entry[name]), known, wanted[0], object=what, field=f"{field}.{name}"
                    )
    if obj.get("kind") in _ASKED[:2]:
        known = _names(there, _CLASSES, None)
        for field, body in _requests(obj):
            name = str(body.get("deviceClassName") or "")
            yield from _absent(name, known, "DeviceClass", object=what, field=f"{field}.deviceClassName")


def _names(there: Sequence[Object], wanted: Sequence[str], namespace: str | None) -> list[str]:
    return [
        objects.name(one)
        for one in there
        if one.get("kind") in wanted and namespace in (None, objects.namespace(one))
    ]


def _absent(name: str, known: Sequence[str], kind: str, *, object: str, field: str) -> Iterator[KoordraError]:
    if not name or name in known:
        return
    listed = ", ".join(sorted(set(known))) or "none"
    near = meant(name, known)
    remedy = f"write {near}" if near else f"add it to the file, or name one that is there: {listed}"
    yield InvalidManifest(f"there is no {kind} {name}", object=object, field=field, remedy=remedy)


def _requests(obj: Object) -> Iterator[tuple[str, Mapping[str, object]]]:
    """(field, body) of each request and of each of its alternatives."""
    spec, field = objects.spec_of(obj), "spec"
    if obj.get("kind") == kinds.RESOURCE_CLAIM_TEMPLATES.kind:
        spec, field = spec.get("spec") or {}, "spec.spec"
    for number, request in enumerate((spec.get("devices") or {}).get("requests") or ()):
        where = f"{field}.devices.requests[{number}]"
        if request.get("exactly"):
            yield f"{where}.exactly", request["exactly"]
        for index, body in enumerate(request.get("firstAvailable") or ()):
            yield f"{where}.firstAvailable[{index}]", body
