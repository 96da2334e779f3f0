"""Live changes of the limits of running shares, as the controller grants them
(koordra.api.opaque.share_limits).

    DeviceHolds of this node ─┐
    claims' records           ├─> what each share may have ─> region.change ─> who of its processes acts by it
    regions ──────────────────┘                                             ─> condition Resized

A share may never have more than its allocation and what is held for it, whatever else is said: where a hold
is gone, it is back at its allocation at once. Less memory than is in use is not written: nobody would lose
what it has, but every further allocation would fail; it waits until enough is freed. Each step writes what is
due and looks at what is there, so it does not matter between which two writes the process before this one was
killed; that one's last change is told to the claim's processes again, since it may not have come to that.

A process acts by a change when it says so, or when it is in no call that may still act by an older one
(usage.ProcessUse.has_taken). When all do, and no more is in use than the share may have, what it has no more
may be another claim's: that is what `Resized: True` of a revision says.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from koordra.api import names
from koordra.api.objects import Object
from koordra.api.opaque.share_limits import Amounts, ResizedClaim, ShareLimits, by_uid, own_amounts
from koordra.errors import KoordraError, NodeError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord, State
from koordra.kubelet_plugin.isolation.limiter import region, usage
from koordra.logs import get_logger
from koordra.process.wakeable import Pause, Wakeable
from koordra.quantity import canonical, parse

log = get_logger(__name__)

BRISK: Final = 0.05
"""Seconds between looks while somebody has not taken a change yet, for BRISK_FOR seconds: a claim's processes
may never say so."""
BRISK_FOR: Final = 3.0
SLOW: Final = 1.0
"""Afterwards, and while memory is to be freed first."""
_MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class ResizeState:
    """Of one share: condition Resized, and why the last wish is not granted. `revision`: what the hold
    calls its limits."""

    revision: int
    done: bool
    reason: str
    message: str
    refused: str = ""


States = Mapping[tuple[str, int], ResizeState]
"""By uid of the claim, and index of the device in its record."""


class ShareResizer(Wakeable):
    """`claims` is the folder with one folder per claim; `holds`: the DeviceHolds of resized claims of this
    node, None while they are not known; `cores`: whether device time is limited on this node; `changed` is
    called when a state is another, `written` when limits are."""

    failed = "shares_not_resized"

    def __init__(
        self,
        claims: Path,
        *,
        records: Callable[[], Iterable[ClaimRecord]],
        holds: Callable[[], Iterable[Object] | None],
        cores: bool,
        changed: Callable[[], None] = lambda: None,
        written: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._clock = clock
        self._claims = claims
        self._records, self._holds = records, holds
        self._cores = cores
        self._changed, self._written = changed, written
        self._told = dict[str, tuple[int, float]]()
        """By uid of a claim: the revision of which its processes were told, and since when."""
        self._failed = dict[str, str]()
        self.states: States = {}

    def step(self) -> Pause:
        holds = self._holds()
        if holds is None:
            return Pause(BRISK, SLOW)
        granted, states, pause = by_uid(holds), dict[tuple[str, int], ResizeState](), None
        failed, now, told = dict[str, str](), self._clock(), dict(self._told)
        for record in self._records():
            if record.state is not State.COMPLETED:
                continue
            try:
                states |= self._settle(record, granted.get(record.ref.uid))
            except (OSError, KoordraError) as error:  # of one claim: it comes or goes, or is damaged
                failed[record.ref.uid] = text = str(error)
                if self._failed.get(record.ref.uid) != text:
                    log.warning("share_not_resized", claim=str(record.ref), error=text)
                pause = SLOW
        self._failed = failed
        self._told = {uid: at for uid, at in self._told.items() if uid in granted}
        if self._told != told:
            self._written()
        before, self.states = self.states, states
        if states != before:
            self._changed()
        for (uid, _), state in states.items():
            if not state.done:
                is_new = now - self._told[uid][1] < BRISK_FOR
                pause = min(pause or SLOW, BRISK if state.reason == NOT_YET and is_new else SLOW)
        return Pause(0.0 if pause is None else pause, pause)

    def state(self, uid: str, index: int) -> ResizeState | None:
        return self.states.get((uid, index))

    def _settle(self, record: ClaimRecord, granted: ResizedClaim | None) -> States:
        """Write what the claim's shares may have, and what became of it."""
        folder, uid = self._claims / record.ref.uid, record.ref.uid
        cards = limited_cards(record)
        if not cards or not (folder / "policy").exists():
            return {}
        present = {region.uuid_text(each[0]): each for each in usage.read_policy(folder)}
        in_use = _in_use(folder)
        due = [
            _Due.of(shares, granted or NOTHING, present[card], in_use.get(card, 0))
            for card, shares in cards.items()
            if card in present and any(map(allocated_amounts, shares.values()))
        ]
        for one in due:
            again = granted is not None and uid not in self._told
            self._write(folder, one, is_granted=granted is not None, again=again)
        if granted is None:
            return {}
        if self._told.get(uid, (None, 0.0))[0] != granted.revision:
            self._told[uid] = granted.revision, self._clock()
        use = usage.read(folder)
        return {(uid, index): _state(one, use, granted) for one in due for index in one.shares}

    def _write(self, folder: Path, due: _Due, *, is_granted: bool, again: bool) -> None:
        limit, cores = due.limit, int(due.wanted.amounts.get(names.CAPACITY_CORES, Decimal(0)))
        region.change(
            folder,
            due.uuid,
            limit=None if limit == region.UNLIMITED else limit,
            cores=cores or due.cores,
            time=self._time(due, is_granted=is_granted),
            again=again,
        )

    def _time(self, due: _Due, *, is_granted: bool) -> region.TimeShare | None:
        """Without a hold the policy stays as it is: it is the claim's own, which does not change."""
        cores, policy, priority = (
            due.wanted.amounts.get(names.CAPACITY_CORES),
            due.wanted.policy,
            due.wanted.priority,
        )
        if not self._cores or cores is None:
            return None
        if not is_granted:
            return replace(due.time, rate=int(cores) * 100) if due.time.rate else None
        if policy is None:
            return None
        return region.TimeShare(
            int(cores) * 100, policy == "Elastic", region.LAST if priority is None else priority
        )


@dataclass(frozen=True, slots=True)
class _Due:
    """All that a claim has of a card: what it may have, what was `allocated`, and `limit` of memory, `cores`
    and `time` in its region. `shares` by their places. `waits`: bytes in use that keep the limit from being
    lowered now, 0 where nothing does."""

    shares: Mapping[int, DeviceRecord]
    wanted: ShareLimits
    allocated: Amounts
    limit: int
    cores: int
    time: region.TimeShare
    waits: int = 0

    @property
    def uuid(self) -> str:
        return next(iter(self.shares.values())).uuid or ""

    @classmethod
    def of(
        cls,
        shares: Mapping[int, DeviceRecord],
        granted: ResizedClaim,
        present: tuple[Any, ...],
        in_use: int,
    ) -> _Due:
        _, before, _, _, cores, priority, rate, _, _, _, _, _, elastic = present
        keys = [((each.device, each.share_id), allocated_amounts(each)) for each in shares.values()]
        limits = [granted.of(key, allocated) for key, allocated in keys]
        wanted = replace(limits[0], amounts=together(each.amounts for each in limits))
        allocated, time = together(each for _, each in keys), region.TimeShare(rate, bool(elastic), priority)
        here = cls(shares, wanted, allocated, before, cores, time)
        memory = wanted.amounts.get(names.CAPACITY_MEMORY)
        if memory is None or before == region.UNLIMITED:
            return here
        if int(memory) < before and in_use > memory:
            most = together(granted.most(key, allocated) for key, allocated in keys)
            return replace(here, limit=min(before, int(most[names.CAPACITY_MEMORY])), waits=in_use)
        return replace(here, limit=int(memory))


NOTHING: Final = ResizedClaim("", 0, {}, {})
NOT_YET: Final = "NotYetTaken"
LIMITER: Final = "limiter"


def limited_cards(record: ClaimRecord) -> dict[str, dict[int, DeviceRecord]]:
    """The claim's shares that the limiter keeps, each with its place, by card: several of one have one limit
    together."""
    found = defaultdict[str, dict[int, DeviceRecord]](dict)
    for index, device in enumerate(record.devices):
        if device.isolation == LIMITER and device.uuid and device.share_id:
            found[region.uuid_text(region.uuid_bytes(device.uuid))][index] = device
    return dict(found)


def together(shares: Iterable[Amounts]) -> dict[str, Decimal]:
    found = dict[str, Decimal]()
    for amounts in shares:
        for name, amount in amounts.items():
            found[name] = found.get(name, Decimal(0)) + amount
    return found


def allocated_amounts(device: DeviceRecord) -> dict[str, Decimal]:
    return own_amounts(
        {name: parse(amount) for name, amount in device.consumed}, {names.CAPACITY_CORES: Decimal(100)}
    )


def with_limits(claims: Path, record: ClaimRecord) -> ClaimRecord:
    """The record, of which each card is consumed by as much as its limits allow, if that is more than was
    allocated: what Prepare counts of a claim that has grown, whose object may be long gone."""
    cards = limited_cards(record)
    try:
        policy = usage.read_policy(claims / record.ref.uid) if cards else ()
    except (OSError, NodeError):
        return record
    limits = {region.uuid_text(each[0]): each for each in policy}
    grown = {min(shares): _enlarged(shares, limits[card]) for card, shares in cards.items() if card in limits}
    devices = tuple(grown.get(index, device) for index, device in enumerate(record.devices))
    return replace(record, devices=devices)


def _enlarged(shares: Mapping[int, DeviceRecord], limits: tuple[Any, ...]) -> DeviceRecord:
    """The first of a card's shares, with what the claim has more of the card."""
    first = shares[min(shares)]
    own, allocated = allocated_amounts(first), together(map(allocated_amounts, shares.values()))
    memory, cores = limits[1] if limits[1] != region.UNLIMITED else 0, limits[4]
    now = {names.CAPACITY_MEMORY: Decimal(memory), names.CAPACITY_CORES: Decimal(cores)}
    more = {name: now[name] - has for name, has in allocated.items() if now[name] > has}
    if not more:
        return first
    grown = {name: canonical(own.get(name, Decimal(0)) + each) for name, each in more.items()}
    return replace(first, consumed=tuple(sorted({**dict(first.consumed), **grown}.items())))


def _in_use(folder: Path) -> dict[str, int]:
    """Bytes by card, announced ones among them; nothing where it cannot be read."""
    try:
        use = usage.read(folder)
    except NodeError:
        return {}
    return {card.uuid: card.used + sum(each.pending for each in use.processes) for card in use.devices}


def _state(due: _Due, use: usage.ClaimUse, granted: ResizedClaim) -> ResizeState:
    words = due.wanted.words(due.allocated)
    card = region.uuid_text(region.uuid_bytes(due.uuid))
    used = next((each.used for each in use.devices if each.uuid == card), 0)
    memory, late = (
        due.wanted.amounts.get(names.CAPACITY_MEMORY),
        [each for each in use.processes if not each.has_taken(use.change)],
    )
    if memory is not None and (due.waits or used > memory):
        told = f"waits until no more memory is in use; {canonical(max(due.waits, used))} are now"
        return ResizeState(granted.revision, False, "InUse", f"{words}: {told}", granted.refused)
    if late:
        named = ", ".join(f"{each.name or 'process'} (pid {each.pid})" for each in late[:_MOST_NAMED])
        more = f" and {len(late) - _MOST_NAMED} more" if len(late) > _MOST_NAMED else ""
        told = f"not taken yet by {named}{more}"
        return ResizeState(granted.revision, False, NOT_YET, f"{words}: {told}", granted.refused)
    idle = len(use.behind)
    silent = f", {idle} of them from their next call on" if idle else ""
    told = f"all {len(use.processes)} processes act by it{silent}"
    return ResizeState(granted.revision, True, "Applied", f"{words}: {told}", granted.refused)
