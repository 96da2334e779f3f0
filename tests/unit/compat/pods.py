"""Legacy pods for tests, and what became of them in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordra.api.classic.convert import Conversion, convert
from koordra.compat.manifests import LegacyPods
from koordra.compat.settings import Settings

Dict = dict[str, Any]


def container(name: str = "a", *, sides: tuple[str, ...] = ("limits",), **more: Any) -> Dict:
    """`ask` are the resources; the rest goes into the container as it is."""
    ask = more.pop("ask", {})
    made: Dict = {"name": name, "image": "registry.example/app:1", **more}
    if ask:
        made["resources"] = {side: dict(ask) for side in sides}
    return made


def pod(
    *containers: Dict,
    init: tuple[Dict, ...] = (),
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Dict:
    metadata: Dict = {"name": "p", "namespace": "team"}
    if annotations:
        metadata["annotations"] = dict(annotations)
    if labels:
        metadata["labels"] = dict(labels)
    body: Dict = {**spec, "containers": list(containers)}
    if init:
        body["initContainers"] = list(init)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def asking(ask: Mapping[str, Any], **more: Any) -> Dict:
    """A pod of one container."""
    return pod(container(ask=ask), **more)


def converted(*manifests: Dict, settings: Settings | None = None) -> Conversion:
    return convert(list(manifests), translators=[LegacyPods(settings or Settings())])


def refusal(manifest: Dict, *, settings: Settings | None = None) -> str:
    """The one refusal of an object that has to be refused."""
    conversion = converted(manifest, settings=settings)
    assert not conversion.objects, "it was not refused"
    assert len(conversion.refused) == 1
    note = conversion.refused[0]
    assert note.object
    assert note.field
    return str(note)


def warnings(manifest: Dict, *, settings: Settings | None = None) -> list[str]:
    conversion = converted(manifest, settings=settings)
    assert not conversion.refused
    return [str(note) for note in conversion.notes]


def template(manifest: Dict, *, settings: Settings | None = None) -> Dict:
    conversion = converted(manifest, settings=settings)
    assert not conversion.refused, conversion.refused
    found = [obj for obj in conversion.objects if obj["kind"] == "ResourceClaimTemplate"]
    assert len(found) == 1
    return found[0]


def spec_of(manifest: Dict, *, settings: Settings | None = None) -> Dict:
    devices: Dict = template(manifest, settings=settings)["spec"]["spec"]["devices"]
    return devices


def words(manifest: Dict, *, settings: Settings | None = None) -> list[str]:
    """The claim in lines: requests, constraints, configuration; then the containers with the requests they
    use."""
    devices = spec_of(manifest, settings=settings)
    lines = [_request(entry) for entry in devices["requests"]]
    for entry in devices.get("constraints", ()):
        kind = "distinct" if "distinctAttribute" in entry else "match"
        attribute = entry.get("distinctAttribute") or entry["matchAttribute"]
        lines.append(f"{kind} {attribute}: {' '.join(entry['requests'])}")
    lines += [_config(entry) for entry in devices.get("config", ())]
    return lines


def _request(entry: Dict) -> str:
    if "firstAvailable" in entry:
        inner = ", ".join(_body(alternative) for alternative in entry["firstAvailable"])
        return f"{entry['name']}: first of {inner}"
    return f"{entry['name']}: {_body(entry['exactly'])}"


def _body(body: Dict) -> str:
    kind = body["deviceClassName"].removesuffix(".koordra.io")
    number = body.get("count", body.get("allocationMode"))
    capacity = body.get("capacity", {}).get("requests", {})
    amounts = "".join(f" {name} {amount}" for name, amount in capacity.items())
    selected = "".join(f" if {entry['cel']['expression']}" for entry in body.get("selectors", ()))
    return f"{number} {kind}{amounts}{selected}"


def _config(entry: Dict) -> str:
    assert entry["opaque"]["driver"] == "koordra.io"
    parameters = entry["opaque"]["parameters"]
    fields = " ".join(
        f"{name}={value}" for name, value in parameters.items() if name not in ("apiVersion", "kind")
    )
    about = f"{' '.join(entry['requests'])}: " if "requests" in entry else ""
    return f"{about}{parameters['kind']} {fields}"


def users(manifest: Dict, *, settings: Settings | None = None) -> dict[str, list[str]]:
    """Container -> the requests it uses, of those that use any."""
    found = converted(manifest, settings=settings).objects[0]
    spec = found["spec"]
    return {
        entry["name"]: [claim["request"] for claim in entry["resources"]["claims"]]
        for entry in (*spec.get("initContainers", ()), *spec["containers"])
        if entry.get("resources", {}).get("claims")
    }
