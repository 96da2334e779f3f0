"""The controller's test cluster with an allocator for gangs."""

from __future__ import annotations

from typing import ClassVar

from koordra.allocator import plan
from koordra.allocator.gang.ranking import gang_members
from koordra.controller.gangs.planning import Place
from koordra.controller.reconciler import Reconciler
from koordra.controller.writes import Writer
from tests.fakes.joint_cluster import JointCluster
from tests.fakes.kube_api import FakeCaches


class GangCluster(JointCluster):
    """`place`: who finds places for gangs; None: they are looked for one by one."""

    place: ClassVar[Place | None] = None

    def start_again(self) -> None:
        self.caches = FakeCaches(self.api)
        self.caches.deliver()
        self.writer = Writer(self.api, may_write=lambda: self.leading, now=self.timestamp)
        self.reconciler = Reconciler(
            self.caches.cluster,
            self.writer,
            planner=plan,
            clock=lambda: self.now,
            witnesses=(self.told.append,),
            starves_after=self.starves_after,
            preemption=self.preemption,
            place_gang=type(self).place,
            gang_entries=gang_members if type(self).place else None,
        )
