"""The demo's manifests: read strictly, applied in an order that works, refusals kept with the object they
belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import koordra
from koordra.api import objects
from koordra.api.objects import Object
from koordra.errors import ApiError, ApiUnreachable, Conflict, InvalidManifest
from koordra.kube.client import KubeClient
from koordra.yaml_text import read_yaml
from koordra_devcluster.apiserver.resources import CRDS, SERVED, Served
from koordra_devcluster.apiserver.storage.custom import of_definition

EXAMPLES = ("eight-gpus-eight-nics", "two-gpus-two-nics", "gpu-share-with-nic", "does-not-fit")
"""What the demo shows where nobody says what: all of them on two nodes."""

_FIRST = (
    "Namespace",
    "CustomResourceDefinition",
    "ResourceClassParameters",
    "ResourceClass",
    "ElasticGPUClass",
    "DeviceClass",
    "DeviceTaintRule",
    "Reservation",
    "PriorityClass",
    "ConfigMap",
    "Service",
    "ResourceClaimTemplate",
    "ResourceClaim",
    "ElasticGPUClaim",
    "NetworkAttachmentDefinition",
)


_WEBHOOK_AWAY = "failed calling webhook"
"""In the server's words where a webhook does not answer: it is started again, as the API server is."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An object that the API server did not take, and its words."""

    manifest: Object
    message: str


def deploy_folder() -> Path:
    """Where the shipped manifests are: inside an installed package, or beside it in a checkout."""
    package = Path(koordra.__file__).parent
    installed = package / "_deploy"
    return installed if installed.is_dir() else package.parent / "deploy"


def shipped(folder: Path) -> list[Object]:
    """The examples the demo applies when it is given no file."""
    return [document for name in EXAMPLES for document in read(folder / "examples" / name / f"{name}.yaml")]


def device_classes(folder: Path) -> list[Object]:
    """koordra's DeviceClasses, which every cluster with koordra has."""
    return list(read(folder / "kustomize" / "base" / "deviceclasses.yaml"))


def read(path: Path) -> Iterator[Object]:
    """Every object of a YAML or JSON file, Lists taken apart. Raises InvalidManifest naming file and
    place."""
    try:
        text = path.read_text()
    except OSError as error:
        remedy = (
            "name the files in it, each with a -f of its own" if isinstance(error, IsADirectoryError) else ""
        )
        raise InvalidManifest(f"cannot be read: {error.strerror}", object=str(path), remedy=remedy) from error
    except UnicodeDecodeError as error:
        raise InvalidManifest(f"is not YAML: {error}", object=str(path)) from error
    documents = read_yaml(text, source=str(path))
    for number, document in enumerate(documents, start=1):
        if document is not None:
            where = f"{path} document {number}"
            if not _only_text_keys(document):
                raise InvalidManifest(
                    "has a key that is not text", object=where, remedy="put the key in quotes"
                )
            yield from _objects(document, where=where)


def _only_text_keys(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _only_text_keys(item) for key, item in value.items())
    return all(_only_text_keys(item) for item in value) if isinstance(value, list) else True


def _objects(document: object, *, where: str) -> Iterator[Object]:
    if not isinstance(document, dict):
        raise InvalidManifest("is not an object", object=where, remedy="write apiVersion, kind and metadata")
    if document.get("kind") == "List" and isinstance(document.get("items"), list):
        for number, item in enumerate(document["items"]):
            yield from _objects(item, where=f"{where} items[{number}]")
        return
    if not isinstance(document.get("metadata"), dict):
        raise InvalidManifest("has no metadata", object=where, field="metadata", remedy="give it a name")
    yield document


def all_served(installed: Iterable[Object]) -> tuple[Served, ...]:
    """The kinds of a cluster in which these objects are: built-in ones, and those of the definitions."""
    return (
        *SERVED,
        *(one for obj in installed if obj.get("kind") == CRDS.kind for one in of_definition(obj)),
    )


def served(everything: Iterable[Served], manifest: Object) -> Served | None:
    """What an object's apiVersion and kind name, None where nothing of them is served."""
    told = str(manifest.get("apiVersion")), str(manifest.get("kind"))
    return next((one for one in everything if (one.kind.api_version, one.kind.kind) == told), None)


def rank(manifest: Object) -> int:
    """What others refer to goes first."""
    kind = manifest.get("kind")
    return _FIRST.index(kind) if kind in _FIRST else len(_FIRST)


def apply(
    client: KubeClient,
    manifests: Sequence[Object],
    *,
    rest: Callable[[], object],
    installed: Sequence[Object] = (),
) -> list[Refused]:
    """Create every object; what the server refuses is returned, and does not stop the others.

    What pods refer to goes first. While the server is away `rest` is called and the same object is tried
    again; `rest` raises to end that. `installed` are definitions of kinds that are there already.
    """
    refused = []
    everything = all_served([*installed, *manifests])
    for manifest in sorted(manifests, key=rank):
        message = _create(client, manifest, everything, rest=rest)
        if message is not None:
            refused.append(Refused(manifest, f"{objects.describe(manifest)} was refused: {message}"))
    return refused


def _create(
    client: KubeClient, manifest: Object, everything: Sequence[Served], *, rest: Callable[[], object]
) -> str | None:
    """The server's reason for not taking it. An object whose creation went unanswered may be there
    already."""
    found = served(everything, manifest)
    if found is None:
        return f"the demo's API server serves no {manifest.get('apiVersion')} {manifest.get('kind')}"
    unanswered = False
    while True:
        try:
            client.create(found.kind, manifest, strict=True)
        except ApiUnreachable:
            unanswered = True
            rest()
        except ApiError as error:
            if _WEBHOOK_AWAY in error.message:
                rest()
                continue
            taken = unanswered and isinstance(error, Conflict) and error.reason == "AlreadyExists"
            return None if taken else error.message
        else:
            return None
