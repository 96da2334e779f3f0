"""Which claims a container holds, by what the hook gave it: `<state>/nri-granted/<container id>.json`, which
the hook writes (nri/hook/ledger.py) and others read."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from koordra.node_state.claim_ref import is_claim_uid
from koordra.node_state.disk import read_file
from koordra.node_state.strict_json import load

DIRECTORY: Final = "nri-granted"
SCHEMA: Final = "koordra.io/nri-granted/v1"


def claims_of_container(state: Path, container_id: str) -> tuple[str, ...]:
    """Their uids, sorted; none where the hook gave it nothing, or there is no hook."""
    try:
        document = load(read_file(state / DIRECTORY / f"{container_id}.json")[0])
        devices = document["devices"] if document["schema"] == SCHEMA else ()
        uids = {str(uid) for _namespace, _name, uid, *_ in devices}
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    return tuple(sorted(uid for uid in uids if is_claim_uid(uid)))
