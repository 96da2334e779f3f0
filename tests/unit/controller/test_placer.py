"""Asking site by site with a memory answers what one `plan()` over the whole cluster answers."""

from __future__ import annotations

import random
from typing import Any

import pytest

from koordra.allocator.group_search import GroupSearch
from koordra.allocator.reasons import Cause, Reason
from koordra.api import names, objects
from koordra.api.allocation import Allocation
from koordra.api.kinds import RESOURCE_CLAIMS
from koordra.api.objects import Object
from koordra.controller.allocation.placer import Placer
from koordra.controller.cache.changes import Change
from koordra.controller.cache.cluster_cache import ClusterCache
from koordra.controller.cache.groups import Group
from koordra.placement import plan
from tests.fakes.cluster import Cluster
from tests.fakes.groups import groups_of
from tests.fakes.joint_cluster import claim, device_class, gpu_slice, node, pod


def of_kind(kind: str, obj: Object, uid: str = "") -> Object:
    found = {"apiVersion": "v1", "kind": kind, **obj}
    return {**found, "metadata": {**obj["metadata"], "uid": uid or obj["metadata"]["name"]}}


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The nodes that were searched."""
    found: list[str] = []
    search = GroupSearch.on_node

    def counted(self: GroupSearch, name: str, *given: Any, **named: Any) -> Any:
        found.append(name)
        return search(self, name, *given, **named)

    monkeypatch.setattr(GroupSearch, "on_node", counted)
    return found


class Book:
    """A cluster that grows by allocations, and both ways to ask about it."""

    def __init__(self, *, nodes: int = 4, gpus: int = 3) -> None:
        self.nodes = [of_kind("Node", node(f"n{index}", cpu="8")) for index in range(nodes)]
        self.slices = [of_kind("ResourceSlice", gpu_slice(f"n{index}", gpus)) for index in range(nodes)]
        self.classes = [of_kind("DeviceClass", device_class(names.CLASS_GPU, "gpu"))]
        self.claims: list[Object] = []
        self.pods: list[Object] = []
        self.cache = ClusterCache()
        self.placer = Placer()

    def seen(self) -> ClusterCache:
        """The cache with everything as it is now."""
        self.cache.adopt(
            Cluster(
                nodes=self.nodes, slices=self.slices, classes=self.classes, claims=self.claims, pods=self.pods
            )
        )
        return self.cache

    def add(self, name: str, *, cpu: str = "1", **asked: Any) -> None:
        self.claims.append(of_kind("ResourceClaim", claim(name, **asked), f"uid-{name}"))
        resources = {"requests": {"cpu": cpu}}
        containers = [{"name": "main", "image": "busybox", "resources": resources}]
        self.pods.append(of_kind("Pod", pod(name, [name], containers=containers), f"pod-{name}"))

    def group(self, name: str) -> Group:
        (found,) = [
            one for one in groups_of(self.seen()) if any(objects.name(each) == name for each in one.pods)
        ]
        return found

    def whole(self, group: Group) -> dict[str, Any]:
        """One plan over everything; pods that wait are not shown, those that are placed are."""
        placed = [one for one in self.claims if (one.get("status") or {}).get("allocation")]
        mine = {objects.uid(one) for one in group.pods}
        held = {objects.name(one) for one in placed}
        others = [one for one in self.pods if objects.uid(one) not in mine and objects.name(one) in held]
        shown = [*self.nodes, *self.slices, *self.classes, *placed, *others, *group.pending, *group.pods]
        return plan(shown, report_errors=True).allocations

    def take(self, key: str, allocation: Any) -> None:
        self.claims = [
            {**one, "status": {"allocation": allocation}} if objects.key(one) == key else one
            for one in self.claims
        ]


@pytest.mark.parametrize("seed", range(12))
def test_it_decides_as_one_plan_over_all_nodes_would(seed: int) -> None:
    draw, book = random.Random(seed), Book()
    for number in range(25):
        asked: dict[str, Any] = {"memory": draw.choice(["20Gi", "50Gi"])} if draw.random() < 0.6 else {}
        book.add(f"c{number}", count=draw.choice([1, 1, 2]), cpu=draw.choice(["1", "3"]), **asked)
        book.placer.sync(book.seen())
        group = book.group(f"c{number}")
        offered, expected = book.placer.place(group, {}), book.whole(group)
        assert offered.allocations == expected
        assert bool(offered.reasons) is not bool(expected)
        for key, allocation in expected.items():
            book.take(key, allocation)
        if draw.random() < 0.2 and book.claims:
            gone = draw.randrange(len(book.claims))
            book.claims.pop(gone)
            book.pods.pop(gone)


def test_a_known_class_asks_nothing_of_nodes_alike(searched: list[str]) -> None:
    book = Book(nodes=20)
    for number in range(10):
        book.add(f"c{number}", memory="50Gi")
        book.placer.sync(book.seen())
        offered = book.placer.place(book.group(f"c{number}"), {})
        for key, allocation in offered.allocations.items():
            book.take(key, allocation)
    assert len(searched) <= 10
    ids = [
        result["shareID"]
        for one in book.claims
        for result in one["status"]["allocation"]["devices"]["results"]
    ]
    assert len(set(ids)) == len(ids) == 10


def test_a_label_that_devices_are_given_by_is_seen_at_once() -> None:
    """Whether partitions are honored stands in a label; a node whose label changed is no more like those
    without it."""
    book = Book(nodes=2)
    book.placer.sync(book.seen())
    before, other = (book.placer.nodes[name].devices for name in ("n0", "n1"))
    assert before is other
    labels = {**book.nodes[0]["metadata"]["labels"], names.PARTITION_POLICY_LABELS[0]: names.PARTITION_HONOR}
    book.nodes[0] = {**book.nodes[0], "metadata": {**book.nodes[0]["metadata"], "labels": labels}}
    book.placer.sync(book.seen())
    assert book.placer.nodes["n0"].devices is not other
    assert book.placer.nodes["n0"].devices.honors_partitions


def test_what_was_published_before_is_never_given_out_again() -> None:
    """A node publishes something new again and again, under new names."""
    book = Book(nodes=1)
    book.add("asked")
    for turn in range(120):
        (entry,) = book.slices
        devices = [
            {**device, "name": f"gpu-{turn}-{index}"} for index, device in enumerate(entry["spec"]["devices"])
        ]
        book.slices = [{**entry, "spec": {**entry["spec"], "devices": devices}}]
        book.placer.sync(book.seen())
        found = book.placer.place(book.group("asked"), {}).allocations["default/asked"]
        assert found["devices"]["results"][0]["device"] == f"gpu-{turn}-0"


def test_requests_that_speak_of_one_device_are_asked_site_by_site() -> None:
    book = Book(nodes=2, gpus=1)
    for index, entry in enumerate(book.slices):
        entry["spec"]["devices"][0]["attributes"]["uuid"] = {"string": f"GPU-{index}"}
    book.add("picky")
    exactly = book.claims[0]["spec"]["devices"]["requests"][0]["exactly"]
    exactly["selectors"] = [{"cel": {"expression": 'device.attributes["koordra.io"].uuid == "GPU-1"'}}]
    book.placer.sync(book.seen())
    assert book.placer.place(book.group("picky"), {}).node == "n1"


def test_nodes_that_are_kept_off_are_left_out_and_told() -> None:
    book = Book(nodes=2, gpus=1)
    book.add("c")
    book.placer.sync(book.seen())
    why = {name: Reason(name, None, None, Cause.NODE_UNSUITABLE.value, "is kept") for name in ("n0", "n1")}
    assert book.placer.place(book.group("c"), {"n0": why["n0"]}).node == "n1"
    nowhere = book.placer.place(book.group("c"), why)
    assert nowhere.allocations == {}
    assert [(reason.detail, reason.nodes) for reason in nowhere.reasons["default/c"]] == [("is kept", 2)]


def test_reasons_speak_of_the_claim_that_waits(searched: list[str]) -> None:
    book = Book(nodes=1, gpus=1)
    for name in ("first", "second"):
        book.add(name, memory="100Gi")
    book.placer.sync(book.seen())
    for name in ("first", "second"):
        reasons = book.placer.place(book.group(name), {}).reasons
        assert list(reasons) == [f"default/{name}"]
        assert "memory: requested 100Gi, the device has 80Gi" in " ".join(
            reason.detail for reason in reasons[f"default/{name}"]
        )
    assert len(searched) <= 2, "the search, and why"


def test_a_class_of_requests_does_not_depend_on_names() -> None:
    book = Book()
    for name, asked in (("a", "20Gi"), ("b", "20Gi"), ("c", "50Gi")):
        book.add(name, memory=asked)
    book.placer.sync(book.seen())
    a, b, c = (book.placer._resolved(book.group(name)).request_class for name in "abc")
    assert a is b
    assert a is not c


@pytest.mark.parametrize(("kept", "parsed"), [(True, 0), (False, 1)])
def test_an_allocation_is_parsed_only_if_the_server_stored_another(
    kept: bool, parsed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, read = Book(nodes=1), list[str]()
    book.add("a")
    cache = book.seen()
    book.placer.sync(cache)
    written = book.placer.place(book.group("a"), {}).allocations["default/a"]
    stored = {**written, "allocationTimestamp": "2026-11-21T00:00:00Z", **({} if kept else {"defaulted": 1})}
    of_claim = Allocation.of_claim

    def counted(claim: Object) -> Allocation | None:
        read.append(objects.key(claim))
        return of_claim(claim)

    monkeypatch.setattr(Allocation, "of_claim", counted)
    claim = {**cache.claims["default/a"], "status": {"allocation": stored}}
    cache.apply([Change(RESOURCE_CLAIMS, "default/a", claim)])
    assert len(read) == parsed
    book.placer.sync(cache)
    assert [objects.key(held) for held in book.placer.nodes["n0"].holders] == ["default/a"]
