"""A plugin and a strict runtime over a real unix socket: registration, both generations of events, loss and
return."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from koordra._proto.nri import nri_pb2
from koordra.errors import InvalidInput, NRIError, RemoteError
from koordra.nri import stub as stub_module
from koordra.nri.stub import Plugin, Session, Stub
from koordra.nri.transport.ttrpc import Call, Code
from tests.fakes.nri_runtime import NEW, OLD, FakeRuntime, PluginConnection, StatusError, Version
from tests.patience import PATIENCE

POD = nri_pb2.PodSandbox(id="p1", name="train", namespace="team", uid="u1")
CONTAINER = nri_pb2.Container(id="c1", pod_sandbox_id="p1", name="main")


class Recorder(Plugin):
    """Writes down what it is told; container names choose how it answers."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.entered = threading.Event()
        self.release = threading.Event()

    def configure(self, request: nri_pb2.ConfigureRequest) -> None:
        self.seen.append(f"configure {request.runtime_name}")

    def synchronize(
        self, pods: Sequence[nri_pb2.PodSandbox], containers: Sequence[nri_pb2.Container]
    ) -> Sequence[nri_pb2.ContainerUpdate]:
        self.seen.append(f"synchronize {len(pods)} {len(containers)}")
        return [nri_pb2.ContainerUpdate(container_id=container.id) for container in containers[:1]]

    def create_container(
        self, request: nri_pb2.CreateContainerRequest, _call: Call
    ) -> nri_pb2.CreateContainerResponse:
        name, _, size = request.container.name.partition(":")
        if name == "refused":
            raise RemoteError(Code.PERMISSION_DENIED, "not yours")
        if name == "slow":
            self.entered.set()
            self.release.wait(PATIENCE)
        response = nri_pb2.CreateContainerResponse()
        response.adjust.annotations["x"] = "y" * int(size or 1)
        return response

    def run_pod_sandbox(
        self, request: nri_pb2.RunPodSandboxRequest, _call: Call
    ) -> nri_pb2.RunPodSandboxResponse:
        self.seen.append(f"run {request.pod.name}")
        return nri_pb2.RunPodSandboxResponse()

    def remove_container(
        self, request: nri_pb2.RemoveContainerRequest, _call: Call
    ) -> nri_pb2.RemoveContainerResponse:
        self.seen.append(f"remove {request.pod.name}/{request.container.name}")
        return nri_pb2.RemoveContainerResponse()

    def shutdown(self) -> None:
        self.seen.append("shutdown")


class Node:
    """A runtime's socket and a plugin that keeps itself registered there."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "nri.sock"
        self.plugin = Recorder()
        self.stop = threading.Event()
        self.runtimes: list[FakeRuntime] = []
        self._stub = Stub(self.plugin, name="koordra", index="90", socket_path=self.path, environ={})
        self._thread = threading.Thread(target=self._stub.run, args=(self.stop,))

    def runtime(self, version: Version = OLD, *, request_timeout: float = PATIENCE) -> FakeRuntime:
        runtime = FakeRuntime(self.path, version=version, request_timeout=request_timeout)
        self.runtimes.append(runtime)
        return runtime

    def registered(self, version: Version = OLD, **handshake: object) -> PluginConnection:
        connection = self.runtime(version).accept_from(self.start)
        connection.handshake(**handshake)  # type: ignore[arg-type]
        return connection

    def start(self) -> None:
        if not self._thread.ident:
            self._thread.start()

    def end(self) -> bool:
        self.stop.set()
        self.plugin.release.set()
        if self._thread.ident:
            self._thread.join(PATIENCE)
        for runtime in self.runtimes:
            runtime.stop()
        return not self._thread.is_alive()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    assert node.end()


def test_registers_with_its_name_and_subscribes_to_what_its_class_handles(node: Node) -> None:
    connection = node.runtime().accept_from(node.start)
    stream, request = connection.registered.get(timeout=PATIENCE)
    connection.registered.put((stream, request))
    assert (request.plugin_name, request.plugin_idx, request.NRI_version) == ("koordra", "90", "v0.12.0")
    connection.handshake()
    assert connection.events == 1 << 0 | 1 << 3 | 1 << 10
    assert node.plugin.seen == ["configure containerd", "synchronize 0 0"]


def test_serves_configure_and_synchronize_before_its_registration_is_answered(node: Node) -> None:
    connection = node.registered(configure_first=True)
    assert node.plugin.seen == ["configure containerd", "synchronize 0 0"]
    assert connection.create(POD, CONTAINER) is not None


def test_a_listing_in_several_messages_is_one_listing_and_only_the_last_is_answered_with_updates(
    node: Node,
) -> None:
    chunks = [[nri_pb2.Container(id=f"c{n}", labels={"x": "y" * 9000})] * 50 for n in range(4)]
    connection = node.runtime().accept_from(node.start)
    answer = connection.handshake(pods=[POD], chunks=chunks)
    assert [update.container_id for update in answer.update] == ["c0"]
    assert node.plugin.seen[-1] == "synchronize 1 200"


@pytest.mark.parametrize("version", [OLD, NEW], ids=["StateChange", "own methods"])
def test_both_generations_of_events_reach_the_same_methods(node: Node, version: Version) -> None:
    connection = node.registered(version)
    connection.announce(nri_pb2.Event.RUN_POD_SANDBOX, pod=POD)
    connection.announce(nri_pb2.Event.REMOVE_CONTAINER, pod=POD, container=CONTAINER)
    connection.announce(nri_pb2.Event.STOP_POD_SANDBOX, pod=POD)  # not handled: succeeds, too
    assert node.plugin.seen[2:] == ["run train", "remove train/main"]


def test_an_unknown_event_succeeds_and_an_unknown_method_is_unimplemented(node: Node) -> None:
    connection = node.registered(NEW)
    connection.call("StateChange", nri_pb2.StateChangeEvent(event=99), nri_pb2.Empty)  # type: ignore[arg-type]
    for method, service in (("Teleport", "Plugin"), ("Configure", "Elsewhere")):
        with pytest.raises(StatusError) as raised:
            connection.call(method, nri_pb2.Empty(), nri_pb2.Empty, service=service)
        assert raised.value.code == Code.UNIMPLEMENTED


@pytest.mark.parametrize("size", [1, 4060, 4096, 5000, 8192, 300_000, 3_000_000, 4_000_000])
def test_answers_of_any_size_reach_a_reader_with_a_4096_byte_buffer(node: Node, size: int) -> None:
    connection = node.registered()
    for _ in range(3):
        answer = connection.create(POD, nri_pb2.Container(name=f"big:{size}"))
        assert answer is not None, connection.death
        assert len(answer.adjust.annotations["x"]) == size


def test_an_answer_that_no_frame_can_hold_is_refused_and_not_lost(node: Node) -> None:
    with pytest.raises(StatusError, match="exceeds"):
        node.registered().create(POD, nri_pb2.Container(name=f"big:{5 << 20}"))


def test_a_long_request_is_put_together(node: Node) -> None:
    container = nri_pb2.Container(name="main", env=["X=" + "y" * 1_000_000])
    assert node.registered().create(POD, container) is not None


def test_a_refusal_fails_the_creation_and_keeps_the_plugin(node: Node) -> None:
    connection = node.registered()
    with pytest.raises(StatusError, match="not yours") as raised:
        connection.create(POD, nri_pb2.Container(name="refused"))
    assert raised.value.code == Code.PERMISSION_DENIED
    assert connection.create(POD, CONTAINER) is not None


def test_a_hanging_handler_fails_closed_and_the_plugin_is_kept(node: Node) -> None:
    connection = node.registered()
    request = nri_pb2.CreateContainerRequest(pod=POD, container=nri_pb2.Container(name="slow"))
    stream = connection.send_request("CreateContainer", request, timeout=0.5)
    with pytest.raises(StatusError, match="did not answer in time"):
        connection.wait_answer(stream, nri_pb2.CreateContainerResponse)
    node.plugin.release.set()
    assert connection.create(POD, CONTAINER) is not None, connection.death


def test_answers_go_out_as_they_are_ready(node: Node) -> None:
    connection = node.registered()
    names = ("slow", "main")
    streams = [
        connection.send_request(
            "CreateContainer",
            nri_pb2.CreateContainerRequest(pod=POD, container=nri_pb2.Container(name=name)),
        )
        for name in names
    ]
    connection.wait_answer(streams[1], nri_pb2.CreateContainerResponse)
    node.plugin.release.set()
    connection.wait_answer(streams[0], nri_pb2.CreateContainerResponse)
    assert connection.order[-2:] == [streams[1], streams[0]]


def test_registers_again_when_the_runtime_comes_back(node: Node) -> None:
    node.registered()
    node.runtimes[0].stop()
    connection = node.registered()
    assert connection.create(POD, CONTAINER) is not None
    assert node.plugin.seen.count("synchronize 0 0") == 2


def test_a_listing_that_broke_off_is_not_continued_on_the_next_connection(node: Node) -> None:
    connection = node.runtime().accept_from(node.start)
    connection.registered.get(timeout=PATIENCE)
    half = nri_pb2.SynchronizeRequest(containers=[CONTAINER], more=True)
    connection.call("Synchronize", half, nri_pb2.SynchronizeResponse)
    node.runtimes[0].stop()
    node.registered()
    assert node.plugin.seen[-1] == "synchronize 0 0"


def test_waits_for_a_runtime_that_is_not_there_yet(node: Node) -> None:
    node.start()
    time.sleep(0.15)
    assert node.registered().create(POD, CONTAINER) is not None


def test_a_rejected_registration_is_tried_again_with_growing_pauses(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stub_module, "FIRST_PAUSE_S", 0.01)
    runtime = node.runtime()
    for _ in range(3):
        connection = runtime.accept_from(node.start)
        stream, _request = connection.registered.get(timeout=PATIENCE)
        connection.respond(stream, code=2, text="invalid plugin")
    runtime.accept().handshake()
    assert node.plugin.seen == ["configure containerd", "synchronize 0 0"]


def test_stopping_answers_what_is_being_answered(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stub_module, "DRAIN_S", PATIENCE)
    connection = node.registered()
    request = nri_pb2.CreateContainerRequest(pod=POD, container=nri_pb2.Container(name="slow"))
    stream = connection.send_request("CreateContainer", request)
    assert node.plugin.entered.wait(PATIENCE)
    threading.Timer(0.1, node.plugin.release.set).start()
    node.stop.set()
    answer = connection.wait_answer(stream, nri_pb2.CreateContainerResponse)
    assert answer.adjust.annotations["x"] == "y"


def test_shutdown_is_passed_on(node: Node) -> None:
    node.registered().call("Shutdown", nri_pb2.Empty(), nri_pb2.Empty)
    assert node.plugin.seen[-1] == "shutdown"


def test_unasked_updates_tell_what_failed() -> None:
    ours, theirs = socket.socketpair()
    connection = PluginConnection(theirs)
    session = Session(Recorder(), ours)
    starting = threading.Thread(target=session.start, kwargs={"name": "k", "index": "10"})
    starting.start()
    connection.handshake()
    starting.join(PATIENCE)
    failed = session.update_containers([nri_pb2.ContainerUpdate(container_id=name) for name in ("a", "b")])
    assert [update.container_id for update in failed] == ["a"]
    session.close()
    assert session.wait_closed(PATIENCE)
    connection.close()


def test_bytes_that_are_not_mux_end_the_session() -> None:
    ours, theirs = socket.socketpair()
    session = Session(Recorder(), ours)
    with theirs:
        theirs.sendall(b"\xff" * 64)
        with pytest.raises(NRIError, match=r"mux frame announces|cannot write"):  # whichever is noticed first
            session.start(name="k", index="10")
        assert session.wait_closed(PATIENCE)


def test_a_launched_plugin_uses_its_inherited_socket_and_ends_with_it() -> None:
    ours, theirs = socket.socketpair()
    environ = {"NRI_PLUGIN_SOCKET": str(ours.detach()), "NRI_PLUGIN_NAME": "koordra", "NRI_PLUGIN_IDX": "90"}
    plugin = Recorder()
    running = threading.Thread(
        target=Stub(plugin, name="koordra", index="90", environ=environ).run, args=(threading.Event(),)
    )
    running.start()
    connection = PluginConnection(theirs)
    connection.handshake()
    connection.close()
    running.join(PATIENCE)
    assert not running.is_alive()
    assert plugin.seen == ["configure containerd", "synchronize 0 0"]


def test_a_launched_plugin_without_a_usable_socket_says_so() -> None:
    stub = Stub(Recorder(), name="k", index="10", environ={"NRI_PLUGIN_SOCKET": "9999"})
    with pytest.raises(NRIError, match="NRI_PLUGIN_SOCKET='9999'"):
        stub.run(threading.Event())


@pytest.mark.parametrize(
    ("name", "index"), [("bad name!", "90"), ("", "90"), ("k", "9"), ("k", "090"), ("k", "x1")]
)
def test_names_that_a_runtime_rejects_are_refused_here(name: str, index: str) -> None:
    with pytest.raises(InvalidInput, match="NRI plugin"):
        Stub(Plugin(), name=name, index=index)


def test_a_plugin_that_handles_nothing_still_answers_everything(tmp_path: Path) -> None:
    stop = threading.Event()
    path = tmp_path / "nri.sock"
    runtime = FakeRuntime(path, version=NEW)
    running = threading.Thread(
        target=Stub(Plugin(), name="k", index="10", socket_path=path, environ={}).run, args=(stop,)
    )
    connection = runtime.accept_from(running.start)
    connection.handshake()
    assert connection.create(POD, CONTAINER) == nri_pb2.CreateContainerResponse()
    stop.set()
    running.join(PATIENCE)
    assert not running.is_alive()
    runtime.stop()


def test_a_runtime_that_never_ends_its_listing_is_told_so(node: Node) -> None:
    """Some cut a long listing of few pods into parts of nothing, and hold up the whole node until their time
    is up."""
    connection = node.runtime().accept_from(node.start)
    with pytest.raises(StatusError, match="empty parts of its listing without end"):
        connection.handshake(chunks=[[CONTAINER], *([[]] * 200), []])


def test_long_failed_listings_are_not_taken_for_steady_connections(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the runtime tried to synchronize, the pauses grow: each attempt stops the node's
    operations."""
    monkeypatch.setattr(stub_module, "STEADY_S", 0.0)
    pauses: list[float] = []
    wait = node.stop.wait
    monkeypatch.setattr(
        node.stop, "wait", lambda timeout=None: (pauses.append(timeout), wait(0.01))[1] if timeout else wait()
    )
    runtime = node.runtime()
    for _ in range(9):
        connection = runtime.accept_from(node.start)
        stream, _request = connection.registered.get(timeout=PATIENCE)
        connection.respond(stream, nri_pb2.Empty())
        connection.die("the runtime gave up")
    assert max(pauses) > 0.4


def test_a_half_closed_connection_is_a_lost_one(node: Node) -> None:
    """The runtime will ask nothing more, though it could still be written to: what is left to do is to dial
    again."""
    runtime = node.runtime()
    connection = runtime.accept_from(node.start)
    connection.handshake()
    connection.sock.shutdown(socket.SHUT_WR)
    runtime.accept().handshake()
    assert node.plugin.seen.count("synchronize 0 0") == 2
