"""What a tenant or a node may write without bounds: amounts, counts, taints that differ on every node, nodes
that come and go."""

from __future__ import annotations

import gc
from decimal import Decimal
from typing import Any

import pytest

from koordra.allocator.devices.inventory import Pool
from koordra.allocator.features import Features
from koordra.allocator.request.requests import RequestAlternative, resolve
from koordra.api.claims import DeviceClass, ResourceClaim
from koordra.placement import engine_for, plan
from koordra.placement.decide import Engine
from koordra.placement.free_amounts.request_mapping import request_of
from koordra.placement.mig.layout import Slice
from koordra.placement.mig.profiles import Profiles
from koordra.placement.policy.learned_order import Learned, LearnedOrder
from koordra.placement.policy.workload_table import MOST_PER_GPU
from tests.unit.placement import mixed

Object = dict[str, Any]
COUNT = 70
ABSURD = ("9223372036854775807", "1e40")


@pytest.fixture(scope="module")
def published() -> list[Object]:
    return mixed.slices(COUNT)


def ranked() -> Engine:
    """An engine that is kept, and learns of the workload."""
    return engine_for(learned=Learned())


def asking(name: str, **resources: str) -> list[Object]:
    claim, pod = mixed.claim(name)
    pod["spec"]["containers"][0]["resources"]["requests"] |= resources
    return [claim, pod]


@pytest.mark.parametrize("amount", ABSURD)
@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_a_pod_that_asks_for_more_than_any_number_waits_alone(
    resource: str, amount: str, published: list[Object]
) -> None:
    kept = ranked()
    for _ in range(2):
        found = plan(
            [
                *mixed.slices(COUNT),
                *mixed.nodes(COUNT),
                *mixed.classes(),
                *asking("absurd", **{resource: amount}),
                *mixed.claim("sane"),
            ],
            engine=kept,
            report_errors=True,
        )
        assert list(found.nodes) == ["d/sane"]
        assert any(reason.nodes == COUNT for reason in found.unsatisfiable["d/absurd"])


@pytest.mark.parametrize("amount", ABSURD)
def test_a_bound_pod_that_asks_for_more_than_any_number_fills_its_node_alone(
    amount: str, published: list[Object]
) -> None:
    _, bound = asking("bound", cpu=amount, memory=amount)
    bound["spec"] = {"containers": bound["spec"]["containers"], "nodeName": mixed.name_of(3)}
    pinned = mixed.claim("pinned", pod={"nodeSelector": {"kubernetes.io/hostname": mixed.name_of(3)}})
    kept = ranked()
    objects = [*mixed.slices(COUNT), *mixed.nodes(COUNT), *mixed.classes(), *pinned, *mixed.claim("sane")]
    for there in ([bound], []):
        found = plan([*objects, *there], engine=kept, report_errors=True)
        assert ("d/pinned" in found.nodes) is not bool(there)
        assert "d/sane" in found.nodes


@pytest.mark.parametrize("of_class", ["gpu.koordra.io", "mig.koordra.io", "nic.koordra.io"])
@pytest.mark.parametrize("count", [1 << 20, (1 << 63) - 1])
def test_a_claim_for_more_devices_than_any_number_waits_alone(
    count: int, of_class: str, published: list[Object]
) -> None:
    claim, pod = mixed.claim("absurd", gpus=count)
    claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = of_class
    found = plan(
        [*published, *mixed.nodes(COUNT), *mixed.classes(), claim, pod, *mixed.claim("sane")],
        report_errors=True,
    )
    assert list(found.nodes) == ["d/sane"]
    assert "d/absurd" in found.unsatisfiable


def test_a_node_whose_size_cannot_be_read_is_not_used(published: list[Object]) -> None:
    nodes = mixed.nodes(COUNT)
    nodes[3]["status"]["allocatable"]["cpu"] = "many"
    pinned = mixed.claim("pinned", pod={"nodeSelector": {"kubernetes.io/hostname": mixed.name_of(3)}})
    found = plan([*published, *nodes, *mixed.classes(), *pinned, *mixed.claim("sane")], report_errors=True)
    assert list(found.nodes) == ["d/sane"]


def test_taints_may_differ_on_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every claim finds its node. What requests are measured by is not worked out again while no node is
    published otherwise."""
    measured: list[int] = []
    measure = LearnedOrder._measure

    def counted(self: LearnedOrder) -> None:
        measured.append(len(self.index.nodes))
        measure(self)

    monkeypatch.setattr(LearnedOrder, "_measure", counted)
    nodes = mixed.nodes(COUNT)
    for number, node in enumerate(nodes):
        node["spec"] = {"taints": [{"key": "of", "value": f"tenant-{number}", "effect": "NoSchedule"}]}
        node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    kept = ranked()
    tolerated = [
        mixed.claim(
            f"c{number:02}",
            pod={
                "tolerations": [{"key": "of", "value": f"tenant-{number}"}],
                "nodeSelector": {f"label-{number}": "x"} if number == 7 else {},
            },
            selector=mixed.of_model("T4", "H100", "V100", "A100"),
        )
        for number in range(0, COUNT, 7)
    ]
    published = mixed.slices(COUNT)
    for _ in range(3):
        found = plan(
            [*published, *nodes, *mixed.classes(), *(entry for pair in tolerated for entry in pair)],
            engine=kept,
            report_errors=True,
        )
        assert found.nodes == {
            f"d/c{number:02}": mixed.name_of(number) for number in range(0, COUNT, 7) if number != 7
        }
        nodes = [{**node, "metadata": {**node["metadata"], "annotations": {}}} for node in nodes]
    assert measured == [COUNT]


def test_nodes_under_new_names_leave_nothing_behind() -> None:
    """An autoscaler gives every node a name of its own; what is kept does not remember those that went."""
    kept = ranked()
    index, inventory = kept.index, kept.index.inventory
    nodes, last = mixed.nodes(COUNT), COUNT
    slices = {entry["metadata"]["name"]: entry for entry in mixed.slices(COUNT)}
    sizes = set()
    for turn in range(4):
        found = plan([*slices.values(), *nodes, *mixed.classes(), *mixed.claim("asked")], engine=kept)
        assert found.nodes
        sizes.add(
            (
                len(inventory.by_pool),
                len(inventory.by_node),
                len(inventory.unreadable),
                len(inventory._named),
                len(inventory._pools),
                len(index.nodes),
                len(index._viewers),
                len(index._seen["ResourceSlice"]),
                len(index.pods.load),
                len(kept.order._gpus),
            )
            if turn
            else ()
        )
        gone = mixed.name_of(last - COUNT + 4)
        for name in [name for name, entry in slices.items() if entry["spec"]["nodeName"] == gone]:
            del slices[name]
        nodes = [node for node in nodes if node["metadata"]["name"] != gone]
        new = [one for one in mixed.slices(last + 5) if one["spec"]["nodeName"] == mixed.name_of(last + 4)]
        slices |= {entry["metadata"]["name"]: entry for entry in new}
        nodes.append(mixed.nodes(last + 5)[-1])
        last += 1
    assert len(sizes - {()}) == 1


@pytest.mark.long
def test_a_kept_engine_lets_go_of_what_was_published_before() -> None:
    """A taint rule comes and goes: every node's pools are made anew, and the old ones are not held by
    anybody."""
    kept = ranked()
    published = mixed.slices(COUNT)
    rule = {
        "kind": "DeviceTaintRule",
        "metadata": {"name": "broken"},
        "spec": {
            "deviceSelector": {"driver": "koordra.io", "pool": mixed.name_of(5), "device": "gpu-0"},
            "taint": {"key": "broken", "effect": "NoSchedule"},
        },
    }
    for turn in range(6):
        rules = [rule] if turn % 2 == 0 else []
        plan([*published, *rules, *mixed.nodes(COUNT), *mixed.classes(), *mixed.claim("asked")], engine=kept)
    gc.collect()
    living = {id(pool) for _, pools in kept.index.inventory._pools.values() for pool in pools}
    held = [one for one in gc.get_objects() if isinstance(one, Pool) and one.devices]
    assert len([one for one in held if id(one) not in living]) <= 2 * COUNT, "one generation, and the fixture"


def test_a_claim_for_slices_of_many_sorts_is_the_searchs_alone() -> None:
    """To spread them over every state of every node would take minutes."""

    class Sorts(Profiles):
        def __init__(self, sorts: int) -> None:
            super().__init__()
            self.sorts = sorts

        def __bool__(self) -> bool:
            return True

        def slice_of(self, wanted: RequestAlternative) -> Slice:
            return Slice((str(wanted.request % self.sorts),), 100)

    classes = {entry["metadata"]["name"]: DeviceClass.from_dict(entry) for entry in mixed.classes()}

    def is_counted(count: int, sorts: int) -> bool:
        claim, _ = mixed.claim("asked")
        claim["spec"]["devices"]["requests"] = [
            {"name": f"part-{number}", "exactly": {"deviceClassName": "mig.koordra.io"}}
            for number in range(count)
        ]
        read = ResourceClaim.from_dict(claim)
        asked = resolve(read, position=0, classes=classes, features=Features.of(None))
        return request_of([asked], (), Decimal(0), Sorts(sorts)) is not None

    assert [is_counted(*one) for one in ((8, 1), (3, 3), (6, 2))] == [True, True, True]
    assert [is_counted(*one) for one in ((9, 1), (8, 8), (8, 2))] == [False, False, False]


def test_demands_are_bounded() -> None:
    """Products with them fit into 64 bits."""
    assert (16 * 10**6) * MOST_PER_GPU < 1 << 63
