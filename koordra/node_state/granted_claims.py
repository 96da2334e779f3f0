"""Which claims a container holds, by what the hook gave it: `<state>/nri-granted/<container id>.json`, which
the hook writes (nri/hook/ledger.py) and others read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from koordra.node_state.claim_ref import is_claim_uid
from koordra.node_state.disk import read_file
from koordra.node_state.strict_json import load

DIRECTORY: Final = "nri-granted"
SCHEMA: Final = "koordra.io/nri-granted/v1"
_SETTLED: Final = 1_000_000_000


class ContainerName(NamedTuple):
    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class GrantedContainer:
    """What the hook gave to a container: `claims` by uid, sorted; `devices` by their names on this node."""

    name: ContainerName
    claims: tuple[str, ...]
    devices: frozenset[str]


class GrantedContainers:
    """The containers that hold devices: the whole folder, read again where an entry has come or gone. For any
    thread."""

    def __init__(self, state: Path, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._folder = state / DIRECTORY
        self._clock = clock
        self._last = -1, dict[str, GrantedContainer]()

    def by_id(self) -> Mapping[str, GrantedContainer]:
        """By the runtime's number; empty without a hook."""
        try:
            changed = self._folder.stat().st_mtime_ns
        except OSError:
            return {}
        read_at, found = self._last
        if changed != read_at:
            documents = {path.stem: _read(path) for path in self._folder.glob("*.json")}
            found = {number: _granted(document) for number, document in documents.items()}
            # The kernel stamps changes some milliseconds apart alike: a young stamp may be of another, too.
            self._last = (changed if self._clock() - changed > _SETTLED else -1), found
        return found

    def of_claims(self) -> Mapping[str, tuple[ContainerName, ...]]:
        """Whose containers hold a claim, by the claim's uid."""
        found: dict[str, set[ContainerName]] = {}
        for container in self.by_id().values():
            for uid in container.claims:
                found.setdefault(uid, set()).add(container.name)
        return {uid: tuple(sorted(names)) for uid, names in found.items()}

    def claims_of(self, container: str) -> tuple[str, ...]:
        """Empty where the hook gave it nothing, or there is no hook."""
        granted = self.by_id().get(container)
        return granted.claims if granted else ()


def _read(path: Path) -> Any:
    try:
        return load(read_file(path)[0])
    except (OSError, ValueError):
        return None


def _granted(document: Any) -> GrantedContainer:
    try:
        rows = document["devices"] if document["schema"] == SCHEMA else ()
        devices = [(str(uid), str(device)) for _namespace, _name, uid, device, *_ in rows]
    except (ValueError, KeyError, TypeError):
        return GrantedContainer(ContainerName("", "", ""), (), frozenset())
    return GrantedContainer(
        _name(document),
        tuple(sorted({uid for uid, _ in devices if is_claim_uid(uid)})),
        frozenset(device for _, device in devices),
    )


def _name(document: Any) -> ContainerName:
    """Empty where an earlier koordra wrote the entry."""
    written = document.get("container")
    known = isinstance(written, list) and len(written) == 3
    return ContainerName(*map(str, written)) if known else ContainerName("", "", "")
