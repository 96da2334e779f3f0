"""The cluster as a command reads it: piece by piece, while the next one is on its way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from koordra.api import kinds, objects
from koordra.api.kinds import EVENTS, NODES, PODS, Kind
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.cli.cluster.cluster_objects import Piece, Source, read_ahead
from koordra.cli.cluster.whole_cluster import EVERYTHING, WholeCluster
from koordra.controller.allocation.learned.leftover_store import data_of
from koordra.controller.cache.changes import NEEDED, OPTIONAL
from koordra.errors import ApiError, ApiUnreachable, Forbidden, NotFound
from koordra.kube.client import PAGE
from koordra.placement.policy.learned_order import Learned
from koordra.placement.policy.workload_table import LearnedTable

ALL_NODES = Source(NODES)


class Server:
    """Lists in pages; `lost`: the first try ends after so many objects, and the list begins anew without
    these. `refuses`: kinds that it will not list."""

    def __init__(
        self, of_kind: dict[Kind, int], *, lost: int = 0, refuses: dict[Kind, ApiError] | None = None
    ) -> None:
        self.of_kind, self.lost, self.refuses = of_kind, lost, refuses or {}
        self.asked: list[Kind] = []

    def list(self, kind: Kind, *, each: Callable[[Object], Object], **_: Any) -> tuple[list[Object], str]:
        self.asked.append(kind)
        if kind in self.refuses:
            raise self.refuses[kind]
        made = [
            {"kind": kind.kind, "metadata": {"name": f"{number}"}} for number in range(self.of_kind[kind])
        ]
        for obj in made[: self.lost]:
            each(obj)
        return [each(obj) for obj in made[self.lost :]], "1"


def read(server: Server, *sources: Source) -> list[Piece]:
    return list(read_ahead(server, sources, trim=lambda _: lambda obj: {**obj, "trimmed": True}))  # type: ignore[arg-type]


def names(found: list[Object]) -> list[int]:
    assert all(one["trimmed"] for one in found)
    return [int(objects.name(one)) for one in found]


@pytest.mark.parametrize("number", [0, 1, PAGE - 1, PAGE, 2 * PAGE + 3])
def test_every_object_comes_once_and_the_last_piece_says_that_it_is(number: int) -> None:
    found = read(Server({NODES: number, PODS: 2}), ALL_NODES, Source(PODS))
    of_nodes, of_pods = ([piece for piece in found if piece.kind == kind] for kind in (NODES, PODS))
    assert found == [*of_nodes, *of_pods]
    assert names([obj for piece in of_nodes for obj in piece.objects]) == list(range(number))
    assert max(len(piece.objects) for piece in of_nodes) <= PAGE
    assert [piece.every is None for piece in of_nodes] == [True] * (len(of_nodes) - 1) + [False]
    assert names(of_nodes[-1].every or []) == list(range(number))


def test_a_list_that_begins_anew_ends_with_what_is_there() -> None:
    found = read(Server({NODES: PAGE + 5}, lost=3), ALL_NODES)
    assert sorted(names([obj for piece in found for obj in piece.objects])) == list(range(PAGE + 5))
    assert names(found[-1].every or []) == list(range(3, PAGE + 5))


@pytest.mark.parametrize("refusal", [NotFound("no such kind", code=404), Forbidden("not yours", code=403)])
def test_what_may_not_be_read_is_none_if_it_is_optional(refusal: ApiError) -> None:
    server = Server({NODES: 1, PODS: 1}, refuses={PODS: refusal})
    assert read(server, Source(PODS, optional=True), ALL_NODES)[0] == Piece(PODS, [], [])
    with pytest.raises(type(refusal)):
        read(server, Source(PODS), ALL_NODES)


def test_an_error_is_raised_where_the_objects_are_waited_for_and_nothing_more_is_read() -> None:
    server = Server({NODES: 1, PODS: 1}, refuses={NODES: ApiUnreachable("gone away")})
    with pytest.raises(ApiUnreachable, match="gone away"):
        read(server, ALL_NODES, Source(PODS))
    assert server.asked == [NODES]


def test_what_a_controller_decides_from_is_read_in_an_order_in_which_little_is_worked_out_twice() -> None:
    of_kind = [one.kind for one in EVERYTHING]
    assert of_kind[0] == EVENTS, "which say whom kube-scheduler refused"
    assert sorted(map(str, of_kind)) == sorted(map(str, (EVENTS, *NEEDED, *OPTIONAL)))
    assert {one.kind for one in EVERYTHING if not one.optional} == set(NEEDED)
    claims = of_kind.index(kinds.RESOURCE_CLAIMS)
    assert {kinds.DEVICE_CLASSES, kinds.RESOURCE_SLICES, NODES} <= set(of_kind[:claims])
    assert of_kind[-1] == PODS


class Keeps:
    """A server with what the controller has learned."""

    def __init__(self, data: dict[str, str] | ApiError) -> None:
        self.data = data

    def get(self, kind: Kind, name: str, *, namespace: str) -> Object:
        assert (kind, name, namespace) == (CONFIG_MAPS, "koordra-leftover-table", "koordra-system")
        if isinstance(self.data, ApiError):
            raise self.data
        return {"data": self.data}


def test_it_goes_by_what_the_controller_has_learned_as_far_as_that_can_be_read() -> None:
    table = Learned(LearnedTable(pods=40))
    nothing: dict[Kind, list[Object]] = {one.kind: [] for one in EVERYTHING}

    def learned(data: dict[str, str] | ApiError) -> Learned | None:
        taken, _ = WholeCluster(Keeps(data), nothing, None)._taken  # type: ignore[arg-type]
        return taken.terms.learned

    assert learned(data_of(table)) == table
    for data in ({}, {"table.json": "odd"}, Forbidden("not yours", code=403)):
        assert learned(data) is None
