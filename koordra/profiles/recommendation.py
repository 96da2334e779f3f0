"""What share of a GPU would have done, by what was used. Pure.

    memory    the most that was ever used, since a program without memory ends, and a tenth more
    cores     what was not exceeded in 99 % of the time, and a quarter more: without, a program is slower

Both are rounded up to steps that people write. Never more than was asked: a share that was used up to its
limit says nothing about what its program would take without, and keeps what it has. What ran for less than
ENOUGH says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordra.api import names
from koordra.api.objects import Object
from koordra.compat.settings import Settings
from koordra.profiles.asked import ALL_CORES, words_for
from koordra.profiles.condensed import Use
from koordra.profiles.series import MIB, Series
from koordra.profiles.share import AskedShare, Recommendation
from koordra.quantity import canonical

ENOUGH: Final = 600
"""Seconds of samples, of all pods together."""
MEMORY_STEP: Final = 256 * MIB
CORES_STEP: Final = 5
AT_LIMIT: Final = 0.95
"""Of what was asked; who had so much of it may have wanted more."""


def recommend(pod: Object, asked: AskedShare, use: Use, settings: Settings) -> Recommendation | None:
    """`pod`: one of those that used it. None where too little is known, or nothing smaller would have
    done."""
    memory, kernels = use.get(Series.GPU_MEMORY), use.get(Series.SM)
    if memory is None or min(memory.seconds, kernels.seconds if kernels else memory.seconds) < ENOUGH:
        return None
    wanted = _memory(asked, memory.peak)
    cores = asked.cores if kernels is None else _cores(asked.cores, kernels.p99 / 10)
    had = asked.card if asked.memory is None else asked.memory
    if wanted is None or (wanted == had and cores == asked.cores):
        return None
    words = words_for(pod, asked, settings, memory=wanted, cores=cores)
    used = f"{_binary(memory.p99)}" + (f" / {kernels.p99 / 10:.0f} %" if kernels else "")
    would = spelled(words or _of_claims(wanted, cores)) + ("" if words else " in a claim")
    text = f"asked {spelled(asked.words) or 'whole GPUs'}, p99 used {used}, at most {_binary(memory.peak)}: {would} would do"
    return Recommendation(asked, wanted, cores, words, text)


def needed(use: Use) -> tuple[int, int] | None:
    """Bytes and percent of each GPU that would have done, whatever was asked; percent 0 where nobody measured
    how long kernels ran. None where too little is known."""
    memory, kernels = use.get(Series.GPU_MEMORY), use.get(Series.SM)
    if memory is None or memory.seconds < ENOUGH:
        return None
    known = kernels is not None and kernels.seconds >= ENOUGH
    return _enough_memory(memory.peak), _enough_cores(kernels.p99 / 10) if known and kernels else 0


def _enough_memory(peak: int) -> int:
    return max(MEMORY_STEP, -(-peak * 11 // 10 // MEMORY_STEP) * MEMORY_STEP)


def _enough_cores(used: float) -> int:
    return min(ALL_CORES, max(CORES_STEP, -(-int(used * 1.25 + 0.999) // CORES_STEP) * CORES_STEP))


def _memory(asked: AskedShare, peak: int) -> int | None:
    """None where neither what was asked nor the card is known."""
    had = asked.memory if asked.memory is not None else asked.card
    if not had:
        return None
    return had if peak >= AT_LIMIT * had else min(had, _enough_memory(peak))


def _cores(asked: int, used: float) -> int:
    """In percent. Who reserved none goes on without."""
    return asked if not asked or used >= AT_LIMIT * asked else min(asked, _enough_cores(used))


def _of_claims(memory: int, cores: int) -> dict[str, str]:
    """For who asked in words that have none for such a share."""
    return {
        names.CAPACITY_MEMORY: canonical(memory),
        **({names.CAPACITY_CORES: str(cores)} if cores else {}),
    }


def spelled(words: Mapping[str, str]) -> str:
    """`nvidia.com/gpumem 40000 / gpucores 50`: what names have in common in front stands once."""
    found, domain = [], ""
    for name, amount in words.items():
        before, slash, last = name.rpartition("/")
        found.append(f"{last if slash and before == domain else name} {amount}")
        domain = before
    return " / ".join(found)


def _binary(amount: int) -> str:
    if amount >= 10 << 30:
        return f"{amount / (1 << 30):.0f}Gi"
    return f"{amount / (1 << 30):.1f}Gi" if amount >= 1 << 30 else f"{-(-amount // MIB)}Mi"
