"""Asking again why a claim waits costs what changed, and tells what is true now."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from koordra.api import objects
from koordra.placement.explain import Explanation, explain
from koordra.placement.index import CLAIM, ClusterChange
from koordra.placement.manifests import Manifests
from koordra.placement.plan import engine_for
from koordra.placement.request.claim_groups import groups_of
from tests.unit.allocator.machines import allocated, claim, device_classes, machine, pod, request

Dict = dict[str, Any]
NODES = 12
Asked = tuple[Callable[[], Explanation], Callable[[str, str | None], None], list[str]]


def holder(name: str, node: str, memory: str) -> Dict:
    share = {"memory": memory, "slots": "1"}
    result = {"request": "r", "driver": "koordra.io", "pool": node, "device": "gpu-0", "shareID": name}
    return allocated(claim(name), {"devices": {"results": [{**result, "consumedCapacity": share}]}})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """To ask, to give a claim a share of a node or take it, and the nodes that were looked into."""
    looked: list[str] = []
    module = import_module("koordra.placement.explain")
    real = module.reasons_one_by_one

    def counted(node: str, *given: Any) -> Any:
        looked.append(node)
        return real(node, *given)

    monkeypatch.setattr(module, "reasons_one_by_one", counted)
    engine = engine_for()
    published = [one for at in range(NODES) for one in machine(1, 0, name=f"n{at:02}")]
    holders = [holder(f"h{at:02}", f"n{at:02}", f"{30 + at}Gi") for at in range(NODES)]
    wanted = [claim("c", request("gpu", capacity={"memory": "60Gi"})), pod("p", "c")]
    cluster = Manifests.of([*device_classes(), *published, *holders, *wanted])
    cluster.fill(engine.index)
    (group,) = groups_of(cluster.pending, cluster.pods, engine.index.allocated)

    def give(name: str, memory: str | None) -> None:
        made = None if memory is None else holder(name, f"n{name[-2:]}", memory)
        engine.index.apply(ClusterChange(CLAIM, f"default/{name}", made))

    assert all(objects.namespace(one) == "default" for one in holders)
    return lambda: explain(engine, group), give, looked


def text(found: Explanation) -> list[str]:
    return [str(reason) for reason in found.reasons[0] if reason.device]


def test_only_nodes_that_changed_are_looked_into_again(asked: Asked) -> None:
    ask, give, looked = asked
    first = text(ask())
    assert len(looked) == NODES
    figures = "memory: requested 60Gi, at best free 50Gi of 80Gi, in use by ResourceClaim default/h00"
    assert first == [f"12 nodes (12 devices) (request gpu): InsufficientCapacity: {figures}"]
    assert text(ask()) == first
    assert len(looked) == NODES
    give("h05", "21Gi")
    assert text(ask()) == [first[0].replace("50Gi", "59Gi").replace("h00", "h05")]
    assert looked[NODES:] == ["n05"]


def test_who_holds_a_device_is_told_anew_although_the_node_is_as_full_as_before(asked: Asked) -> None:
    ask, give, looked = asked
    ask()
    give("h00", None)
    give("other-00", "30Gi")
    assert text(ask())[0].endswith("in use by ResourceClaim default/other-00")
    assert looked[NODES:] == ["n00"]
