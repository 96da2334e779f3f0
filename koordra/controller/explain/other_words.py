"""What a pod asked for in the words of another stack, and what koordra says of its claims in these words."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal
from typing import Any, Final

from koordra.allocator.reasons import figure
from koordra.api import names, objects
from koordra.api.claims import ResourceClaim
from koordra.api.objects import Fields, Object
from koordra.api.opaque.parameters import API_VERSION
from koordra.api.pods import SIDES, amounts, containers
from koordra.compat.dialect import covers
from koordra.compat.dialect.allocation import DIALECT_LABEL
from koordra.compat.dialects import DIALECTS, dialect_named
from koordra.compat.original_request import ANNOTATION
from koordra.compat.quota_charges import amounts as amounts_of
from koordra.compat.quota_charges import is_in_bytes
from koordra.compat.settings import Settings
from koordra.errors import InvalidManifest
from koordra.quantity import parse

_Said = Mapping[str, Mapping[str, str]]
"""Container -> resource -> amount."""

_OF_MEMORY: Final = f"{names.CAPACITY_MEMORY}: "
_OF_CORES: Final = f"{names.CAPACITY_CORES}: "
"""In reasons that are about these."""
_FIGURE: Final = re.compile(r"\b\d+(?:\.\d+)?[KMGT]i\b")
_OF_A_CARD: Final = re.compile(
    rf"requested ({_FIGURE.pattern}), at best free ({_FIGURE.pattern}|0) of ({_FIGURE.pattern})"
)


def asked_in_other_words(pod: Object) -> Object | None:
    """What the pod asked for in another stack's resource names, by container. `rewritten`: its claims say the
    same; otherwise nobody has translated it, and koordra gives it nothing for these names."""
    dialect = objects.annotations_of(pod).get(DIALECT_LABEL, "")
    said = _taken_out(pod)
    if said:
        known = dialect_named(dialect)
        return {
            "dialect": known.title if known else dialect or None,
            "rewritten": True,
            "containers": said,
            "units": _units(dialect, said),
        }
    own = {
        str(raw.get("name")): found
        for raw in containers(pod)
        if (
            found := {
                name: str(value)
                for side in SIDES
                for name, value in amounts(raw, side).items()
                if _title(name)
            }
        )
    }
    asked = {name for resources in own.values() for name in resources}
    return {"dialect": _title(*asked), "rewritten": False, "containers": own, "units": {}} if own else None


def in_other_words(entry: Object, claim: Fields, pod: Fields, asked: Fields | None) -> Object:
    """The answer about one of the pod's claims: memory and cores are told in the pod's words, too."""
    if not asked or not asked["rewritten"]:
        return entry
    dialect, said = objects.annotations_of(pod).get(DIALECT_LABEL, ""), asked["containers"]
    told = [_cores_told(line, dialect, said) for line in entry["told"]]
    if units := {name: amount for name, amount in asked["units"].items() if not is_in_bytes(name)}:
        told = _memory_told(told, claim, dialect, *next(iter(units.items())))
    elif names_of := _growing(dialect, said, _percent_of(1), _percent_of(2)):
        told = [_percent_told(line, next(iter(names_of))) for line in told]
    return {**entry, "told": told}


def _cores_told(line: str, dialect: str, said: _Said) -> str:
    """Of the names by which dialects ask for cores each counts percent of a card, as koordra does."""
    of = [name for name, one in _growing(dialect, said, _cores_of("1"), _cores_of("2")).items() if one == 1]
    return line.replace(_OF_CORES, f"{names.CAPACITY_CORES} ({_short(of[0])}): ") if of else line


def _percent_told(line: str, name: str) -> str:
    def translated(found: re.Match[str]) -> str:
        requested, free, total = found.groups()
        part = [100 * parse(one) / parse(total) for one in (requested, free)]
        return (
            f"requested {requested} ({_short(name)} {round(part[0])}), "
            f"at best free {free} ({_short(name)} {int(part[1])}) of {total}"
        )

    return _OF_A_CARD.sub(translated, line) if _OF_MEMORY in line else line


def _memory_told(told: Sequence[str], claim: Fields, dialect: str, name: str, unit: int) -> list[str]:
    try:
        requests = ResourceClaim.from_dict(claim).requests
    except InvalidManifest:
        requests = ()
    said = [each.capacity_spelled for request in requests for each in request.alternatives]
    spelled = {one[names.CAPACITY_MEMORY] for one in said if names.CAPACITY_MEMORY in one}
    exact = {
        figure(parse(one)): amounts_of(dialect, _memory_of(one), Settings()).get(name) for one in spelled
    }

    def translated(found: re.Match[str]) -> str:
        amount = exact.get(found[0]) or _rounded(parse(found[0]) * unit / 2**30, exactly="." not in found[0])
        return f"{found[0]} ({_short(name)} {amount})"

    return [_FIGURE.sub(translated, line) if spelled and _OF_MEMORY in line else line for line in told]


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _rounded(amount: Decimal, *, exactly: bool) -> int:
    """Of a figure that was rounded three digits, and not up: who asks for that much gets it."""
    place = Decimal((0, (1,), 0 if exactly else max(0, amount.adjusted() - 2)))
    return int(amount.quantize(place, ROUND_FLOOR))


def _units(dialect: str, said: _Said) -> dict[str, int]:
    """How much a gibibyte of a card is under the names that the pod asked for memory by: reasons say how much
    that is in bytes."""
    return _growing(dialect, said, _memory_of("1Gi"), _memory_of("2Gi"))


def _growing(dialect: str, said: _Said, less: Object, more: Object) -> dict[str, int]:
    """How much the first claim is under those of the pod's names under which the second is not the same."""
    one, two = (amounts_of(dialect, claim, Settings()) for claim in (less, more))
    asked = {name for resources in said.values() for name in resources}
    return {name: amount for name in sorted(asked) if (amount := one.get(name)) and amount != two.get(name)}


def _memory_of(memory: str) -> Object:
    return _share_of({"memory": memory})


def _cores_of(cores: str) -> Object:
    return _share_of({"memory": "1Gi", "cores": cores})


def _percent_of(percent: int) -> Object:
    parameters = {"apiVersion": API_VERSION, "kind": "GpuConfig", "memoryPercent": percent}
    claim = _share_of({})
    claim["devices"]["config"] = [{"opaque": {"driver": names.DRIVER, "parameters": parameters}}]
    return claim


def _share_of(capacity: Fields) -> Object:
    exactly = {"deviceClassName": names.CLASS_GPU, "count": 1, "capacity": {"requests": capacity}}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def _title(*resources: str) -> str:
    """The first dialect that has most of the resource names; empty for none that has one."""
    known = {one.title: sum(covers(one.resources, name) for name in resources) for one in DIALECTS}
    best = max(known, key=lambda title: known[title])
    return best if known[best] else ""


def _taken_out(pod: Fields) -> dict[str, dict[str, str]]:
    """Container -> resource -> amount, of every entry of the annotation that the webhook wrote."""
    try:
        said = json.loads(objects.annotations_of(pod).get(ANNOTATION) or "{}")
    except (ValueError, RecursionError):
        return {}
    found: dict[str, dict[str, str]] = {}
    for entry in _mapping(said).values():
        for container, sides in _mapping(_mapping(entry).get("containers")).items():
            for asked in _mapping(sides).values():
                found.setdefault(str(container), {}).update(
                    {str(name): str(amount) for name, amount in _mapping(asked).items()}
                )
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
