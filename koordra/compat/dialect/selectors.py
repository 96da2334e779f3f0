"""Which cards a pod may have, as CEL over what koordra publishes.

    model lists    HAMi's names of cards are `NVIDIA-<product name>`; an entry matches any part of it, in either case
    UUID lists     the whole UUID
    labels         Koordinator's labels on devices; koordra reads attributes `koordinator.sh/<label>` in their place

A card that does not publish what is asked matches no allow list and is on no deny list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from koordra.api import names
from koordra.api.classic.notes import Notes

_ATTRIBUTES: Final = f'device.attributes["{names.DRIVER}"]'
LABELS_DOMAIN: Final = "koordinator.sh"
_LABELS: Final = f'device.attributes["{LABELS_DOMAIN}"]'
PARENT: Final = "parent_"
"""Before the name of a label that the physical function of a virtual one carries."""


def model_in(entries: Sequence[str], *, deny: bool = False) -> str:
    """Any of the entries is part of the card's name; `deny`: none is."""
    product = names.ATTR_PRODUCT_NAME.removeprefix(names.DOMAIN)
    told = f'"{product}" in {_ATTRIBUTES}'
    found = f'("NVIDIA-" + {_ATTRIBUTES}.{product}).lowerAscii()'
    parts = " || ".join(f"{found}.contains({_text(entry.lower())})" for entry in entries)
    return f"!({told}) || !({parts})" if deny else f"{told} && ({parts})"


def uuid_in(entries: Sequence[str], *, deny: bool = False) -> str:
    told = f'"uuid" in {_ATTRIBUTES}'
    listed = f"{_ATTRIBUTES}.uuid in [{', '.join(_text(entry) for entry in entries)}]"
    return f"!({told}) || !({listed})" if deny else f"{told} && {listed}"


def profile_is(profile: str) -> str:
    return f"{_ATTRIBUTES}.profile == {_text(profile)}"


def labels(selector: object, *, field: str, notes: Notes, prefix: str = "") -> str:
    """A LabelSelector over devices. Empty for one that matches everything. Raises Refused."""
    if not isinstance(selector, Mapping):
        raise notes.refuse(field, "is not a label selector", "write matchLabels or matchExpressions")
    unknown = sorted(set(map(str, selector)) - {"matchLabels", "matchExpressions"})
    if unknown:
        raise notes.refuse(
            f"{field}.{unknown[0]}", "is no field of a label selector", "use matchLabels or matchExpressions"
        )
    exact = selector.get("matchLabels") or {}
    terms = selector.get("matchExpressions") or []
    if not isinstance(exact, Mapping) or not isinstance(terms, list):
        raise notes.refuse(field, "is not a label selector", "write matchLabels or matchExpressions")
    parts = [_label(str(key), "In", [str(value)], prefix=prefix) for key, value in exact.items()]
    for index, term in enumerate(terms):
        parts.append(_term(term, f"{field}.matchExpressions[{index}]", notes, prefix=prefix))
    if parts:
        asked = [str(key) for key in exact] + [str(term.get("key")) for term in terms]
        attributes = ", ".join(f"{LABELS_DOMAIN}/{prefix}{key}" for key in dict.fromkeys(asked))
        notes.warn(
            field,
            f"labels are looked for as attributes {attributes}",
            "have the nodes publish them, or the claim waits",
        )
    return " && ".join(parts)


def _term(term: Any, field: str, notes: Notes, *, prefix: str) -> str:
    data = term if isinstance(term, Mapping) else {}
    operator, values = str(data.get("operator") or ""), data.get("values") or []
    if not data.get("key") or operator not in _OPERATORS or not isinstance(values, list):
        raise notes.refuse(
            field, "is no requirement of a label selector", f"operators are {', '.join(_OPERATORS)}"
        )
    if bool(values) != (operator in ("In", "NotIn")):
        raise notes.refuse(f"{field}.values", f"{operator} wants {'values' if not values else 'no values'}")
    return _label(str(data["key"]), operator, [str(value) for value in values], prefix=prefix)


_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


def _label(key: str, operator: str, values: Sequence[str], *, prefix: str) -> str:
    name = _text(prefix + key)
    there = f"{name} in {_LABELS}"
    if operator == "Exists":
        return there
    if operator == "DoesNotExist":
        return f"!({there})"
    listed = f"{_LABELS}[{name}] in [{', '.join(_text(value) for value in values)}]"
    return f"({there} && {listed})" if operator == "In" else f"(!({there}) || !({listed}))"


def _text(value: str) -> str:
    """A CEL string; JSON's escapes are CEL's."""
    return json.dumps(value, ensure_ascii=False)
