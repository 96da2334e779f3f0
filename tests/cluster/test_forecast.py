"""What `koordra plan` says of a cluster's objects, and manifests beside them, is what its controller does
when they are applied.

KOORDRA_EXAMPLES random cases, three without it; the first seed is KOORDRA_SEED. Everything of a case is there
before any of it can be planned: its claims name a DeviceClass that is made last.
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
from koordra.errors import Invalid, NotFound
from koordra.kube.client import KubeClient
from koordra.placement import Plan
from tests.cluster.conftest import LEVELS
from tests.cluster.nodes import OF_THE_SUITE
from tests.cluster.waiting import eventually
from tests.fakes.forecast_cases import wanted_of_nodes

pytestmark = pytest.mark.cluster

EXAMPLES: Final = int(os.environ.get("KOORDRA_EXAMPLES", "3"))
FIRST: Final = int(os.environ.get("KOORDRA_SEED", "0"))
QUIET: Final = 4.0
"""Seconds without a change of any claim after which nothing is to come."""
CLASSES: Final = {"gpu.koordra.io": "gpu-case.koordra.io", "nic.koordra.io": "nic-case.koordra.io"}
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
def classes(client: KubeClient, namespace: str) -> Iterator[list[Object]]:
    """As they are to be made, of the GPUs last."""
    made = []
    for own, name in sorted(CLASSES.items(), reverse=True):
        spec = client.get(kinds.DEVICE_CLASSES, own)["spec"]
        made.append({**kinds.DEVICE_CLASSES.type_meta, "metadata": {"name": name}, "spec": spec})
    yield made
    _remove(client, made)
    _give_up(client, namespace)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + EXAMPLES))
def test_what_is_planned_is_what_is_done(
    client: KubeClient, namespace: str, classes: list[Object], seed: int
) -> None:
    wanted = wanted_of_nodes(seed, namespace, CLASSES, OF_THE_SUITE)
    there = [
        {**kind.type_meta, **obj}
        for kind, found in listed(client, [Source(kind, optional=True) for kind in READ]).items()
        for obj in found
    ]
    levels = written_levels(",".join(f"{level}={label}" for level, label in LEVELS.items()))
    said = what_if([*there, *classes, *wanted], Assumed(levels=levels), datetime.now(UTC)).plan()
    for obj in wanted:
        with suppress(Invalid):  # of the webhook, which the plan knows
            client.create(MADE[obj["kind"]], obj)
    pods = [obj for obj in wanted if obj["kind"] == "Pod"]
    eventually(lambda: _claims_are_made(client, namespace, pods), "the claims of templates")
    time.sleep(QUIET)  # each kind has a watch of its own: the controller is to know all of it
    for one in classes:
        client.create(kinds.DEVICE_CLASSES, one)
    done = _at_rest(client, namespace, said)
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


def _at_rest(client: KubeClient, namespace: str, said: Plan) -> dict[str, Object]:
    """Allocations by claim, by the names that the plan has for claims of templates; once all that are
    planned are there, or else nothing has come for long, and nothing comes any more."""
    began = since = time.monotonic()
    before: dict[str, Object] = {}
    while True:
        found = _allocations(client, namespace)
        now = time.monotonic()
        if found != before:
            before, since = found, now
        patience = QUIET if found.keys() >= said.allocations.keys() else 30.0
        if now > max(since, began) + patience:
            return found
        time.sleep(0.2)


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


def _remove(client: KubeClient, made: Sequence[Object]) -> None:
    kind: Kind = kinds.DEVICE_CLASSES
    for one in made:
        with suppress(NotFound):
            client.delete(kind, objects.name(one))
