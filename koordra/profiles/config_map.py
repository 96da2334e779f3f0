"""What is recommended for the pods of each template, as it lies in the ConfigMap `koordra-recommendations`:
by namespace, since users write all that a template is made of, and by template (template.py).

    recommendations.json    {"team-a": {"0f3c...": {"memory": 11811160064, "cores": 25, "at": 1795900000}}}

`memory` in bytes and `cores` in percent, of each GPU; 0 where nothing is said of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

CONFIG_MAP: Final = "koordra-recommendations"
KEY: Final = "recommendations.json"


class Recommended(NamedTuple):
    """`at`: when the template was seen last, in seconds since 1970."""

    memory: int = 0
    cores: int = 0
    at: int = 0


Known = Mapping[str, Mapping[str, Recommended]]
"""By namespace and template."""


def read_recommended(text: str) -> dict[str, dict[str, Recommended]]:
    """What is no recommendation is left out; a text that is no such document has none."""
    try:
        document = json.loads(text or "{}")
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
    values = [said.get(name, 0) for name in Recommended._fields]
    if not all(type(value) is int and 0 <= value < 1 << 62 for value in values):
        return None
    return Recommended(*values)
