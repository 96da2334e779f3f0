"""Where each file of the state directory lies.

checkpoint.json                    every prepared claim, complete (the plugin's own)
prepared/<uid>.json                one prepared claim, for the hook
guarded.json                       the device nodes that the hook guards
network/<uid>.json                 what is done to the network of the claim's pod
network/attached/<uid>.json        what was done to it
claims/<uid>/                      what the claim's containers may read
nri-granted/<container id>.json    what the hook gave to which container (the hook's own)
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from koordra.node_state.claim_ref import is_claim_uid

PREPARED: Final = "prepared"
GUARDED: Final = "guarded.json"
NETWORK: Final = "network"
ATTACHED: Final = "network/attached"
CLAIMS: Final = "claims"
MODE: Final = 0o600
"""Permissions of everything but claims/: nonces, and what the hook believes."""

_SUFFIX: Final = ".json"


def prepared_file(state: Path, uid: str) -> Path:
    return state / PREPARED / file_name(uid)


def guarded_file(state: Path) -> Path:
    return state / GUARDED


def network_file(state: Path, uid: str) -> Path:
    return state / NETWORK / file_name(uid)


def attached_file(state: Path, uid: str) -> Path:
    return state / ATTACHED / file_name(uid)


def claim_folder(state: Path, uid: str) -> Path:
    return state / CLAIMS / uid


def file_name(uid: str) -> str:
    return f"{uid}{_SUFFIX}"


def claim_of_file(name: str) -> str | None:
    """The claim uid in the name of a file; None for a name that is not one of ours."""
    uid = name.removesuffix(_SUFFIX)
    return uid if name.endswith(_SUFFIX) and is_claim_uid(uid) else None
