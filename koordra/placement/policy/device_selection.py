"""Inside a node: the search's choice, guided by what was learned of the workload.

The search (`allocator.search.search`) knows every rule of a claim and finds the best choice by the written cost, whose last part is best
fit. The policy `koordra` knows, beside that, what a choice leaves to claims to come (`expected_waste`, `joint_devices`). Both are asked, and the
claim comes first:

    written cost ──▶ best choice ────────────────────────────────┐
                                                                  ├──▶ the policy's, if it costs the claim no more
    candidates of the search ──▶ policy ──▶ search among those ───┘

The policy chooses among the devices that the search found eligible, by the same code that chooses in a replay of the fleet. Its
choice is then searched like any other, with nothing but its devices, so that whatever the policy does not see (constraints,
counters, scopes, partitions) still holds; where it does not hold, the written cost's choice stands.

It speaks of groups that counting describes: one GPU or a share of one, or several whole ones, with NICs that all ask alike; one MIG
slice, also with a NIC, or several without. Of a slice the very place is chosen; VFs are parts of their cards. Other groups, and
claims with a device policy of their own, are the written cost's alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from koordra.allocator.node_state import NodeState
from koordra.allocator.request.requests import RequestAlternative, ResolvedClaim
from koordra.api.devices import DeviceID
from koordra.placement.columns.canonical import CanonicalOrder
from koordra.placement.columns.node_devices import NodeDevices, devices_of_pools
from koordra.placement.columns.request_mapping import counted, request_of
from koordra.placement.columns.state import Choice, Devices, Kind, Request, State
from koordra.placement.mig.layout import Layout
from koordra.placement.mig.mig_placement import MigCardValues
from koordra.placement.policy import joint_devices as joint
from koordra.placement.policy.device_costs import fitting_best
from koordra.placement.policy.device_value import ALL, Allowed, DeviceSetValue, machine_devices
from koordra.placement.policy.expected_waste import BLOCKS, HOLES
from koordra.placement.policy.multi_gpu_fragmentation import Blocks
from koordra.placement.policy.stranded_capacity import StrandedCapacity
from koordra.placement.policy.workload_table import Table
from koordra.topology.machine_shape import MachineShape

Candidates = Mapping[RequestAlternative, Sequence[int]]
"""Device positions by request."""

_MOST: Final = 1 << 14


class Cards:
    """What the policy would take, for one table. Without a table it would take what the written cost does, and is not asked."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._holes: list[int] = table.hole.tolist()
        self._cuts = MigCardValues(table.slices)
        self._nics = StrandedCapacity(table.nics)
        self._lone = BLOCKS * Blocks(table.blocks, [""]).value_of_one // HOLES
        self._kept: dict[tuple[Kind, State, Request, Allowed], Choice | None] = {}

    def choose(self, kind: Kind, state: State, request: Request, allowed: Allowed = ALL) -> Choice | None:
        """Positions of the GPUs and NICs; None where nothing fits or it cannot be told."""
        key = (kind, state, request, allowed)
        if key not in self._kept:
            if len(self._kept) >= _MOST:
                self._kept.clear()
            self._kept[key] = self._chosen(*key)
        return self._kept[key]

    def _chosen(self, kind: Kind, state: State, request: Request, allowed: Allowed) -> Choice | None:
        form = request.form
        if kind.shape is None:
            if not form.shared or form.nics or form.slices:
                return None
            free = [left if allowed.gpus >> at & 1 else 0 for at, left in enumerate(state.gpus)]
            best = fitting_best(free, form.milli, self._holes, lone=self._lone)
            return None if best is None else Choice((best,))
        stands, order = _canonical_order(kind.shape, kind.layouts).ordered(state)
        places = machine_devices(kind.shape, kind.spread)
        if max(form.gpus, form.nics) > 1 and not form.slices and places.sets(form) is None:
            return None
        devices = Devices(0, stands.gpus, stands.nics, stands.cuts)
        worth = DeviceSetValue(
            places, devices, self._holes, self._nics, cuts=self._cuts, layouts=kind.layouts
        )
        if order is None:
            found = joint.best(worth, form, allowed)
            return None if found is None else found.choice
        moved = Allowed(
            _moved(allowed.gpus, order.gpus),
            _moved(allowed.nics, order.nics),
            tuple([allowed.places[at] for at in order.gpus]) if allowed.places else (),
        )
        found = joint.best(worth, form, moved)
        if found is None:
            return None
        gpus = tuple(sorted(order.gpus[at] for at in found.choice.gpus))
        nics = tuple(sorted(order.nics[at] for at in found.choice.nics))
        cuts = tuple((order.gpus[at], place) for at, place in found.choice.cuts)
        return Choice(gpus, nics, found.choice.level, cuts)


class DevicePreference:
    """From the search's candidates to those that the policy would take."""

    def __init__(self, cards: Cards) -> None:
        self._cards = cards

    def __call__(
        self, asked: Sequence[ResolvedClaim], state: NodeState, candidates: Candidates
    ) -> Candidates | None:
        """The candidates on the policy's devices; None where the policy has nothing to say."""
        devices = devices_of_pools(tuple(state.pools))
        request = request_of(asked, (), devices.memory, devices.profiles)
        if request is None or not counted(asked):
            return None
        sides = _sides(devices, state, candidates)
        if sides is None:
            return None
        gpus, nics = [sum(1 << at for at in found) for found in sides]
        allowed = Allowed(gpus, nics, _places(devices, state, candidates))
        now = devices.state(0, state.taken, {})._replace(cpu=0, memory=0)
        choice = self._cards.choose(devices.kind, now, request._replace(cpu=0, memory=0), allowed)
        if choice is None:
            return None
        chosen = _Chosen(frozenset(choice.gpus), frozenset(choice.nics), frozenset(choice.cuts))
        return {
            wanted: [at for at in found if _on(devices, state.devices[at].id, chosen)]
            for wanted, found in candidates.items()
        }


class _Chosen(NamedTuple):
    gpus: frozenset[int]
    nics: frozenset[int]
    cuts: frozenset[tuple[int, int]]


def _sides(
    devices: NodeDevices, state: NodeState, candidates: Candidates
) -> tuple[set[int], set[int]] | None:
    """Positions of the GPUs and of the NICs that the requests may get; None where requests may get different ones."""
    sides: dict[bool, set[int]] = {}
    for found in candidates.values():
        parts = [devices.parts.get(state.devices[at].id) for at in found]
        kinds = {part[0] for part in parts if part is not None}
        if None in parts or len(kinds) != 1:
            return None
        side, positions = kinds.pop(), {part[1] for part in parts if part is not None}
        if side and all(state.devices[at].id in devices.cuts for at in found):
            # Which places of a card each request may get is told beside (`_places`).
            sides[side] = sides.get(side, set()) | positions
        elif sides.setdefault(side, positions) != positions:
            return None
    return sides.get(True, set()), sides.get(False, set())


def _places(devices: NodeDevices, state: NodeState, candidates: Candidates) -> tuple[int, ...]:
    """Masks of the places that any of the requests may get, by card."""
    if not devices.kind.layouts:
        return ()
    masks = [0] * len(devices.gpus)
    for found in candidates.values():
        for at in found:
            card, place = devices.cuts.get(state.devices[at].id, (0, -1))
            if place >= 0:
                masks[card] |= 1 << place
    return tuple(masks)


def _on(devices: NodeDevices, device: DeviceID, chosen: _Chosen) -> bool:
    if device in devices.cuts:
        return devices.cuts[device] in chosen.cuts
    is_gpu, position, _ = devices.parts[device]
    return position in (chosen.gpus if is_gpu else chosen.nics)


@lru_cache(maxsize=256)
def _canonical_order(shape: MachineShape, layouts: tuple[Layout | None, ...]) -> CanonicalOrder:
    return CanonicalOrder(shape, layouts)


def _moved(mask: int, order: Sequence[int]) -> int:
    """The mask in the positions of the ordered state."""
    return sum(1 << place for place, at in enumerate(order) if mask >> at & 1)
