"""The best place for a group of pods, or for those of them that fit alone."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from koordra.controller.allocation.placer import Placer
from koordra.controller.allocation.waiting_reasons import GroupPlacement
from koordra.controller.cache.groups import Group
from koordra.effort import is_spent
from koordra.placement.decide import Excluded


def best_placement(
    parts: Sequence[Group], placer: Placer, excluded: Sequence[Excluded], *, why: bool = True
) -> GroupPlacement:
    """The whole group, which is the first of the parts, or its most urgent pod that fits alone, with the
    reasons why the whole group or the rest of it waits. `excluded`: of each part. Of pods that ask the same
    the first is tried. `why`: whether anybody reads the reasons."""
    tried: list[GroupPlacement] = []
    answered: set[Hashable] = {None}
    for part, kept_off in zip(parts, excluded, strict=True):
        question = placer.question(part, kept_off) if len(parts) > 1 else None
        if question in answered and question is not None:
            continue
        answered.add(question)
        tried.append(placer.place(part, kept_off, why=why))
        if tried[-1].interrupted:
            break
        if given := tried[-1].allocations:
            rest = {key: why for key, why in tried[0].reasons.items() if key not in given}
            return replace(tried[-1], reasons=rest, served=part.pods)
        if is_spent() and part is not parts[-1]:
            tried[-1] = replace(tried[-1], undecided=True, interrupted=True)
            break
    return replace(
        tried[0],
        undecided=any(one.undecided for one in tried),
        interrupted=any(one.interrupted for one in tried),
    )
