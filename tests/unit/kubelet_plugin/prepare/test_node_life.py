"""The whole plugin over weeks of a node: cordons, forgotten claims, API servers that are away, clocks that
jump, bad input."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from koordra._proto.dra import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    drahealth_v1_pb2,
    drahealth_v1_pb2_grpc,
)
from koordra.api.names import RELEASE_TAINT, UNHEALTHY_TAINT
from koordra.api.opaque.parameters import GpuConfig
from koordra.errors import KoordraError, PrepareError
from koordra.kubelet_plugin.discovery.gpu_faults import Ledger, LedgerFile
from koordra.kubelet_plugin.discovery.reading import boot_id
from koordra.kubelet_plugin.dra import restoring
from koordra.kubelet_plugin.isolation.backend import Card, IsolationBackend, Share
from koordra.kubelet_plugin.isolation.none import NoIsolation
from koordra.kubelet_plugin.isolation.packages import backends
from koordra.kubelet_plugin.nvidia_driver.release_wanted import STATE_LABEL
from koordra.kubelet_plugin.prepare import claim_audit
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.metrics import Metrics
from koordra.node_state.disk import Disk
from koordra.process.watchdog import Watchdog
from tests.fakes.isolation import keep_nothing
from tests.fakes.node_claims import GPU_0, NODE, claim, gpu, nic, parameters, result, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of
from tests.unit.kubelet_plugin.running_plugin import RunningPlugin, wait_for


@pytest.fixture
def running(machine_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningPlugin]:
    monkeypatch.setattr(restoring, "CHECK_INTERVAL", 0.1)
    monkeypatch.setattr(claim_audit, "_BETWEEN", 0.01)
    with (
        tempfile.TemporaryDirectory(prefix="k") as folder,
        RunningPlugin(Path(folder), machine_root).serving() as plugin,
    ):
        yield plugin


def taints(plugin: RunningPlugin, device: str = GPU_0) -> dict[str, str]:
    found = plugin.api.devices().get(device, {}).get("taints", ())
    return {taint["key"]: taint.get("value", "") for taint in found}


def test_stored_files_heal_while_the_plugin_runs(
    running: RunningPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within FILE_CHECK_INTERVAL, whatever was done to the file, and to its folder."""
    assert restoring.FILE_CHECK_INTERVAL <= 5.0
    monkeypatch.setattr(restoring, "FILE_CHECK_INTERVAL", 0.0)
    assert running.prepare().error == ""
    file = running.paths.cdi_file(uid(1))
    before = file.read_bytes()

    def truncate() -> None:
        file.write_bytes(before[:100])

    def make_a_folder_of_it() -> None:
        file.unlink()
        file.mkdir()

    def make_the_folder_anew() -> None:
        shutil.rmtree(file.parent)
        file.parent.mkdir()

    for harm in (truncate, file.unlink, make_a_folder_of_it, make_the_folder_anew):
        harm()
        assert wait_for(lambda: file.is_file() and file.read_bytes() == before), harm
    assert running.thread.is_alive()


def test_an_xid_of_before_the_start_taints_the_card(machine_root: Path) -> None:
    """The ledger is the plugin's, in its state directory; its boot is the machine's."""
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        plugin = RunningPlugin(Path(folder), machine_root)
        ledger = LedgerFile(plugin.paths.state, Disk(), boot_id=boot_id(machine_root))
        ledger.save(Ledger().with_xid("0000:0f:00.0", 79, now=0.0))
        with plugin.serving():
            assert wait_for(lambda: taints(plugin).get(UNHEALTHY_TAINT) == "Xid79")


def test_a_cordon_on_the_node_becomes_a_taint_and_goes_again(running: RunningPlugin) -> None:
    assert wait_for(running.api.devices)
    running.api.annotate_node(**{f"cordon.koordra.io__{GPU_0}": "NoSchedule loud fan"})
    assert wait_for(lambda: taints(running).get("koordra.io/cordoned") == "loud-fan")
    assert "koordra.io/cordoned" not in taints(running, "gpu-0000-2d-00-0")
    running.api.annotate_node()
    assert wait_for(lambda: "koordra.io/cordoned" not in taints(running))


def test_a_refusal_shows_that_a_device_is_held(running: RunningPlugin) -> None:
    """Claim 1 is forgotten by the API while its container runs; claim 2 is given its card, and refused."""
    assert running.prepare().error == ""
    running.api.claims = {"claim-2": claim(2, gpu("gpu", GPU_0))}
    with grpc.insecure_channel(f"unix://{running.endpoint()}") as channel:
        stub = dra_v1_pb2_grpc.DRAPluginStub(channel)
        two = dra_v1_pb2.Claim(namespace="team-a", name="claim-2", uid=uid(2))
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[two])
        assert "InsufficientCapacity" in stub.NodePrepareResources(request).claims[uid(2)].error
        assert wait_for(lambda: taints(running).get("koordra.io/held") == uid(1))
        # The kubelet unprepares the old one: the taint goes, and the new one gets the card.
        one = dra_v1_pb2.Claim(namespace="team-a", name="claim-1", uid=uid(1))
        stub.NodeUnprepareResources(dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[one]))
        assert wait_for(lambda: "koordra.io/held" not in taints(running))
        assert stub.NodePrepareResources(request).claims[uid(2)].error == ""


def test_health_is_told_over_the_plugins_socket(running: RunningPlugin) -> None:
    with grpc.insecure_channel(f"unix://{running.endpoint()}") as channel:
        stub = drahealth_v1_pb2_grpc.DRAResourceHealthStub(channel)
        stream = stub.NodeWatchResources(drahealth_v1_pb2.NodeWatchResourcesRequest())
        first = next(stream)
        assert len(first.devices) == 24
        assert {device.device.pool_name for device in first.devices} == {NODE}
        # A lost socket is bound again, and a kubelet that opens the stream again hears it all again.
        (running.kubelet_root / "plugins" / "koordra.io" / "dra.sock").unlink()
        assert wait_for(running.driver.answers)
    with grpc.insecure_channel(f"unix://{running.endpoint()}") as channel:
        stub = drahealth_v1_pb2_grpc.DRAResourceHealthStub(channel)
        request = drahealth_v1_pb2.NodeWatchResourcesRequest()
        assert len(next(stub.NodeWatchResources(request, wait_for_ready=True)).devices) == 24


def test_an_api_server_that_is_away_stops_nothing_that_runs(running: RunningPlugin) -> None:
    assert running.prepare().error == ""
    running.api.away = True
    running.api.kubelet_deletes_all()
    file = running.paths.cdi_file(uid(1))
    before = file.read_bytes()
    assert "cannot be read from the API" in running.prepare().error, "what is to start waits"
    assert file.read_bytes() == before, "and what runs keeps what it has"
    with grpc.insecure_channel(f"unix://{running.endpoint()}") as channel:
        stub = dra_v1_pb2_grpc.DRAPluginStub(channel)
        one = dra_v1_pb2.Claim(namespace="team-a", name="claim-1", uid=uid(1))
        answer = stub.NodeUnprepareResources(dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[one]))
        assert answer.claims[uid(1)].error == ""
    assert not running.paths.cdi_file(uid(1)).exists()
    running.api.away = False
    assert wait_for(running.api.devices)
    assert running.prepare().error == ""


def test_a_clock_that_jumps_changes_nothing(node: PluginNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on disk depends on the wall clock: records belong to a boot, not to a time."""
    node.claims.put(claim(1, gpu("gpu", GPU_0)))
    before = node.plugin().prepare(ref_of(claim(1)))
    for now in (0.0, 4_000_000_000.0):
        monkeypatch.setattr("time.time", lambda now=now: now)
        assert node.plugin().prepare(ref_of(claim(1))) == before
        assert node.holders() == {uid(1)}


def test_a_check_that_hangs_is_told(running: RunningPlugin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that does not answer: the sockets do, and nothing is put right any more."""
    gate, dog = threading.Event(), Watchdog(Metrics(), write_stacks=lambda: None)
    monkeypatch.setattr(running.driver._guarded, "ensure", lambda: gate.wait() and None)
    try:
        assert wait_for(lambda: (dog.look(), "restore" in dog.stuck)[1])
    finally:
        gate.set()
    assert wait_for(lambda: (dog.look(), "restore" not in dog.stuck)[1])


# Fuzzed input: a clear error or a prepared claim, never a crash, never something in between.

words = st.sampled_from(
    ["", "gpu", "nic", GPU_0, NODE, "koordra.io", "memory", "1Gi", "-1", "x" * 300, "\0", "é"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 70) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=12,
)
fields = st.sampled_from(
    ["request", "driver", "pool", "device", "shareID", "adminAccess", "consumedCapacity", "tolerations"]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([], [], "devices", 1)
@example([], [], "results", 1)
@example([], [], "allocation", 1)
@given(
    st.lists(st.tuples(fields, values), max_size=4),
    st.lists(values, max_size=2),
    st.sampled_from([None, "results", "config", "devices", "allocation", "status", "metadata"]),
    values,
)
def test_fuzzed_claims(
    tmp_path_factory: pytest.TempPathFactory,
    inventory: NodeInventory,
    changes: list[tuple[str, Any]],
    config: list[Any],
    replaced: str | None,
    value: Any,
) -> None:
    node = PluginNode(tmp_path_factory.mktemp("fuzz"), inventory)
    entry = gpu("gpu", GPU_0, "10Gi")
    for field, content in changes:
        entry[field] = content
    obj = claim(1, entry, nic("nic", "nic-0000-0c-00-0"))
    allocation = obj["status"]["allocation"]
    allocation["devices"]["config"] = [parameters("GpuConfig", isolation="none"), *config]
    match replaced:
        case "results" | "config":
            allocation["devices"][replaced] = value
        case "devices":
            allocation["devices"] = value
        case "allocation":
            obj["status"]["allocation"] = value
        case "status" | "metadata":
            obj[replaced] = value
    node.claims.claims["team-a", "claim-1"] = obj
    ref = ref_of(claim(1))
    try:
        node.plugin().prepare(ref)
    except KoordraError as error:
        assert "claim-1" in str(error) or str(node.paths.state) in str(error)
        assert node.holders() == set()
        assert node.files() == set()
    else:
        assert node.holders() <= {uid(1)}
    node.plugin().unprepare(ref)
    assert node.files() == set()


# What every isolation backend promises, whoever wrote it.


def check_backend(backend: IsolationBackend, share: Share, config: GpuConfig) -> None:
    """The contract of IsolationBackend; call it with a share that the backend can keep."""
    assert backend.name
    assert backend.fits(share, config, Card(share.device, share.uuid, (share,))) is None
    backend.unprepare(share)  # never prepared
    first = backend.prepare(share, config, keep_nothing)
    assert backend.prepare(share, config, keep_nothing) == first, "what a container gets stays the same"
    assert all(name and "=" not in name for name, _ in first.edits.env)
    assert all(mount.host_path.startswith("/") for mount in first.edits.mounts)
    backend.unprepare(share)
    backend.unprepare(share)


@pytest.mark.parametrize("memory", [None, 10 << 30])
def test_every_built_in_backend_keeps_the_contract(memory: int | None) -> None:
    share = Share(claim_uid=uid(1), index=0, device=GPU_0, uuid="GPU-1", memory_bytes=memory, cores=25)
    for backend in {NoIsolation.name: NoIsolation()}.values():
        check_backend(backend, share, GpuConfig())
    assert "none" in backends()


def test_two_versions_answer_alike_and_exactly_once(running: RunningPlugin) -> None:
    from koordra._proto.dra import dra_v1beta1_pb2, dra_v1beta1_pb2_grpc

    running.api.claims |= {"claim-2": claim(2, result("x", "gpu-9", driver="gpu.example.com"))}
    with grpc.insecure_channel(f"unix://{running.endpoint()}") as channel:
        for messages, stubs in ((dra_v1_pb2, dra_v1_pb2_grpc), (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc)):
            named = [
                messages.Claim(namespace="team-a", name=f"claim-{number}", uid=uid(number))
                for number in (1, 2, 3, 1)
            ]
            answer = stubs.DRAPluginStub(channel).NodePrepareResources(
                messages.NodePrepareResourcesRequest(claims=named)
            )
            assert set(answer.claims) == {uid(1), uid(2), uid(3)}
            assert [bool(answer.claims[uid(number)].error) for number in (1, 2, 3)] == [False, False, True]
            assert len(answer.claims[uid(1)].devices) == 1
            assert len(answer.claims[uid(2)].devices) == 0


def test_overcommit_counts_recovered_shares_by_their_defaults(node: PluginNode) -> None:
    node.claims.put(claim(1, gpu("gpu", GPU_0, "1Gi")))
    node.plugin().prepare(ref_of(claim(1)))
    node.paths.checkpoint.unlink()
    node.claims.put(claim(2, gpu("gpu", GPU_0, "1Gi")))
    with pytest.raises(PrepareError, match="InsufficientCapacity"):
        node.plugin().prepare(ref_of(claim(2)))


def test_during_an_upgrade_of_the_driver_claims_end_and_none_begins(running: RunningPlugin) -> None:
    assert running.prepare().error == ""
    running.api.node["metadata"]["labels"] = {STATE_LABEL: "drain-required"}
    running.api.tell_node()
    assert wait_for(lambda: taints(running).get(RELEASE_TAINT) == "Evicting")
    assert "Tainted" in running.prepare().error
    assert running.unprepare().error == ""
    assert wait_for(lambda: taints(running).get(RELEASE_TAINT) == "Released")

    running.api.node["metadata"]["labels"] = {STATE_LABEL: "upgrade-done"}
    running.api.tell_node()
    assert wait_for(lambda: RELEASE_TAINT not in taints(running))
    assert running.prepare().error == ""
