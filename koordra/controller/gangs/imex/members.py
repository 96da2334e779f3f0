"""The nodes of each IMEX domain, told to their plugins: one ConfigMap a domain, in koordra's namespace.

    metadata: name koordra-imex-<digest>, label koordra.io/imex-domain,
              annotations koordra.io/imex-domain (`gang default/train`), koordra.io/imex-clique
    data:     {"0": tray-07, "1": tray-11, ...}           the node's number in the domain -> the node

The daemons of a domain have to agree on the order of its nodes, and on it for as long as it lasts. So a node
keeps its number while it has claims of the domain, and the next one gets the lowest that is free: what is
there is read before anything is written. All else follows from the allocations. Written after a pass; what is
killed before that is found by the next leader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from koordra.api import names, objects
from koordra.api.objects import Object
from koordra.api.opaque.imex import MOST_NODES, ImexDomain
from koordra.api.resource_class import CONFIG_MAPS
from koordra.controller.gangs.imex.domains import ImexDomains
from koordra.errors import ApiError, NotFound
from koordra.kube.client import KubeClient
from koordra.logs import get_logger

log = get_logger(__name__)

PAUSE: Final = 5.0
"""Seconds until a write that failed is tried again."""

Numbers = Mapping[str, int]
"""By node."""


@dataclass(slots=True)
class DomainMembers:
    """One term's. `clock` is monotonic."""

    client: KubeClient
    namespace: str
    may_write: Callable[[], bool]
    clock: Callable[[], float]
    _there: dict[str, Numbers] | None = None
    _due: set[ImexDomain] = field(default_factory=set)
    _again: float = 0.0

    def sync(self, domains: ImexDomains) -> float | None:
        """Write what has changed. Returns the seconds until something is to be tried again, None for
        never."""
        self._due |= domains.changed
        domains.changed.clear()
        if not self._due or not self.may_write():
            return None
        if (rest := self._again - self.clock()) > 0:
            return rest
        try:
            if self._there is None:
                self._there = self._read()
            for domain in sorted(self._due):
                self._write(domain, set(domains.members.get(domain, {}).values()), self._there)
                self._due.discard(domain)
        except ApiError as error:
            log.warning("imex_members_not_told", error=str(error))
            self._there, self._again = None, self.clock() + PAUSE
            return PAUSE
        return None

    def _read(self) -> dict[str, Numbers]:
        """Those of earlier leaders; what is due is theirs, too."""
        found, _ = self.client.list(
            CONFIG_MAPS, namespace=self.namespace, label_selector=names.IMEX_DOMAIN_LABEL
        )
        for one in found:
            notes = objects.annotations_of(one)
            domain = ImexDomain(notes.get(names.IMEX_DOMAIN, ""), notes.get(names.IMEX_CLIQUE, ""))
            if domain.object_name == objects.name(one):
                self._due.add(domain)
        return {objects.name(one): numbers_of(one.get("data") or {}) for one in found}

    def _write(self, domain: ImexDomain, nodes: Collection[str], there: dict[str, Numbers]) -> None:
        name = domain.object_name
        before = there.get(name)
        now = numbered(nodes, before or {})
        if now == (before or {}):
            return
        if len(now) < len(nodes):
            log.error("imex_domain_too_large", domain=domain.domain, nodes=len(nodes), most=MOST_NODES)
        data = {str(number): node for node, number in now.items()}
        try:
            if not now:
                self.client.delete(CONFIG_MAPS, name, namespace=self.namespace)
            elif before is None:
                self.client.create(CONFIG_MAPS, self._object(domain, data))
            else:
                gone = {str(number): None for number in before.values()}
                self.client.patch(CONFIG_MAPS, name, {"data": {**gone, **data}}, namespace=self.namespace)
        except NotFound:
            if now:
                raise
        if now:
            there[name] = now
        else:
            there.pop(name, None)
        log.info("imex_members_told", domain=domain.domain, clique=domain.clique, nodes=sorted(now))

    def _object(self, domain: ImexDomain, data: Mapping[str, str]) -> Object:
        return {
            "apiVersion": CONFIG_MAPS.api_version,
            "kind": CONFIG_MAPS.kind,
            "metadata": {
                "name": domain.object_name,
                "namespace": self.namespace,
                "labels": {names.IMEX_DOMAIN_LABEL: "true"},
                "annotations": {names.IMEX_DOMAIN: domain.domain, names.IMEX_CLIQUE: domain.clique},
            },
            "data": dict(data),
        }


def numbered(nodes: Collection[str], before: Numbers) -> dict[str, int]:
    """The nodes with the numbers that they had, the others with the lowest that are free; those beyond
    MOST_NODES have none."""
    found = {node: before[node] for node in sorted(nodes) if node in before}
    held = set(found.values())
    free = (number for number in count() if number not in held)
    for node in sorted(set(nodes) - found.keys()):
        if (number := next(free)) < MOST_NODES:
            found[node] = number
    return found


def numbers_of(data: Mapping[str, str]) -> dict[str, int]:
    """Of a ConfigMap's data, as far as it can be read."""
    return {node: int(key) for key, node in data.items() if key.isascii() and key.isdecimal()}
