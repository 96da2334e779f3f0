"""Which claims a container holds, by what the hook gave it: `<state>/nri-granted/<container id>.json`, which
the hook writes (nri/hook/ledger.py) and others read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from koordra.node_state.claim_ref import is_claim_uid
from koordra.node_state.disk import read_file
from koordra.node_state.strict_json import load

DIRECTORY: Final = "nri-granted"
SCHEMA: Final = "koordra.io/nri-granted/v1"


class ContainerName(NamedTuple):
    namespace: str
    pod: str
    container: str


def claims_of_container(state: Path, container_id: str) -> tuple[str, ...]:
    """Their uids, sorted; none where the hook gave it nothing, or there is no hook."""
    document = _read(state / DIRECTORY / f"{container_id}.json")
    return tuple(sorted(_claims(document)))


class ContainersOfClaims:
    """Whose containers hold a claim: the whole folder, read again only where an entry has come or gone."""

    def __init__(self, state: Path) -> None:
        self._folder = state / DIRECTORY
        self._read_at: int | None = None
        self._found: dict[str, tuple[ContainerName, ...]] = {}

    def __call__(self) -> Mapping[str, tuple[ContainerName, ...]]:
        """By uid of the claim; empty without a hook."""
        try:
            changed = self._folder.stat().st_mtime_ns
        except OSError:
            return {}
        if changed != self._read_at:
            self._read_at, found = changed, dict[str, set[ContainerName]]()
            for path in self._folder.glob("*.json"):
                document = _read(path)
                for uid in _claims(document):
                    found.setdefault(uid, set()).add(_name(document))
            self._found = {uid: tuple(sorted(names)) for uid, names in found.items()}
        return self._found


def _read(path: Path) -> Any:
    try:
        return load(read_file(path)[0])
    except (OSError, ValueError):
        return None


def _claims(document: Any) -> set[str]:
    try:
        devices = document["devices"] if document["schema"] == SCHEMA else ()
        uids = {str(uid) for _namespace, _name, uid, *_ in devices}
    except (ValueError, KeyError, TypeError):
        return set()
    return {uid for uid in uids if is_claim_uid(uid)}


def _name(document: Any) -> ContainerName:
    """Empty where an earlier koordra wrote the entry."""
    written = document.get("container")
    known = isinstance(written, list) and len(written) == 3
    return ContainerName(*map(str, written)) if known else ContainerName("", "", "")
