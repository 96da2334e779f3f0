"""Placeholders: pods that stand for new nodes, which an autoscaler is asked for (controller/autoscale). They
have no claims; who plans for others counts them as what they are until they go."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from koordra.api import names, objects
from koordra.api.objects import Fields

NAMESPACE: Final = "koordra-autoscale"
GROUP: Final = names.DOMAIN + "node-group"
"""Label of a placeholder."""
ASKED_FOR: Final = names.DOMAIN + "asked-for"
"""Annotation of a placeholder: the claims, by key, that its node is to serve; the first of many."""


class Stage(StrEnum):
    """How far an ask is."""

    ASKED = "asked"
    CAME = "came"
    DONE = "done"
    EXPIRED = "expired"
    MISFIT = "misfit"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Ask:
    """One node that is asked for. `node`: where the placeholder is; `claims`: whom it is for."""

    name: str
    uid: str
    group: str
    created: datetime
    node: str
    claims: tuple[str, ...]
    has_ended: bool


def ask_of(pod: Fields) -> Ask:
    return Ask(
        objects.name(pod),
        objects.uid(pod),
        objects.labels_of(pod).get(GROUP, ""),
        created(pod),
        str(objects.spec_of(pod).get("nodeName") or ""),
        tuple(filter(None, objects.annotations_of(pod).get(ASKED_FOR, "").split(","))),
        objects.pod_is_finished(pod) or objects.is_deleting(pod),
    )


def is_ask(key: str) -> bool:
    """By the key of a pod."""
    return key.startswith(f"{NAMESPACE}/")


def created(obj: Fields) -> datetime:
    return datetime.fromisoformat(str(objects.metadata(obj)["creationTimestamp"]))
