"""ResourceSlices in the API: one generation, put back when taken away, written only when something
changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from koordra.api.objects import Object
from koordra.errors import ApiError, ApiUnreachable, Conflict
from koordra.kubelet_plugin.publish.publisher import Publisher, missing_fields
from koordra.kubelet_plugin.publish.resource_slices import build_slices
from koordra.topology.problems import Discovery
from tests.fakes.node_claims import NODE
from tests.fakes.slice_api import FakeSliceApi
from tests.patience import PATIENCE


class Published:
    """A publisher over a fake API; `gpus` is how many of the machine's GPUs there are at the moment."""

    def __init__(self, discovery: Discovery, api: FakeSliceApi) -> None:
        self.api = api
        self.machine = discovery.machine
        self.gpus = 8
        self.copies = 1
        self.found: list[str] = []
        self.publisher = self.restarted()

    def restarted(self) -> Publisher:
        publisher = Publisher(
            self.api, node=NODE, build=self.slices, in_order=lambda: self.found.append("in order")
        )
        publisher.settle = 0.05
        return publisher

    def slices(self, node: Object, generation: int) -> list[Object]:
        machine = replace(self.machine, gpus=self.machine.gpus[: self.gpus])
        built = build_slices(
            machine, node_name=NODE, node_uid=node["metadata"]["uid"], mode="joint", generation=generation
        )
        for index in range(1, self.copies):
            more = {**built[0], "metadata": {**built[0]["metadata"], "name": f"more-{index}"}}
            more["spec"] = {**more["spec"], "devices": []}
            built.append(more)
        return built


@pytest.fixture
def published(discovery: Discovery) -> Published:
    return Published(discovery, FakeSliceApi(NODE))


def test_first_publication_belongs_to_the_node(published: Published) -> None:
    assert published.publisher.sync()
    (slice_,) = published.api.slices.values()
    assert slice_["metadata"]["ownerReferences"][0]["uid"] == "node-uid-1"
    assert slice_["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    assert len(slice_["spec"]["devices"]) == 24


def test_nothing_is_written_without_a_change_not_even_by_the_next_instance(published: Published) -> None:
    published.publisher.sync()
    writes = published.api.writes
    assert not published.publisher.sync()
    assert not published.restarted().sync()
    assert published.api.writes == writes


def test_of_two_instances_the_slower_one_sees_what_the_quicker_one_wrote(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both list, then both create."""
    slower = published.restarted()
    with monkeypatch.context() as early:
        early.setattr(published.api, "list", Mock(return_value=([], "1")))
        published.publisher.sync()
        with pytest.raises(Conflict):
            slower.sync()
    writes = published.api.writes
    assert not slower.sync()
    assert published.api.writes == writes


def test_it_says_when_the_slices_are_what_they_should_be_and_not_while_they_cannot_be_written(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.publisher.step()
    published.publisher.step()
    assert published.found == ["in order"] * 2
    published.gpus = 7
    with monkeypatch.context() as away:
        away.setattr(published.api, "update", Mock(side_effect=ApiUnreachable("away")))
        with pytest.raises(ApiUnreachable):
            published.publisher.step()
    assert published.found == ["in order"] * 2
    published.publisher.step()
    assert published.found == ["in order"] * 3


def test_a_kubelet_start_takes_the_slices_and_they_come_back_newer(published: Published) -> None:
    published.publisher.sync()
    published.api.kubelet_deletes_all()
    assert published.publisher.sync()
    assert published.api.generations() == {2}


def test_a_change_raises_the_generation_of_every_slice(published: Published) -> None:
    published.copies = 3
    published.publisher.sync()
    published.gpus = 7
    assert published.publisher.sync()
    assert published.api.generations() == {2}
    assert len(published.api.slices) == 3


def test_slices_that_are_not_wanted_any_more_go_last(published: Published) -> None:
    published.copies = 3
    published.publisher.sync()
    published.copies = 1
    published.publisher.sync()
    assert len(published.api.slices) == 1
    assert published.api.generations() == {2}


def test_a_half_written_pool_is_completed(published: Published) -> None:
    """The plugin died between two slices of a generation."""
    published.copies = 2
    published.publisher.sync()
    published.api.slices["more-1"]["spec"]["pool"]["generation"] = 7
    assert published.restarted().sync()
    assert published.api.generations() == {8}


def test_a_new_node_object_becomes_the_owner(published: Published) -> None:
    published.publisher.sync()
    published.api.node["metadata"]["uid"] = "node-uid-2"
    assert published.publisher.sync()
    (slice_,) = published.api.slices.values()
    assert slice_["metadata"]["ownerReferences"][0]["uid"] == "node-uid-2"


def test_dropped_fields_are_reported_once_and_cause_no_further_write(
    discovery: Discovery, capsys: pytest.CaptureFixture[str]
) -> None:
    api = FakeSliceApi(NODE, dropped=frozenset({"allowMultipleAllocations", "requestPolicy"}))
    published = Published(discovery, api)
    published.publisher.sync()
    writes = api.writes
    assert not published.publisher.sync()
    assert api.writes == writes
    published.gpus = 7
    published.publisher.sync()
    captured = capsys.readouterr()
    shown = captured.out + captured.err
    assert shown.count("slice_field_dropped") == 2
    assert "turn on the feature gate DRAConsumableCapacity" in shown


def test_the_api_server_is_away_for_a_while(published: Published) -> None:
    published.api.away = True
    with pytest.raises(ApiError):
        published.publisher.sync()
    stop = threading.Event()
    thread = threading.Thread(target=published.publisher.run, args=(stop,))
    thread.start()
    try:
        time.sleep(0.2)
        published.api.away = False
        assert wait_for(lambda: published.api.generations() == {1})
        published.api.kubelet_deletes_all()
        published.publisher.wake()
        assert wait_for(lambda: published.api.generations() == {2})
    finally:
        stop.set()
        published.publisher.wake()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def wait_for(condition: Any, seconds: float = PATIENCE) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_missing_fields_ignores_spelling_and_emptiness() -> None:
    sent = {
        "a": {"value": "1024Mi", "policy": {"default": "1"}},
        "list": [{"x": 1}, {"y": 2}],
        "none": {},
        "no": False,
    }
    kept = {"a": {"value": "1Gi"}, "list": [{"x": 1}, {}]}
    assert sorted(missing_fields(sent, kept)) == ["policy", "y"]


def test_at_rest_nothing_is_asked_and_every_change_is_answered(published: Published) -> None:
    """Ten thousand nodes that each asked once a minute were 333 requests a second for nothing."""
    api, publisher, stop = published.api, published.publisher, threading.Event()
    assert publisher.sync()
    publisher.follow(stop)
    try:
        rests(published)
        published.gpus = 7
        assert publisher.sync()
        assert api.generations() == {2}
        rests(published)
        api.kubelet_deletes_all()
        until(publisher.sync)
        assert api.slices
        rests(published)
        publisher.see_node({"metadata": {"name": NODE, "uid": "made-anew"}})
        api.node["metadata"]["uid"] = "made-anew"
        assert publisher.sync()
    finally:
        stop.set()


def rests(published: Published) -> None:
    """The watch has told of the newest slices, and from then on nothing is asked."""
    publisher, api = published.publisher, published.api
    publisher.see_node(api.node)

    def is_quiet() -> bool:
        before = api.requests
        assert not publisher.sync()
        return api.requests == before

    until(is_quiet)
    before = api.requests
    for _ in range(60):
        assert not publisher.sync()
    assert api.requests == before


def until(answer: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not answer():
        assert time.monotonic() < deadline
        time.sleep(0.005)
