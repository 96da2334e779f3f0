"""The cost that koordra.cel estimates for an expression, as a number; the product asks only whether it is too
much."""

from __future__ import annotations

from koordra.cel.cost import _Coster
from koordra.cel.syntax import Node, walk


def cost_of(expression: Node) -> int:
    """What an evaluation costs at most."""
    return walk(_Coster().cost(expression)).cost
