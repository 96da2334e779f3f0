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


class HeldDevice(NamedTuple):
    """A device by its name on this node, and the claim; its name is empty where Koordinator's annotation
    stands for it. `cores` and `memory`: in percent of a card, as that says."""

    device: str
    claim_uid: str
    claim_name: str = ""
    share_id: str | None = None
    cores: int = 100
    memory: int = 100


@dataclass(frozen=True, slots=True)
class GrantedContainer:
    """What the hook gave to a container: `claims` by uid, sorted. `pod_uid`: empty where it is not known."""

    name: ContainerName
    claims: tuple[str, ...] = ()
    held: tuple[HeldDevice, ...] = ()
    pod_uid: str = ""

    @property
    def devices(self) -> frozenset[str]:
        return frozenset(each.device for each in self.held)


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
        asked = document.get("asked") or {}  # an earlier koordra writes none
        held = tuple(_held(row, asked) for row in rows)
    except (ValueError, KeyError, TypeError, AttributeError):
        return GrantedContainer(ContainerName("", "", ""))
    uids = {each.claim_uid for each in held if is_claim_uid(each.claim_uid)}
    pod_uid = str(document.get("podUID") or "")
    return GrantedContainer(_name(document), tuple(sorted(uids)), held, pod_uid)


def _held(row: Any, asked: Any) -> HeldDevice:
    _namespace, claim, uid, device, _type, share, *_ = row
    amounts = asked.get(device) or {}
    cores, memory = (int(amounts.get(name, 100)) for name in ("cores", "memory"))
    return HeldDevice(str(device), str(uid), str(claim), share, cores, memory)


def _name(document: Any) -> ContainerName:
    """Empty where an earlier koordra wrote the entry."""
    written = document.get("container")
    known = isinstance(written, list) and len(written) == 3
    return ContainerName(*map(str, written)) if known else ContainerName("", "", "")
