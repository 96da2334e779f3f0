"""Label selectors and the terms of inter-pod affinity that hold them, read once and asked often.

What a tenant writes there has no limit but the size of an object. A term that is longer than LONGEST_TERM,
and what a pod says after its first MOST_TERMS terms, is left to kube-scheduler: its no costs the pod a round,
and nobody else anything.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from koordra.allocator.predicates import REQUIRED, requirement_matches
from koordra.api import objects
from koordra.api.objects import Fields

MOST_TERMS: Final = 16
"""Of one kind in one pod. The pods of common charts have one or two."""
LONGEST_TERM: Final = 4 << 10
"""Bytes."""
LONGEST_TEXT: Final = 120
"""Characters of a selector that are told."""
ANYWHERE: Final = ""
"""In place of a namespace: of all."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelSelector:
    """A meta/v1 LabelSelector; an empty one matches everything. `demanded`: labels with the values of which
    each must have one. `others`: expressions that are asked as they stand."""

    demanded: tuple[tuple[str, frozenset[str]], ...]
    others: tuple[tuple[str, frozenset[str]], ...]
    rest: tuple[Fields, ...]

    @classmethod
    def of(cls, selector: Fields) -> LabelSelector:
        named = selector.get("matchLabels") or {}
        demanded = [(str(label), _texts([value])) for label, value in named.items()]
        others, rest = list[tuple[str, frozenset[str]]](), list[Fields]()
        for entry in selector.get("matchExpressions") or ():
            values, operator = entry.get("values") or (), entry.get("operator")
            if isinstance(values, list | tuple) and operator in ("In", "NotIn"):
                (demanded if operator == "In" else others).append((str(entry.get("key")), _texts(values)))
            else:
                rest.append(entry)
        return cls(tuple(demanded), tuple(others), tuple(rest))

    def matches(self, labels: Mapping[str, str]) -> bool:
        return (
            all(labels.get(key) in values for key, values in self.demanded)
            and not any(labels.get(key) in values for key, values in self.others)
            and all(requirement_matches(entry, labels) for entry in self.rest)
        )

    def __str__(self) -> str:
        """As kubectl writes selectors; the beginning of a long one."""
        said = [
            *(
                f"{key}={min(values)}" if len(values) == 1 else _listed(key, "in", values)
                for key, values in self.demanded
            ),
            *(_listed(key, "notin", values) for key, values in self.others),
            *(f"{entry.get('key')} {entry.get('operator')}" for entry in self.rest),
        ]
        text = ",".join(sorted(said)) or "any labels"
        return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}..."


def _listed(key: str, operator: str, values: Iterable[str]) -> str:
    return f"{key} {operator} ({','.join(sorted(values))})"


def _texts(values: Iterable[object]) -> frozenset[str]:
    return frozenset([value for value in values if isinstance(value, str)])


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A required term of a pod's affinity. `scope`: the namespaces whose pods it may mean; None is all, of
    which `of_namespace` chooses, but for those `named`. `content`: equal for terms that mean the same."""

    key: str
    selector: LabelSelector | None
    scope: frozenset[str] | None
    named: frozenset[str]
    of_namespace: LabelSelector | None
    content: bytes

    @classmethod
    def of(cls, owner: Fields, term: Fields) -> Term | None:
        """None for one that is left to kube-scheduler."""
        key, selector = str(term.get("topologyKey")), with_label_keys(owner, term)
        said = (key, selector, term.get("namespaces"), term.get("namespaceSelector"))
        content = marshal.dumps((objects.namespace(owner), *said), 0)  # type: ignore[arg-type]
        if len(content) > LONGEST_TERM:
            return None
        named, by_label = frozenset(map(str, term.get("namespaces") or ())), term.get("namespaceSelector")
        return cls(
            key,
            None if selector is None else LabelSelector.of(selector),
            (named or frozenset([objects.namespace(owner)])) if by_label is None else None,
            named,
            None if by_label is None else LabelSelector.of(by_label),
            content,
        )

    def means(self, pod: Fields, namespaces: Mapping[str, Fields]) -> bool:
        """`namespaces`: as objects, by name."""
        if self.selector is None or not self.selector.matches(objects.labels_of(pod)):
            return False
        place = objects.namespace(pod)
        if self.scope is not None:
            return place in self.scope
        assert self.of_namespace is not None
        return place in self.named or self.of_namespace.matches(objects.labels_of(namespaces.get(place, {})))


def required_terms(pod: Fields, kind: str) -> Sequence[Fields]:
    """Required terms of podAffinity or podAntiAffinity."""
    return ((objects.spec_of(pod).get("affinity") or {}).get(kind) or {}).get(REQUIRED) or ()


def terms_of(pod: Fields, kind: str) -> Iterator[Term]:
    """Those of `required_terms` that are looked at here."""
    return filter(None, (Term.of(pod, term) for term in required_terms(pod, kind)[:MOST_TERMS]))


def label_selector_matches(selector: Fields | None, labels: Mapping[str, str]) -> bool:
    """None matches nothing."""
    return selector is not None and LabelSelector.of(selector).matches(labels)


def with_label_keys(pod: Fields, term: Fields) -> Fields | None:
    """The term's selector with matchLabelKeys and mismatchLabelKeys of the pod; None selects nothing. Newer
    API servers have merged them into the selector already, which changes nothing here."""
    selector, labels = term.get("labelSelector"), objects.labels_of(pod)
    if selector is None:
        return None
    added = [
        {"key": key, "operator": operator, "values": [labels[key]]}
        for field_name, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
        for key in term.get(field_name) or ()
        if key in labels
    ]
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or ()), *added]}
