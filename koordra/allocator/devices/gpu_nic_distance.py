"""How near GPUs are to the NICs that they are paired with: steps of the best pairing for the score, and a
level per claim for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from koordra.api import names
from koordra.api.opaque.parameters import Pairing, Scope
from koordra.topology.levels import Level, level_between, scope_key, together


def level_of(devices: Sequence[Mapping[str, Any]]) -> str | None:
    """The worst level between a GPU and its NIC, from plain attributes; None without a GPU or a NIC."""
    gpus = [plain for plain in devices if plain.get(names.ATTR_TYPE) in (names.TYPE_GPU, names.TYPE_MIG)]
    nics = [plain for plain in devices if plain.get(names.ATTR_TYPE) in (names.TYPE_NIC, names.TYPE_VF)]
    worst = worst_pair(gpus, nics)
    return None if worst is None else str(worst)


def worst_pair(gpus: Sequence[Mapping[str, Any]], nics: Sequence[Mapping[str, Any]]) -> Level | None:
    """The worst level of the pairing whose worst level is best; None where there is nothing to pair."""
    if not gpus or not nics:
        return None
    room = -(-len(gpus) // len(nics))
    levels = [[level_between(gpu, nic) for nic in nics] for gpu in gpus]
    for bound in sorted({level for row in levels for level in row}):
        blocked = [[0 if level <= bound else 1 for level in row] for row in levels]
        if all(blocked[row][column // room] == 0 for row, column in enumerate(_assignment(blocked, room))):
            return bound
    return None


def scope_of(devices: Sequence[Mapping[str, Any]], pairing: Pairing | None) -> Scope:
    """The narrowest scope in which GPUs and NICs of one node are as the pairing says; None: they share their
    NICs evenly. Where there is only one kind, all of it together."""
    gpus = [plain for plain in devices if plain.get(names.ATTR_TYPE) in names.GPU_TYPES]
    nics = [plain for plain in devices if plain.get(names.ATTR_TYPE) in names.NIC_TYPES]
    if pairing is Pairing.TOGETHER or not gpus or not nics:
        return next(scope for scope in Scope if together(devices, scope))
    room = {Pairing.PER_DEVICE: 1, Pairing.PER_GROUP: len(gpus)}.get(
        pairing or Pairing.TOGETHER, -(-len(gpus) // len(nics))
    )
    return next((scope for scope in Scope if _are_served(gpus, nics, scope, room)), Scope.NODE)


def _are_served(
    gpus: Sequence[Mapping[str, Any]], nics: Sequence[Mapping[str, Any]], scope: Scope, room: int
) -> bool:
    """Whether the NICs of each scope suffice for its GPUs, `room` for each NIC."""
    beside = Counter(scope_key(nic, scope) for nic in nics)
    return all(
        key is not None and number <= room * beside[key]
        for key, number in Counter(scope_key(gpu, scope) for gpu in gpus).items()
    )


def least_sum(costs: Sequence[Sequence[int]]) -> int:
    """Least total when each row gets a column of its own; with fewer columns than rows each column serves its
    share."""
    # Neither order matters, and few orders are left of the many sets of devices on one machine.
    return _least_sum(tuple(sorted(zip(*sorted(zip(*costs, strict=True)), strict=True))))


@lru_cache(maxsize=1 << 14)
def _least_sum(costs: Sequence[Sequence[int]]) -> int:
    rows, columns = len(costs), len(costs[0])
    room = -(-rows // columns)
    return sum(costs[row][column // room] for row, column in enumerate(_assignment(costs, room)))


def _assignment(costs: Sequence[Sequence[int]], room: int) -> list[int]:
    """Hungarian algorithm (shortest augmenting paths); columns are repeated `room` times. Returns a column
    per row."""
    rows, columns = len(costs), len(costs[0]) * room
    infinity = 10**9
    row_price, column_price = [0] * (rows + 1), [0] * (columns + 1)
    owner, way = [0] * (columns + 1), dict[int, int]()
    for row, _ in enumerate(costs, start=1):
        owner[0], column = row, 0
        least, done = [infinity] * (columns + 1), [False] * (columns + 1)
        while owner[column]:
            done[column] = True
            current, delta, following = owner[column], infinity, 0
            for other in range(1, columns + 1):
                if done[other]:
                    continue
                reduced = costs[current - 1][(other - 1) // room] - row_price[current] - column_price[other]
                if reduced < least[other]:
                    least[other], way[other] = reduced, column
                if least[other] < delta:
                    delta, following = least[other], other
            for other in range(columns + 1):
                if done[other]:
                    row_price[owner[other]] += delta
                    column_price[other] -= delta
                else:
                    least[other] -= delta
            column = following
        while column:
            owner[column] = owner[way[column]]
            column = way[column]
    column_of = {row: column - 1 for column, row in enumerate(owner)}
    return [column_of[row] for row in range(1, rows + 1)]
