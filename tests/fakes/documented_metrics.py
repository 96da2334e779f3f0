"""Every instrument that koordra's modules declare, by the process that serves it, and docs/metrics.md as the
tables of it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import koordra
from koordra.metrics import Instrument

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "metrics.md"
PROCESSES = ("controller", "kubelet-plugin", "nri")
EVERY = "every process"
_HEADING = {
    EVERY: "## Every process",
    "controller": "## Controller",
    "kubelet-plugin": "## Kubelet plugin",
    "nri": "## NRI hook",
}
BEGIN = "<!-- pytest --regen tests/unit/deploy/test_metrics_page.py -->\n"
END = "<!-- end -->\n"
_OF_COMPONENT = {"legacy": "koordra.controller.legacy"}
"""Components of deploy/kustomize, and the package whose instruments nobody serves without."""
_OF_PACKAGE = {"controller": "controller", "kubelet_plugin": "kubelet-plugin", "nri": "nri"}


@cache
def declared() -> Mapping[str, tuple[Instrument, ...]]:
    """By process (or EVERY), by name."""
    found: dict[str, dict[str, Instrument]] = {who: {} for who in _HEADING}
    for module in pkgutil.walk_packages(koordra.__path__, "koordra."):
        parts = module.name.split(".")
        if parts[1] in ("_proto", "__main__", "cli"):
            continue
        who = _OF_PACKAGE.get(parts[1], EVERY)
        for instrument in _instruments(vars(importlib.import_module(module.name)).values()):
            known = found[who].setdefault(instrument.name, instrument)
            assert known == instrument, f"{instrument.name} is declared twice"
    return {who: tuple(of[name] for name in sorted(of)) for who, of in found.items()}


def of_process(who: str, *components: str) -> tuple[Instrument, ...]:
    """What the process serves with these components of deploy/kustomize."""
    left_out = {name for each in _OF_COMPONENT if each not in components for name in only_with(each)}
    return tuple(each for each in (*declared()[EVERY], *declared()[who]) if each.name not in left_out)


@cache
def only_with(component: str) -> frozenset[str]:
    """Names of what is served with the component alone."""
    package = importlib.import_module(_OF_COMPONENT[component])
    modules = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return frozenset(
        each.name
        for module in modules
        for each in _instruments(vars(importlib.import_module(module.name)).values())
    )


def _instruments(values: Iterable[Any]) -> Iterator[Instrument]:
    for value in list(values):
        if isinstance(value, Instrument):
            yield value
        elif isinstance(value, Mapping):
            yield from (each for each in value.values() if isinstance(each, Instrument))


def page(text: str) -> str:
    """The page with its tables made anew."""
    head, _, rest = text.partition(BEGIN)
    _, _, foot = rest.partition(END)
    return f"{head}{BEGIN}{''.join(_tables())}{END}{foot}"


def _tables() -> Iterator[str]:
    for who, heading in _HEADING.items():
        yield f"\n{heading}\n\n| Metric | Type | Unit | What it says | Labels |\n|---|---|---|---|---|\n"
        for each in declared()[who]:
            needed = [component for component in _OF_COMPONENT if each.name in only_with(component)]
            only = "".join(f" Only with component `{component}` (deploy/kustomize)." for component in needed)
            labels = "<br>".join(map(_label, each.labels))
            yield f"| `{each.name}` | {each.sort} | {each.unit} | {each.meaning}.{only} | {labels} |\n"
    yield "\n"


def _label(label: Any) -> str:
    values = " ".join(f"`{value}`" if value else '`""`' for value in label.values)
    return f"`{label.name}`: {'; '.join(filter(None, (label.bound, values)))}"


def rows(text: str) -> dict[str, dict[str, tuple[str, frozenset[str]]]]:
    """What the page says: by process, by metric, its type and the names of its labels."""
    found: dict[str, dict[str, tuple[str, frozenset[str]]]] = {}
    who = ""
    titles = {heading: who for who, heading in _HEADING.items()}
    for line in text.splitlines():
        who = titles.get(line, who)
        if (cells := [cell.strip() for cell in line.split(" | ")]) and line.startswith("| `koordra_"):
            labels = frozenset(re.findall(r"(?:^|<br>)`(\w+)`:", cells[-1]))
            found.setdefault(who, {})[cells[0].strip("| `")] = cells[1], labels
    return found
