"""A claim and a pod, in the words of `koordra explain`."""

from __future__ import annotations

from typing import Final

from koordra.api.objects import Fields
from koordra.cli.cluster.claim_text import claim_text
from koordra.cli.cluster.dashboard.markup import Html, joined, link, page, tag, words_of
from koordra.cli.cluster.dashboard.snapshot import Snapshot
from koordra.cli.cluster.object_text import pod_text
from koordra.controller.explain.question import Question, Subject

ROOT: Final = "../../"


def claim_page(snapshot: Snapshot, namespace: str, name: str) -> bytes:
    """Raises NotFound."""
    found = snapshot.answer(Question(Subject.CLAIM, namespace, name))
    return page(
        f"Claim {namespace}/{name}",
        _places((("node", _node(found["node"])), ("pods", _pods(namespace, found)))),
        words_of(claim_text(found, wide=True)),
        root=ROOT,
        at="",
        moment=snapshot.at,
    )


def pod_page(snapshot: Snapshot, namespace: str, name: str) -> bytes:
    """Raises NotFound."""
    found = snapshot.answer(Question(Subject.POD, namespace, name))
    claims = joined(
        (link(ROOT, one["name"], "claim", one["namespace"], one["name"]) for one in found["claims"]), ", "
    )
    gang = link(ROOT, found["gang"], "gang", *str(found["gang"]).split("/", 1)) if found["gang"] else ""
    return page(
        f"Pod {namespace}/{name}",
        _places((("node", _node(found["node"])), ("claims", claims), ("gang", gang))),
        words_of(pod_text(found, wide=True)),
        root=ROOT,
        at="",
        moment=snapshot.at,
    )


def _node(name: str | None) -> object:
    return link(ROOT, name, "node", name) if name else ""


def _pods(namespace: str, found: Fields) -> Html:
    return joined((link(ROOT, pod, "pod", namespace, pod) for pod in found["pods"][:20]), ", ")


def _places(several: tuple[tuple[str, object], ...]) -> Html:
    told = [joined((f"{word} ", where)) for word, where in several if where]
    return tag("p", joined(told, "; ")) if told else Html("")
