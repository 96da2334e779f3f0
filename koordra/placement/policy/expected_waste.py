"""The policy `koordra`: expected waste. A request goes where what it makes unusable is least.

Of a node: g_i free thousandths of GPU i, R their sum (of a card that is cut what can still be given out of it), C free cores, M free
memory. A learned table (`workload_table.Table`) knows

    H = sum_i h[g_i]        of today's free GPU the part that will stay empty (holes); h is learned by replaying the workload;
                            of a card that is cut into slices (MIG) it depends on what is taken of it, place by place (`mig_placement`)
    U = R - H               usable free GPU
    E = max of lacking(U, C) and lacking(U, M)     usable GPU that will lack cores or memory (`stranded_capacity`)
    B = F over classes of several GPUs             FGD's fragmentation, as far as only free whole GPUs help (`multi_gpu_fragmentation`)
    P = reserved[model] * R                        what pods will ask for that may run on this model only
    A = sum over switch groups of lacking(U of the group, NIC bandwidth free in the group)    usable GPU without its NIC
    T = intact switch groups                       what is worth keeping for who wants several GPUs under one switch

    cost = apart, then dH + dE/2 + 3 dB/10 - dP/5 + dA/2 - dT/50 + U/100      (d: after minus before; U after)

`apart` is what the request itself loses by GPU and NIC that are not near, or GPUs that NVLink does not join: the part of the written
cost (`allocator.score`) that is about the claim. It comes before all that is about the cluster (`joint_devices`). The same table chooses
the devices inside a node in `plan()` and in the controller (`device_selection`).

Why these terms: a share of 810 leaves 190, and nothing that small comes often enough, so h[190] is nearly 190 and h[350] is not;
a node whose cores are gone has GPU that nobody can use, counted with half its weight because a set of pods evens out; U/100
packs among equals; B and P keep what only some requests can use. B and P are zero for workloads without such requests, A and
T for machines without NICs or known switches. The weights are those of the published study of
these terms, unchanged: nothing was fitted here. What was added (memory in E, NICs, switches, the rule inside a node) was written
first and measured afterwards, without a change because of it, on nine OpenB lists with ten seeds each: benchmarks/results/replay-openb.md.

Before anything was learned h = 0 and nothing lacks: the cost is U/100, which is best fit. `workload_learning` fills the table.

Numbers are whole: cost in thousandths of a milli-GPU, rounded to milli; the key is 1024 * cost + what is left on the chosen
GPU (ties: smallest leftover). Inside a node the GPU with the least (dH, leftover) is taken, one that nobody uses yet only
if that is better by what B loses; among equal ones the first. Every platform decides alike.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from koordra.placement.columns.arrays import INFEASIBLE, Bools, Classes, Ints, Keys, Slots, grown
from koordra.placement.columns.state import Choice, Request, State
from koordra.placement.policy.device_costs import KEY_BITS, OFFSET, DeviceCosts
from koordra.placement.policy.multi_gpu_fragmentation import Blocks, BlocksOfDevices
from koordra.placement.policy.stranded_capacity import StrandedCapacity
from koordra.placement.policy.workload_table import Table

HOLES: Final = 1000
LACKING: Final = 500
BLOCKS: Final = 300
RESERVED: Final = 200
PACKING: Final = 10
"""Weights of dH, E, B, P and U, in thousandths."""

_UNIT: Final = 1_000_000
_HALF: Final = _UNIT // 2
_FIXED_BYTES: Final = 64
_MOST_KEPT: Final = 16 << 20


class _Fixed(NamedTuple):
    """What of the keys of a part does not depend on cores and memory: an entry per pair of part and class.

    `cost` in thousandths of a milli-GPU and a half; `left` usable afterwards, `divisor` the same but at least 1; with `memory`
    free afterwards it lacks none.
    """

    cost: Ints
    left: Ints
    divisor: Ints
    memory: Ints
    left_on_gpu: Ints
    refused: Bools
    blocks: BlocksOfDevices | None

    def since(self, start: int) -> _Fixed:
        """Without the first classes."""
        return _Fixed(
            cost=self.cost[start:],
            left=self.left[start:],
            divisor=self.divisor[start:],
            memory=self.memory[start:],
            left_on_gpu=self.left_on_gpu[start:],
            refused=self.refused[start:],
            blocks=None if self.blocks is None else self.blocks.since(start),
        )


class ExpectedWaste:
    """See the module. `table` may be replaced (`learn`); the fleet must then be told (`Fleet.tables_changed`)."""

    name = "koordra"
    sorts = True
    cuts = True

    def __init__(self, table: Table | None = None) -> None:
        self.table = table or Table()

    def learn(self, table: Table) -> None:
        self.table = table

    def start(self, slots: Slots, classes: Classes) -> None:
        table = self.table
        self.slots, self.classes = slots, classes
        self.cores, self.memory = StrandedCapacity(table.cores), StrandedCapacity(table.memory)
        self.blocks = Blocks(table.blocks, [kind.model for kind in classes.kinds])
        self.devices = self._device_costs()
        self.reserve = np.array(
            [RESERVED * table.reserved.get(kind.model, 0) for kind in classes.kinds], dtype=np.int64
        )
        self._reserves = bool(self.reserve.any())
        self._part = np.zeros(len(slots.cpu), dtype=np.int64)
        self._before = np.zeros(len(slots.cpu), dtype=np.int64)
        self._kept: dict[tuple[int, int], _Fixed] = {}
        self._most = 0, 0

    def _device_costs(self, before: DeviceCosts | None = None) -> DeviceCosts:
        lone = BLOCKS * self.blocks.value_of_one // HOLES
        return DeviceCosts(self.table, self.classes, lone=lone, before=before)

    def enter(self, slot: int) -> None:
        if self.devices.crowded(self.slots.used):
            self.devices = self._device_costs(self.devices)
            self._kept.clear()
            for other, known in enumerate(self.slots.states):
                if known is not None and other < len(self._part):
                    self._part[other] = self.devices.part(known.devices)
        state = self.slots.states[slot]
        assert state is not None
        if slot >= len(self._part):
            self._part = grown(self._part, slot + 1)
            self._before = grown(self._before, slot + 1)
        part = self.devices.part(state.devices)
        self._part[slot] = part
        rest, usable, free = self.devices.totals(part)
        short = max(self.cores.one(usable, state.cpu), self.memory.one(usable, state.memory))
        worth = LACKING * short
        if self.blocks:
            worth += BLOCKS * self.blocks.one(rest, free, state)
        self._before[slot] = worth

    def column(self, slot: int, start: int) -> Keys:
        state = self.slots.states[slot]
        assert state is not None
        classes, end = self.classes, len(self.classes)
        part = int(self._part[slot])
        fixed = self._fixed_of(part, state.kind, end)
        if start:
            fixed = fixed.since(start)
        usable = self.devices.totals(part)[1]
        spare = state.memory - self._most_memory(end)
        cpu = state.cpu - classes.cpu[start:end]
        # Memory that no class can exhaust need not be weighed.
        plenty = spare >= 0 and usable * self.memory.most <= spare * _UNIT
        memory = None if plenty else state.memory - classes.memory[start:end]
        return self._costs(fixed, cpu, memory, before=int(self._before[slot]))

    def row(self, slots: Ints, number: int) -> Keys:
        classes = self.classes
        part, kind = self._part[slots], self.slots.kind[slots]
        keys, free, extra = self.devices.of_form(int(classes.form[number]))
        fixed = self._fixed(
            keys[part],
            free[part],
            None if extra is None else extra[part],
            rest=self.devices.rest[part],
            usable=self.devices.usable[part],
            share=int(classes.share[number]) * 1000,
            allowed=classes.allowed[kind, number],
            kind=kind,
        )
        cpu = self.slots.cpu[slots] - classes.cpu[number]
        memory = self.slots.memory[slots] - classes.memory[number]
        return self._costs(fixed, cpu, memory, before=self._before[slots])

    def choose(self, state: State, request: Request) -> Choice:
        return self.devices.choose(state.devices, request.form)

    def _most_memory(self, end: int) -> int:
        if self._most[0] != end:
            self._most = end, int(self.classes.memory[:end].max()) if end else 0
        return self._most[1]

    def _fixed_of(self, part: int, kind: int, end: int) -> _Fixed:
        """Of one part on nodes of one kind, for the classes until `end`. Nodes pass through few parts with many cores."""
        known = self._kept.get((part, kind))
        if known is not None and len(known.refused) == end:
            return known
        if (len(self._kept) + 1) * end * _FIXED_BYTES > _MOST_KEPT:
            self._kept.clear()
        classes, form = self.classes, self.classes.form[:end]
        keys, free, extra = self.devices.of_part(part)
        rest, usable, _ = self.devices.totals(part)
        found = self._kept[part, kind] = self._fixed(
            keys[form],
            free[form],
            None if extra is None else extra[form],
            rest=rest,
            usable=usable,
            share=classes.share[:end] * 1000,
            allowed=classes.allowed[kind, :end],
            kind=kind,
        )
        return found

    def _fixed(
        self,
        keys: Ints,
        free: Ints,
        extra: Ints | None,
        *,
        rest: Ints | int,
        usable: Ints | int,
        share: Ints | int,
        allowed: Bools,
        kind: Ints | int,
    ) -> _Fixed:
        """Pairs of part and class, element by element; `keys`, `free` and `extra` are the devices' own (`DeviceCosts`)."""
        holes = (keys >> KEY_BITS) - OFFSET
        left = usable - share - holes
        cost: Ints = HOLES * holes + PACKING * left + _HALF
        if self._reserves:
            cost += self.reserve[kind] * share // 1000
        if extra is not None:
            cost += extra
        refused = holes >= OFFSET
        refused |= ~allowed
        wanted = -(-np.maximum(left, 0) * self.memory.most // _UNIT)
        return _Fixed(
            cost=cost,
            left=left,
            divisor=np.maximum(left, 1),
            memory=wanted,
            left_on_gpu=keys & (1 << KEY_BITS) - 1,
            refused=refused,
            blocks=self.blocks.devices(np.asarray(rest - share), free, kind) if self.blocks else None,
        )

    def _costs(self, fixed: _Fixed, cpu: Ints, memory: Ints | None, *, before: Ints | int) -> Keys:
        """Keys of pairs of state and class, element by element; no `memory` where there is plenty."""
        short = self.cores.many(fixed.left, fixed.divisor, cpu)
        refused = cpu < 0
        refused |= fixed.refused
        if memory is not None:
            refused |= memory < 0
            if ((memory < fixed.memory) > refused).any():
                np.maximum(short, self.memory.many(fixed.left, fixed.divisor, memory), out=short)
        short *= LACKING
        short += fixed.cost
        short -= before
        if fixed.blocks is not None:
            short += BLOCKS * self.blocks.many(fixed.blocks, cpu)
        short //= _UNIT
        short <<= KEY_BITS
        short |= fixed.left_on_gpu
        short[refused] = INFEASIBLE
        return short
