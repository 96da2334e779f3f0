"""What CustomResourceDefinitions add to what is served.

A definition is served as soon as it is stored (the real server takes a moment: condition Established) and
goes with all its objects when it is deleted. Only versions with `served: true`; objects are kept once,
whatever version they came in.
"""

from __future__ import annotations

from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra_devcluster.apiserver.fields import structural
from koordra_devcluster.apiserver.resources import CRDS, SERVED, Served
from koordra_devcluster.apiserver.storage.store import Store
from koordra_devcluster.apiserver.storage.strategies import Strategy, strategy


class CustomKinds:
    """The kinds of a store: the built-in ones whose gates are on, and the custom ones, found anew when a
    definition changes."""

    def __init__(self, store: Store, gates: frozenset[str] = frozenset()) -> None:
        self._store = store
        self.gates = gates
        self._builtin = tuple(one for one in SERVED if not one.gate or one.gate in gates)
        self._seen: tuple[str, ...] = ()
        self._served: tuple[Served, ...] = ()

    def served(self) -> tuple[Served, ...]:
        found, _ = self._store.list(str(CRDS))
        versions = tuple(entry.object["metadata"]["resourceVersion"] for _, entry in found)
        if versions != self._seen:
            self._served = tuple(one for _, entry in found for one in of_definition(entry.object))
            self._seen = versions
        return self._served

    def everything(self) -> tuple[Served, ...]:
        """Built-in and custom kinds."""
        return (*self._builtin, *self.served())

    def at(self, group: str, version: str, plural: str) -> Served | None:
        """What is served at a path."""
        wanted = (group, version, plural)
        return next(
            (
                one
                for one in self.everything()
                if (one.kind.group, one.kind.version, one.kind.plural) == wanted
            ),
            None,
        )


def of_definition(definition: Object) -> list[Served]:
    """The kinds that one CustomResourceDefinition serves."""
    spec = definition["spec"]
    names = spec["names"]
    found = []
    for version in spec.get("versions") or ():
        if not version.get("served"):
            continue
        kind = Kind(
            spec["group"], version["name"], names["plural"], names["kind"], spec.get("scope") == "Namespaced"
        )
        has_status = "status" in (version.get("subresources") or {})
        found.append(
            Served(
                kind,
                names["kind"],
                tuple(names.get("shortNames") or ()),
                tuple(names.get("categories") or ()),
                (("status", names["kind"], ("get", "patch", "update")),) if has_status else (),
                schema=(version.get("schema") or {}).get("openAPIV3Schema") or {},
                columns=tuple(version.get("additionalPrinterColumns") or ()),
            )
        )
    return found


def strategy_of(served: Served) -> Strategy:
    """The rules of a kind: of a custom one, its schema."""
    if served.schema is None:
        return strategy(served.stored)
    schema = served.schema
    return Strategy(
        default=lambda obj, _rules: structural.default(schema, obj),
        validate=lambda errors, obj, _rules: structural.validate(errors, schema, obj),
        validate_update=lambda errors, new, _old, _rules: structural.validate(errors, schema, new),
        validate_status=lambda errors, new, _old, _rules: structural.validate(errors, schema, new),
        has_status=any(name == "status" for name, _, _ in served.subresources),
        has_generation=True,
    )
