"""Racks of GB200: the NVLink domain of a node is the clique that its GPUs publish, without any label."""

from __future__ import annotations

from collections import Counter
from typing import Any

from koordra.api import names
from koordra.placement.gang import GangRequest, Part, Slices
from tests.unit.gang_placement.clusters import BLOCK, NVLINK, answered, node_in, placed, workers

RACKS = {"a": "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1", "b": "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.2"}


def racks(trays: int = 18, **labels: str) -> list[dict[str, Any]]:
    """Two racks below one block; trays are named rack-number."""
    found = []
    for rack, clique in RACKS.items():
        for number in range(trays):
            tray = node_in(f"{rack}-{number}", {BLOCK: "block", **labels}, gpus=4)
            published(tray[1], clique)
            found += tray
    return found


def published(one: dict[str, Any], *cliques: str) -> None:
    gpus = [device for device in one["spec"]["devices"] if device["name"].startswith("gpu")]
    for number, device in enumerate(gpus):
        device["attributes"][names.ATTR_CLIQUE] = {"string": cliques[number % len(cliques)]}


def used(objects: list[dict[str, Any]], gang: GangRequest) -> Counter[str]:
    return Counter(one.domains["nvlink"] for one in placed(objects, gang).members)


def test_a_job_that_fits_in_a_rack_is_in_one() -> None:
    gang = GangRequest("job", workers(16, 4), 16, required="nvlink")
    assert list(used(racks(), gang).values()) == [16]


def test_a_job_of_32_trays_takes_two_racks() -> None:
    assert used(racks(), GangRequest("job", workers(32, 4), 32)) == {RACKS["a"]: 18, RACKS["b"]: 14}


def test_slices_of_16_take_as_many_of_each_rack() -> None:
    members = workers(32, 4)
    keys = {one.key: one.index for one in members}
    parts = (Part("train", keys, slices=(Slices(16, "nvlink"),)),)
    assert used(racks(), GangRequest("job", members, 32, parts=parts)) == dict.fromkeys(RACKS.values(), 16)


def test_the_operators_label_counts_before_what_is_published() -> None:
    gang = GangRequest("job", workers(20, 4), 20, required="nvlink")
    assert used(racks(**{NVLINK: "one"}), gang) == {"one": 20}


def test_a_node_whose_cards_publish_several_cliques_is_in_none() -> None:
    objects = racks(2)
    published(objects[1], *RACKS.values())
    answer = answered(objects, GangRequest("job", workers(2, 4), 2, required="nvlink"))
    assert {one.node for one in answer.members} == {"b-0", "b-1"}  # type: ignore[union-attr]


def test_another_drivers_attribute_of_that_name_says_nothing() -> None:
    objects = racks(1)
    for rack, tray in zip(RACKS, objects[1::2], strict=True):
        other = {
            "metadata": {"name": f"other-{rack}"},
            "spec": {
                **tray["spec"],
                "driver": "other.example.com",
                "devices": [{"name": "gpu-0", "attributes": {names.ATTR_CLIQUE: {"string": "everywhere.1"}}}],
            },
        }
        objects.append({**tray, **other})
    assert used(objects, GangRequest("job", workers(2, 4), 2)) == {RACKS["a"]: 1, RACKS["b"]: 1}
