"""Running claims that grow and shrink, in an order drawn from a seed; controller and plugin are killed at any
write, of the API or of a word of the region: no limit is ever above what is held for the claim, and no card
is given out twice. `KOORDRA_EXAMPLES=N` (make soak) runs N further schedules."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordra.api import objects
from koordra.api.kinds import DEVICE_HOLDS, PODS, RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.api.opaque.resize import ANNOTATION
from koordra.api.opaque.share_limits import RESIZED_ON, resized_claim
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.isolation.limiter import region, usage
from koordra.kubelet_plugin.isolation.limiter.resize import ShareResizer, allocated_amounts, with_limits
from koordra.node_state.claim_ref import ClaimRef
from koordra.quantity import parse
from tests.fakes.kube_api import Killed, Write
from tests.long import mostly_long
from tests.unit.limiter.test_condition import UUID
from tests.unit.limiter.test_resize import CLAIM, SHARE, TIME, Process, locked
from tests.unit.reservations.test_resizes import Resizing

BLOCKS, SIZE, STEPS = 5, 20, 60
GIB = 1 << 30
CARD = 80
EXAMPLES = os.environ.get("KOORDRA_EXAMPLES")


class World:
    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.cluster = Resizing()
        self.claims = folder / str(seed)
        self.made = 0
        self.story: list[str] = []
        self.records: dict[str, ClaimRecord] = {}
        self.processes: dict[str, Process] = {}
        self.held: dict[str, int] = {}
        self.restart()

    def restart(self) -> None:
        self.plugin = ShareResizer(self.claims, records=self.records.values, holds=self.holds, cores=True)

    def holds(self) -> list[Object]:
        return [
            one
            for one in self.cluster.api.all(DEVICE_HOLDS)
            if objects.metadata(one).get("labels", {}).get(RESIZED_ON) == "n0"
        ]

    def run(self) -> None:
        steps: tuple[Callable[[], None], ...] = (
            self.comes,
            self.ends,
            *(self.wish, self.wish, self.wish, self.withdraw),
            *(self.takes, self.takes, self.frees),
            *(self.plugin_steps, self.plugin_steps, self.plugin_steps, self.tells, self.tells),
            *(self.passes, self.passes, self.passes, self.passes),
        )
        self.comes()
        self.comes()
        for _ in range(STEPS):
            step = self.random.choice(steps)
            self.story.append(step.__name__)
            step()
            self.check()
        self.over()

    def comes(self) -> None:
        if len(self.records) >= 4:
            return
        self.made += 1
        name = f"c{self.made}"
        self.cluster.request(name, f"{self.random.choice((8, 16, 24))}Gi", str(self.random.choice((10, 20))))
        if self.cluster.allocation(name) is None:
            self.cluster.pod_ends(name, name)
            return
        self.cluster.scheduler_binds(name, name)
        found = self.cluster.api.get(RESOURCE_CLAIMS, name)
        (result,) = found["status"]["allocation"]["devices"]["results"]
        device = replace(
            SHARE,
            device=result["device"],
            share_id=result["shareID"],
            consumed=tuple(sorted(result["consumedCapacity"].items())),
        )
        record = replace(CLAIM, ref=ClaimRef("default", name, objects.uid(found)), devices=(device,))
        self.prepare(name, record)

    def prepare(self, name: str, record: ClaimRecord) -> None:
        amounts = allocated_amounts(record.devices[0])
        before = sum(self.counted(one) for one in self.records.values())
        assert before + amounts["memory"] <= CARD * GIB, "Prepare would have to refuse it"
        folder = self.claims / record.ref.uid
        cores = int(amounts["cores"])
        region.allow(
            folder,
            claim=record.ref.uid,
            uuid=UUID,
            limit=int(amounts["memory"]),
            cores=cores,
            time=replace(TIME, rate=cores * 100),
        )
        self.records[name], self.held[name] = record, 0
        self.processes[name] = Process(folder, locked(folder))
        self.write(name)

    def counted(self, record: ClaimRecord) -> int:
        return int(parse(dict(with_limits(self.claims, record).devices[0].consumed)["memory"]))

    def ends(self) -> None:
        if self.records and self.random.random() < 0.4:
            name = self.random.choice(sorted(self.records))
            uid = self.records.pop(name).ref.uid
            self.processes.pop(name).lock.close()
            shutil.rmtree(self.claims / uid)
            self.cluster.pod_ends(name, name)

    def wish(self) -> None:
        if self.records:
            name, draw = self.random.choice(sorted(self.records)), self.random
            memory, cores = draw.choice((4, 8, 16, 24, 40, 60)), draw.choice((5, 10, 40, 70))
            text = f'{{"gpu": {{"memory": "{memory}Gi", "cores": {cores}}}}}'
            self.annotate(name, draw.choice((text, text, text, "{", '{"gpu":{"memory":"79Gi"}}')))

    def withdraw(self) -> None:
        for name in self.records:
            if self.random.random() < 0.3:
                self.annotate(name, None)

    def annotate(self, name: str, text: str | None) -> None:
        def edit(one: Object) -> None:
            there = one["metadata"].setdefault("annotations", {})
            there.pop(ANNOTATION, None)
            if text is not None:
                there[ANNOTATION] = text

        self.cluster.api.edit(RESOURCE_CLAIMS, name, edit)

    # the claims' processes

    def write(self, name: str) -> None:
        use = usage.read(self.claims / self.records[name].ref.uid)
        is_awake = self.random.random() < 0.7
        self.processes[name].write(held=self.held[name], acknowledged=use.change if is_awake else None)

    def takes(self) -> None:
        for name, record in self.records.items():
            limit = usage.read(self.claims / record.ref.uid).devices[0].limit or 0
            room = max(0, limit - self.held[name])
            self.held[name] += self.random.choice((room, room // 2 // GIB * GIB, min(room, GIB)))
            self.write(name)

    def frees(self) -> None:
        for name in self.records:
            self.held[name] //= self.random.choice((1, 2, 4)) * GIB
            self.held[name] *= GIB
            self.write(name)

    # the plugin

    def plugin_steps(self) -> None:
        left = self.random.randrange(8) if self.random.random() < 0.4 else 1 << 30
        put = region.put

        def dies(policy: Any, at: int, value: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            put(policy, at, value)

        region.put = dies  # type: ignore[assignment]
        try:
            self.plugin.step()
        except Killed:
            self.story.append("  plugin killed")
            self.restart()
        finally:
            region.put = put

    def tells(self) -> None:
        """The claims' statuses, which may be from before the plugin's last step."""
        for name, record in self.records.items():
            state, device = self.plugin.state(record.ref.uid, 0), record.devices[0]
            entry = {
                "driver": "koordra.io",
                "pool": "n0",
                "device": device.device,
                "shareID": device.share_id,
            }
            conditions = (
                []
                if state is None
                else [{"type": "Resized", "status": str(state.done), "observedGeneration": state.revision}]
            )
            self.cluster.api.edit(
                RESOURCE_CLAIMS,
                name,
                lambda one, found=[{**entry, "conditions": conditions}]: one["status"].update(devices=found),
            )

    # the controller

    def passes(self) -> None:
        left = self.random.randrange(5) if self.random.random() < 0.4 else -1

        def dies(write: Write) -> None:
            nonlocal left
            if write.kind != "events":
                left -= 1
                if left == -1:
                    raise Killed

        if left >= 0:
            setattr(self.cluster.api, self.random.choice(("before", "after")), dies)
            left += 1
        try:
            self.cluster.settle(passes=1)
        except Killed:
            self.story.append("  controller killed")
            self.cluster.start_again()
        self.cluster.api.before = self.cluster.api.after = lambda _write: None

    # what holds

    def check(self) -> None:
        granted = {one.uid: one for one in map(resized_claim, self.holds()) if one is not None}
        total = 0
        for name, record in self.records.items():
            allocated = allocated_amounts(record.devices[0])
            key, hold = (record.devices[0].device, record.devices[0].share_id), granted.get(record.ref.uid)
            most = allocated if hold is None else hold.most(key, allocated)
            card = usage.read(self.claims / record.ref.uid).devices[0]
            assert (card.limit or 0) <= most["memory"], f"{name}: the limit is above what is held"
            assert card.rate <= most["cores"] * 100, f"{name}: the rate is above what is held"
            assert self.held[name] <= most["memory"], f"{name}: more is in use than is held"
            total += max(card.limit or 0, int(allocated["memory"]))
        assert total <= CARD * GIB, "the card is given out twice"
        assert self.cluster.taken() <= CARD, "more is allocated and held than there is"

    def over(self) -> None:
        for name in self.records:
            self.annotate(name, None)
            self.held[name] = 0
            self.write(name)
        for _ in range(6):
            self.cluster.settle()
            self.plugin.step()
            self.tells()
            self.check()
        assert self.holds() == [], "what nobody wants any more is let go"
        for record in self.records.values():
            card = usage.read(self.claims / record.ref.uid).devices[0]
            allocated = allocated_amounts(record.devices[0])
            assert (card.limit, card.rate) == (allocated["memory"], allocated["cores"] * 100)
        assert {objects.name(one) for one in self.cluster.api.all(PODS)} == self.records.keys()


def one_schedule(seed: int, folder: Path) -> None:
    world = World(seed, folder)
    try:
        world.run()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}\n" + "\n".join(world.story)) from error
    finally:
        for process in world.processes.values():
            process.lock.close()
        shutil.rmtree(world.claims, ignore_errors=True)


@pytest.mark.parametrize("block", mostly_long(range(BLOCKS), fast=1))
def test_no_limit_is_above_what_is_held_whatever_happens(block: int, tmp_path: Path) -> None:
    for seed in range(block * SIZE, (block + 1) * SIZE):
        one_schedule(seed, tmp_path)


@pytest.mark.skipif(EXAMPLES is None, reason="make soak sets KOORDRA_EXAMPLES")
def test_many_more_schedules(tmp_path: Path) -> None:
    start = int.from_bytes(os.urandom(4), "big") * 1_000_000
    for seed in range(start, start + int(EXAMPLES or 0)):
        one_schedule(seed, tmp_path)
