"""Where each file of the state directory lies.

checkpoint.json                    every prepared claim, complete (the plugin's own)
prepared/<uid>.json                one prepared claim, for the hook
guarded.json                       the device nodes that the hook guards
network/<uid>.json                 what is done to the network of the claim's pod
network/attached/<uid>.json        what was done to it
cards/<device>.lock                who does something to the card
claims/<uid>/                      what the claim's containers may read
nri-granted/<container id>.json    what the hook gave to which container (the hook's own)
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from koordra.node_state.claim_ref import is_claim_uid

MODE: Final = 0o600
"""Permissions of everything but claims/: nonces, and what the hook believes."""

_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The state directory."""

    state: Path

    @property
    def guarded(self) -> Path:
        return self.state / "guarded.json"

    @property
    def prepared(self) -> Path:
        return self.state / "prepared"

    @property
    def network(self) -> Path:
        return self.state / "network"

    @property
    def attached(self) -> Path:
        return self.network / "attached"

    @property
    def claims(self) -> Path:
        return self.state / "claims"

    def prepared_file(self, uid: str) -> Path:
        return self.prepared / file_name(uid)

    def network_file(self, uid: str) -> Path:
        return self.network / file_name(uid)

    def attached_file(self, uid: str) -> Path:
        return self.attached / file_name(uid)

    def claim_folder(self, uid: str) -> Path:
        return self.claims / uid


def file_name(uid: str) -> str:
    return f"{uid}{_SUFFIX}"


def claim_of_file(name: str) -> str | None:
    """The claim uid in the name of a file; None for a name that is not one of ours."""
    uid = name.removesuffix(_SUFFIX)
    return uid if name.endswith(_SUFFIX) and is_claim_uid(uid) else None


def mps_namespace(uid: str) -> str:
    """What a claim's part of an MPS server is called: a name of few signs, since the folder of its socket is
    called so, by which the hook knows whose it is."""
    return f"c{sha256(uid.encode()).hexdigest()[:24]}"
