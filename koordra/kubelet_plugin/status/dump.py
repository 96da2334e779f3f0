"""The state of a node's driver in one document: for a bug report, and for a test that reproduces it.

    {"schema": "koordra.io/dump/v1",
     "machine": {...}                    what was discovered, as `koordra topology -o json` writes it
     "problems": [...]
     "claims": [...]                     prepared claims as the checkpoint holds them
     "files": {"cdi": {...}, "prepared": {...}, "network": {...}}
     "guarded": {...}}

It holds no secrets: the nonce by which the NRI hook recognises genuine markers is replaced
everywhere by a digest of itself, so that equal ones still look equal; GUIDs, UUIDs and MACs are hardware's
names and stay. Environment variables are koordra's own. The API server is not asked.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from koordra.api.objects import Object
from koordra.errors import CheckpointError, KoordraError
from koordra.kubelet_plugin.cdi import claim_spec
from koordra.kubelet_plugin.claims.checkpoint import CheckpointFile
from koordra.kubelet_plugin.claims.claim_record import CLAIM_RECORD, ClaimRecord
from koordra.kubelet_plugin.settings import NodePaths
from koordra.node_state import layout
from koordra.node_state.claim_ref import MARKER_PREFIX
from koordra.node_state.disk import Disk
from koordra.topology.pictures.document import document
from koordra.topology.problems import Discovery

SCHEMA: Final = "koordra.io/dump/v1"
_NONCE: Final = re.compile(r"[0-9a-f]{32}")


def dump(paths: NodePaths, found: Discovery, *, version: str) -> Object:
    disk = Disk()
    claims: list[ClaimRecord] = []
    problems = [asdict(problem) for problem in found.problems]
    try:
        checkpoint = CheckpointFile(paths.checkpoint, disk).load()
        claims = list(checkpoint.claims) if checkpoint else []
    except CheckpointError as error:
        problems.append({"object": "checkpoint", "problem": str(error)})
    redacted: Object = without_nonces(
        {
            "schema": SCHEMA,
            "version": version,
            "machine": document(found.machine),
            "bootID": found.machine.boot_id,
            "problems": problems,
            "claims": [CLAIM_RECORD.write(record) for record in claims],
            "files": {
                "cdi": _files(paths.cdi, disk, claim_spec.claim_of_file),
                "prepared": _files(paths.prepared, disk),
                "network": _files(paths.network, disk),
                "attached": _files(paths.attached, disk),
            },
            "guarded": _json(paths.guarded, disk),
        },
        {record.nonce for record in claims},
    )
    return redacted


def without_nonces(value: Any, known: set[str]) -> Any:
    """Every nonce, by its place or by its value, replaced by a digest of the same form."""
    if isinstance(value, dict):
        return {
            key: _digest(item) if key == "nonce" and isinstance(item, str) else without_nonces(item, known)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [without_nonces(item, known) for item in value]
    if isinstance(value, str) and (MARKER_PREFIX in value or value in known):
        return _NONCE.sub(lambda match: _digest(match[0]), value)
    return value


def _digest(nonce: str) -> str:
    return hashlib.sha256(b"koordra dump" + nonce.encode()).hexdigest()[:32]


def _files(folder: Path, disk: Disk, of: Callable[[str], str | None] = layout.claim_of_file) -> Object:
    try:
        names = [name for name in disk.names(folder) if of(name) is not None]
    except OSError as error:
        return {"problem": f"{folder}: {error.strerror}"}
    return {name: _json(folder / name, disk) for name in names}


def _json(path: Path, disk: Disk) -> Any:
    try:
        data = disk.read(path)
        return None if data is None else json.loads(data)
    except (OSError, ValueError, KoordraError) as error:
        return {"problem": str(error)}
