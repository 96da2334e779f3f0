"""Koordinator's label selectors over devices, as CEL: koordra reads attributes `koordinator.sh/<label>` in place of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from koordra.api.classic.notes import Notes
from koordra.compat.dialect.selectors import text

LABELS_DOMAIN: Final = "koordinator.sh"
_LABELS: Final = f'device.attributes["{LABELS_DOMAIN}"]'
PARENT: Final = "parent_"
"""Before the name of a label that the physical function of a virtual one carries."""


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
    name = text(prefix + key)
    there = f"{name} in {_LABELS}"
    if operator == "Exists":
        return there
    if operator == "DoesNotExist":
        return f"!({there})"
    listed = f"{_LABELS}[{name}] in [{', '.join(text(value) for value in values)}]"
    return f"({there} && {listed})" if operator == "In" else f"(!({there}) || !({listed}))"
