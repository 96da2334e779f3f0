"""A claim as the kubelet names it, and the marker by which the hook recognises it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from koordra.node_state.strict_json import TEXT, record

MARKER_PREFIX: Final = "KOORDRA_CLAIM_"

_UID: Final = re.compile(r"[0-9a-z](?:[0-9a-z-]{0,62}[0-9a-z])?")


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """The uid ends up in file names, so nothing but a Kubernetes UID is accepted."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"ResourceClaim {self.namespace}/{self.name}"

    @property
    def valid(self) -> bool:
        return bool(self.namespace and self.name and is_claim_uid(self.uid))

    @property
    def marker(self) -> str:
        """The environment variable by which the claim's CDI edits are recognised."""
        return marker_of(self.uid)


CLAIM_REF: Final = record(ClaimRef, {"namespace": TEXT, "name": TEXT, "uid": TEXT})
"""`{"namespace", "name", "uid"}`."""


def is_claim_uid(text: str) -> bool:
    return _UID.fullmatch(text) is not None


def environment_name(text: str) -> str:
    """A uid or label as part of a variable's name."""
    return text.upper().replace("-", "_")


def marker_of(uid: str) -> str:
    return MARKER_PREFIX + environment_name(uid)


def uid_of_marker(marker: str) -> str | None:
    """The claim's uid; None for a variable that cannot be a marker."""
    uid = marker.removeprefix(MARKER_PREFIX).lower().replace("_", "-")
    return uid if is_claim_uid(uid) else None
