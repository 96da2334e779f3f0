"""The ConfigMap `koordra-recommendations`, by which claims are given the share that would have done
(docs/resource-class.md): kept by `koordra profiler`, of the templates that ran last.

Of a namespace MOST_TEMPLATES are kept, MOST in all, the last ones, so that nobody's many templates drive out
another's before his own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from koordra.api import names
from koordra.api.resource_class import CONFIG_MAPS
from koordra.cli.cluster.use.plugin_readings import NAMESPACE
from koordra.errors import InvalidInput
from koordra.kube.client import KubeClient
from koordra.profiles.applied import share_request
from koordra.profiles.config_map import (
    CONFIG_MAP,
    KEY,
    MOST_ASKED,
    AskedBy,
    Known,
    Recommended,
    read_recommended,
)
from koordra.profiles.kept import KeptProfile
from koordra.profiles.profile import pooled, use_of
from koordra.profiles.recommendation import needed
from koordra.profiles.store import ProfileStore
from koordra.quantity import to_int

MOST_TEMPLATES: Final = 64
MOST: Final = 3000
"""Of 300 bytes each at the most, with usual names of classes; a ConfigMap holds a megabyte."""
AT_ONCE: Final = 50
"""Templates that one turn looks at."""


@dataclass(slots=True)
class Recommendations:
    """`due`: namespaces and templates of whose pods more is known. Raises ApiError, StoreUnavailable."""

    client: KubeClient
    store: ProfileStore
    due: set[tuple[str, str]] = field(default_factory=set)
    _known: dict[str, dict[str, Recommended]] | None = None

    def write(self) -> None:
        if not self.due:
            return
        known = self._known if self._known is not None else self._read()
        looked = sorted(self.due)[:AT_ONCE]
        for namespace, template in looked:
            found = self._of(namespace, template)
            if found is not None:
                known.setdefault(namespace, {})[template] = found
        self._known = bounded(known)
        text = json.dumps(
            {place: {key: one._asdict() for key, one in of.items()} for place, of in self._known.items()},
            separators=(",", ":"),
            sort_keys=True,
        )
        self.client.patch(CONFIG_MAPS, CONFIG_MAP, {"data": {KEY: text}}, namespace=NAMESPACE)
        self.due -= set(looked)

    def _read(self) -> dict[str, dict[str, Recommended]]:
        """What an earlier process of this program wrote. Raises NotFound where nobody made the ConfigMap."""
        return read_recommended(self.client.get(CONFIG_MAPS, CONFIG_MAP, namespace=NAMESPACE))

    def _of(self, namespace: str, template: str) -> Recommended | None:
        kept = self.store.of_template(namespace, template)
        found = needed(use_of(pooled(one.profile.summaries for one in kept)))
        if found is None:
            return None
        return Recommended(*found, at=max(one.profile.until for one in kept), asked=asked_by(kept))


def asked_by(kept: Iterable[KeptProfile]) -> tuple[AskedBy, ...]:
    """The shares that most of the pods asked for, by their claims."""
    counted = Counter[tuple[str, int, int]]()
    for one in kept:
        shares = [share for spec in one.claims.values() if (share := share_request(spec)) is not None]
        with suppress(InvalidInput):
            for share in shares if len(shares) == 1 else ():
                memory, cores = (
                    to_int(share.amounts.get(name, "0"))
                    for name in (names.CAPACITY_MEMORY, names.CAPACITY_CORES)
                )
                counted[share.device_class, memory, cores] += 1
    ranked = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    return tuple(AskedBy(*asked, pods) for asked, pods in ranked[:MOST_ASKED])


def bounded(known: Known) -> dict[str, dict[str, Recommended]]:
    """The last MOST_TEMPLATES of each namespace; beyond MOST in all those go first that their namespace has
    most of beside."""
    ranked = [
        (rank, -one.at, place, template)
        for place, of in known.items()
        for rank, (template, one) in enumerate(sorted(of.items(), key=lambda item: (-item[1].at, item[0])))
        if rank < MOST_TEMPLATES
    ]
    found = dict[str, dict[str, Recommended]]()
    for _, _, place, template in sorted(ranked)[:MOST]:
        found.setdefault(place, {})[template] = known[place][template]
    return found
