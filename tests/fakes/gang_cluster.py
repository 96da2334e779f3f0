"""The controller's test cluster with an allocator for gangs."""

from __future__ import annotations

from typing import Any, ClassVar

from koordra.controller.gangs.member_placement import Place
from koordra.placement.gang.rank_assignment import gang_members
from tests.fakes.joint_cluster import JointCluster


class GangCluster(JointCluster):
    """`place`: who finds places for gangs; None: they are looked for one by one."""

    place: ClassVar[Place | None] = None

    def for_gangs(self) -> dict[str, Any]:
        place = type(self).place
        return {"place_gang": place, "gang_entries": gang_members if place else None}
