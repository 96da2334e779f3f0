"""What a class does with what is recommended, by its annotation koordra.io/apply-recommendation. Pure.

    Smaller   never more than was asked
    Either    also more, to a job that asks for less than it used the last time
    Tell      what was asked; what would have done is only told

Only amounts that a claim names are changed, so that a whole GPU is never made a share of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from koordra.api import names, objects
from koordra.api.objects import Fields
from koordra.profiles.config_map import Recommended
from koordra.quantity import canonical, parse

SMALLER: Final = "Smaller"
EITHER: Final = "Either"
TELL: Final = "Tell"


class ShareRequest(NamedTuple):
    """The request of a claim at that place which names amounts of a GPU."""

    at: int
    name: str
    device_class: str
    amounts: Mapping[str, str]


def share_request(spec: Fields) -> ShareRequest | None:
    """None also where there are several, of which nobody knows what each used. `spec`: of a claim; users may
    have written anything."""
    found = list[ShareRequest]()
    for at, each in enumerate(objects.mappings(objects.fields(spec.get("devices")).get("requests"))):
        exactly = objects.fields(each.get("exactly"))
        said = objects.fields(objects.fields(exactly.get("capacity")).get("requests"))
        amounts = {
            name: str(said[name]) for name in (names.CAPACITY_MEMORY, names.CAPACITY_CORES) if name in said
        }
        if amounts:
            found.append(
                ShareRequest(at, str(each.get("name")), str(exactly.get("deviceClassName")), amounts)
            )
    return found[0] if len(found) == 1 else None


def amounts_by(word: str, asked: Mapping[str, str], found: Recommended) -> dict[str, str]:
    """Those of the amounts that are others by what is recommended. Raises InvalidInput for what is no
    amount."""
    wanted = {names.CAPACITY_MEMORY: found.memory, names.CAPACITY_CORES: found.cores}
    return {
        name: canonical(wanted[name])
        for name, said in asked.items()
        if wanted[name] and (wanted[name] < parse(said) or (word != SMALLER and wanted[name] > parse(said)))
    }
