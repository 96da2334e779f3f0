"""What looking costs: nothing more however many look, and never more than its part of the time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from koordra.api.kinds import PODS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.cli.cluster.dashboard import live as module
from koordra.cli.cluster.dashboard.live import MOST_WAITING, PERIOD, REST, Busy, Live, Moment, Watches
from koordra.cli.cluster.dashboard.pages.address import address_of
from koordra.controller.cache.fabrics import written_levels
from koordra.errors import Forbidden, NotFound
from koordra.placement.candidates.node_scoring import written_strategy
from tests.patience import PATIENCE
from tests.unit.allocator.machines import pod, request
from tests.unit.dashboard.scene import NOW, fleet, listed, small, waiting


class World:
    """A cluster, and a clock that goes on when something is worked out."""

    def __init__(self, objects: list[Object], *, takes: float = 0.0) -> None:
        self.number, self.objects, self.takes = 1, objects, takes
        self.time, self.asked = 0.0, 0
        self.paused: list[float] = []
        self.live = Live(self.moment, clock=lambda: self.time, pause=self.pause, now=lambda: NOW)

    def moment(self) -> Moment | None:
        self.asked += 1
        self.time += self.takes
        return self.number, listed(self.objects)

    def pause(self, seconds: float) -> None:
        self.paused.append(seconds)
        self.time += seconds

    def look(self, target: str) -> bytes:
        return self.live.page(address_of(target))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was worked out."""
    found: list[str] = []
    real, cells = module.Snapshot.of, module.Cells.nodes

    def snapshot(*arguments: Any, **more: Any) -> Any:
        found.append("snapshot")
        return real(*arguments, **more)

    def nodes(self: Any, of: Any) -> Any:
        found.append("fleet")
        return cells(self, of)

    monkeypatch.setattr(module.Snapshot, "of", snapshot)
    monkeypatch.setattr(module.Cells, "nodes", nodes)
    return found


def test_many_that_look_cost_as_much_as_one(made: list[str]) -> None:
    world = World(small())
    for _ in range(50):
        for target in ("/", "/waiting", "/node/hgx-h100-0000"):
            world.look(target)
    assert made == ["fleet", "snapshot"]


def test_nothing_is_worked_out_where_nothing_has_changed_or_it_was_a_moment_ago(made: list[str]) -> None:
    world = World(small())
    world.look("/waiting")
    world.number += 1
    world.look("/waiting")
    assert made == ["snapshot"]
    world.time += PERIOD
    world.look("/waiting")
    assert made == ["snapshot"] * 2
    world.time += 100 * PERIOD
    world.look("/waiting")
    assert made == ["snapshot"] * 2


def test_what_takes_long_is_worked_out_the_more_seldom() -> None:
    world = World(small(), takes=20.0)
    world.look("/waiting")
    world.number += 1
    world.time += 20 * REST - 1
    asked = world.asked
    world.look("/waiting")
    assert world.asked == asked
    world.time += 1
    world.look("/waiting")
    assert world.asked == asked + 1


def test_pages_take_half_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(small())
    world.look("/waiting")
    real = world.live._snapshot._shown
    assert real is not None
    answer = type(real.forecast).answer

    def slow(*arguments: Any) -> Any:
        world.time += 3
        return answer(*arguments)

    monkeypatch.setattr(type(real.forecast), "answer", slow)
    for name in ("infer-0", "infer-1", "infer-2"):
        world.look(f"/claim/default/{name}")
    assert world.paused == [3, 3]
    with pytest.raises(NotFound):
        world.look("/claim/default/none")
    world.look("/claim/default/infer-3")
    assert world.paused == [3, 3, 3, 3]


def test_who_comes_when_many_wait_is_told_so() -> None:
    world = World(small())
    entered, go_on = threading.Event(), threading.Event()
    real = world.moment

    def slow() -> Moment | None:
        entered.set()
        assert go_on.wait(PATIENCE)
        return real()

    world.live._objects = slow
    threads = [threading.Thread(target=world.look, args=("/",)) for _ in range(MOST_WAITING)]
    for thread in threads:
        thread.start()
    assert entered.wait(PATIENCE)
    while world.live._waiting < MOST_WAITING:
        entered.wait(0.01)
    with pytest.raises(Busy) as busy_:
        world.look("/")
    assert busy_.value.code == 503
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert world.look("/")


def test_while_the_cluster_is_read_for_the_first_time_that_is_said() -> None:
    live = Live(lambda: None)
    with pytest.raises(Busy, match="being read"):
        live.page(address_of("/"))


class Server:
    """Lists nothing, and refuses a kind."""

    def newest(self, kind: Any, **_: Any) -> str:
        if kind == PODS:
            raise Forbidden("pods is forbidden", code=403, reason="Forbidden")
        return "1"


def test_what_may_not_be_read_is_told_at_once() -> None:
    watches = Watches(Server())  # type: ignore[arg-type]
    with pytest.raises(Forbidden, match="pods is forbidden"):
        watches.start(threading.Event())
    assert watches.objects() is None


def test_every_change_is_another_number() -> None:
    watches = Watches(Server())  # type: ignore[arg-type]
    seen = {watches._changes}
    cache = next(one for one in watches._needed if one.kind == RESOURCE_SLICES)
    for number in range(5):
        cache._apply("ADDED", {"metadata": {"name": f"s{number}", "resourceVersion": "1"}})
        seen.add(watches._changes)
    assert len(seen) == 6


HALLS = written_levels("hall=dc/hall")
WEIGHTS = written_strategy("MostAllocated:cpu=1")


@pytest.mark.parametrize(
    ("target", "given", "shown"),
    [
        ("/", {"levels": HALLS}, b"hall-7"),
        ("/gang/default/g", {"levels": HALLS}, b"2 of 2 members fit"),
        ("/claim/default/one", {"scoring": WEIGHTS}, b"hgx-h100-0001"),
    ],
)
def test_pages_go_by_the_operators_levels_and_weights(
    target: str, given: dict[str, Any], shown: bytes
) -> None:
    manifests = fleet("hgx-h100:2")
    for one in manifests:
        if one["kind"] == "Node":
            one["metadata"]["labels"]["dc/hall"] = "hall-7"
            one["status"]["allocatable"] = {"cpu": "64", "memory": "1Ti", "pods": "110"}
    busy = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "16"}}}
    of_busy = pod("busy")
    of_busy["spec"] |= {"nodeName": "hgx-h100-0001", "containers": [busy]}
    manifests += [of_busy, *waiting("one", request("gpu", capacity={"memory": "20Gi"}))]
    for name in ("g-0", "g-1"):
        made, user = waiting(name, request("gpu", count=8), gang="g", least=2)
        user["metadata"]["annotations"]["koordra.io/gang-topology"] = "hall"
        manifests += [made, user]

    def page(**given: Any) -> bytes:
        live = Live(lambda: (1, listed(manifests)), pause=lambda _: None, now=lambda: NOW, **given)
        return live.page(address_of(target))

    assert shown in page(**given)
    assert shown not in page()
