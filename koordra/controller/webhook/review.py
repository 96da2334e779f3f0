"""AdmissionReview (admission.k8s.io/v1): the request read, the answer written."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from koordra.api.objects import Fields, Object
from koordra.api.reader import Reader
from koordra.errors import InvalidInput, InvalidManifest
from koordra.inert import inert

API_VERSION: Final = "admission.k8s.io/v1"
MOST_WARNING: Final = 256
"""Characters of one warning that clients show."""
MOST_MESSAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """One request. `object` is what would be stored, with its kind; it has nothing else for a deletion."""

    uid: str
    operation: str
    kind: str
    namespace: str
    object: Object
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class AdmissionResponse:
    """`problems` refuse, with `code` and `reason`; `object`, where given, replaces what was sent; `warnings`
    are shown to the user."""

    problems: tuple[InvalidInput, ...] = ()
    object: Object | None = None
    warnings: tuple[str, ...] = ()
    code: int = 422
    reason: str = "Invalid"


def decode(body: bytes) -> AdmissionRequest:
    """Raises InvalidManifest where the body is no review."""
    try:
        review = json.loads(body)
    except RecursionError as error:
        raise InvalidManifest("the object is nested too deeply", remedy="write it flatter") from error
    except ValueError as error:
        raise InvalidManifest("the body is not JSON", object="AdmissionReview") from error
    request = Reader(review, object="AdmissionReview").inner("request")
    obj, kind = dict(request.inner("object").data), request.inner("kind").text("kind")
    obj["kind"] = obj.get("kind") or kind
    namespace = request.text("namespace")
    if namespace and isinstance(obj.get("metadata"), Mapping) and not obj["metadata"].get("namespace"):
        # The API server fills it in later than it asks.
        obj["metadata"] = {**obj["metadata"], "namespace": namespace}
    return AdmissionRequest(
        request.required("uid"),
        request.text("operation"),
        kind,
        namespace,
        obj,
        request.flag("dryRun"),
    )


def encode(asked: AdmissionRequest, answer: AdmissionResponse) -> bytes:
    """The review that goes back."""
    response: Object = {"uid": asked.uid, "allowed": not answer.problems}
    if answer.problems:
        message = _shortened("; ".join(map(str, answer.problems)), MOST_MESSAGE)
        response["status"] = {"code": answer.code, "reason": answer.reason, "message": message}
    elif answer.object is not None and (steps := patch(asked.object, answer.object)):
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(steps, separators=(",", ":")).encode()).decode()
    if answer.warnings:
        response["warnings"] = [
            _shortened(inert(" ".join(text.split())), MOST_WARNING) for text in answer.warnings
        ]
    review = {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}
    return json.dumps(review, separators=(",", ":")).encode()


def patch(before: Fields, after: Fields, path: str = "") -> list[Object]:
    """A JSON patch from one object to the other; lists are replaced whole."""
    return sorted(_steps(before, after, path), key=lambda step: (step["path"], step["op"]))


def _steps(before: Fields, after: Fields, path: str) -> Iterator[Object]:
    """What is the very same object on both sides is not looked into: most of a pod."""
    for name in before.keys() | after.keys():
        here = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        old, value = before.get(name), after.get(name)
        if name not in after:
            yield {"op": "remove", "path": here}
        elif name not in before:
            yield {"op": "add", "path": here, "value": value}
        elif old is not value and isinstance(old, (dict, Mapping)) and isinstance(value, (dict, Mapping)):
            yield from _steps(old, value, here)
        elif old is not value and old != value:
            yield {"op": "replace", "path": here, "value": value}


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 4]} ..."
