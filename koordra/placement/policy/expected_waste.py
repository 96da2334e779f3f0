"""The policy `koordra`: expected waste. A request goes where what it makes unusable is least.

Of a node: g_i free thousandths of GPU i, R their sum (of a card that is cut what can still be given out of
it), C free cores, M free memory. A learned table (`workload_table.LearnedTable`) knows

    H = sum_i h[g_i]        of today's free GPU what will stay empty (holes); h is learned from the workload;
                            of a cut card (MIG) it depends on what is taken, place by place (`mig_placement`)
    U = R - H               usable free GPU
    E = max of lacking(U, C) and lacking(U, M)    usable GPU that lacks cores or memory (`StrandedCapacity`)
    B = F over classes of several GPUs            FGD's fragmentation, as far as only free whole GPUs help
    P = reserved[model] * R                       what pods will ask for that may run on this model only
    A = sum over switch groups of lacking(U, free NIC bandwidth)    usable GPU without its NIC
    T = intact switch groups                      kept for who wants several GPUs under one switch

    cost = dH + dE/2 + 3 dB/10 - dP/5 + dA/2 - dT/50 + U/100      (d: after minus before; U after)

H, U, A and T are about devices: the cluster's part of a cost in the search (`WasteOnNode`), between what the
claim pays and the rest of the written cost. An unused GPU is broken into only if that is better by what B
loses at most. E, B and P need cores, memory and model, too: by them nodes are compared (`of_node`), before
their search by the least that any choice can cost (`least`).

Why these terms: a share of 810 leaves 190, and nothing that small comes often enough, so h[190] is nearly 190
and h[350] is not; GPU beside cores that are gone is unusable, at half weight since a set of pods evens out;
U/100 packs among equals; B and P keep what only some requests can use (else zero, as A and T are without NICs
or known switches). The weights are those of the published study. What was added (memory in E, NICs, switches,
the rule inside a node) was written first and then measured, not fitted: benchmarks/results/replay-openb.md.
Numbers are whole (U: thousandths of a milli-GPU, costs: of that), so every platform decides alike.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Final, NamedTuple

from koordra.allocator.allocation_state import AllocationState
from koordra.allocator.search.partial_choice import PartialChoice
from koordra.placement.free_amounts.node_devices import NodeDevices, devices_of_pools
from koordra.placement.free_amounts.state import WHOLE, FreeAmounts, Request
from koordra.placement.mig.layout import Layout
from koordra.placement.policy.mig_placement import MigCardValues
from koordra.placement.policy.workload_table import MILLION, Block, LearnedTable, PerGpuDemand
from koordra.topology.machine_shape import positions

HOLES: Final = 1000
LACKING: Final = 500
BLOCKS: Final = 300
RESERVED: Final = 200
PACKING: Final = 10
LONE: Final = 500
INTACT: Final = 20
CARD: Final = 40
"""Weights of dH, E, B, P, U, A and T in thousandths; of a cut card in use, so the fuller is taken."""

UNIT: Final = 1_000_000
"""Of a cost, in a milli-GPU; and of U, in a GPU."""

_LAST: Final = 1 << 40
_MICRO: Final = 1000
_MOST_KEPT: Final = 1 << 16


class DeviceWaste(NamedTuple):
    """What taking devices costs: the weighted sum, usable GPU gone, GPUs broken into, thousandths taken."""

    cost: int = 0
    lost: int = 0
    broken: int = 0
    share: int = 0


class GroupValue(NamedTuple):
    """Of the devices of one switch group: their value, negated; usable GPU; all free GPU; unused GPUs."""

    cost: int
    usable: int
    rest: int
    unused: int


class ExpectedWaste:
    """The terms, by one table."""

    def __init__(self, table: LearnedTable) -> None:
        self.table = table
        self.holes: list[int] = table.hole.tolist()
        self.mig_values = MigCardValues(table.slices)
        self.cores, self.memory = StrandedCapacity(table.cores), StrandedCapacity(table.memory)
        self.nics = StrandedCapacity(table.nics)
        self.blocks = MultiGpuFragmentation(table.blocks)
        self._value = lru_cache(maxsize=_MOST_KEPT)(self._value_of)
        self.least_of_share = cache(self._least_of_share)

    def on_node(self, state: AllocationState) -> WasteOnNode:
        return WasteOnNode(self, state)

    def values(self, devices: NodeDevices, free: FreeAmounts) -> list[GroupValue]:
        """Of the node's switch groups, with so much free."""
        layouts, joined = devices.kind.layouts, devices.kind.shape is not None
        return [
            self._value(
                tuple([free.gpus[at] for at in of.gpus]),
                sum([free.nics[at] for at in of.nics]),
                tuple([(layouts[at], free.cuts[at]) for at in of.gpus if layouts[at]]) if layouts else (),
                joined=joined,
            )
            for of in devices.groups
        ]

    def _value_of(
        self, gpus: tuple[int, ...], nics: int, cards: tuple[tuple[Layout, int], ...], *, joined: bool
    ) -> GroupValue:
        rest = _MICRO * sum(gpus)
        usable = rest - sum([self.holes[free] for free in gpus])
        for layout, code in cards:
            rest += self.mig_values.free(layout, code)
            usable += self.mig_values.usable(layout, code)
        unused = gpus.count(WHOLE)
        intact = joined and unused == len(gpus) > 1
        cost = LONE * self.nics.one(usable, nics) - (HOLES - PACKING) * usable
        cost -= INTACT * WHOLE * _MICRO * intact + BLOCKS * self.blocks.value_of_one * unused
        return GroupValue(cost, usable, rest, unused)

    def between(self, devices: NodeDevices, before: FreeAmounts, after: FreeAmounts) -> DeviceWaste:
        """What it costs that no more than `after` is free."""
        cost = lost = broken = 0
        share = sum(before.gpus) - sum(after.gpus)
        for was, now in zip(self.values(devices, before), self.values(devices, after), strict=True):
            if now is not was:
                cost, lost = cost + now.cost - was.cost, lost + was.usable - now.usable
                broken += was.unused - now.unused
        for layout, code, then in zip(devices.kind.layouts, before.cuts, after.cuts, strict=False):
            if layout is not None and code != then:
                share += sum([layout.places[at].milli for at in positions(then & ~code)])
                cost += CARD * self.mig_values.usable(layout, then)
        return DeviceWaste(cost, lost, broken, share)

    def of_node(
        self, devices: NodeDevices, state: FreeAmounts, waste: DeviceWaste, cpu: int, memory: int
    ) -> int:
        """The whole cost in milli-GPU, for who takes so much of this node; comparable between nodes."""
        groups = self.values(devices, state)
        usable, rest = sum([one.usable for one in groups]), sum([one.rest for one in groups])
        left, cpu, memory = usable - waste.lost, state.cpu - cpu, state.memory - memory
        cost = waste.cost + PACKING * usable - HOLES * _MICRO * waste.share
        cost += RESERVED * self.table.reserved.get(devices.kind.model, 0) * waste.share
        cost += LACKING * max(self.cores.one(left, cpu), self.memory.one(left, memory))
        cost -= LACKING * max(self.cores.one(usable, state.cpu), self.memory.one(usable, state.memory))
        if self.blocks:
            unused = sum([one.unused for one in groups])
            lost = partial(self.blocks.one, model=devices.kind.model)
            cost += BLOCKS * lost(rest - _MICRO * waste.share, unused - waste.broken, cpu)
            # What breaking into unused GPUs can cost at most was for the choice of devices.
            cost -= BLOCKS * (lost(rest, unused, state.cpu) + self.blocks.value_of_one * waste.broken)
        return (cost + UNIT // 2) // UNIT

    # --- bounds ---------------------------------------------------------------------------------------------

    def least(
        self,
        devices: NodeDevices,
        state: FreeAmounts,
        request: Request,
        left: Collection[tuple[int, int]],
    ) -> int:
        """No placement of the request on the node is expected to cost less. `left`: of each GPU that it may
        take, or take a share of, what is free then."""
        found = self._options(devices, state, request, left)
        return min(
            [self.of_node(devices, state, one, request.cpu, request.memory) for one in found], default=_LAST
        )

    def _options(
        self,
        devices: NodeDevices,
        state: FreeAmounts,
        request: Request,
        left: Collection[tuple[int, int]],
    ) -> list[DeviceWaste]:
        """Choices of which one costs no more than any: of one device each that may be taken; of several the
        best so many times, for the first relieves a group most. A NIC that is taken, too, only adds, and
        which one may be beside which GPU is the search's business."""
        count = max(request.gpus, len(request.slices))
        if not count:
            return [DeviceWaste()]
        if len(request.slices) > 1:
            sums = self.mig_values.least_of_slices(devices.kind.layouts, request.slices)
            return [DeviceWaste(self.least_cost(lost), lost, 0, share) for share, lost in sums]
        found = [
            self.between(devices, state, then)
            for group in devices.groups
            for then in self._with_one(devices, state, request, group.gpus, left)
        ]
        if not found or count == 1:
            return found
        cost = min([one.cost for one in found]) - INTACT * WHOLE * _MICRO
        return [DeviceWaste(count * cost, count * min([one.lost for one in found]), count, request.share)]

    def _with_one(
        self,
        devices: NodeDevices,
        state: FreeAmounts,
        request: Request,
        group: Sequence[int],
        left: Collection[tuple[int, int]],
    ) -> Iterator[FreeAmounts]:
        """The node with one GPU of these, or share or slice of one, given to the request, each way that
        differs."""
        if not request.slices:
            ways = {(state.gpus[gpu], then): gpu for gpu, then in left if gpu in group}
            for (free, then), gpu in ways.items():
                yield state._replace(gpus=_less(state.gpus, gpu, free - then))
            return
        layouts = devices.kind.layouts
        cards = {(layouts[gpu], state.cuts[gpu]): gpu for gpu in group if layouts and layouts[gpu]}
        for (layout, code), gpu in cards.items():
            assert layout is not None
            for place in self.mig_values.choices(layout, code, request.slices[0]):
                yield state._replace(cuts=_less(state.cuts, gpu, -(1 << place)))

    def _least_of_share(self, milli: int) -> int:
        """Usable GPU that is gone at least when a share of this size is taken of a GPU."""
        hole = self.table.hole
        return _MICRO * milli + int((hole[: len(hole) - milli] - hole[milli:]).min())

    def least_cost(self, lost: int) -> int:
        """Of so much usable GPU that is gone: whatever lacked its NIC there does so no more."""
        return (HOLES - PACKING) * lost - (LONE * max(lost, 0) + LONE if self.nics else 0)


class WasteOnNode:
    """What a node's devices are worth to the cluster, and how a choice changes it (`score.ClusterCost`)."""

    def __init__(self, waste: ExpectedWaste, state: AllocationState) -> None:
        self._waste, self._state = waste, state
        self._devices = devices_of_pools(state.pools)
        self._before = self._devices.state(0, state.taken, {})
        self._parts, self._used = list(state.parts), list(state.used)

    def __call__(self, search: PartialChoice) -> DeviceWaste:
        gpus, nics, cuts = list(self._before.gpus), list(self._before.nics), list(self._before.cuts)
        for device in {one.device for one in search.placed if not one.wanted.spec.admin_access}:
            place = self._devices.places[device]
            if place is None:
                continue
            if place.cut >= 0:
                cuts[place.card] |= 1 << place.cut
            else:
                free = gpus if place.is_gpu else nics
                free[place.card] = max(0, free[place.card] - self._taken(device, place.most))
        after = self._before._replace(gpus=tuple(gpus), nics=tuple(nics), cuts=tuple(cuts))
        return self._waste.between(self._devices, self._before, after)

    def _taken(self, device: int, most: int) -> int:
        """What of the device was not taken before, `most` being all of it; rounded as what is free is."""
        state = self._state
        if not state.shared[device]:
            return most
        before = state.whole - self._parts[device]
        return most * before // state.whole - most * (state.whole - state.parts[device]) // state.whole

    def least(self, device: int, amounts: Mapping[str, int] | None) -> int:
        waste, place = self._waste, self._devices.places[device]
        if place is None or not place.is_gpu:
            return 0
        if place.cut >= 0:
            layout = self._devices.kind.layouts[place.card]
            assert layout is not None
            lost = waste.mig_values.least_of_place(layout, place.cut)
            return waste.least_cost(lost) - CARD * lost
        taken = place.most * self._added(device, amounts)
        few, many = taken // self._state.whole, -(-taken // self._state.whole)
        return waste.least_cost(min(waste.least_of_share(few), waste.least_of_share(many)))

    def _added(self, device: int, amounts: Mapping[str, int] | None) -> int:
        """By how much the largest used part of any capacity grows: the others may be hardly used."""
        if amounts is None:
            return self._state.whole
        used = self._used[device]
        together = used | {name: used.get(name, 0) + amount for name, amount in amounts.items()}
        return self._state.part(device, together) - self._parts[device]


def _less(free: tuple[int, ...], at: int, amount: int) -> tuple[int, ...]:
    return (*free[:at], free[at] - amount, *free[at + 1 :])


class StrandedCapacity:
    """Usable GPU that will lack something else: cores, memory, or a NIC's bandwidth beside it.

        lacking(U, C) = sum over demands j of part_j * max(0, U - C / q_j)

    U is usable GPU (in millionths, as the result), C what is free of the other resource and q_j what demand j
    wants of it per GPU, in one unit. Of the demands in order of q those with U * q_j > C lack: the upper end.
    So with sums over upper ends, made once,

        lacking(U, C) = U * A[k] - C * B[k],   k = number of demands with q_j <= C / U
    """

    def __init__(self, demands: Sequence[PerGpuDemand]) -> None:
        most = max((entry.per_gpu for entry in demands), default=0)
        # Who wants a thousandth of what others want never lacks it first; and products stay far below 2^63.
        ordered = sorted(entry for entry in demands if entry.per_gpu * 1000 > most and entry.part > 0)
        gpu, other = [0], [0]
        for entry in reversed(ordered):
            gpu.append(gpu[-1] + entry.part)
            other.append(other[-1] + entry.part * MILLION // entry.per_gpu)
        self.per_gpu = [entry.per_gpu for entry in ordered]
        self.gpu, self.other = gpu[::-1], other[::-1]

    def __bool__(self) -> bool:
        return bool(self.per_gpu)

    def one(self, usable: int, free: int) -> int:
        if usable <= 0 or not self.per_gpu:
            return 0
        enough = bisect_right(self.per_gpu, free * MILLION // usable)
        return max(0, usable * self.gpu[enough] - free * self.other[enough]) // MILLION


class MultiGpuFragmentation:
    """FGD's fragmentation over classes of several GPUs: free GPU that is of no use to them.

    A class j of k_j GPUs and c_j cores can use a node's free whole GPUs if there are k_j of them, the cores
    suffice and the model is allowed; all else that is free is lost to it. With p_j its part of the pods,
    and Q the sum of p_j over the classes that fit,

        B = sum_j p_j * (R - [fits] * 1000 * free) = (sum_j p_j) * R - 1000 * free * Q(free, C, model)
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = tuple(blocks)
        self.total = sum(block.part for block in blocks)

    def __bool__(self) -> bool:
        return bool(self.blocks)

    @property
    def value_of_one(self) -> int:
        """What breaking into one more GPU can cost, in thousandths of a milli-GPU."""
        return UNIT * self.total // MILLION

    def one(self, rest: int, free: int, cpu: int, model: str) -> int:
        fits = [one for one in self.blocks if one.gpus <= free and one.cpu <= cpu]
        fitting = sum([one.part for one in fits if not one.models or model in one.models])
        return (self.total * rest - UNIT * free * fitting) // MILLION
