"""What breaks by itself: tests/attacks/test_murphy.py."""

from __future__ import annotations

from typing import Final

from tests.attacks.row import Attack

MURPHY: Final[tuple[Attack, ...]] = ()
