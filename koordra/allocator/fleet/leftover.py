"""The policy `koordra`: expected leftover. A request goes where what it makes unusable is least.

Of a node: g_i free thousandths of GPU i, R their sum, C free cores, M free memory. A learned table (`table.Table`) knows

    H = sum_i h[g_i]        of today's free GPU the part that will stay empty (holes); h is learned by replaying the workload
    U = R - H               usable free GPU
    E = max of lacking(U, C) and lacking(U, M)     usable GPU that will lack cores or memory (`lacking`)
    B = F over classes of several GPUs             FGD's fragmentation, as far as only free whole GPUs help
    P = reserved[model] * R                        what pods will ask for that may run on this model only
    A = sum over switch groups of lacking(U of the group, NIC bandwidth free in the group)    usable GPU without its NIC
    T = intact switch groups                       what is worth keeping for who wants several GPUs under one switch

    cost = apart, then dH + dE/2 + 3 dB/10 - dP/5 + dA/2 - dT/50 + U/100      (d: after minus before; U after)

`apart` is what the request itself loses by GPU and NIC that are not near, or GPUs that NVLink does not join: the part of the written
cost (`allocator.score`) that is about the claim. It comes before all that is about the cluster (`joint`). The same table chooses
the devices inside a node in `plan()` and in the controller (`cards`).

Why these terms: a share of 810 leaves 190, and nothing that small comes often enough, so h[190] is nearly 190 and h[350] is not;
a node whose cores are gone has GPU that nobody can use, counted with half its weight because a set of pods evens out; U/100
packs among equals; B and P keep what only some requests can use. B and P are zero for workloads without such requests, A and
T for machines without NICs or known switches. The weights are those of the published study of
these terms, unchanged: nothing was fitted here. What was added (memory in E, NICs, switches, the rule inside a node) was written
first and measured afterwards, without a change because of it, on nine OpenB lists with ten seeds each: benchmarks/results/replay-openb.md.

Before anything was learned h = 0 and nothing lacks: the cost is U/100, which is best fit. `learning` fills the table.

Numbers are whole: cost in thousandths of a milli-GPU, rounded to milli; the key is 1024 * cost + what is left on the chosen
GPU (ties: smallest leftover). Inside a node the GPU with the least (dH, leftover) is taken, one that nobody uses yet only
if that is better by what B loses; among equal ones the first. Every platform decides alike.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from koordra.allocator.fleet.blocks import Blocks
from koordra.allocator.fleet.columns import INFEASIBLE, Bools, Classes, Ints, Keys, Slots, grown
from koordra.allocator.fleet.device_costs import KEY_BITS, OFFSET, DeviceCosts
from koordra.allocator.fleet.lacking import Lacking
from koordra.allocator.fleet.states import Choice, Request, State
from koordra.allocator.fleet.table import Table

HOLES: Final = 1000
LACKING: Final = 500
BLOCKS: Final = 300
RESERVED: Final = 200
PACKING: Final = 10
"""Weights of dH, E, B, P and U, in thousandths."""

_UNIT: Final = 1_000_000
_HALF: Final = _UNIT // 2


class ExpectedLeftover:
    """See the module. `table` may be replaced (`learn`); the fleet must then be told (`Fleet.tables_changed`)."""

    name = "koordra"
    sorts = True

    def __init__(self, table: Table | None = None) -> None:
        self.table = table or Table()

    def learn(self, table: Table) -> None:
        self.table = table

    def start(self, slots: Slots, classes: Classes) -> None:
        table = self.table
        self.slots, self.classes = slots, classes
        self.cores, self.memory = Lacking(table.cores), Lacking(table.memory)
        self.blocks = Blocks(table.blocks, [kind.model for kind in classes.kinds])
        self.devices = self._device_costs()
        self.reserve = np.array(
            [RESERVED * table.reserved.get(kind.model, 0) for kind in classes.kinds], dtype=np.int64
        )
        self._reserves = bool(self.reserve.any())
        self._part = np.zeros(len(slots.cpu), dtype=np.int64)
        self._before = np.zeros(len(slots.cpu), dtype=np.int64)

    def _device_costs(self, before: DeviceCosts | None = None) -> DeviceCosts:
        lone = BLOCKS * self.blocks.value_of_one // HOLES
        return DeviceCosts(self.table, self.classes, lone=lone, before=before)

    def enter(self, slot: int) -> None:
        if self.devices.crowded(self.slots.used):
            self.devices = self._device_costs(self.devices)
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
        keys, free, extra = self.devices.of_part(int(self._part[slot]))
        form = classes.form[start:end]
        rest, usable, _ = self.devices.totals(int(self._part[slot]))
        # Memory that no class can exhaust need not be weighed.
        plenty = usable * self.memory.most <= (state.memory - self._most_memory(end)) * _UNIT
        return self._costs(
            keys[form],
            free[form] if self.blocks else free,
            extra[form] if extra is not None else None,
            allowed=classes.allowed[state.kind, start:end],
            cpu=state.cpu - classes.cpu[start:end],
            memory=state.memory - classes.memory[start:end],
            rest=rest,
            usable=usable,
            share=classes.share[start:end] * 1000,
            before=int(self._before[slot]),
            kind=state.kind,
            weigh_memory=not plenty,
        )

    def row(self, slots: Ints, number: int) -> Keys:
        classes, form = self.classes, int(self.classes.form[number])
        part, kind = self._part[slots], self.slots.kind[slots]
        keys, free, extra = self.devices.of_form(form)
        rest, usable = self.devices.rest[part], self.devices.usable[part]
        return self._costs(
            keys[part],
            free[part],
            extra[part] if extra is not None else None,
            allowed=classes.allowed[kind, number],
            cpu=self.slots.cpu[slots] - classes.cpu[number],
            memory=self.slots.memory[slots] - classes.memory[number],
            rest=rest,
            usable=usable,
            share=int(classes.share[number]) * 1000,
            before=self._before[slots],
            kind=kind,
            weigh_memory=True,
        )

    def choose(self, state: State, request: Request) -> Choice:
        return self.devices.choose(state.devices, request.form)

    def _most_memory(self, end: int) -> int:
        return int(self.classes.memory[:end].max()) if end else 0

    def _costs(
        self,
        keys: Ints,
        free: Ints,
        extra: Ints | None,
        *,
        allowed: Bools,
        cpu: Ints,
        memory: Ints,
        rest: Ints | int,
        usable: Ints | int,
        share: Ints | int,
        before: Ints | int,
        kind: Ints | int,
        weigh_memory: bool,
    ) -> Keys:
        """Keys of some pairs of state and class, element by element; `keys` are the devices' own (`DeviceCosts`)."""
        holes = (keys >> KEY_BITS) - OFFSET
        left = usable - share - holes
        short: Ints = self.cores.many(left, cpu)
        if weigh_memory and (left * self.memory.most > memory * _UNIT).any():
            other = self.memory.many(left, memory)
            np.copyto(short, other, where=other > short)
        cost: Ints = np.subtract(HOLES * holes + LACKING * short + PACKING * left, before)
        if self.blocks:
            cost += BLOCKS * self.blocks.many(rest - share, free, cpu, kind)
        if self._reserves:
            cost += self.reserve[kind] * share // 1000
        if extra is not None:
            cost += extra
        found: Ints = ((cost + _HALF) // _UNIT << KEY_BITS) + (keys & (1 << KEY_BITS) - 1)
        refused = (cpu | memory) < 0
        refused |= holes >= OFFSET
        refused |= ~allowed
        found[refused] = INFEASIBLE
        return found
