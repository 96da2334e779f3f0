"""Tables by key that do not grow for ever: some keep nothing empty, since what they are about comes and goes
under names of its own; others forget what can be worked out again, or what is due."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class KeySets(dict[Any, set[str]]):
    """Keys of objects by what they have in common; what no object has any more is dropped."""

    def move(self, key: str, before: Iterable[object], now: Iterable[object]) -> None:
        """The object had `before` and has `now`; what stands there twice counts once."""
        if before == now:
            return
        had, has = set(before), set(now)
        for name in had - has:
            self[name].discard(key)
            if not self[name]:
                del self[name]
        for name in has - had:
            self.setdefault(name, set()).add(key)


class DueKeys:
    """Keys, each with the time at which it is due."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def add(self, at: float, key: str) -> None:
        heapq.heappush(self._heap, (at, key))

    def pop(self, now: float) -> set[str]:
        """Those that are due; they are dropped."""
        found = set[str]()
        while self._heap and self._heap[0][0] <= now:
            found.add(heapq.heappop(self._heap)[1])
        return found

    @property
    def next(self) -> float | None:
        """When the next one is due."""
        return self._heap[0][0] if self._heap else None


def keep_if(keys: set[str], key: str, belongs: bool) -> None:
    if belongs:
        keys.add(key)
    else:
        keys.discard(key)


def set_or_drop(table: dict[Any, Any], key: object, value: object) -> None:
    """Store the value, or drop the key where there is nothing to store."""
    if value:
        table[key] = value
    else:
        table.pop(key, None)


class BoundedCache(dict[_Key, _Value]):
    """What can be worked out again. Where there is no room for one more, everything is forgotten."""

    __slots__ = ("most",)  # There are several of each request class, and most of them are empty.

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: _Key, value: _Value) -> None:
        if len(self) >= self.most:
            self.clear()
        super().__setitem__(key, value)

    def get_or_make(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        try:
            return self[key]
        except KeyError:
            pass  # What fails in `make` does not carry this error: it says the key, which may be a whole class of nodes.
        self[key] = made = make()
        return made


class SizedCache(dict[_Key, _Value]):
    """The same for values that users make large: bounded by their sizes together, not by their number."""

    __slots__ = ("_size", "most")

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self._size = 0

    def clear(self) -> None:
        super().clear()
        self._size = 0

    def keep(self, key: _Key, value: _Value, size: int) -> _Value:
        if self._size + size > self.most:
            self.clear()
        if size <= self.most:
            self._size += size
            super().__setitem__(key, value)
        return value
