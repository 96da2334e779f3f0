"""Live changes of running claims, on the controller's side: what a wish becomes, what is held for it, and
when that is let go."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from koordra.api import objects
from koordra.api.kinds import DEVICE_CLASSES, DEVICE_HOLDS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Object
from koordra.api.opaque.resize import ANNOTATION
from koordra.api.opaque.share_limits import RESIZED_ON, label_of
from koordra.controller.allocation.reserved.resizes import TRIED_FOR
from koordra.controller.reconcile.reconciler import Reconciler
from koordra.quantity import parse
from tests.fakes.joint_cluster import JointCluster, device_class, gpu_slice
from tests.unit.legacy.cluster import a_quota
from tests.unit.legacy.test_quota_enforcement import Leader, leader

__all__ = ["leader"]

BOUNDS = {
    "memory": {"min": "4Gi", "max": "60Gi"},
    "cores": {"min": 5, "max": 80},
    "priority": {"min": 10, "max": 100},
    "coresPolicy": ["Hard", "Elastic"],
}


def resizable(bounds: Object | None = None, *, name: str = "share", **said: Any) -> Object:
    parameters = {
        "apiVersion": "koordra.io/v1alpha1",
        "kind": "GpuConfig",
        "isolation": "limiter",
        "coresPolicy": "Hard",
        "resize": BOUNDS if bounds is None else bounds,
        **said,
    }
    found = device_class(name, "gpu")
    found["spec"]["config"] = [{"opaque": {"driver": "koordra.io", "parameters": parameters}}]
    return found


def with_cores(found: Object, *, allocator: str = "controller") -> Object:
    for device in found["spec"]["devices"]:
        device["attributes"]["allocator"] = {"string": allocator}
        policy = {"default": "0", "validRange": {"min": "0", "step": "1"}}
        device["capacity"]["cores"] = {"value": "100", "requestPolicy": policy}
    return found


class Resizing(JointCluster):
    """One node with one card of 80 GiB, and classes whose shares may be changed."""

    def __init__(self, bounds: Object | None = None) -> None:
        super().__init__(nodes=1, gpus=1)
        self.api.delete(RESOURCE_SLICES, "n0-koordra")
        self.api.create(RESOURCE_SLICES, with_cores(gpu_slice("n0", 1)))
        self.api.create(DEVICE_CLASSES, resizable(bounds))
        self.settle()

    def request(self, name: str, memory: str, cores: str) -> None:
        self.claim(name, device_class="share", memory=memory)

        def ask(one: Object) -> None:
            one["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["cores"] = cores

        self.api.edit(RESOURCE_CLAIMS, name, ask)
        self.pod(name, name)
        self.settle()

    def share(self, name: str, memory: str = "16Gi", cores: str = "30") -> None:
        self.request(name, memory, cores)
        self.scheduler_binds(name, name)
        self.settle()

    def wish(self, name: str, wish: Any) -> None:
        text = wish if isinstance(wish, str) else json.dumps(wish)
        self.api.edit(RESOURCE_CLAIMS, name, partial(_annotate, text))
        self.settle()

    def withdraw(self, name: str) -> None:
        self.api.edit(RESOURCE_CLAIMS, name, lambda one: one["metadata"]["annotations"].pop(ANNOTATION))
        self.settle()

    def holds(self) -> Sequence[Object]:
        return [one for one in self.api.all(DEVICE_HOLDS) if one["spec"]["owner"].startswith("claim ")]

    def seat(self, name: str) -> Object:
        (found,) = [one for one in self.holds() if one["spec"]["owner"] == f"claim default/{name}"]
        (seat,) = found["spec"]["seats"]
        return dict(seat)

    def held(self, name: str) -> dict[str, str]:
        return {
            key: text for one in self.seat(name)["devices"] for key, text in one["consumedCapacity"].items()
        }

    def limits(self, name: str) -> Object:
        (one,) = self.seat(name)["limits"]
        return {key: value for key, value in one.items() if key not in ("device", "shareID")}

    def acknowledge(self, name: str, *, revision: int | None = None, status: str = "True") -> None:
        """As the plugin of the node does it."""
        number = self.seat(name)["revision"] if revision is None else revision
        (result,) = objects.status_of(self.api.get(RESOURCE_CLAIMS, name))["allocation"]["devices"]["results"]
        entry = {key: result[key] for key in ("driver", "pool", "device", "shareID")}
        condition = {"type": "Resized", "status": status, "observedGeneration": number}
        self.api.edit(
            RESOURCE_CLAIMS,
            name,
            lambda one: one["status"].update(devices=[{**entry, "conditions": [condition]}]),
        )
        self.settle()

    def taken(self) -> int:
        """GiB of the card that are allocated or held."""
        claims = [objects.status_of(one).get("allocation") for one in self.api.all(RESOURCE_CLAIMS)]
        results = [result for one in claims if one for result in one["devices"]["results"]]
        results += [one for hold in self.holds() for seat in hold["spec"]["seats"] for one in seat["devices"]]
        return int(sum(parse(one["consumedCapacity"].get("memory", "0")) for one in results)) >> 30


@pytest.fixture
def cluster() -> Resizing:
    return Resizing()


def test_growth_is_held_with_the_limits_it_allows(cluster: Resizing) -> None:
    cluster.share("a")
    cluster.wish("a", {"gpu": {"memory": "20Gi", "cores": 40, "coresPolicy": "Elastic", "priority": 20}})
    assert cluster.held("a") == {"cores": "10", "memory": "4Gi"}
    assert cluster.limits("a") == {
        "memory": "20Gi",
        "cores": "40",
        "coresPolicy": "Elastic",
        "priority": 20,
    }
    (hold,) = cluster.holds()
    assert hold["metadata"]["labels"] == {RESIZED_ON: "n0"}
    assert hold["metadata"]["ownerReferences"][0]["kind"] == "ResourceClaim"
    for name, memory, cores, fits in (
        ("b", "61Gi", "10", False),
        ("c", "9Gi", "61", False),
        ("d", "60Gi", "60", True),
    ):
        cluster.request(name, memory, cores)
        assert (cluster.allocation(name) is not None) is fits, "what is held is nobody else's"


def test_a_wish_is_told_when_all_processes_act_by_it_and_once(cluster: Resizing) -> None:
    cluster.share("a")
    cluster.wish("a", {"gpu": {"memory": "20Gi"}})
    assert "Resized" not in cluster.reasons()
    cluster.acknowledge("a", revision=7)
    assert "Resized" not in cluster.reasons(), "of another revision"
    cluster.acknowledge("a", status="False")
    assert "Resized" not in cluster.reasons()
    cluster.acknowledge("a")
    cluster.settle()
    (event,) = [one for one in cluster.told if one.reason == "Resized"]
    assert event.message.endswith("gpu-0: memory 20Gi (allocated 16Gi), cores 30%, Hard")


def test_what_is_given_up_is_held_until_that_is_acknowledged(cluster: Resizing) -> None:
    cluster.share("a")
    cluster.wish("a", {"gpu": {"memory": "40Gi"}})
    cluster.acknowledge("a")
    cluster.wish("a", {"gpu": {"memory": "20Gi"}})
    assert cluster.limits("a")["memory"] == "20Gi"
    assert cluster.held("a") == {"memory": "24Gi"}, "somebody may act by the limit before"
    cluster.start_again()
    cluster.settle()
    assert cluster.held("a") == {"memory": "24Gi"}, "another leader knows no more"
    cluster.acknowledge("a")
    assert cluster.held("a") == {"memory": "4Gi"}
    cluster.withdraw("a")
    assert cluster.limits("a")["memory"] == "16Gi"
    assert cluster.held("a") == {"memory": "4Gi"}
    cluster.acknowledge("a")
    assert cluster.holds() == []
    assert cluster.taken() == 16


def test_growth_over_an_unacknowledged_shrink_holds_the_larger(cluster: Resizing) -> None:
    cluster.share("a")
    for memory in ("40Gi", "20Gi", "30Gi"):
        cluster.wish("a", {"gpu": {"memory": memory}})
    assert cluster.held("a") == {"memory": "24Gi"}
    cluster.acknowledge("a", revision=2)
    assert cluster.held("a") == {"memory": "24Gi"}, "that was the one before"
    cluster.acknowledge("a")
    assert cluster.held("a") == {"memory": "14Gi"}


def test_a_share_may_shrink_below_its_allocation_which_stays_its_own(cluster: Resizing) -> None:
    cluster.share("a")
    cluster.wish("a", {"gpu": {"memory": "8Gi", "cores": 5}})
    assert cluster.seat("a")["devices"] == []
    assert cluster.limits("a") == {"memory": "8Gi", "cores": "5", "coresPolicy": "Hard"}
    cluster.acknowledge("a")
    assert cluster.taken() == 16


REFUSED: list[tuple[Any, str]] = [
    (
        {"gpu": {"memory": "61Gi"}},
        "Infeasible: request gpu: memory: 61Gi is asked for, the class allows 4Gi to 60Gi",
    ),
    (
        {"gpu": {"memory": "1Gi"}},
        "Infeasible: request gpu: memory: 1Gi is asked for, the class allows 4Gi to 60Gi",
    ),
    ({"gpu": {"cores": 81}}, "Infeasible: request gpu: cores: 81 is asked for, the class allows 5 to 80"),
    (
        {"gpu": {"priority": 0}},
        "Infeasible: request gpu: priority: 0 is asked for, the class allows 10 to 100",
    ),
    ({"cpu": {"memory": "20Gi"}}, "Infeasible: there is no request 'cpu' of a GPU share; there are gpu"),
    ("{", "is not JSON"),
    ("[]", "is not an object"),
    ("[" * 9000, "is longer than 8192 characters"),
    ("[" * 8000, "is not JSON"),
    ({"gpu": {"memroy": "20Gi"}}, "there is no such field; fields are memory, cores, coresPolicy, priority"),
    ({"gpu": {"memory": "-20Gi"}}, "Infeasible: request gpu: memory: -20Gi is asked for"),
    ({"gpu": {"memory": "20.5"}}, "'20.5' is no whole number of MiB"),
    ({"gpu": {"cores": "30500m"}}, "is no whole number of percent"),
    ({"gpu": {"coresPolicy": "hard"}}, "'hard' is not allowed; use one of Hard, Elastic"),
    ({"gpu": 7}, "is not an object"),
]


@pytest.mark.parametrize(("wish", "why"), REFUSED)
def test_what_the_class_does_not_allow_changes_nothing(cluster: Resizing, wish: Any, why: str) -> None:
    cluster.share("a")
    cluster.wish("a", wish)
    seat = cluster.seat("a")
    assert why in seat["refused"]
    assert seat["refused"].startswith("Infeasible: ")
    assert seat["devices"] == []
    assert cluster.limits("a") == {"memory": "16Gi", "cores": "30", "coresPolicy": "Hard"}
    (event,) = [one for one in cluster.told if one.reason == "ResizeRefused"]
    assert event.message.startswith("the claim's shares stay as they are: Infeasible: ")
    cluster.wish("a", {"gpu": {"memory": "20Gi"}})
    assert cluster.limits("a")["memory"] == "20Gi"
    assert "refused" not in cluster.seat("a")


def test_a_class_that_says_nothing_allows_nothing() -> None:
    cluster = Resizing(bounds={})
    cluster.share("a")
    cluster.wish("a", {"gpu": {"memory": "20Gi"}})
    assert cluster.seat("a")["refused"] == (
        "Infeasible: request gpu: memory: its class does not allow to change it (GpuConfig.resize.memory)"
    )
    cluster.wish("a", {"gpu": {"coresPolicy": "Elastic"}})
    assert "the class does not allow to change it" in cluster.seat("a")["refused"]


def test_bounds_that_a_claim_writes_into_its_own_configuration_are_none() -> None:
    """Nobody allocates such a claim; kube-scheduler would, in native mode, past a webhook that is away."""
    cluster = Resizing(bounds={})
    cluster.share("a")
    parameters = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", "resize": BOUNDS}
    own = {"source": "FromClaim", "opaque": {"driver": "koordra.io", "parameters": parameters}}
    cluster.api.edit(
        RESOURCE_CLAIMS, "a", lambda one: one["status"]["allocation"]["devices"]["config"].append(own)
    )
    cluster.wish("a", {"gpu": {"memory": "20Gi"}})
    assert "its class does not allow to change it" in cluster.seat("a")["refused"]


def test_what_has_no_room_waits_for_it(cluster: Resizing) -> None:
    cluster.share("a")
    cluster.share("b", memory="60Gi", cores="5")
    cluster.wish("a", {"gpu": {"memory": "24Gi"}})
    assert cluster.seat("a")["refused"] == "Deferred: memory: 8Gi more on gpu-0 is wanted, 4Gi is free"
    assert cluster.limits("a")["memory"] == "16Gi"
    cluster.pod_ends("b", "b")
    cluster.settle()
    assert cluster.limits("a")["memory"] == "24Gi"
    assert "refused" not in cluster.seat("a")


def test_pods_that_wait_come_before_growth(cluster: Resizing) -> None:
    cluster.share("a")
    cluster.claim("b", device_class="share", memory="64Gi")
    cluster.pod("b", "b")
    cluster.api.edit(
        RESOURCE_CLAIMS,
        "a",
        lambda one: (
            one["metadata"].setdefault("annotations", {}).update({ANNOTATION: '{"gpu":{"memory":"20Gi"}}'})
        ),
    )
    cluster.settle()
    assert cluster.allocation("b") is not None
    assert cluster.seat("a")["refused"].startswith("Deferred: ")


def test_in_native_mode_a_share_changes_within_its_allocation_alone() -> None:
    cluster = Resizing()
    cluster.share("a")
    cluster.api.delete(RESOURCE_SLICES, "n0-koordra")
    cluster.api.create(RESOURCE_SLICES, with_cores(gpu_slice("n0", 1), allocator="scheduler"))
    cluster.wish("a", {"gpu": {"memory": "20Gi"}})
    assert "its node is in native mode" in cluster.seat("a")["refused"]
    cluster.wish("a", {"gpu": {"memory": "8Gi"}})
    assert cluster.limits("a")["memory"] == "8Gi"


@pytest.mark.parametrize("ends", ["pod", "claim", "anew"])
def test_what_is_held_ends_with_the_claim(cluster: Resizing, ends: str) -> None:
    cluster.share("a")
    cluster.wish("a", {"gpu": {"memory": "20Gi"}})
    if ends == "pod":
        cluster.pod_ends("a", "a")
    else:
        cluster.pod_ends("a", "a")
        cluster.api.edit(RESOURCE_CLAIMS, "a", lambda one: one["metadata"].update(finalizers=[]))
        cluster.api.delete(RESOURCE_CLAIMS, "a")
        if ends == "anew":
            cluster.share("a")
    cluster.settle()
    assert cluster.holds() == []


def test_a_hold_of_a_running_claim_is_nobodys_to_take(cluster: Resizing) -> None:
    """Not of the most urgent pod, which may take what is held for gangs."""
    cluster.share("a")
    cluster.wish("a", {"gpu": {"memory": "40Gi"}})
    cluster.claim("b", device_class="share", memory="60Gi")
    cluster.pod("b", "b", priority=1_000_000)
    for _ in range(3):
        cluster.pass_time(TRIED_FOR)
        cluster.settle()
    assert cluster.held("a") == {"memory": "24Gi"}
    assert cluster.allocation("b") is None
    assert cluster.reconciler.allocation.gangs.holds.number == 0


def test_shares_of_one_card_in_one_claim_grow_each_by_its_own_request(cluster: Resizing) -> None:
    cluster.claim("a", device_class="share", memory="16Gi")
    second = {
        "name": "two",
        "exactly": {"deviceClassName": "share", "capacity": {"requests": {"memory": "8Gi"}}},
    }
    cluster.api.edit(RESOURCE_CLAIMS, "a", lambda one: one["spec"]["devices"]["requests"].append(second))
    cluster.pod("a", "a")
    cluster.settle()
    cluster.scheduler_binds("a", "a")

    def limits() -> list[str]:
        return sorted(one["memory"] for one in cluster.seat("a")["limits"])

    cluster.wish("a", {"gpu": {"memory": "20Gi"}, "two": {"memory": "12Gi"}})
    assert ("refused" in cluster.seat("a"), limits()) == (False, ["12Gi", "20Gi"])
    held = cluster.seat("a")["devices"]
    assert [one["consumedCapacity"] for one in held] == [{"memory": "4Gi"}] * 2
    assert len({one["shareID"] for one in held}) == 2
    cluster.wish("a", {"gpu": {"memory": "46Gi"}, "two": {"memory": "36Gi"}})
    assert "memory: 24Gi more on gpu-0 is wanted, 22Gi is free" in cluster.seat("a")["refused"], (
        "what one of them takes the other cannot have"
    )
    assert limits() == ["12Gi", "20Gi"]
    cluster.wish("a", {"gpu": {"coresPolicy": "Elastic"}})
    assert "several shares of gpu-0, which have one coresPolicy" in cluster.seat("a")["refused"]
    cluster.wish("a", {"gpu": {"coresPolicy": "Elastic"}, "two": {"coresPolicy": "Elastic"}})
    assert {one["coresPolicy"] for one in cluster.seat("a")["limits"]} == {"Elastic"}


def test_a_wish_before_the_claim_has_devices_waits_for_them(cluster: Resizing) -> None:
    cluster.claim("a", device_class="share", memory="16Gi")
    cluster.wish("a", {"gpu": {"memory": "20Gi"}})
    assert cluster.holds() == []
    cluster.pod("a", "a")
    cluster.settle()
    assert cluster.limits("a")["memory"] == "20Gi"


def test_the_label_of_a_node_with_a_long_name_is_one() -> None:
    assert label_of("n0") == "n0"
    assert len(label_of("n" * 253)) == 63


def test_while_the_node_publishes_nothing_everything_stays(cluster: Resizing) -> None:
    """Its plugin starts anew, or its driver does: the claim's processes act by what they were told."""
    cluster.share("a")
    cluster.wish("a", {"gpu": {"memory": "20Gi"}})
    before = cluster.seat("a")
    cluster.api.delete(RESOURCE_SLICES, "n0-koordra")
    cluster.wish("a", {"gpu": {"memory": "8Gi"}})
    assert cluster.seat("a") == before
    cluster.api.create(RESOURCE_SLICES, with_cores(gpu_slice("n0", 1)))
    cluster.settle()
    assert cluster.limits("a")["memory"] == "8Gi"


def test_what_is_settled_is_not_written_again(cluster: Resizing) -> None:
    cluster.share("a")
    cluster.wish("a", {"gpu": {"memory": "20Gi"}})
    cluster.acknowledge("a")
    before = len(cluster.api.writes)
    cluster.start_again()
    cluster.settle()
    cluster.pass_time(2 * TRIED_FOR)
    cluster.settle()
    assert len(cluster.api.writes) == before


def test_two_claims_cannot_both_grow_by_what_is_left(cluster: Resizing) -> None:
    cluster.share("a")
    cluster.share("b", memory="56Gi")
    for name, memory in (("a", "24Gi"), ("b", "60Gi")):
        cluster.api.edit(
            RESOURCE_CLAIMS,
            name,
            partial(_annotate, json.dumps({"gpu": {"memory": memory}})),
        )
    cluster.settle()
    assert cluster.taken() == 80
    assert cluster.seat("b")["refused"] == "Deferred: memory: 4Gi more on gpu-0 is wanted, 0 is free"


def test_growth_counts_in_the_namespaces_quota_beside_what_pods_are_charged(
    leader: Callable[..., Leader],
) -> None:
    cluster, keeper = Resizing(), leader(a_quota({"requests.koordra.io/gpu-memory": "4Gi"})).keeper

    def anew() -> None:
        cluster.start_again()
        cluster.reconciler = Reconciler(
            cluster.caches,
            cluster.writer,
            clock=lambda: cluster.now,
            report=cluster.told.append,
            quotas=keeper,
        )

    cluster.share("a")
    cluster.share("b")
    anew()
    cluster.wish("a", {"gpu": {"memory": "24Gi"}})
    assert cluster.seat("a")["refused"].startswith("Deferred: exceeded quota: gpus")
    cluster.wish("a", {"gpu": {"memory": "20Gi", "cores": 40}})
    assert cluster.seat("a")["chargedAs"]["amounts"] == {
        "koordra.io/gpu-cores": 10,
        "koordra.io/gpu-memory": 4 << 30,
    }, "of no further card"
    anew()
    cluster.wish("b", {"gpu": {"memory": "17Gi"}})
    assert cluster.seat("b")["refused"].startswith("Deferred: exceeded quota: gpus"), (
        "after a leader's end, too"
    )
    cluster.wish("a", {"gpu": {"memory": "16Gi"}})
    cluster.acknowledge("a")
    cluster.pass_time(TRIED_FOR)
    cluster.settle()
    assert cluster.limits("b")["memory"] == "17Gi"


def _annotate(text: str, one: Object) -> None:
    one["metadata"].setdefault("annotations", {})[ANNOTATION] = text
