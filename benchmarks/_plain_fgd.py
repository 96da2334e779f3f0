"""FGD written plainly from its formulas in numpy: every pod scores every node anew. What the ratios are
against.

    F_n(m) = R if m wants no GPU, or model, cores or number of fitting GPUs do not suffice; else sum of
             g_i < milli_m
    F_n    = sum_m p_m F_n(m)
    score  = trunc(100 * sigmoid((F_n - F_n after the pod) / 1000)), best GPU for a share; first node, first
           GPU win ties

It shares no code with the fleet, so that it also checks what the fleet decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


class PlainFgd:
    """`nodes` are (milli-cores, MiB, GPUs, model); `target` is (milli-cores, milli, GPUs, models, part of the
    pods)."""

    def __init__(
        self,
        nodes: Sequence[tuple[int, int, int, str]],
        target: Sequence[tuple[int, int, int, tuple[str, ...], float]],
    ) -> None:
        self.cpu = np.array([node[0] for node in nodes])
        self.memory = np.array([node[1] for node in nodes])
        self.models = np.array([node[3] for node in nodes])
        # Sums over a node stay below 2^15.
        self.gpus = np.array([[1000] * node[2] + [0] * (8 - node[2]) for node in nodes], dtype=np.int16)
        self.target = [(*one[:3], np.isin(self.models, one[3]) if one[3] else None, one[4]) for one in target]

    def fragmented(self, nodes: _Ints, cpu: _Ints, gpus: _Ints) -> _Floats:
        """F_n of some nodes as they would be."""
        rest = gpus.sum(axis=-1, dtype=np.int16)
        total = np.zeros(rest.shape)
        for wanted_cpu, milli, number, allowed, part in self.target:
            if not number:
                total += part * rest
                continue
            fits = (cpu >= wanted_cpu) & ((gpus >= milli).sum(axis=-1) >= number)
            if allowed is not None:
                fits &= allowed[nodes]
            total += part * np.where(fits, (gpus * (gpus < milli)).sum(axis=-1, dtype=np.int16), rest)
        return total

    def place(
        self, cpu: int, memory: int, number: int, milli: int, models: tuple[str, ...]
    ) -> tuple[int, tuple[int, ...]] | None:
        """The node and its GPUs, taken; None where nothing fits."""
        fits = (self.cpu >= cpu) & (self.memory >= memory)
        if number:
            fits &= (self.gpus >= milli).sum(axis=1) >= number
        if models:
            fits &= np.isin(self.models, models)
        nodes = fits.nonzero()[0]
        if not len(nodes):
            return None
        before = self.fragmented(nodes, self.cpu[nodes], self.gpus[nodes])
        if number == 1 and milli < 1000:
            rows, gpus = (self.gpus[nodes] >= milli).nonzero()
            after = self.gpus[nodes[rows]]
            after[np.arange(len(rows)), gpus] -= milli
            scores = _score(before[rows] - self.fragmented(nodes[rows], self.cpu[nodes[rows]] - cpu, after))
            first = int(scores.argmax())
            best, chosen = int(rows[first]), (int(gpus[first]),)
        else:
            after = self.gpus[nodes]
            if number:
                free = after >= milli
                after[free & (free.cumsum(axis=1) <= number)] -= milli
            best = int(_score(before - self.fragmented(nodes, self.cpu[nodes] - cpu, after)).argmax())
            fitting = (self.gpus[nodes[best]] >= milli).nonzero()[0]
            chosen = tuple(int(at) for at in fitting[:number])
        self.take(int(nodes[best]), chosen, cpu, memory, milli)
        return int(nodes[best]), chosen

    def take(self, node: int, gpus: tuple[int, ...], cpu: int, memory: int, milli: int) -> None:
        """Something is placed there."""
        self.cpu[node] -= cpu
        self.memory[node] -= memory
        self.gpus[node, list(gpus)] -= milli


def _score(gain: _Floats) -> _Ints:
    found: _Ints = (100 / (1 + np.exp(-np.round(gain, 6) / 1000))).astype(np.int64)
    return found
