"""A while in which nobody leads: what is made in it is all there when koordra's controller decides again."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from koordra.api import kinds, objects
from koordra.api.objects import Object
from koordra.controller.run import LEASE_NAME
from koordra.errors import Conflict
from koordra.kube.client import KubeClient
from tests.cluster.waiting import eventually

LEASE: Final = {"name": LEASE_NAME, "namespace": "koordra-system"}
ITSELF: Final = "koordra-test"


@contextmanager
def nobody_leads(client: KubeClient, metrics_port: int) -> Iterator[None]:
    """The controller stands by: its webhook answers, and it writes nothing. Then it leads again, by what it
    lists."""
    eventually(lambda: _write(client, holderIdentity=ITSELF), "the lease")
    stop = threading.Event()

    def keep() -> None:
        while not stop.wait(2.0):
            _write(client, holderIdentity=ITSELF)

    keeper = threading.Thread(target=keep, daemon=True)
    keeper.start()
    try:
        eventually(lambda: figure(metrics_port, "leading") == 0, "the end of the controller's term")
        yield
    finally:
        stop.set()
        keeper.join()
        lease = client.get(kinds.LEASES, LEASE["name"], namespace=LEASE["namespace"])
        kept = objects.spec_of(lease)["holderIdentity"] == ITSELF
        eventually(
            lambda: _write(client, holderIdentity="", leaseDurationSeconds=1), "that the lease is given away"
        )
    assert kept, "the controller took the lease while objects were made"
    eventually(lambda: figure(metrics_port, "leading") == 1, "that the controller leads again")


def _write(client: KubeClient, **spec: object) -> Object | None:
    """None where somebody was first."""
    lease = client.get(kinds.LEASES, LEASE["name"], namespace=LEASE["namespace"])
    renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    try:
        return client.update(
            kinds.LEASES, {**lease, "spec": {**objects.spec_of(lease), "renewTime": renewed, **spec}}
        )
    except Conflict:
        return None


def figure(metrics_port: int, name: str) -> float:
    """Of the controller's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=30) as answer:
        found = re.search(rf"^koordra_controller_{name} (\S+)$", str(answer.read(), "utf-8"), re.MULTILINE)
    assert found, name
    return float(found[1])


def passes_once_more(client: KubeClient, metrics_port: int, node: str) -> None:
    """A pass of the controller that began after this was called is over: it hears of the node."""
    before = figure(metrics_port, "pass_seconds_count")
    client.patch(kinds.NODES, node, {"metadata": {"annotations": {"example.com/looked-at": str(before)}}})
    eventually(lambda: figure(metrics_port, "pass_seconds_count") >= before + 1, "a pass of the controller")
