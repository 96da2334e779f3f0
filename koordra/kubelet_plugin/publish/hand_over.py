"""Who gives out the node's GPUs, and its NICs: koordra or another stack, one at every moment, also while both
run on the node (docs/migrate/node-by-node.md).

An operator sets the Node's label koordra.io/gpu-owner (nic-owner):

              label names another          no claim has any
    Owned ──────────────────────> Leaving ──────────────────> Left
      ^                                                         │ the label does not, and no other
      │      still none                                         v stack has any or may give any out
      └────────────────────────────────────────────────────── Taking

    phase     new claims get devices                the hook guards them
    Owned     yes, while no other stack is there    yes
    Leaving   no                                    yes
    Left      no                                    no
    Taking    no                                    yes

The order of the steps is what excludes double use:

- Left: Prepare refuses first, then the checkpoint is read, and holds no claim; then `left` is on the disk;
  only then the guard falls. Another stack may start when the controller says so on the Node.
- Taking: the guard stands first, then the kubelet's records of other stacks are read a second time, then
  what is left is on the disk, and only then a claim may have a device. The kubelet writes such a record
  before it makes the pod's containers, so a container is either recorded by then, or meets the guard, and is
  refused by the hook.

A stack that comes back while koordra owns the devices is refused by the guard, container by container, and
gets nothing; koordra places and prepares nothing new either until it is gone, and says why (taint, Event,
`koordra node check`).

What is on the disk is which types are left. A plugin that is killed between two lines goes on from there:
`Leaving` and `Taking` are begun anew. Where no file is there, nothing is left if claims have devices; else a
node on which another stack is, or that cannot be asked, begins as Left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from koordra.api import names, objects
from koordra.api.objects import Fields
from koordra.errors import KoordraError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.publish.peers_on_node import KINDS, DeviceKind, PeersOnNode
from koordra.logs import get_logger
from koordra.node_state.disk import Disk
from koordra.node_state.strict_json import document, listed, one_of
from koordra.process.wakeable import Pause, Wakeable

log = get_logger(__name__)

FILE: Final = "hand-over.json"
MODE: Final = 0o600
LOOK_EVERY: Final = 1.0
"""Seconds between two looks while something is handed over."""
LOOK_AT_REST: Final = 5.0


class Phase(StrEnum):
    OWNED = "Owned"
    LEAVING = "Leaving"
    LEFT = names.HAND_OVER_LEFT
    TAKING = "Taking"


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one kind of devices. `to`: whom the label names, empty for koordra; `peers`: other stacks that are
    there, in words; `unknown`: what could not be found out about them."""

    kind: DeviceKind
    phase: Phase = Phase.OWNED
    to: str = ""
    peers: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def is_guarded(self) -> bool:
        return self.phase is not Phase.LEFT

    @property
    def withheld(self) -> str:
        """Why no claim gets such devices, in words; empty where they do."""
        what = f"the node's {self.kind.title}"
        if self.to and self.phase is not Phase.TAKING:
            to = f"to {self.to} (label {self.kind.label})"
            return f"{what} are handed over {to}; set the label to {names.OWNER_KOORDRA} to have them back"
        if self.peers:
            return f"another stack is on the node: {'; '.join(self.peers)}. Take it off the node"
        if self.phase is not Phase.OWNED:
            return f"{what} are about to be koordra's: {'; '.join(self.unknown) or 'it begins to guard them'}"
        return ""

    @property
    def taint(self) -> str:
        """Of devices that no new claim gets."""
        return self.phase.value if self.withheld else ""


def first(kind: DeviceKind, *, left: bool | None, has_claims: bool, found: PeersOnNode, to: str) -> Standing:
    """Of a plugin that starts; `left` is what the disk says, None where it says nothing."""
    if left is None:
        left = bool(found.peers or found.unknown or to)
    left = left and not has_claims
    return Standing(kind, Phase.LEFT if left else Phase.OWNED, to, found.peers, found.unknown)


def following(now: Standing, *, to: str, found: PeersOnNode, has_claims: bool) -> Standing:
    """The next step. `has_claims` was read, and `found` looked for, after `now` had taken effect."""
    phase = now.phase
    if phase is Phase.OWNED and to:
        phase = Phase.LEAVING
    elif phase is Phase.LEAVING:
        phase = Phase.OWNED if not to else phase if has_claims else Phase.LEFT
    elif to or found.peers or found.unknown:
        phase = Phase.LEFT if phase is Phase.TAKING else phase
    elif phase is Phase.LEFT:
        phase = Phase.TAKING
    elif phase is Phase.TAKING:
        phase = Phase.OWNED
    return Standing(now.kind, phase, to, found.peers, found.unknown)


@dataclass(frozen=True, slots=True)
class _Left:
    left: tuple[str, ...] = ()


_encode, _decode = document(
    _Left, "koordra.io/hand-over/v1", {"left": listed(one_of(frozenset(kind.type for kind in KINDS)))}
)


def left_by(data: bytes) -> tuple[str, ...]:
    """The types that the file says are left. Raises ValueError."""
    return tuple(_decode(data).left)


class Guard(Protocol):
    def leave(self, types: frozenset[str]) -> None: ...


class HandOver(Wakeable):
    """`claims`: those that have devices here; `look`: other stacks on the node; `leave` is told which types
    no claim is to get, and why, before anything else happens; `changed`: that slices may differ."""

    failed = "hand_over_failed"
    longest = LOOK_AT_REST

    def __init__(
        self,
        state: Path,
        *,
        claims: Callable[[], Iterable[ClaimRecord]],
        look: Callable[[DeviceKind, Fields | None], PeersOnNode],
        guard: Guard,
        leave: Callable[[Mapping[str, str]], None],
        changed: Callable[[], None] = lambda: None,
        disk: Disk,
    ) -> None:
        super().__init__()
        self._path, self._disk = state / FILE, disk
        self._claims, self._look, self._guard = claims, look, guard
        self._leave, self._changed = leave, changed
        self._node: Fields | None = None
        self.standings: tuple[Standing, ...] = ()
        guard.leave(self._on_disk() or frozenset())

    def see_node(self, node: Fields) -> None:
        self._node = node
        self.wake()

    def start(self) -> None:
        """Before the first Prepare. What a full disk keeps from being written is tried again with each step;
        meanwhile the cards stay guarded. Where the claims cannot be read, there are some unless the devices
        are left."""
        left, records = self._on_disk(), self._records()
        standings = tuple(
            first(
                kind,
                left=None if left is None else kind.type in left,
                has_claims=_may_have(kind, records, left),
                found=self._look(kind, self._node),
                to=self._named(kind, ""),
            )
            for kind in KINDS
        )
        if self._node is None and left is None:  # who is there is known once the Node is
            standings = tuple(
                each if _may_have(each.kind, records, left) else replace(each, phase=Phase.LEFT)
                for each in standings
            )
        self._set(standings)
        try:
            self._write(standings)
            self._guard.leave(_left(standings))
        except (OSError, KoordraError) as error:
            log.error("hand_over_not_written", error=str(error))
        self._changed()

    def step(self) -> Pause:
        self._guard.leave(_left(self.standings))
        for index, now in enumerate(self.standings):
            self._follow(index, now)
        at_rest = all(each.phase is Phase.OWNED for each in self.standings)
        return Pause(0.0, LOOK_AT_REST if at_rest else LOOK_EVERY)

    def _follow(self, index: int, now: Standing) -> None:
        if self._node is None and now.phase is not Phase.OWNED:
            return  # what the Node says is not known yet
        has_claims = _has(now.kind, self._claims()) if now.phase is Phase.LEAVING else False
        found = self._look(now.kind, self._node)
        after = following(now, to=self._named(now.kind, now.to), found=found, has_claims=has_claims)
        if after == now:
            return
        standings = (*self.standings[:index], after, *self.standings[index + 1 :])
        if after.phase is Phase.OWNED:
            self._write(standings)  # before the first claim gets a device
        elif after.phase is Phase.LEFT and now.phase is Phase.LEAVING:
            self._write(standings)
            self._guard.leave(_left(standings))
        elif after.is_guarded != now.is_guarded:
            self._guard.leave(_left(standings))
        log.info(
            "hand_over",
            devices=now.kind.title,
            phase=after.phase.value,
            to=after.to,
            peers=after.peers,
            unknown=after.unknown,
        )
        self._set(standings)
        self._changed()
        if after.phase is Phase.TAKING:
            self._follow(index, after)

    def _records(self) -> tuple[ClaimRecord, ...] | None:
        try:
            return tuple(self._claims())
        except KoordraError:  # which is told where they are repaired
            return None

    def _named(self, kind: DeviceKind, before: str) -> str:
        """Whom the operator's label names, as far as the Node was seen."""
        if self._node is None:
            return before
        name = str(objects.labels_of(self._node).get(kind.label) or "")
        return "" if name == names.OWNER_KOORDRA else name

    def _set(self, standings: tuple[Standing, ...]) -> None:
        self.standings = standings
        self._leave({each.kind.type: each.withheld for each in standings if each.withheld})

    def _on_disk(self) -> frozenset[str] | None:
        """The types that are left; None where no file says so, or it is not readable."""
        try:
            data = self._disk.read(self._path)
            return None if data is None else frozenset(left_by(data))
        except (OSError, ValueError) as error:
            log.warning("hand_over_unreadable", path=str(self._path), error=str(error))
            return None

    def _write(self, standings: Iterable[Standing]) -> None:
        """Raises OSError."""
        left = frozenset(each.kind.type for each in standings if each.phase in (Phase.LEFT, Phase.TAKING))
        if self._on_disk() != left:
            self._disk.replace(self._path, _encode(_Left(tuple(sorted(left)))), mode=MODE)


def _left(standings: Iterable[Standing]) -> frozenset[str]:
    return frozenset(each.kind.type for each in standings if not each.is_guarded)


def _may_have(kind: DeviceKind, records: tuple[ClaimRecord, ...] | None, left: frozenset[str] | None) -> bool:
    return kind.type not in (left or ()) if records is None else _has(kind, records)


def _has(kind: DeviceKind, records: Iterable[ClaimRecord]) -> bool:
    return any(device.type in kind.types for record in records for device in record.devices)
