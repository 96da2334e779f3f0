"""What is recommended for the pods of each template, as it lies in the ConfigMap `koordra-recommendations`:
by namespace, since users write all that a template is made of, and by template (template.py).

    recommendations.json    {"team-a": {"0f3c...": {"memory": 11811160064, "cores": 25, "at": 1795900000,
                                                    "asked": [["h100-share", 42949672960, 50, 12]]}}}

`memory` in bytes and `cores` in percent, of each GPU; 0 where nothing is said of it. `asked`: shares of a
class that its pods asked for, and how many of those that are known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from koordra.api import objects
from koordra.api.objects import Fields

CONFIG_MAP: Final = "koordra-recommendations"
KEY: Final = "recommendations.json"


MOST_ASKED: Final = 2
"""Shares that pods of one template asked for: they are one job's, before and after it was made smaller."""


class AskedBy(NamedTuple):
    """So many pods asked for so much of the class."""

    device_class: str
    memory: int
    cores: int
    pods: int


class Recommended(NamedTuple):
    """`at`: when the template was seen last, in seconds since 1970."""

    memory: int = 0
    cores: int = 0
    at: int = 0
    asked: tuple[AskedBy, ...] = ()


Known = Mapping[str, Mapping[str, Recommended]]
"""By namespace and template."""


def read_recommended(config_map: Fields) -> dict[str, dict[str, Recommended]]:
    """What is no recommendation is left out; a ConfigMap without such a document, or none, has none."""
    text = objects.fields(config_map.get("data")).get(KEY)
    try:
        document = json.loads(str(text or "{}"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    found = dict[str, dict[str, Recommended]]()
    for namespace, of in document.items():
        for template, said in of.items() if isinstance(of, dict) else ():
            if (one := _read(said)) is not None:
                found.setdefault(namespace, {})[template] = one
    return found


def _read(said: Any) -> Recommended | None:
    if not isinstance(said, dict):
        return None
    values = [said.get(name, 0) for name in ("memory", "cores", "at")]
    if not all(map(_is_amount, values)):
        return None
    asked = said.get("asked")
    found = [_asked(one) for one in asked[:MOST_ASKED]] if isinstance(asked, list) else []
    memory, cores, at = values
    return Recommended(memory, cores, at, tuple(one for one in found if one is not None))


def _asked(said: Any) -> AskedBy | None:
    if not isinstance(said, list) or len(said) != len(AskedBy._fields):
        return None
    name, *amounts = said
    return AskedBy(name, *amounts) if isinstance(name, str) and all(map(_is_amount, amounts)) else None


def _is_amount(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62
