"""What the engine says of a group: where it is placed, that no node fits, or that this was not found out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from koordra.allocator.offer import Offer
from koordra.placement.candidates.candidate_list import Result


@dataclass(frozen=True, slots=True)
class Unsatisfiable:
    """No node fits, and that is proven. `defect`: the traceback of an error inside the allocator, met on some
    node."""

    defect: str = ""


@dataclass(frozen=True, slots=True)
class Undecided:
    """The search ran out of budget before it found or excluded a placement. Groups of the class have more the
    next time."""

    defect: str = ""


Decision = Offer | Unsatisfiable | Undecided


def unplaced(results: Iterable[Result | None], *, undecided: bool = False) -> Undecided | Unsatisfiable:
    """Not one node: whether that is known for sure."""
    known = [one for one in results if one is not None]
    defect = next((one.defect for one in known if one.defect), "")
    if undecided or any(one.undecided for one in known):
        return Undecided(defect)
    return Unsatisfiable(defect)
