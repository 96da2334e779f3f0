"""What the controller asks of a node: that the MIG mode of cards be switched, since a claim waits for it. It
is an annotation of the Node, which tenants cannot write. Pure.

    controller   asks                                        token, cards, for whom
    plugin       gives nobody the cards any more             a taint of theirs with the token
    controller   sees the taint, and that nobody has any     `clear`
    plugin       switches                                    the devices of the other mode lose their taint
    controller   takes the request back

Only the controller gives out a node's devices here, so that what it says after it has seen the taint holds
until the taint goes. A request that is taken back before it is clear changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from koordra.api import names
from koordra.api.objects import Fields, annotations_of
from koordra.inert import inert

_LONGEST_WAITING = 200


@dataclass(frozen=True, slots=True)
class ModeRequest:
    """`token` tells one request from another; `cards`: whether the card, by its device name, is to be in MIG
    mode; `waiting`: for whom, in words."""

    token: str
    cards: tuple[tuple[str, bool], ...]
    waiting: str = ""
    is_clear: bool = False

    def cleared(self) -> ModeRequest:
        return replace(self, is_clear=True)

    def text(self) -> str:
        said: dict[str, Any] = {"token": self.token, "cards": dict(self.cards)}
        said |= {"for": inert(self.waiting)[:_LONGEST_WAITING]}
        return json.dumps(said | ({"clear": True} if self.is_clear else {}))


def mode_request(node: Fields) -> ModeRequest | None:
    """None where there is none, or it cannot be read."""
    try:
        said = json.loads(str(annotations_of(node).get(names.MIG_MODE_ANNOTATION) or "null"))
    except ValueError:
        return None
    if not isinstance(said, Mapping):
        return None
    cards, token = said.get("cards"), said.get("token")
    if not isinstance(cards, Mapping) or not cards or not isinstance(token, str) or not token.isalnum():
        return None
    if not all(isinstance(name, str) and isinstance(on, bool) for name, on in cards.items()):
        return None
    return ModeRequest(
        token, tuple(sorted(cards.items())), str(said.get("for") or ""), said.get("clear") is True
    )
