"""CEL expressions, where nobody compiles them."""

from __future__ import annotations

import re
from typing import Final

_STRINGS: Final = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'')


def accept_cel(expression: str) -> str | None:
    """Without a CEL compiler: brackets must balance, everything else is left to whoever evaluates it."""
    depth = 0
    for letter in _STRINGS.sub("", expression):
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0:
            break
    return None if depth == 0 and expression else "Syntax error: unbalanced brackets, or nothing at all"
