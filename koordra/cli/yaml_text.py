"""YAML as commands print it: read back by kubectl, every text is a text again.

kubectl takes more texts for numbers and truth values than this YAML library does (`1e3`, `0o17`, `y`), so these are quoted;
the same value twice is written twice, not as an anchor and an alias.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

_LOOKS_ELSE: Final = re.compile(
    r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|[-+]?0[xXoObB][0-9a-fA-F_]+|[yYnN]"
)


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _text(dumper: _Plain, data: str) -> Any:
    style = "'" if _LOOKS_ELSE.fullmatch(data) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Plain.add_representer(str, _text)


def written(document: Any) -> str:
    """One document, fields in the order they have."""
    return str(yaml.dump(document, Dumper=_Plain, sort_keys=False, allow_unicode=True))
