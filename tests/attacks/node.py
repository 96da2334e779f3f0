"""What somebody with a node's credentials, or root on it, tries against the cluster and its other nodes:
tests/attacks/test_node.py."""

from __future__ import annotations

from typing import Final

from tests.attacks.row import Attack

NODE: Final[tuple[Attack, ...]] = ()
