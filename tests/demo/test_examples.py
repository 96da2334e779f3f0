"""Every folder of deploy/examples: what its example.yaml says comes of it.

Those of the same machines and programs come to one cluster, one after the other, each when nothing of the one
before is left; two clusters stand at a time. `koordra demo --example` itself is test_wheels'."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from koordra.api import kinds, objects
from koordra.errors import KoordraError, NotFound
from koordra.kube.client import KubeClient
from koordra.topology.presets import Preset
from koordra_devcluster.container_runtime.commands import OUTPUT
from koordra_devcluster.demo import examples, limiter, manifests
from koordra_devcluster.demo.needs import Needs
from koordra_devcluster.demo.plan import Plan, planned
from koordra_devcluster.demo.programs import Layout, installed
from koordra_devcluster.demo.run import Demo
from tests.cluster.waiting import eventually

pytestmark = pytest.mark.long
LONGEST = 1800
"""Seconds for the examples of one cluster on a busy machine."""


def shared(plan: Plan) -> tuple[Needs, tuple[Preset, ...]]:
    """What a cluster for the plan has in common with others. Everything that needs the webhook needs the same
    of it."""
    same = {"nodes": 0, "resource_classes": False, "reservations": False}
    return replace(plan.needs, legacy=plan.needs.webhook, **same), plan.machines


def test_every_example_comes_out_as_it_says() -> None:
    clusters: list[list[Plan]] = []
    for name in examples.names():
        plan = planned([], example=name, nodes=None, preset="hgx-h100")
        same = [cluster for cluster in clusters if shared(cluster[0]) == shared(plan)]
        same[0].append(plan) if same else clusters.append([plan])
        if limiter.wants_limiter(plan.documents) and not limiter.is_built():
            limiter.build()
    with ThreadPoolExecutor(2) as two:
        wrong = [text for found in two.map(shown, sorted(clusters, key=len, reverse=True)) for text in found]
    assert not wrong, "\n\n".join(wrong)


def shown(plans: Sequence[Plan]) -> list[str]:
    """What is not as the examples say."""
    folder = Path(tempfile.mkdtemp(prefix="ke-"))  # short: unix sockets live in it
    needs, machines = shared(plans[0])
    layout = Layout(folder, tuple(f"node-{number}" for number in range(len(machines))))
    told: list[str] = []
    demo = Demo(
        layout, machines=machines, needs=needs, timeout=LONGEST, stop=threading.Event(), say=told.append
    )
    wrong = []
    try:
        client = demo.up()
        before = found_in_default(client, needs)
        for plan, last in zip(plans, [None, *plans], strict=False):
            if last is not None:
                take_away(demo, client, last, lambda: found_in_default(client, needs) <= before)
            assert plan.example is not None
            if missing := demo.show(client, plan).missing:
                wrong.append(f"{plan.example.name}: {'; '.join(missing)}")
    except (KoordraError, pytest.fail.Exception) as error:
        wrong.append("\n".join([str(error), *told[-40:]]))
    finally:
        demo.down()
        shutil.rmtree(folder, ignore_errors=True)
    return wrong


def found_in_default(client: KubeClient, needs: Needs) -> set[tuple[str, str]]:
    """Every object but Events, and templates, which koordra keeps for a while after their last use."""
    served = manifests.all_served(installed(needs))
    return {
        (one.kind.kind, objects.name(obj))
        for one in served
        if one.kind.namespaced and one.kind != kinds.RESOURCE_CLAIM_TEMPLATES
        if one.stored != "events" and one.gate in ("", *needs.gates)
        for obj in client.list(one.kind, namespace="default")[0]
    }


def take_away(demo: Demo, client: KubeClient, plan: Plan, is_gone: Callable[[], bool]) -> None:
    """The example's objects, and all that came of them."""
    served = manifests.all_served([*installed(plan.needs), *plan.documents])
    for document in plan.documents:
        found = manifests.served(served, document)
        assert found is not None
        with suppress(NotFound):
            namespace = (
                (document["metadata"].get("namespace") or "default") if found.kind.namespaced else None
            )
            client.delete(found.kind, objects.name(document), namespace=namespace)
    folders = [demo.layout.node(name) for name in demo.layout.nodes]

    def gone() -> bool:
        demo.rest(0)
        for pod in client.list(kinds.PODS)[0]:
            with suppress(NotFound):
                client.delete(kinds.PODS, objects.name(pod), namespace=objects.namespace(pod), grace_period=0)
        return is_gone() and not any([*folder.glob("containers/*.json")] for folder in folders)

    eventually(gone, f"nothing of {plan.title} left", timeout=LONGEST)
    for event in client.list(kinds.EVENTS)[0]:
        with suppress(NotFound):
            client.delete(kinds.EVENTS, objects.name(event), namespace=objects.namespace(event))
    for folder in folders:
        shutil.rmtree(folder / OUTPUT, ignore_errors=True)
