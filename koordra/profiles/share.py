"""What a pod asked for of its GPUs, and what would have done, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AskedShare:
    """What one container asked for (`where`: its name, empty for all containers of a pod together, or a
    claim's name and its request). `words`: as its user wrote it, by the names of the dialect
    (`nvidia.com/gpumem`: `40000`), or of a claim's capacities, whose dialect is empty. On each of `count`
    GPUs: `memory` in bytes, None for all of it, and `cores` in percent, 100 for all, 0 for whatever is left.
    `card`: bytes of such a GPU, 0 where that is not known."""

    dialect: str
    where: str
    words: Mapping[str, str] = field(default_factory=dict)
    count: int = 1
    memory: int | None = None
    cores: int = 100
    card: int = 0


@dataclass(frozen=True, slots=True)
class Recommendation:
    """`words`: the names that the user wrote, with what would have done; empty where the dialect has no words
    for a share. `text`: what was asked, used and would have done, for people."""

    asked: AskedShare
    memory: int
    cores: int
    words: Mapping[str, str]
    text: str
