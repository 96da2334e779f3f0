"""What `koordra plan` says of a cluster's objects, and manifests beside them, is what its controller does
when they are applied.

KOORDRA_EXAMPLES random cases, three without it; the first seed is KOORDRA_SEED. Everything of a case is made
while nobody leads, so that all of it is there when the controller decides. What it does is over once
kube-scheduler has answered for every pod that was let go, and the controller has nothing to add.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.cli.cluster.cluster_objects import Source, listed
from koordra.cli.what_if.manifests import Assumed, what_if
from koordra.controller import claims as claims_of
from koordra.controller.cache.fabrics import written_levels
from koordra.controller.cache.pod_index import pod_scheduled
from koordra.errors import Invalid, NotFound
from koordra.kube.client import KubeClient
from koordra.placement import Plan
from tests.cluster.conftest import LEVELS
from tests.cluster.leaderless import nobody_leads, passes_once_more
from tests.cluster.nodes import OF_THE_SUITE
from tests.cluster.waiting import NODES, PATIENCE, eventually
from tests.fakes.forecast_cases import wanted_of_nodes

pytestmark = pytest.mark.cluster

EXAMPLES: Final = int(os.environ.get("KOORDRA_EXAMPLES", "3"))
FIRST: Final = int(os.environ.get("KOORDRA_SEED", "0"))
READ: Final = (
    *(kinds.NAMESPACES, kinds.NODES, kinds.RESOURCE_SLICES, kinds.DEVICE_CLASSES, kinds.DEVICE_TAINT_RULES),
    *(kinds.RESOURCE_CLAIM_TEMPLATES, kinds.RESOURCE_CLAIMS, kinds.DEVICE_HOLDS, kinds.PODS),
    kinds.RESERVATIONS,
)
MADE: Final = {
    "ResourceClaimTemplate": kinds.RESOURCE_CLAIM_TEMPLATES,
    "ResourceClaim": kinds.RESOURCE_CLAIMS,
    "Reservation": kinds.RESERVATIONS,
    "Pod": kinds.PODS,
}


@pytest.fixture
def emptied(client: KubeClient, namespace: str) -> Iterator[str]:
    yield namespace
    _give_up(client, namespace)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + EXAMPLES))
def test_what_is_planned_is_what_is_done(
    client: KubeClient, emptied: str, metrics_port: int, seed: int
) -> None:
    wanted = wanted_of_nodes(seed, emptied, OF_THE_SUITE)
    there = [
        {**kind.type_meta, **obj}
        for kind, found in listed(client, [Source(kind, optional=True) for kind in READ]).items()
        for obj in found
    ]
    levels = written_levels(",".join(f"{level}={label}" for level, label in LEVELS.items()))
    said = what_if([*there, *wanted], Assumed(levels=levels), datetime.now(UTC)).plan()
    with nobody_leads(client, metrics_port):
        for obj in wanted:
            with suppress(Invalid):  # of the webhook, which the plan knows
                client.create(MADE[obj["kind"]], obj)
        pods = [obj for obj in wanted if obj["kind"] == "Pod"]
        eventually(lambda: _claims_are_made(client, emptied, pods), "the claims of templates")
    done = _at_rest(client, emptied, metrics_port, said)
    assert {*said.allocations} == {*done}, {
        key: list(map(str, why)) for key, why in said.unsatisfiable.items()
    }
    for key, allocation in done.items():
        assert _devices(said.allocations[key]) == _devices(allocation), key


def _claims_are_made(client: KubeClient, namespace: str, pods: Sequence[Object]) -> bool:
    """Of pods whose template is there."""
    templates = {
        objects.name(one) for one in client.list(kinds.RESOURCE_CLAIM_TEMPLATES, namespace=namespace)[0]
    }
    for pod in client.list(kinds.PODS, namespace=namespace)[0]:
        named = {entry["name"]: entry for entry in pod["spec"].get("resourceClaims") or ()}
        lacking = [entry for entry, name in objects.pod_claim_names(pod).items() if name is None]
        if any(named[entry].get("resourceClaimTemplateName") in templates for entry in lacking):
            return False
    return True


def _at_rest(client: KubeClient, namespace: str, metrics_port: int, said: Plan) -> dict[str, Object]:
    """Allocations by claim, by the names that the plan has for claims of templates; once all that are
    planned are there, or none has come for PATIENCE, and nothing comes any more."""
    since = time.monotonic()
    before: tuple[object, ...] = ()
    while True:
        passes_once_more(client, metrics_port, NODES[0])
        found, pods = _allocations(client, namespace), client.list(kinds.PODS, namespace=namespace)[0]
        seen = found, [(objects.name(pod), _is_gated(pod)) for pod in pods]
        now = time.monotonic()
        if seen != before:
            before, since = seen, now
        elif all(map(_is_judged, pods)) and found.keys() >= said.allocations.keys():
            return found
        if now > since + PATIENCE:
            return found
        time.sleep(0.2)


def _is_gated(pod: Object) -> bool:
    return bool(objects.spec_of(pod).get("schedulingGates"))


def _is_judged(pod: Object) -> bool:
    """By kube-scheduler, unless it is not to look at it."""
    said = pod_scheduled(pod)
    refused = said.status == "False" and said.reason != "SchedulingGated"
    return _is_gated(pod) or bool(objects.spec_of(pod).get("nodeName")) or refused


def _allocations(client: KubeClient, namespace: str) -> dict[str, Object]:
    found = {}
    for claim in client.list(kinds.RESOURCE_CLAIMS, namespace=namespace)[0]:
        entry = objects.annotations_of(claim).get(names.POD_CLAIM_NAME)
        owners = objects.metadata(claim).get("ownerReferences") or ({},)
        name = f"{owners[0].get('name')}-{entry}" if entry else objects.name(claim)
        if (allocation := claims_of.allocation(claim)) is not None:
            found[f"{namespace}/{name}"] = dict(allocation)
    return found


def _devices(allocation: Object) -> Any:
    """Without what depends on the claim's uid."""
    return [objects.without(one, "shareID") for one in allocation["devices"]["results"]]


def _give_up(client: KubeClient, namespace: str) -> None:
    """What is reserved, and what is held for gangs that ended otherwise than by the end of a job."""

    def left(kind: Kind) -> list[Object]:
        return client.list(kind, namespace=namespace)[0]

    for kind in (kinds.RESERVATIONS, kinds.DEVICE_HOLDS):
        for one in left(kind):
            with suppress(NotFound):
                client.delete(kind, objects.name(one), namespace=namespace)
        eventually(lambda kind=kind: not left(kind), f"the end of {kind.plural}")  # type: ignore[misc]
