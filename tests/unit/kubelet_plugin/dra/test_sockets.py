"""What the kubelet meets: registration, both versions of the DRA service, and sockets that come back."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from koordra._proto.dra import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)
from koordra.errors import ApiUnreachable, CheckpointError, NodeError, NotFound, PrepareError
from koordra.kubelet_plugin.dra.dra_service import (
    CALLS_AT_ONCE,
    Calls,
    DraService,
    add_registration,
    add_services,
)
from koordra.kubelet_plugin.dra.plugin_metrics import PluginMetrics
from koordra.kubelet_plugin.dra.sockets import PluginSockets, SocketServer, remove_abandoned
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.metrics import Metrics
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.locks import abandoned, sole_instance
from koordra.process import progress
from koordra.process.watchdog import Watchdog
from tests.fakes.metric_samples import sample
from tests.fakes.node_claims import GPU_0, GPU_1, NIC_0, claim, gpu, nic, uid
from tests.patience import PATIENCE
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of

SHARE = "5c1f0000-0000-5000-8000-000000000001"


def calls_of(state: DeviceState) -> Calls:
    return Calls(state, PluginMetrics(Metrics()), on_done=lambda call, done: None)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Unix sockets have room for 107 bytes, pytest's folders are longer."""
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        yield Path(folder)


@pytest.fixture
def served(node: PluginNode, short_path: Path) -> Iterator[SocketServer]:
    server = SocketServer(short_path / "plugins" / "dra.sock", partial(add_services, calls_of(node.plugin())))
    server.start()
    yield server
    server.stop(grace=1)


def batch(messages: Any, *numbers: int, kind: str = "NodePrepareResourcesRequest") -> Any:
    return getattr(messages, kind)(
        claims=[
            messages.Claim(namespace="team-a", name=f"claim-{number}", uid=uid(number)) for number in numbers
        ]
    )


def test_batch_answers_every_claim_once_and_an_error_is_its_own(
    node: PluginNode, served: SocketServer
) -> None:
    node.claims.put(claim(1, gpu("gpu", GPU_0), nic("nic", NIC_0)))
    node.claims.put(claim(2, gpu("gpu", "gpu-nowhere")))
    node.claims.put(claim(3, gpu("gpu", GPU_1)))
    with grpc.insecure_channel(f"unix://{served.path}") as channel:
        stub = dra_v1_pb2_grpc.DRAPluginStub(channel)
        answer = stub.NodePrepareResources(batch(dra_v1_pb2, 1, 2, 3, 4, 1))
        assert set(answer.claims) == {uid(1), uid(2), uid(3), uid(4)}
        assert [device.device_name for device in answer.claims[uid(1)].devices] == [GPU_0, NIC_0]
        assert answer.claims[uid(1)].error == ""
        assert "gpu-nowhere" in answer.claims[uid(2)].error
        assert list(answer.claims[uid(2)].devices) == []
        assert [device.device_name for device in answer.claims[uid(3)].devices] == [GPU_1]
        assert "does not exist" in answer.claims[uid(4)].error

        gone = batch(dra_v1_pb2, 1, 2, 3, 4, kind="NodeUnprepareResourcesRequest")
        assert {uid_: entry.error for uid_, entry in stub.NodeUnprepareResources(gone).claims.items()} == {
            uid(number): "" for number in (1, 2, 3, 4)
        }
    assert node.holders() == set()


def test_both_versions_give_the_same_devices_and_only_v1_the_share(
    node: PluginNode, served: SocketServer
) -> None:
    node.claims.put(claim(1, gpu("gpu/big", GPU_0, share=SHARE), nic("nic", NIC_0, share=None)))
    with grpc.insecure_channel(f"unix://{served.path}") as channel:
        new = dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(batch(dra_v1_pb2, 1))
        old = dra_v1beta1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(batch(dra_v1beta1_pb2, 1))
    first, second = new.claims[uid(1)].devices
    assert list(first.request_names) == ["gpu/big"]
    assert (first.pool_name, first.device_name, first.share_id) == ("node-a", GPU_0, SHARE)
    assert list(first.cdi_device_ids) == [f"koordra.io/claim={uid(1)}-{GPU_0}-5c1f0000"]
    assert not second.HasField("share_id")
    # Field numbers are the same, so v1beta1's bytes are v1's without the share.
    assert [list(device.cdi_device_ids) for device in old.claims[uid(1)].devices] == [
        list(device.cdi_device_ids) for device in new.claims[uid(1)].devices
    ]
    assert "share_id" not in dra_v1beta1_pb2.Device.DESCRIPTOR.fields_by_name


class KubeletCall:
    """gRPC's view of the call: whether the kubelet still waits."""

    def __init__(self, *, active: bool = True) -> None:
        self.active = active

    def is_active(self) -> bool:
        return self.active


def test_what_the_kubelet_gave_up_is_not_prepared(node: PluginNode) -> None:
    node.claims.put(claim(1, gpu("gpu", GPU_0)))
    service = DraService(calls_of(node.plugin()), dra_v1_pb2, with_share_id=True)
    answer = service.NodePrepareResources(batch(dra_v1_pb2, 1), KubeletCall(active=False))
    assert "the kubelet gave this call up" in answer.claims[uid(1)].error
    assert node.files() == set()


def test_a_call_that_hangs_is_told(node: PluginNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the lock, where all others then wait in vain."""
    monkeypatch.setattr(progress, "threads", {})
    node.claims.put(claim(1, gpu("gpu", GPU_0)))
    gate, metrics = threading.Event(), Metrics()
    dog = Watchdog(metrics, write_stacks=lambda: None)
    plugin = node.plugin()
    monkeypatch.setattr(plugin, "_write_files", lambda _record: gate.wait() and None)
    service = DraService(calls_of(plugin), dra_v1_pb2, with_share_id=True)
    call = threading.Thread(target=service.NodePrepareResources, args=(batch(dra_v1_pb2, 1), KubeletCall()))
    call.start()
    try:
        deadline = time.monotonic() + PATIENCE
        while not dog.stuck and time.monotonic() < deadline:
            dog.look()
            time.sleep(0.001)
        assert dog.stuck == {"prepare ResourceClaim team-a/claim-1"}
        assert sample(metrics, "koordra_stuck_threads") == 1
    finally:
        gate.set()
        call.join(PATIENCE)
    dog.look()
    assert dog.is_well()


def test_an_unprepare_that_overtakes_a_prepare_wins(node: PluginNode) -> None:
    """The API answers after the kubelet has given the Prepare up and sent the Unprepare: nothing may stay
    behind."""
    state = node.plugin()

    class Slow:
        def get(self, namespace: str, name: str) -> Any:
            state.unprepare(ref_of(claim(1)))
            return claim(1, gpu("gpu", GPU_0))

    state._claims = Slow()
    with pytest.raises(PrepareError, match="gave this call up"):
        state.prepare(ref_of(claim(1)))
    assert node.files() == set()
    assert state.records() == ()


def test_two_pods_of_one_claim_that_start_together_are_both_answered(node: PluginNode) -> None:
    """The second Prepare comes while the first waits for the API, and is done before it."""
    state = node.plugin()
    answers: list[Any] = []

    class Slow:
        def get(self, namespace: str, name: str) -> Any:
            if not answers:
                answers.append(None)
                answers.append(state.prepare(ref_of(claim(1))))
            return claim(1, gpu("gpu", GPU_0))

    state._claims = Slow()
    first = state.prepare(ref_of(claim(1)))
    assert first == answers[1]
    assert len(state.records()) == 1
    assert state._calls._calls == set()


def test_while_an_api_server_hangs_pods_of_a_full_node_keep_no_other_from_its_end(
    node: PluginNode, short_path: Path
) -> None:
    """Nor a probe from its answer: the plugin would be killed, again and again, for the server's fault."""
    gate, state = threading.Event(), node.plugin()

    class Hanging:
        def get(self, namespace: str, name: str) -> Any:
            gate.wait(PATIENCE)
            raise ApiUnreachable("no answer")

    state._claims = Hanging()
    server = SocketServer(
        short_path / "dra.sock", partial(add_services, calls_of(state)), workers=CALLS_AT_ONCE
    )
    server.start()
    try:
        with grpc.insecure_channel(f"unix://{server.path}") as channel:
            stub = dra_v1_pb2_grpc.DRAPluginStub(channel)
            pods = [stub.NodePrepareResources.future(batch(dra_v1_pb2, number)) for number in range(110)]
            ended = stub.NodeUnprepareResources(
                batch(dra_v1_pb2, 200, kind="NodeUnprepareResourcesRequest"), timeout=PATIENCE / 2
            )
            assert ended.claims[uid(200)].error == ""
            assert not stub.NodePrepareResources(batch(dra_v1_pb2), timeout=PATIENCE / 2).claims
            assert not any(pod.done() for pod in pods)
            gate.set()
            for number, pod in enumerate(pods):
                assert "cannot be read from the API" in pod.result(PATIENCE).claims[uid(number)].error
    finally:
        gate.set()
        server.stop(grace=0)


def test_a_surprise_is_one_claims_error(node: PluginNode, served: SocketServer) -> None:
    class Surprising:
        def get(self, namespace: str, name: str) -> Any:
            if name == "claim-1":
                raise ZeroDivisionError("surprise\x1b[2J\ud800")
            return claim(2, gpu("gpu", GPU_0))

    state = node.plugin()
    state._claims = Surprising()
    service = DraService(calls_of(state), dra_v1_pb2, with_share_id=True)
    with capture_logs() as lines:
        answer = service.NodePrepareResources(batch(dra_v1_pb2, 1, 2), KubeletCall())
    assert r"internal error: ZeroDivisionError: surprise\x1b[2J\ud800" in answer.claims[uid(1)].error
    assert answer.claims[uid(2)].error == ""
    assert [line["uid"] for line in lines if line["event"] == "prepare_failed"] == [uid(1)]


def test_a_surprise_of_unprepare_is_named_in_the_log(
    node: PluginNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def surprising(self: DeviceState, ref: ClaimRef, *, awaited: Callable[[], bool]) -> None:
        raise ZeroDivisionError("surprise\x1b[2J\ud800")

    monkeypatch.setattr(DeviceState, "unprepare", surprising)
    service = DraService(calls_of(node.plugin()), dra_v1_pb2, with_share_id=True)
    with capture_logs() as lines:
        answer = service.NodeUnprepareResources(
            batch(dra_v1_pb2, 1, kind="NodeUnprepareResourcesRequest"), KubeletCall()
        )
    assert r"internal error: ZeroDivisionError: surprise\x1b[2J\ud800" in answer.claims[uid(1)].error
    assert [line["uid"] for line in lines if line["event"] == "unprepare_failed"] == [uid(1)]


@given(namespace=st.text(max_size=8), name=st.text(max_size=8), claim_uid=st.text(max_size=80))
def test_fuzzed_claims_get_exactly_one_answer(
    node_of_module: PluginNode, namespace: str, name: str, claim_uid: str
) -> None:
    service = DraService(calls_of(node_of_module.unrepaired()), dra_v1_pb2, with_share_id=True)
    named = dra_v1_pb2.Claim(namespace=namespace, name=name, uid=claim_uid)
    answer = service.NodePrepareResources(
        dra_v1_pb2.NodePrepareResourcesRequest(claims=[named]), KubeletCall()
    )
    assert list(answer.claims) == [claim_uid]
    assert answer.claims[claim_uid].error
    gone = service.NodeUnprepareResources(
        dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[named]), KubeletCall()
    )
    assert [entry.error for entry in gone.claims.values()] == [""]
    assert node_of_module.files() == set()


@pytest.fixture(scope="module")
def node_of_module(tmp_path_factory: pytest.TempPathFactory, inventory: Any) -> PluginNode:
    return PluginNode(tmp_path_factory.mktemp("fuzzed"), inventory)


def test_registration_says_who_serves_what_where(short_path: Path) -> None:
    sockets = PluginSockets.below(short_path)
    assert sockets.registration == short_path / "plugins_registry" / "koordra.io-reg.sock"
    assert sockets.dra == short_path / "plugins" / "koordra.io" / "dra.sock"
    server = SocketServer(sockets.registration, partial(add_registration, sockets.dra), workers=1)
    server.start()
    try:
        assert sockets.registration.stat().st_mode & 0o777 == 0o600
        with grpc.insecure_channel(f"unix://{sockets.registration}") as channel:
            stub = pluginregistration_pb2_grpc.RegistrationStub(channel)
            info = stub.GetInfo(pluginregistration_pb2.InfoRequest())
            assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "koordra.io", str(sockets.dra))
            assert list(info.supported_versions) == [
                "v1.DRAPlugin",
                "v1beta1.DRAPlugin",
                "v1.DRAResourceHealth",
                "v1alpha1.DRAResourceHealth",
            ]
            refused = pluginregistration_pb2.RegistrationStatus(plugin_registered=False, error="no")
            stub.NotifyRegistrationStatus(refused)
            stub.NotifyRegistrationStatus(pluginregistration_pb2.RegistrationStatus(plugin_registered=True))
    finally:
        server.stop(grace=1)
    assert not sockets.registration.exists()


def test_instances_of_an_update_have_sockets_of_their_own(short_path: Path) -> None:
    sockets = PluginSockets.below(short_path, pod_uid="0c1a")
    assert sockets.registration.name == "koordra.io-0c1a-reg.sock"
    assert sockets.dra.name == "dra-0c1a.sock"


def test_a_path_that_no_socket_can_have(short_path: Path) -> None:
    with pytest.raises(NodeError, match="at most 107; use a shorter kubelet root"):
        SocketServer(short_path / ("x" * 100) / "dra.sock", lambda server: None)


@pytest.mark.parametrize("loss", ["removed", "replaced"])
def test_a_lost_socket_is_bound_again(served: SocketServer, short_path: Path, loss: str) -> None:
    assert not served.ensure()
    if loss == "removed":
        served.path.unlink()
    else:
        (short_path / "other").write_text("")
        (short_path / "other").rename(served.path)
    with capture_logs() as lines:
        assert served.ensure()
    assert [line["event"] for line in lines] == ["socket_lost"]
    assert not served.ensure()
    with grpc.insecure_channel(f"unix://{served.path}") as channel:
        stub = dra_v1_pb2_grpc.DRAPluginStub(channel)
        assert not stub.NodePrepareResources(dra_v1_pb2.NodePrepareResourcesRequest()).claims


def test_a_stale_socket_file_is_no_obstacle(short_path: Path, node: PluginNode) -> None:
    (short_path / "dra.sock").write_text("left by a kill")
    server = SocketServer(short_path / "dra.sock", partial(add_services, calls_of(node.plugin())))
    try:
        server.start()
    finally:
        server.stop(grace=1)


def test_a_second_instance_of_the_same_name_waits(tmp_path: Path) -> None:
    lock, first_stops, second_stops = tmp_path / "reg.sock.lock", threading.Event(), threading.Event()
    order: list[str] = []

    def second() -> None:
        with sole_instance(lock, second_stops) as alone:
            order.append(f"second {alone}")

    with sole_instance(lock, first_stops) as alone:
        assert alone
        waiting = threading.Thread(target=second)
        waiting.start()
        time.sleep(0.3)
        assert order == []
    waiting.join(PATIENCE)
    assert order == ["second True"]


def test_an_instance_that_waits_ends_when_told(tmp_path: Path) -> None:
    stop = threading.Event()
    with sole_instance(tmp_path / "l", threading.Event()):
        stop.set()
        with sole_instance(tmp_path / "l", stop) as alone:
            assert not alone


def test_sockets_of_the_dead_go_and_those_of_the_living_stay(short_path: Path) -> None:
    state = short_path / "plugins" / "koordra.io"
    state.mkdir(parents=True)
    (short_path / "plugins_registry").mkdir()
    dead, alive, unnamed = (
        PluginSockets.below(short_path, pod_uid=pod_uid) for pod_uid in ("dead", "alive", None)
    )
    for sockets in (dead, alive, unnamed):
        for path in (sockets.registration, sockets.dra):
            path.write_text("")
    other = short_path / "plugins_registry" / "other.io-reg.sock"
    other.write_text("")
    dead.instance(state).write_text("")
    unnamed.instance(state).write_text("")
    with sole_instance(alive.instance(state), threading.Event()) as alone:
        assert alone
        remove_abandoned(short_path, state)
        assert sorted(path.name for path in state.iterdir()) == [
            "dra-alive.sock",
            "koordra.io-alive-reg.sock.lock",
        ]
        assert set(other.parent.iterdir()) == {alive.registration, other}
    assert not alive.instance(state).exists()


def test_who_waited_for_a_name_owns_the_file_that_is_there(tmp_path: Path) -> None:
    """The first owner takes its file away at its end; a third instance must still meet the second."""
    lock, entered, leave = tmp_path / "l", threading.Event(), threading.Event()

    def second() -> None:
        with sole_instance(lock, threading.Event()) as alone:
            assert alone
            entered.set()
            assert leave.wait(PATIENCE)

    waiting = threading.Thread(target=second)
    with sole_instance(lock, threading.Event()):
        waiting.start()
    assert entered.wait(PATIENCE)
    try:
        with abandoned(lock) as found:
            assert not found
        assert lock.exists()
    finally:
        leave.set()
        waiting.join(PATIENCE)
    assert not lock.exists()


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (PrepareError("a word that claims may not say"), "refused"),
        (NotFound("gone", code=404, reason="NotFound"), "refused"),
        (CheckpointError("checkpoint.json cannot be written: No space left on device"), "failed"),
        (ApiUnreachable("nobody answers"), "failed"),
        (ValueError("a defect"), "failed"),
    ],
)
def test_what_is_wrong_with_the_node_is_told_from_what_is_wrong_with_the_claim(
    error: Exception, result: str
) -> None:
    """The alert KoordraPrepareFails is about the node."""
    metrics = Metrics()
    figures = PluginMetrics(metrics)
    with pytest.raises(type(error)), figures.observe_call("prepare"):
        raise error
    labels = {"call": "prepare", "result": result}
    assert sample(metrics, "koordra_plugin_calls_total", labels) == 1
