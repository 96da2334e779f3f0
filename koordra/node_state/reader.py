"""The hook's reads of the plugin's state directory.

What is read decides what a container may open. So a file is believed only when it is a regular file (no
symbolic link) of this process's own user or root's that nobody else can write, and decodes strictly; anything
else is a CheckpointError, on which the hook refuses what depends on it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

from koordra.errors import CheckpointError
from koordra.node_state import claim_network, prepared_claim
from koordra.node_state.claim_network import AttachedNetwork, ClaimNetwork
from koordra.node_state.claim_ref import uid_of_marker
from koordra.node_state.disk import read_file
from koordra.node_state.layout import StateFolder
from koordra.node_state.prepared_claim import DeviceGuard, PreparedClaim

_LARGEST_FILE: Final = 4 << 20
_CACHED_FILES: Final = 1024

Value = TypeVar("Value")
OfClaim = TypeVar("OfClaim", AttachedNetwork, ClaimNetwork)


class StateReader:
    """The state directory of one node. A file is decoded again when it was replaced; an unchanged one costs
    one stat. Not thread-safe."""

    def __init__(self, state_dir: Path, *, node_name: str) -> None:
        self._files = StateFolder(state_dir)
        self._node_name = node_name
        self._cache: dict[Path, tuple[tuple[int, int, int], Any]] = {}

    def claim(self, marker: str) -> PreparedClaim | None:
        """The prepared claim whose marker this is; None when there is none. CheckpointError: its record is
        unusable."""
        uid = uid_of_marker(marker)
        if uid is None:
            return None
        claim = self._read(self._files.prepared_file(uid), prepared_claim.decode)
        if claim is not None and (claim.ref.uid != uid or claim.marker != marker):
            raise CheckpointError(
                f"prepared/{uid}.json is about claim {claim.ref.uid} with marker {claim.marker}"
            )
        return claim

    def claims(self, markers: Iterable[str]) -> tuple[dict[str, PreparedClaim], dict[str, str]]:
        """The prepared claims among the markers, and why others are unusable."""
        claims, unreadable = {}, {}
        for marker in markers:
            try:
                claim = self.claim(marker)
                if claim is not None:
                    claims[marker] = claim
            except CheckpointError as error:
                unreadable[marker] = str(error)
        return claims, unreadable

    def attached(self, uid: str) -> AttachedNetwork | None:
        """Where the claim's network is; None while it is in no pod. CheckpointError: record unusable."""
        return self._of_claim(uid, self._files.attached_file(uid), claim_network.decode_attached)

    def planned(self, uid: str) -> ClaimNetwork | None:
        """What the claim's pod gets of network interfaces; None without. CheckpointError: unusable."""
        return self._of_claim(uid, self._files.network_file(uid), claim_network.decode)

    def _of_claim(self, uid: str, path: Path, decode: Callable[[bytes], OfClaim]) -> OfClaim | None:
        found = self._read(path, decode)
        if found is not None and found.uid != uid:
            raise CheckpointError(f"{path.relative_to(self._files.state)} is about claim {found.uid}")
        return found

    def guard(self) -> DeviceGuard | None:
        """The guarded device nodes; None while the plugin has not written them. CheckpointError: unusable."""
        guard = self._read(self._files.guarded, prepared_claim.decode_guard)
        if guard is not None and guard.node != self._node_name:
            raise CheckpointError(f"guarded.json is about node {guard.node}, not {self._node_name}")
        return guard

    def _read(self, path: Path, decode: Callable[[bytes], Value]) -> Value | None:
        try:
            cached = self._cache.get(path)
            if cached is not None and cached[0] == _version(path.lstat()):
                value: Value = cached[1]
                return value
            data, version = trusted(path)
        except FileNotFoundError:
            self._cache.pop(path, None)
            return None
        except OSError as error:
            raise CheckpointError(f"{path.name} cannot be read: {error.strerror or error}") from error
        try:
            value = decode(data)
        except ValueError as error:
            raise CheckpointError(f"{path.name} is unusable: {error}") from error
        if len(self._cache) >= _CACHED_FILES:
            self._cache.clear()
        self._cache[path] = (version, value)
        return value


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_mtime_ns, status.st_size


def trusted(path: Path) -> tuple[bytes, tuple[int, int, int]]:
    """The file's content and version; CheckpointError if another user could have written it. OSError."""
    data, status = read_file(path, largest=_LARGEST_FILE)
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CheckpointError(f"{path.name} belongs to, or can be written by, another user")
    return data, _version(status)
