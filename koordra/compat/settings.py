"""What a cluster's operator has set: names that differ, units, defaults; settings_document.py reads it. And strict readers of plain
values, each with the document (`source`) and the field that a complaint names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from koordra.errors import InvalidManifest

UNITS: Final[Mapping[str, int]] = {"MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True, slots=True)
class Settings:
    """`names` maps a name of the tables to the cluster's, `own_names` (dialect, name) what one dialect alone calls otherwise: with
    HAMi's cards renamed `nvidia.com/gpu` is still everybody else's. `options` is what dialects read for themselves, section by
    section. `known` remembers answers about names (detection.py)."""

    default_dialect: str = "plain"
    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    own_names: Mapping[tuple[str, str], str] = field(default_factory=lambda: MappingProxyType({}))
    isolation: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    schedulers: tuple[str, ...] | None = None
    runtime_classes: tuple[str, ...] | None = None
    known: dict[tuple[str, str], bool] = field(init=False, repr=False, compare=False, default_factory=dict)

    def name(self, key: str, dialect: str = "") -> str:
        """The cluster's name for a dialect's name of the tables; "" where the operator has taken it away."""
        return self.own_names.get((dialect, key), self.names.get(key, key))

    def option(self, section: str, key: str, default: Any) -> Any:
        return self.options.get(section, {}).get(key, default)

    def with_option(self, section: str, key: str, value: object) -> Settings:
        said = MappingProxyType({**self.options.get(section, {}), key: value})
        return replace(self, options=MappingProxyType({**self.options, section: said}))


def unit_of(settings: Settings, raw: object, source: str, *, section: str) -> Settings:
    """The settings with a section that holds `memoryUnit` alone."""
    unit = word(only(raw, "memoryUnit", source, section), tuple(UNITS), source, f"{section}.memoryUnit")
    return settings.with_option(section, "memoryUnit", UNITS[unit])


def number_of(settings: Settings, raw: object, source: str, *, section: str, name: str) -> Settings:
    """The settings with a section that holds one whole number alone."""
    found = whole(only(raw, name, source, section), source, f"{section}.{name}", least=1)
    return settings.with_option(section, name, found)


def only(raw: object, name: str, source: str, field: str) -> Any:
    data = mapping(raw, source, field)
    if list(data) != [name]:
        raise InvalidManifest("has other fields", object=source, field=field, remedy=f"write {name} alone")
    return data[name]


def mapping(raw: object, source: str, field: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise InvalidManifest("is not an object", object=source, field=field)
    return raw


def texts(raw: object, source: str, field: str) -> tuple[str, ...]:
    if not isinstance(raw, list):
        raise InvalidManifest("is not a list", object=source, field=field)
    return tuple(text(entry, source, f"{field}[{index}]") for index, entry in enumerate(raw))


def text(raw: object, source: str, field: str) -> str:
    if not isinstance(raw, str):
        raise InvalidManifest(f"{raw!r} is not a text", object=source, field=field)
    return raw


def word(raw: object, words: tuple[str, ...], source: str, field: str) -> str:
    if raw not in words:
        raise InvalidManifest(
            f"{raw!r} is not allowed", object=source, field=field, remedy=f"use one of {', '.join(words)}"
        )
    return str(raw)


def whole(raw: object, source: str, field: str, *, least: int = 0) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or raw < least:
        raise InvalidManifest(f"{raw!r} is not a whole number from {least} up", object=source, field=field)
    return raw


def number(raw: object, source: str, field: str) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or raw <= 0:
        raise InvalidManifest(f"{raw!r} is not a number above 0", object=source, field=field)
    return float(raw)
