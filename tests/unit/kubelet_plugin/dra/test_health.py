"""Health: what is told about each device, to whom, and when."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from koordra._proto.dra import (
    drahealth_v1_pb2,
    drahealth_v1_pb2_grpc,
    drahealth_v1alpha1_pb2,
    drahealth_v1alpha1_pb2_grpc,
)
from koordra.kubelet_plugin.dra.dra_service import Calls, add_registration, add_services
from koordra.kubelet_plugin.dra.health import (
    MOST_STREAMS,
    DeviceHealth,
    Health,
    HealthFeed,
    add_health_services,
    device_health,
    sockets_answer,
)
from koordra.kubelet_plugin.dra.plugin_metrics import PluginMetrics
from koordra.kubelet_plugin.dra.sockets import SocketServer
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory, inventory_of
from koordra.metrics import Metrics
from koordra.topology.problems import Discovery
from tests.fakes.metric_samples import sample
from tests.fakes.node_claims import GPU_0, NIC_0
from tests.patience import PATIENCE

WELL = DeviceHealth("gpu-a", Health.HEALTHY)
ILL = DeviceHealth("gpu-a", Health.UNHEALTHY, "Xid79")


def test_every_device_has_a_line_and_faults_have_their_words(discovery: Discovery) -> None:
    machine = discovery.machine
    gpus = (replace(machine.gpus[0], faults=("Xid79",)), *machine.gpus[1:])
    ports = tuple(replace(port, active=False) for port in machine.nics[0].ports)
    nics = (replace(machine.nics[0], ports=ports), *machine.nics[1:])
    found = device_health(inventory_of(Discovery(replace(machine, gpus=gpus, nics=nics), ())))
    assert len(found) == len(machine.gpus) + len(machine.nics)
    by_name = {device.device: device for device in found}
    assert by_name[GPU_0] == DeviceHealth(GPU_0, Health.UNHEALTHY, "Xid79")
    assert by_name[NIC_0] == DeviceHealth(NIC_0, Health.UNHEALTHY, "LinkDown")
    assert sum(device.health is Health.HEALTHY for device in found) == len(found) - 2


def test_a_held_device_that_is_gone_is_not_forgotten(discovery: Discovery) -> None:
    machine = replace(discovery.machine, gpus=discovery.machine.gpus[1:])
    found = device_health(inventory_of(Discovery(machine, ())), held=[GPU_0, NIC_0])
    (lost,) = [device for device in found if device.device == GPU_0]
    assert lost.health is Health.UNHEALTHY
    assert "is gone from this node" in lost.message


def test_a_stream_tells_at_once_at_every_change_and_now_and_then() -> None:
    feed = HealthFeed(clock=lambda: 1700000000.5)
    feed.publish((WELL,))
    stream = feed.follow(lambda: True, repeat=0.05)
    assert next(stream) == ((WELL,), 1700000000)
    assert next(stream) == ((WELL,), 1700000000)  # nothing new: repeated
    feed.publish((ILL,))
    assert next(stream) == ((ILL,), 1700000000)
    feed.close()
    assert list(stream) == []
    feed.close(closed=False)
    assert next(feed.follow(lambda: True))[0] == (ILL,)
    assert list(feed.follow(lambda: False)) == []


@pytest.fixture
def served() -> Iterator[tuple[HealthFeed, SocketServer]]:
    feed = HealthFeed()
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        server = SocketServer(
            Path(folder) / "dra.sock", partial(add_health_services, feed, pool="node-a"), stopping=feed.close
        )
        server.start()
        try:
            yield feed, server
        finally:
            server.stop(grace=5)


VERSIONS = {
    "v1": (drahealth_v1_pb2, drahealth_v1_pb2_grpc),
    "v1alpha1": (drahealth_v1alpha1_pb2, drahealth_v1alpha1_pb2_grpc),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_kubelet_follows_a_stream(served: tuple[HealthFeed, SocketServer], version: str) -> None:
    feed, server = served
    messages, stubs = VERSIONS[version]
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with grpc.insecure_channel(f"unix://{server.path}") as channel:
        stub = stubs.DRAResourceHealthStub(channel)
        call = stub.NodeWatchResources(messages.NodeWatchResourcesRequest())

        def listen() -> None:
            try:
                for message in call:
                    heard.put(message)
            except grpc.RpcError:
                heard.put(None)

        thread = threading.Thread(target=listen)
        thread.start()
        feed.publish((WELL,))
        (device,) = heard.get(timeout=PATIENCE).devices
        assert (device.device.pool_name, device.device.device_name) == ("node-a", "gpu-a")
        assert device.health == messages.HEALTHY
        assert device.last_updated_time > 1_700_000_000
        assert device.health_check_timeout_seconds == 30
        feed.publish((ILL,))
        (device,) = heard.get(timeout=PATIENCE).devices
        assert (device.health, device.message) == (messages.UNHEALTHY, "Xid79")
        # The server ends: streams end with it, long before the grace is over.
        server.stop(grace=60)
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_streams_leave_threads_for_prepare(served: tuple[HealthFeed, SocketServer]) -> None:
    feed, server = served
    feed.publish((WELL,))
    with grpc.insecure_channel(f"unix://{server.path}") as channel:
        stub = drahealth_v1_pb2_grpc.DRAResourceHealthStub(channel)
        request = drahealth_v1_pb2.NodeWatchResourcesRequest()
        calls = [stub.NodeWatchResources(request) for _ in range(MOST_STREAMS)]
        for call in calls:
            assert next(call).devices
        with pytest.raises(grpc.RpcError) as refused:
            next(stub.NodeWatchResources(request))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        # A reader that goes away gives its place back.
        calls[0].cancel()
        for _ in range(int(PATIENCE / 0.05)):
            try:
                assert next(stub.NodeWatchResources(request)).devices
                break
            except grpc.RpcError:
                threading.Event().wait(0.05)
        else:
            pytest.fail("the place was not given back")


def test_probes_hear_whether_the_plugins_sockets_answer() -> None:
    """Over the files by which the kubelet finds it: without one it seems alive, and is unreachable."""
    calls = Calls(Mock(), Mock(), Mock())  # none comes
    with tempfile.TemporaryDirectory() as folder:  # of a short path
        dra, registration = Path(folder, "dra.sock"), Path(folder, "reg.sock")
        servers = [
            SocketServer(dra, partial(add_services, calls)),
            SocketServer(registration, partial(add_registration, dra)),
        ]
        assert not sockets_answer(registration, dra)
        for server in servers:
            server.start()
        try:
            assert sockets_answer(registration, dra)
            for server in servers:
                server.path.unlink()
                assert not sockets_answer(registration, dra)
                assert server.ensure()
                assert sockets_answer(registration, dra)
        finally:
            for server in servers:
                server.stop(grace=0)


def test_faults_and_counted_errors_are_metrics_that_may_go_back(inventory: NodeInventory) -> None:
    """After a reset the driver counts from 0 again, and a fault that is over is no series any more."""
    machine = inventory.machine
    metrics = Metrics()
    plugin = PluginMetrics(metrics)

    def observe(*faults: str, replays: int, downs: int) -> None:
        card = replace(machine.gpus[0], faults=faults, errors={"nvlink_replay": replays})
        nic = replace(machine.nics[0], downs=downs)
        plugin.observe_devices((), replace(machine, gpus=(card,), nics=(nic,)))

    def found(name: str, **labels: str) -> float | None:
        return sample(metrics, f"koordra_plugin_{name}", labels)

    observe("NeedsReset", "Xid48", replays=7, downs=4)
    assert found("device_fault", device=GPU_0, fault="Xid48") == 1
    assert found("gpu_errors_total", device=GPU_0, kind="nvlink_replay") == 7
    assert found("nic_link_downs_total", device=NIC_0) == 4
    observe(replays=0, downs=0)
    assert found("device_fault", device=GPU_0, fault="Xid48") is None
    assert found("gpu_errors_total", device=GPU_0, kind="nvlink_replay") == 0
    assert found("nic_link_downs_total", device=NIC_0) == 0
