"""What a cluster's operator has set: names that differ, units, defaults; settings_document.py reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from koordra.api.classic.notes import Note
from koordra.api.reader import Reader
from koordra.compat.keys import Place, Treatment, key_of

UNITS: Final[Mapping[str, int]] = {"MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True, slots=True)
class NicName:
    """What a device plugin's name for NICs means: a virtual function, or `share` percent of a NIC; on these
    `interfaces`, any where there are none."""

    virtual: bool
    share: int | None = None
    interfaces: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """`names` maps a name of the tables to the cluster's, `own_names` (dialect, name) what one dialect alone
    calls otherwise: with HAMi's cards renamed `nvidia.com/gpu` is still everybody else's. `options` is what
    dialects read for themselves, section by section. `nics`: names of NICs' device plugins, None for those
    that are known. `runtime_classes` are taken out of pods: their devices come with claims now. `told`: what
    was read and means something else here, or nothing. Told apart by identity, so that answers about names
    can be kept (detection.py)."""

    default_dialect: str = "plain"
    names: Mapping[str, str] = field(default_factory=dict)
    own_names: Mapping[tuple[str, str], str] = field(default_factory=dict)
    isolation: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    schedulers: tuple[str, ...] | None = None
    runtime_classes: tuple[str, ...] = ("nvidia",)
    nics: Mapping[str, NicName] | None = None
    told: tuple[Note, ...] = ()

    def name(self, key: str, dialect: str = "") -> str:
        """The cluster's name for a dialect's name of the tables; "" where the operator has taken it away."""
        return self.own_names.get((dialect, key), self.names.get(key, key))

    def option(self, section: str, key: str, default: Any) -> Any:
        return self.options.get(section, {}).get(key, default)

    def with_notes(self, read: Reader, peer: str, names: Iterable[str], *, where: str = "") -> Settings:
        """With a note on every field that the table of names has as warned, or lacks. `where` is the field of
        the table that they stand in, ending in a dot."""
        notes = []
        for name in names:
            key = key_of(f"{where}{name}", Place.SETTING, peer)
            if key is None or key.peer != peer:
                notes.append(Note(read.object, read.place(str(name)), "is no setting that koordra knows"))
            elif key.treatment is not Treatment.TRANSLATED:
                notes.append(Note(read.object, read.place(str(name)), key.problem, key.remedy))
        return replace(self, told=(*self.told, *(note for note in notes if note not in self.told)))

    def with_option(self, section: str, key: str, value: object) -> Settings:
        own = {**self.options.get(section, {}), key: value}
        return replace(self, options={**self.options, section: own})


Section = Callable[[Settings, Reader], Settings]
"""(settings, a section of the document) -> the settings with what it says. Raises InvalidManifest."""


def memory_unit_section(settings: Settings, read: Reader) -> Settings:
    """A section that holds `memoryUnit` alone."""
    _require_only(read, "memoryUnit")
    unit = read.choice("memoryUnit", UNITS)
    return settings.with_option(read.field, "memoryUnit", UNITS[unit]) if unit else settings


def number_section(settings: Settings, read: Reader, *, name: str) -> Settings:
    """A section that holds one whole number alone."""
    _require_only(read, name)
    number = read.between(name, 1)
    return settings if number is None else settings.with_option(read.field, name, number)


def _require_only(read: Reader, name: str) -> None:
    if list(read.data) != [name]:
        raise read.wrong("has other fields", f"write {name} alone")
