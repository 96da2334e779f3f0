"""The hook and the NRI library on every containerd that can be had: 2.x, 1.7, and a newer build where one is
named.

What fails open (a hook that is away, hangs or is killed while it is asked) must be found afterwards: every
test that makes such a container asserts that it is either adjusted or reported.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import grpc
import pytest

from koordra._proto.nri import nri_pb2
from koordra.api import kinds
from koordra.api.opaque.isolation import IsolationPolicy
from koordra.metrics import Metrics
from koordra.node_state.reader import StateReader
from koordra.nri.hook.cgroups import numbers
from koordra.nri.hook.koordinator.annotation import ANNOTATION
from koordra.nri.hook.ledger import Ledger
from koordra.nri.hook.node_devices import NodeDevices
from koordra.nri.hook.plugin import HookPlugin, Settings
from koordra.nri.stub import Plugin, Stub
from koordra.nri.transport.instrumentation import MetricsObserver
from koordra.nri.transport.ttrpc import Call
from tests.e2e.conftest import runtimes
from tests.e2e.containerd import Containerd, wait_until
from tests.e2e.cri import ContainerSpec, compile_proto
from tests.e2e.node import NODE, Prepared
from tests.e2e.test_containers import (
    ALLOWED,
    REFUSED,
    dns_label,
    environment,
    node_of,
    opens,
    share_of,
    verbs_of,
)
from tests.e2e.watched_node import WatchedNode
from tests.patience import PATIENCE

pytestmark = pytest.mark.e2e

LONG_ON_OLD = pytest.mark.parametrize(
    "containerd",
    ["sid", pytest.param("trixie", marks=pytest.mark.slow), "newer"],
    indirect=True,
    scope="module",
)
"""Tests that take seconds run on one of Debian's runtimes in `make e2e`, and on the other in `make
e2e-long`."""

WANTS_ALL = ContainerSpec(env={"NVIDIA_VISIBLE_DEVICES": "all"})


class Validating(Containerd):
    """With the runtime's default validator: containers without koordra's hook are refused, but for tolerating
    pods."""

    def launch(self) -> None:
        config = self.folder / "containerd.toml"
        section = "[plugins.'io.containerd.nri.v1.nri'.default_validator]"
        if section not in config.read_text():
            with config.open("a") as file:
                file.write(
                    f"  {section}\n    enable = true\n    required_plugins = ['koordra']\n"
                    "    tolerate_missing_plugins_annotation = 'koordra.io/tolerate-missing-hook'\n"
                )
        super().launch()


@pytest.fixture(scope="module", params=["sid", "trixie", "newer"])
def containerd(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    """One runtime after the other."""
    modules = compile_proto(tmp_path_factory.mktemp("cri"))
    make = Validating if request.param == "newer" else Containerd
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        runtime = make(request.config.stash[runtimes][request.param], Path(folder), modules)
        try:
            runtime.start()
            yield runtime
        finally:
            runtime.clean_up()


@pytest.fixture(scope="module")
def node(containerd: Containerd) -> Iterator[WatchedNode]:
    newer = isinstance(containerd, Validating)
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        watched = WatchedNode(Path(folder), containerd, extra=["--validate"] if newer else [])
        try:
            watched.start()
            yield watched
        finally:
            watched.stop()


@pytest.fixture
def pod(containerd: Containerd, node: WatchedNode, request: pytest.FixtureRequest) -> Iterator[str]:
    made = containerd.cri.run_pod(dns_label(request))
    yield made
    containerd.cri.remove_pod(made)


@pytest.fixture
def prepare(node: WatchedNode, request: pytest.FixtureRequest) -> Iterator[Callable[..., Prepared]]:
    claims: list[Prepared] = []

    def make(*results: dict[str, object]) -> Prepared:
        claims.append(node.prepare(f"{dns_label(request)}-{uuid.uuid4().hex[:8]}", results))
        return claims[-1]

    yield make
    for claim in claims:
        node.unprepare(claim)


def fails_closed(containerd: Containerd) -> bool:
    """Whether the runtime itself refuses containers that the hook has not seen."""
    return isinstance(containerd, Validating)


def adjusted(containerd: Containerd, container: str) -> bool:
    return environment(containerd, container).get("NVIDIA_VISIBLE_DEVICES") == "void"


def drifting(node: WatchedNode, kind: str) -> float:
    return node.metric(f'koordra_nri_drift{{kind="{kind}"}}')


def wait_found(node: WatchedNode, kind: str, names: Sequence[str], *, pod: str) -> None:
    """Until the hook's log says of each container that it has this difference."""

    def said() -> bool:
        lines = [
            line
            for line in node.hook.log.read_text(errors="replace").splitlines()
            if f"kind={kind} " in line and f"/{pod[:40]}" in line
        ]
        return all(any(f"container {name} of pod" in line for line in lines) for name in names)

    wait_until(said, f"{kind} of {names}", log=node.hook.log)


def restart_hook(node: WatchedNode) -> None:
    times = node.hook.count("nri_synchronized")
    node.hook.start()
    node.wait_hook_registered(times=times + 1)


# ------------------------------------------------------------------------------- what every runtime must do


def test_a_claim_is_isolated_and_its_container_is_as_it_should_be(
    containerd: Containerd, node: WatchedNode, pod: str, prepare: Callable[..., Prepared]
) -> None:
    mine, neighbour = node.machine.gpus[:2]
    claim = prepare(share_of(mine))
    container = containerd.cri.run(pod, "c", ContainerSpec(cdi=claim.all_cdi))
    assert adjusted(containerd, container)
    assert ALLOWED in opens(containerd, container, node_of(mine))
    assert REFUSED in opens(containerd, container, node_of(neighbour))
    rounds = node.metric("koordra_nri_verification_seconds_count")
    wait_until(lambda: node.metric("koordra_nri_verification_seconds_count") >= rounds + 2, "a whole round")
    assert node.metric("koordra_nri_verified_containers") >= 1
    for kind in ("ForeignDevice", "EnvChanged", "ForgedMarker", "HookMissed", "DeviceMissing"):
        assert drifting(node, kind) == 0, kind


def test_the_runtime_restarts_with_running_containers(
    containerd: Containerd, node: WatchedNode, pod: str, prepare: Callable[..., Prepared]
) -> None:
    claim = prepare(share_of(node.machine.gpus[2]))
    before = containerd.cri.run(pod, "a", ContainerSpec(cdi=claim.all_cdi))
    times = node.hook.count("nri_synchronized")
    containerd.stop()
    containerd.launch()
    node.wait_hook_registered(times=times + 1)
    after = containerd.cri.run(pod, "b", WANTS_ALL)
    assert adjusted(containerd, after)
    assert ALLOWED in opens(containerd, before, node_of(node.machine.gpus[2]))


def test_what_was_created_while_the_hook_was_dead_is_found_and_told(
    containerd: Containerd,
    node: WatchedNode,
    pod: str,
    prepare: Callable[..., Prepared],
    request: pytest.FixtureRequest,
) -> None:
    claim = prepare(share_of(node.machine.gpus[3]))
    node.hook.kill()
    try:
        if fails_closed(containerd):
            # The first is refused because a validator broke off, the next because a required plugin is
            # missing.
            with pytest.raises(grpc.RpcError, match=r"validator plugin 90-koordra failed|required"):
                containerd.cri.run(pod, "missed", ContainerSpec(cdi=claim.all_cdi))
            with pytest.raises(grpc.RpcError, match="required"):
                containerd.cri.run(pod, "again", WANTS_ALL)
            tolerant = containerd.cri.run_pod(
                "tolerant", annotations={"koordra.io/tolerate-missing-hook": "true"}
            )
            containerd.cri.run(tolerant, "system", ContainerSpec())
            containerd.cri.remove_pod(tolerant)
            return
        containerd.cri.run(pod, "missed", ContainerSpec(cdi=claim.all_cdi))
        containerd.cri.run(pod, "early", WANTS_ALL)
    finally:
        restart_hook(node)
    wait_found(node, "HookMissed", ["missed"], pod=dns_label(request))
    wait_found(node, "NotAdjusted", ["early"], pod=dns_label(request))
    wait_until(lambda: _events(node, "HookMissed"), "an Event", log=node.hook.log)
    wait_until(lambda: _conditions(node, claim), "a condition of the claim's device", log=node.hook.log)
    (condition,) = _conditions(node, claim)
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "Isolated",
        "False",
        "HookMissed",
    )


def _conditions(node: WatchedNode, claim: Prepared) -> list[dict[str, str]]:
    """Of the claim's first device. The Event and the status are written one after the other."""
    stored = node.api.get(kinds.RESOURCE_CLAIMS, claim.name, namespace="team-a")
    devices = stored["status"].get("devices", [])
    return devices[0].get("conditions", []) if devices else []


def _events(node: WatchedNode, kind: str) -> list[str]:
    events = node.api.list(kinds.EVENTS, namespace="team-a")[0]
    return [
        event["message"]
        for event in events
        if event["reason"] == "IsolationDrift" and event["message"].startswith(kind)
    ]


@LONG_ON_OLD
def test_a_hook_that_hangs_is_dropped_and_what_it_missed_is_found(
    containerd: Containerd, node: WatchedNode, pod: str, request: pytest.FixtureRequest
) -> None:
    process = node.hook._process
    assert process is not None
    times = node.hook.count("nri_synchronized")
    found = 'koordra_nri_drift_found_total{kind="NotAdjusted"}'
    before = node.metric(found)
    os.kill(process.pid, signal.SIGSTOP)
    missed = None
    try:
        missed = containerd.cri.run(pod, "c", WANTS_ALL)
    except grpc.RpcError:
        assert fails_closed(containerd)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    node.wait_hook_registered(times=times + 1)
    if missed is not None and not adjusted(containerd, missed):
        wait_found(node, "NotAdjusted", ["c"], pod=dns_label(request))
        wait_until(lambda: node.metric(found) > before, found, log=node.hook.log)
    assert adjusted(containerd, containerd.cri.run(pod, "d", WANTS_ALL))


@LONG_ON_OLD
def test_a_hook_killed_while_it_is_asked(
    containerd: Containerd, node: WatchedNode, pod: str, request: pytest.FixtureRequest
) -> None:
    """Containers are created without a pause while the hook dies; each is adjusted, refused or found."""
    churn = Churn(containerd, pod)
    with churn:
        for _ in range(3):
            churn.wait_for_more(3)
            node.hook.kill()
            restart_hook(node)
        churn.wait_for_more(3)
    missed = churn.missed()
    assert churn.made
    wait_found(node, "NotAdjusted", missed, pod=dns_label(request))
    assert adjusted(containerd, containerd.cri.run(pod, "last", WANTS_ALL))


@LONG_ON_OLD
def test_the_hook_is_upgraded_under_churn(
    containerd: Containerd, node: WatchedNode, pod: str, request: pytest.FixtureRequest
) -> None:
    """The new one waits for the old one's lock; what is created in between is found by the new one."""
    churn = Churn(containerd, pod)
    new = node.another_hook("nri-new")
    with churn:
        churn.wait_for_more(3)
        new.start()
        new.wait_for("nri_instance_lock_waiting")
        churn.wait_for_more(3)
        node.hook.stop()
        new.wait_for("nri_synchronized")
        churn.wait_for_more(3)
        new.stop()
        restart_hook(node)
        churn.wait_for_more(3)
    missed = churn.missed()
    wait_found(node, "NotAdjusted", missed, pod=dns_label(request))
    if fails_closed(containerd):
        assert not missed
    assert len(missed) < len(churn.made), "none was adjusted"


class Churn:
    """Creates and starts containers, one after the other, until the block ends."""

    def __init__(self, containerd: Containerd, pod: str) -> None:
        self._containerd = containerd
        self._pod = pod
        self._stop = threading.Event()
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.made: dict[str, str] = {}
        self.attempts = 0

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def wait_for_more(self, count: int) -> None:
        """Until so many more were made."""
        with self._more:
            wanted = len(self.made) + count
            assert self._more.wait_for(lambda: len(self.made) >= wanted, PATIENCE)

    def missed(self) -> list[str]:
        """The names of those that run and were not adjusted."""
        return [name for name, each in self.made.items() if not adjusted(self._containerd, each)]

    def _run(self) -> None:
        while not self._stop.is_set():
            self.attempts += 1
            name = f"churn-{self.attempts}"
            try:
                container = self._containerd.cri.run(self._pod, name, WANTS_ALL)
            except grpc.RpcError:
                continue  # the runtime refused it, or the hook did on its way out
            with self._more:
                self.made[name] = container
                self._more.notify_all()


# ------------------------------------------------------------------------------------ the library as a peer


class Large(Plugin):
    """Adds an annotation of so many bytes to containers whose name says so."""

    def __init__(self) -> None:
        self.listed: Sequence[nri_pb2.Container] = ()
        self.largest = 0
        self.synchronized = threading.Event()

    def synchronize(
        self, pods: Sequence[nri_pb2.PodSandbox], containers: Sequence[nri_pb2.Container]
    ) -> Sequence[nri_pb2.ContainerUpdate]:
        self.listed = containers
        self.synchronized.set()
        return ()

    def create_container(
        self, request: nri_pb2.CreateContainerRequest, _call: Call
    ) -> nri_pb2.CreateContainerResponse:
        self.largest = max(self.largest, request.ByteSize())
        response = nri_pb2.CreateContainerResponse()
        _, _, size = request.container.name.partition("answer-")
        if size:
            response.adjust.annotations["example.org/large"] = "x" * int(size)
        return response


class Peer:
    """A plugin of this process, beside koordra's."""

    def __init__(
        self, plugin: Plugin, containerd: Containerd, *, name: str = "peer", index: str = "20"
    ) -> None:
        self._stop = threading.Event()
        self._counted = MetricsObserver(Metrics())
        stub = Stub(
            plugin,
            name=name,
            index=index,
            socket_path=containerd.nri_socket,
            environ={},
            observer=self._counted,
        )
        self._thread = threading.Thread(target=stub.run, args=(self._stop,), daemon=True)

    def __enter__(self) -> Callable[[], bool]:
        self._thread.start()
        return lambda: self._counted.ready

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@LONG_ON_OLD
@pytest.mark.parametrize("size", [300_000, 3_000_000])
def test_long_messages_in_both_directions(
    containerd: Containerd, node: WatchedNode, pod: str, size: int
) -> None:
    plugin = Large()
    with Peer(plugin, containerd):
        assert plugin.synchronized.wait(PATIENCE)
        variables = {f"V{n}": "y" * 10_000 for n in range(size // 10_000)}
        asked = containerd.cri.create(pod, "long-request", ContainerSpec(env=variables))
        assert plugin.largest > size
        containerd.cri.create(pod, f"answer-{size}", ContainerSpec())
        spec = containerd.cri.oci_spec(asked)
        assert "NVIDIA_VISIBLE_DEVICES=void" in spec
        # The peer is still there: it was not dropped for what it said.
        assert "NVIDIA_VISIBLE_DEVICES=void" in containerd.cri.oci_spec(
            containerd.cri.create(pod, "answer-10", ContainerSpec())
        )
        assert '"example.org/large"' in containerd.cri.oci_spec(
            containerd.cri.create(pod, "answer-11", ContainerSpec())
        )


@pytest.mark.slow
def test_two_hundred_containers_in_synchronize(
    containerd: Containerd, node: WatchedNode, request: pytest.FixtureRequest
) -> None:
    """More than one message holds. (Upstream's cutting needs more than a few pods for it.)"""
    pods = [containerd.cri.run_pod(f"{dns_label(request)}-{n}") for n in range(20)]
    try:
        for n in range(200):
            spec = ContainerSpec(env={"PADDING": "z" * 25_000})
            containerd.cri.create(pods[n % 20], f"many-{n}", spec)
        plugin = Large()
        with Peer(plugin, containerd):
            assert plugin.synchronized.wait(PATIENCE)
        assert len([each for each in plugin.listed if each.name.startswith("many-")]) == 200
    finally:
        for pod in pods:
            containerd.cri.remove_pod(pod)


# ---------------------------------------------------------------------------- what only newer runtimes can do


class GivesCards(Plugin):
    """Another plugin that hands out a GPU by itself."""

    def __init__(self, path: str, major: int, minor: int) -> None:
        self._node = (path, major, minor)
        self.synchronized = threading.Event()

    def synchronize(
        self, pods: Sequence[nri_pb2.PodSandbox], containers: Sequence[nri_pb2.Container]
    ) -> Sequence[nri_pb2.ContainerUpdate]:
        self.synchronized.set()
        return ()

    def create_container(
        self, request: nri_pb2.CreateContainerRequest, _call: Call
    ) -> nri_pb2.CreateContainerResponse:
        response = nri_pb2.CreateContainerResponse()
        path, major, minor = self._node
        response.adjust.linux.devices.add(path=path, type="c", major=major, minor=minor)
        return response


@pytest.mark.parametrize("index", ["10", "95"])
def test_another_plugins_gpu_is_rejected_or_found(
    containerd: Containerd, node: WatchedNode, pod: str, index: str, request: pytest.FixtureRequest
) -> None:
    """Before koordra's turn it is refused by the hook; after it by the validator, or else found in the
    container."""
    card = node_of(node.machine.gpus[4])
    plugin = GivesCards("/dev/anything", card.major, card.minor)
    with Peer(plugin, containerd, name="giver", index=index):
        assert plugin.synchronized.wait(PATIENCE)
        if index == "10" or fails_closed(containerd):
            with pytest.raises(grpc.RpcError, match="koordra refuses"):
                containerd.cri.create(pod, "c", ContainerSpec())
            return
        containerd.cri.run(pod, "c", ContainerSpec())
    wait_found(node, "ForeignDevice", ["c"], pod=dns_label(request))


@pytest.fixture
def privileged_pod(
    containerd: Containerd, node: WatchedNode, request: pytest.FixtureRequest
) -> Iterator[str]:
    made = containerd.cri.run_pod(dns_label(request), privileged=True)
    yield made
    containerd.cri.remove_pod(made)


def test_a_privileged_container_is_denied_or_refused(
    containerd: Containerd, node: WatchedNode, privileged_pod: str
) -> None:
    pod, spec = privileged_pod, ContainerSpec(privileged=True)
    if not fails_closed(containerd):
        with pytest.raises(grpc.RpcError, match="cannot take them away"):
            containerd.cri.create(pod, "c", spec)
        return
    container = containerd.cri.run(pod, "c", spec)
    assert REFUSED in opens(containerd, container, node_of(node.machine.gpus[0]))
    assert REFUSED in opens(containerd, container, node.machine.gpu_control[0])


# ------------------------------------------------------------------------------ what claims and others ask
# for


@LONG_ON_OLD
def test_processors_near_the_card_when_the_claim_asks(
    containerd: Containerd, node: WatchedNode, pod: str
) -> None:
    parameters = {"apiVersion": "koordra.io/v1alpha1", "kind": "GpuConfig", "numaAffinity": True}
    config = {
        "source": "FromClaim",
        "requests": [],
        "opaque": {"driver": "koordra.io", "parameters": parameters},
    }
    claim = node.prepare(f"numa-{uuid.uuid4().hex[:8]}", [share_of(node.machine.gpus[0])], config=[config])
    try:
        container = containerd.cri.run(pod, "c", ContainerSpec(cdi=claim.all_cdi))
        spec = json.loads(containerd.cri.oci_spec(container))["runtimeSpec"]
        near = numbers(node.machine.cpus_near(node.machine.gpus[0]) or "")
        online = numbers(Path("/sys/devices/system/cpu/online").read_text())
        assert numbers(spec["linux"]["resources"]["cpu"]["cpus"]) == near & online
        assert spec["linux"]["resources"]["cpu"]["mems"] == "0"
        said = containerd.cri.shell(container, "grep Cpus_allowed_list /proc/self/status").text
        assert numbers(said.split()[-1]) == near & online
    finally:
        containerd.cri.remove_pod(pod)
        node.unprepare(claim)


@LONG_ON_OLD
def test_a_pod_of_koordinators_scheduler(
    containerd: Containerd, node: WatchedNode, request: pytest.FixtureRequest
) -> None:
    card, neighbour, nic = node.machine.gpus[1], node.machine.gpus[2], node.machine.nics[0]
    mine = {"minor": node_of(card).minor, "id": card.uuid, "resources": {"koordinator.sh/gpu-core": "100"}}
    theirs = {"minor": 0, "id": nic.location.bus_id, "resources": {"koordinator.sh/rdma": "1"}}
    text = json.dumps({"gpu": [mine], "rdma": [theirs]})
    settings = Settings(devices=NodeDevices(node.root), koordinator=IsolationPolicy(("hami-core",)))
    state = StateReader(node.state, node_name=NODE)
    hook = HookPlugin(state, settings=settings, ledger=Ledger(node.state))
    node.hook.stop()
    pod = containerd.cri.run_pod(dns_label(request), annotations={ANNOTATION: text})
    try:
        with Peer(hook, containerd, name="koordra", index="90") as registered:
            wait_until(registered, "registered")
            # RLIMIT_MEMLOCK cannot be raised by this root, so the container with the NIC is only created.
            joint = json.loads(containerd.cri.oci_spec(containerd.cri.create(pod, "joint", ContainerSpec())))
            paths = {device["path"] for device in joint["runtimeSpec"]["linux"]["devices"]}
            assert {verbs_of(nic).path, "/dev/infiniband/rdma_cm", node_of(card).path} <= paths
    finally:
        containerd.cri.remove_pod(pod)
    pod = containerd.cri.run_pod(
        f"{dns_label(request)}-2", annotations={ANNOTATION: json.dumps({"gpu": [mine]})}
    )
    try:
        with Peer(hook, containerd, name="koordra", index="90") as registered:
            wait_until(registered, "registered")
            container = containerd.cri.run(pod, "c", ContainerSpec())
        assert environment(containerd, container)["NVIDIA_VISIBLE_DEVICES"] == card.uuid
        assert ALLOWED in opens(containerd, container, node_of(card))
        assert ALLOWED in containerd.cri.shell(container, f"dd if={node_of(card).path} count=1").text
        assert REFUSED in opens(containerd, container, node_of(neighbour))
    finally:
        containerd.cri.remove_pod(pod)
        restart_hook(node)


@LONG_ON_OLD
def test_koordinator_mode_does_not_start_without_the_policy(node: WatchedNode) -> None:
    refused = node.another_hook("nri-koordinator", extra=["--koordinator"])
    refused.start()
    wait_until(lambda: "there is no ValidatingAdmissionPolicy" in refused.log.read_text(), "its reason")
    assert refused._process is not None
    assert refused._process.wait(PATIENCE) == 1
