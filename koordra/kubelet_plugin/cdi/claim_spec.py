"""The CDI spec of one claim: what the container runtime changes in a container that gets one of the claim's
devices.

    <cdi dir>/koordra.io-claim_<claim uid>.json        kind koordra.io/claim
      containerEdits            once for any device of the claim: NVIDIA_VISIBLE_DEVICES=void, the claim's
                                marker, and its hook (container_hook.py)
      devices[]                 <uid>-<device>[-<first 8 of share id>]: nodes, libraries, environment, the
                                device's marker

Every node has mode 0666 in the container: who is there holds the claim, as whatever user. Groups in which the
host's own node can be opened are joined as well, where the runtime knows of that (runtime_support.py).

Each claim has its own file and its own device names, both with the uid: runtimes cache specs, so a name must
never be reused for another claim, and two files that define the same name cancel each other. Device numbers
are written out, so the runtime never reads the host's /dev; `hostPath` appears only where the machine is
below another root (tests, demo).

The markers carry the claim's nonce. The NRI hook learns from them which devices a container was really given,
which the runtime does not report; it replaces their values before the container starts, so that no container
can copy them. Variables that list devices or name a file (HOOKS_VARIABLES) are left to the hook too: what a
CDI file sets would overwrite what the pod says.

Pure; prepare/claim_files.py writes the file.

**The rules.** A CDI loader (tags.cncf.io/container-device-interface pkg/cdi, pkg/parser) drops a file that
breaks one of them with all its devices, so that containers fail to start with "unresolvable CDI devices".
What could break one are the edits, which also come from isolation backends of others, and the names of
devices:

- a device name starts and ends with a letter or digit, may have `_ . - :` between, and is there once;
- env `NAME=value`; device nodes with a path and of type b c u p; mounts with both paths; hooks with a known
  name, a path, and (our own rule) an environment;
- a `cdiVersion` that is at least what the fields need. Older runtimes reject newer versions than needed, so
  it is exactly that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from koordra.api.objects import Object
from koordra.errors import CDIError
from koordra.kubelet_plugin.claims.claim_record import OWN_TMPFS, ClaimRecord, ContainerEdits
from koordra.node_state import layout
from koordra.node_state.prepared_claim import HOOKS_VARIABLES

_DEVICE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_HOOKS: Final = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

VENDOR: Final = "koordra.io"
CLASS: Final = "claim"
KIND: Final = f"{VENDOR}/{CLASS}"
MODE: Final = 0o644
NODE_MODE: Final = 0o666

_PREFIX: Final = f"{VENDOR}-{CLASS}_"


def file_name(uid: str) -> str:
    return f"{_PREFIX}{layout.file_name(uid)}"


def claim_of_file(name: str) -> str | None:
    """The claim uid in one of our own file names; None for every other file of the directory."""
    return layout.claim_of_file(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else None


def device_ids(record: ClaimRecord) -> tuple[str, ...]:
    """Fully qualified CDI names, in the order of the record's devices."""
    return tuple(f"{KIND}={record.cdi_name(index)}" for index in range(len(record.devices)))


def encode(record: ClaimRecord, *, root: Path) -> bytes:
    """The claim's spec file. `root` is the machine's: "/" outside of tests and the demo.

    Raises CDIError should the spec break a rule on which a runtime would drop the whole file.
    """
    names = [record.cdi_name(index) for index in range(len(record.devices))]
    for index, (name, device) in enumerate(zip(names, record.devices, strict=True)):
        if not _DEVICE.fullmatch(name):
            raise CDIError(f"devices[{index}].name: {name!r} is not a CDI device name")
        if name in names[:index]:
            raise CDIError(f"devices[{index}].name: {name!r} is there twice")
        for problem in _problems(device.edits):
            raise CDIError(f"devices[{index}].containerEdits.{problem}")
    for problem in _problems(ContainerEdits(hooks=record.hooks)):
        raise CDIError(f"containerEdits.{problem}")
    return json.dumps(spec(record, root=root), indent=1).encode() + b"\n"


def _problems(edits: ContainerEdits) -> Iterator[str]:
    for name, value in edits.env:
        if not name or name.startswith("=") or "\0" in name + value:
            yield f"env: {f'{name}={value}'!r} is not NAME=value"
    for node in edits.device_nodes:
        if not node.path or node.type not in ("", "b", "c", "u", "p"):
            yield f"deviceNodes: {node} has no path, or its type is none of b, c, u, p"
    for mount in edits.mounts:
        if not mount.host_path or not mount.container_path:
            yield f"mounts: {mount}: hostPath and containerPath are both needed"
    for hook in edits.hooks:
        if hook.name not in _HOOKS or not hook.path:
            yield f"hooks: {hook}: a known hookName and a path are needed"
        if not hook.env:
            yield f"hooks: {hook}: without an environment of its own it would get the image's (CVE-2025-23266)"


def spec(record: ClaimRecord, *, root: Path) -> Object:
    return {
        "cdiVersion": _version(record, root),
        "kind": KIND,
        "devices": [
            {
                "name": record.cdi_name(index),
                "containerEdits": _edits(
                    _without_hooks(device.edits)
                    + ContainerEdits(env=((f"{record.ref.marker}_{index}", record.nonce),)),
                    root=root,
                ),
            }
            for index, device in enumerate(record.devices)
        ],
        "containerEdits": _edits(
            ContainerEdits(
                env=(("NVIDIA_VISIBLE_DEVICES", "void"), (record.ref.marker, record.nonce)),
                hooks=record.hooks,
            ),
            root=root,
        ),
    }


def _without_hooks(edits: ContainerEdits) -> ContainerEdits:
    return replace(edits, env=tuple(pair for pair in edits.env if pair[0] not in HOOKS_VARIABLES))


def _version(record: ClaimRecord, root: Path) -> str:
    if any(device.edits.additional_gids for device in record.devices):
        return "0.7.0"
    if record.ref.uid[:1].isdigit() or root != Path("/"):
        return "0.5.0"
    mounts = (mount for device in record.devices for mount in device.edits.mounts)
    return "0.4.0" if any(mount.host_path == OWN_TMPFS for mount in mounts) else "0.3.0"


def _edits(edits: ContainerEdits, *, root: Path) -> Object:
    found: Object = {
        "env": [f"{name}={value}" for name, value in edits.env],
        "deviceNodes": [
            {
                "path": node.path,
                **({} if root == Path("/") else {"hostPath": str(root / node.path.lstrip("/"))}),
                "type": node.type,
                "major": node.major,
                "minor": node.minor,
                "fileMode": NODE_MODE,
                "permissions": "rw",
            }
            for node in edits.device_nodes
        ],
        "mounts": [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                **({"type": OWN_TMPFS} if mount.host_path == OWN_TMPFS else {}),
                "options": list(mount.options),
            }
            for mount in edits.mounts
        ],
        "hooks": [
            {
                "hookName": hook.name,
                "path": hook.path,
                **({"args": list(hook.arguments)} if hook.arguments else {}),
                "env": [f"{name}={value}" for name, value in hook.env],
            }
            for hook in edits.hooks
        ],
        "additionalGids": list(edits.additional_gids),
    }
    return {field: entries for field, entries in found.items() if entries}
