"""The CDI spec of one claim: what the container runtime changes in a container that gets one of the claim's
devices.

    <cdi dir>/koordra.io-claim_<claim uid>.json        kind koordra.io/claim
      containerEdits            once for any device of the claim: NVIDIA_VISIBLE_DEVICES=void and the claim's marker
      devices[]                 <uid>-<device>[-<first 8 of share id>]: nodes, libraries, environment, the device's marker

Each claim has its own file and its own device names, both with the uid: runtimes cache specs, so a name must
never be reused for another claim, and two files that define the same name cancel each other. Device numbers
are written out, so the runtime never reads the host's /dev; `hostPath` appears only where the machine is
below another root (tests, demo).

The markers carry the claim's nonce. The NRI hook learns from them which devices a container was really given,
which the runtime does not report; it replaces their values before the container starts, so that no container
can copy them.

Pure; prepare/claim_files.py writes the file. The rules of the format are in validation.py.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any, Final

from koordra.kubelet_plugin.cdi import validation
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.claims.container_edits import ContainerEdits
from koordra.node_state.claim_ref import is_claim_uid

VENDOR: Final = "koordra.io"
CLASS: Final = "claim"
KIND: Final = f"{VENDOR}/{CLASS}"
MODE: Final = 0o644

_PREFIX: Final = f"{VENDOR}-{CLASS}_"
_SUFFIX: Final = ".json"


def file_name(uid: str) -> str:
    return f"{_PREFIX}{uid}{_SUFFIX}"


def claim_of_file(name: str) -> str | None:
    """The claim uid in one of our own file names; None for every other file of the directory."""
    if not (name.startswith(_PREFIX) and name.endswith(_SUFFIX)):
        return None
    uid = name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    return uid if is_claim_uid(uid) else None


def device_ids(record: ClaimRecord) -> tuple[str, ...]:
    """Fully qualified CDI names, in the order of the record's devices."""
    return tuple(f"{KIND}={record.cdi_name(index)}" for index in range(len(record.devices)))


def encode(record: ClaimRecord, *, root: Path) -> bytes:
    """The claim's spec file. `root` is the machine's: "/" outside of tests and the demo.

    Raises CDIError should the spec break a rule on which a runtime would drop the whole file.
    """
    document = spec(record, root=root)
    validation.check(document)
    return json.dumps(document, indent=1).encode() + b"\n"


def spec(record: ClaimRecord, *, root: Path) -> dict[str, Any]:
    document: dict[str, Any] = {
        "cdiVersion": "",
        "kind": KIND,
        "devices": [
            {
                "name": record.cdi_name(index),
                "containerEdits": _edits(
                    device.edits + ContainerEdits(env=((f"{record.ref.marker}_{index}", record.nonce),)),
                    root=root,
                ),
            }
            for index, device in enumerate(record.devices)
        ],
        "containerEdits": _edits(
            ContainerEdits(env=(("NVIDIA_VISIBLE_DEVICES", "void"), (record.ref.marker, record.nonce))),
            root=root,
        ),
    }
    document["cdiVersion"] = validation.minimum_version(document)
    return document


def _edits(edits: ContainerEdits, *, root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {
        "env": [f"{name}={value}" for name, value in edits.env],
        "deviceNodes": [
            {
                "path": node.path,
                **_host_path(node.path, root=root),
                "type": node.type,
                "major": node.major,
                "minor": node.minor,
                "permissions": "rw",
            }
            for node in edits.device_nodes
        ],
        "mounts": [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": list(mount.options),
            }
            for mount in edits.mounts
        ],
        "hooks": [
            {
                "hookName": hook.name,
                "path": hook.path,
                **({"args": list(hook.arguments)} if hook.arguments else {}),
            }
            for hook in edits.hooks
        ],
    }
    return {field: entries for field, entries in found.items() if entries}


def _host_path(path: str, *, root: Path) -> dict[str, str]:
    if root == Path("/"):
        return {}
    return {"hostPath": str(root / PurePosixPath(path).relative_to("/"))}
