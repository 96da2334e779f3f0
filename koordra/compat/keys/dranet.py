"""dranet. Source: pkg/apis of dranet 1.4."""

from __future__ import annotations

from typing import Final

from koordra.compat.keys import Key, rows

KEYS: Final[tuple[Key, ...]] = rows(
    "dranet",
    """
""",
)
