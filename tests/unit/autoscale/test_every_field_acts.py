"""No field of the autoscaler's settings is a word without effect: another value, and something else is asked
for, or told."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from koordra.api import objects
from koordra.api.kinds import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.api.objects import Fields
from koordra.api.reader import Reader
from koordra.controller.autoscale.settings import settings_in
from tests.fakes.joint_cluster import gpu_slice
from tests.unit.autoscale.world import World

TAINT = {"key": "example.com/gpu", "value": "a", "effect": "NoSchedule"}
BASE: Mapping[str, Any] = {
    "after": 10,
    "within": 300,
    "cooldown": 600,
    "image": "pause:1",
    "groups": [
        {
            "name": "g",
            "machine": "two",
            "max": 8,
            "labels": {"pool": "g"},
            "taints": [],
            "resources": {"cpu": "7", "memory": "60Gi", "pods": "100"},
            "namespaceMax": 8,
        }
    ],
}
OTHERS: Mapping[str, Any] = {
    "after": 900,
    "within": 30,
    "cooldown": 5,
    "image": "pause:2",
    "groups": [],
    "groups.name": "h",
    "groups.machine": "one",
    "groups.max": 1,
    "groups.labels": {"pool": "h"},
    "groups.taints": [TAINT],
    "groups.resources": {"cpu": "8", "memory": "60Gi", "pods": "100"},
    "groups.namespaceMax": 1,
}
"""Another value for each."""


def slices_of(machine: str, native: bool) -> Sequence[Fields]:
    return [gpu_slice("n", {"one": 1, "two": 2}[machine])]


def reader(document: Mapping[str, Any]) -> Reader:
    return Reader(document, object="the settings")


@functools.cache
def before() -> list[object]:
    return story(BASE)


def story(document: Mapping[str, Any]) -> list[object]:
    """Two claims wait. Nodes come, are gone again, and the next ones publish nothing."""
    settings = settings_in(reader(document), slices_of)
    world = World(
        *settings.groups,
        after=settings.after,
        within=settings.within,
        cooldown=settings.cooldown,
        image=settings.image,
    )
    world.wants(2, 2)
    seen: list[object] = []
    came: list[str] = []
    for step, after in enumerate((30.0, 20.0, 60.0, 90.0, 40.0)):
        world.look(after)
        seen.append([(objects.name(pod), objects.spec_of(pod)) for pod in world.placeholders()])
        if step == 0:
            came = world.nodes_come()
            world.publish(came)
        elif step == 1:
            lose(world, came)
    return [*seen, *world.events()]


def lose(world: World, nodes: Sequence[str]) -> None:
    """The nodes, and so the devices of the claims for which they came."""
    for name in nodes:
        world.api.delete(NODES, name)
        world.api.delete(RESOURCE_SLICES, objects.name(gpu_slice(name, 2)))
    for claim in world.api.all(RESOURCE_CLAIMS):
        if objects.status_of(claim):
            world.api.edit(RESOURCE_CLAIMS, objects.name(claim), lambda one: one.pop("status"))


def changed(field: str) -> dict[str, Any]:
    found = copy.deepcopy(dict(BASE))
    outer, _, inner = field.partition(".")
    if inner:
        found[outer][0][inner] = OTHERS[field]
    else:
        found[outer] = OTHERS[field]
    return found


@pytest.mark.parametrize("field", OTHERS)
def test_it_acts(field: str) -> None:
    assert story(changed(field)) != before()


def test_these_are_all_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    only = Reader.only
    monkeypatch.setattr(Reader, "only", lambda read, *names: (asked.append(names), only(read, *names)))
    settings_in(reader(changed("groups.taints")), slices_of)
    own, of_groups, of_taints = asked
    assert {*own, *(f"groups.{name}" for name in of_groups)} == OTHERS.keys()
    assert set(of_taints) == TAINT.keys()
