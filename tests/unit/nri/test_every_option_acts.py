"""No option of the hook is a word without effect: a whole hook is registered with a runtime's double with
another value, and answers or finds something else."""

from __future__ import annotations

import dataclasses
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from koordra._proto.nri import nri_pb2
from koordra.api.kinds import NAMESPACES, PODS, Kind
from koordra.api.objects import Object
from koordra.metrics import Metrics
from koordra.nri import service
from koordra.nri.hook.cgroups import RdmaLimit
from koordra.nri.hook.plugin import Sandbox
from koordra.nri.hook.privileged import PrivilegedPolicy
from koordra.nri.service import Options
from koordra.topology.location import DeviceNode
from tests.cluster.installation import free_port
from tests.fakes.metric_samples import sample
from tests.fakes.nri_runtime import NEW, FakeRuntime, PluginConnection, StatusError, Version
from tests.fakes.streaming_api import StreamingApi
from tests.patience import PATIENCE
from tests.unit.kubelet_plugin.running_plugin import wait_for
from tests.unit.nri.hook.test_koordinator import ANNOTATION, GPU, KoordinatorNode
from tests.unit.nri.node_state import GPU0, NODE, UID, VERBS0, claim_json, gpu_json, markers, nic_json, write

EXEMPT: Final = {"metadata": {"name": "team", "labels": {"koordra.io/exempt": "true"}}}
CRITICAL: Final = {
    "metadata": {"name": "train-0", "namespace": "team", "uid": "pod-1"},
    "spec": {"priority": 2_000_001_000, "priorityClassName": "system-node-critical"},
}


class Hook:
    """A hook that is registered with a runtime. `create` asks it about a container, and says what it
    answered."""

    def __init__(self, options: Options, version: Version, metrics: Metrics) -> None:
        self.options, self.metrics = options, metrics
        self.runtime = FakeRuntime(options.socket_path, version=version)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=service.run, args=(options, self.stop))
        self.thread.start()
        self.connection: PluginConnection = self.runtime.accept()
        registered = self.connection.registered.get()
        self.index = registered[1].plugin_idx
        self.connection.registered.put(registered)
        self.connection.handshake()

    def end(self) -> None:
        self.stop.set()
        self.runtime.stop()
        self.thread.join()

    def create(self, *nodes: DeviceNode, privileged: bool = False, annotation: str = "") -> str:
        """`nodes`: of the claim's devices that the container was given."""
        pod = nri_pb2.PodSandbox(namespace="team", name="train-0", uid="pod-1", id="sandbox")
        if annotation:
            pod.annotations[ANNOTATION] = annotation
        given = markers(*range(len(nodes))) if nodes else ()
        container = nri_pb2.Container(name="main", id="main", env=[f"{key}={value}" for key, value in given])
        for node in nodes:
            container.linux.devices.add(path=node.path, type=node.type, major=node.major, minor=node.minor)
        container.linux.resources.devices.add(allow=privileged, access="rwm")
        try:
            return str(self.connection.create(pod, container))
        except StatusError as error:
            return str(error)

    def drifts(self, kind: str) -> float | None:
        return sample(self.metrics, "koordra_nri_drift", {"kind": kind})


class Networks:
    def __init__(self) -> None:
        self.attached: list[str] = []

    def attach(self, sandbox: Sandbox, /) -> None:
        self.attached.append(sandbox.id)

    def detach(self, sandbox: Sandbox, /) -> None:
        """The pod is over."""


class Evictions:
    def __init__(self) -> None:
        self.asked = 0

    def want(self, _requests: object) -> None:
        self.asked += 1


class Api(StreamingApi):
    """Selects by labels alone, whatever their values."""

    def list(self, kind: Kind, **selectors: Any) -> tuple[list[Object], str]:
        key, _, _value = str(selectors.pop("label_selector", "")).partition("=")
        return super().list(kind, label_selector=key, **selectors)


def api(kind: Kind | None = None, obj: Object | None = None) -> Api:
    found = Api()
    if kind is not None and obj is not None:
        found.create(kind, obj)
    return found


@dataclass(frozen=True)
class Case:
    """Another value for the option, and where that shows, on a hook that has `beside` besides."""

    other: Callable[[Path], object]
    seen: Callable[[Hook], object]
    beside: Callable[[Path], Mapping[str, Any]] = lambda _folder: {}
    version: Version = field(default_factory=Version)


def plain(hook: Hook) -> object:
    return hook.create()


def card_and_nic(hook: Hook) -> object:
    return hook.create(GPU0, VERBS0)


def privileged(hook: Hook) -> object:
    return hook.create(privileged=True)


def privileged_with_a_card(hook: Hook) -> object:
    return hook.create(GPU0, privileged=True)


def annotated(hook: Hook) -> object:
    return hook.create(annotation=json.dumps({"gpu": [GPU]}))


def foreign(hook: Hook) -> object:
    return hook.drifts("ForeignDevice")


def answers(hook: Hook) -> object:
    try:
        urllib.request.urlopen(f"http://{hook.options.metrics_address}/healthz", timeout=PATIENCE).close()
    except (urllib.error.URLError, ValueError):
        return False
    return True


def attached(hook: Hook) -> object:
    pod = nri_pb2.PodSandbox(namespace="team", name="train-0", uid="pod-1", id="sandbox")
    if hook.connection.events & 1 << nri_pb2.Event.RUN_POD_SANDBOX - 1:
        hook.connection.announce(nri_pb2.Event.RUN_POD_SANDBOX, pod=pod)
    return getattr(hook.options.networks, "attached", [])


def not_limited(hook: Hook) -> object:
    hook.create(GPU0)
    return hook.drifts("NotLimited")


def spec(folder: Path) -> Mapping[str, Any]:
    """Bundles of a container that nobody was asked about, and may open nothing by its spec."""
    rules = {"resources": {"devices": [{"allow": False, "access": "rwm"}]}}
    write(folder / "bundles/main/config.json", {"process": {"env": []}, "linux": rules})
    write(folder / "bundles/main/init.pid", "42")
    return {"bundles": folder / "bundles"}


def of_kernel(folder: Path) -> Path:
    """By the kernel it may open the first card."""
    write(folder / "proc/42/cgroup", "5:devices:/pods/main\n")
    return folder / "proc"


def control_groups(folder: Path) -> Path:
    write(folder / "cgroups/devices/pods/main/devices.list", "c 195:0 rwm\n")
    write(folder / "cgroups/cgroup.controllers", "cpu rdma\n")
    return folder / "cgroups"


def machine(folder: Path) -> Path:
    (folder / "sys/class/infiniband/mlx5_0").mkdir(parents=True, exist_ok=True)
    return folder


CASES: Final[Mapping[str, Case]] = {
    "node_name": Case(lambda _: "other", card_and_nic),
    "state_dir": Case(lambda folder: folder / "nothing/plugins/koordra.io", card_and_nic),
    "plugin_index": Case(lambda _: "11", lambda hook: hook.index),
    "exempt": Case(lambda _: frozenset({"team"}), plain),
    "root": Case(machine, privileged_with_a_card),
    "bundles": Case(lambda folder: spec(folder)["bundles"], foreign),
    "proc": Case(of_kernel, foreign, lambda folder: {**spec(folder), "cgroups": control_groups(folder)}),
    "cgroups": Case(control_groups, foreign, lambda folder: {**spec(folder), "proc": of_kernel(folder)}),
    "validating": Case(lambda _: True, lambda hook: hook.connection.events, version=NEW),
    "koordinator_scheduler": Case(lambda _: "s", annotated, lambda folder: {"root": folder}),
    "koordinator_isolation": Case(
        lambda _: "none", annotated, lambda folder: {"root": folder, "koordinator_scheduler": "s"}
    ),
    "rdma_limit": Case(
        lambda _: RdmaLimit.parse("10:20"),
        card_and_nic,
        lambda folder: {"root": machine(folder), "cgroups": control_groups(folder)},
    ),
    "privileged": Case(lambda _: PrivilegedPolicy.REFUSE, privileged_with_a_card),
    "evictions": Case(
        lambda _: Evictions(),
        lambda hook: getattr(hook.options.evictions, "asked", 0) > 0,
        lambda folder: {**spec(folder), "client": api()},
    ),
    "verify_period": Case(
        lambda _: 0.01,
        lambda hook: (sample(hook.metrics, "koordra_nri_verification_seconds_count") or 0) > 5,
        spec,
    ),
    "metrics_address": Case(lambda _: f"127.0.0.1:{free_port()}", answers),
    "client": Case(lambda _: api(NAMESPACES, EXEMPT), plain),
    "quick_client": Case(lambda _: api(PODS, CRITICAL), privileged, lambda _folder: {"client": api()}),
    "networks": Case(lambda _: Networks(), attached),
    "enforcing": Case(lambda _: lambda _uid: False, not_limited, spec),
}
REQUIRED: Final = {"socket_path"}
"""Without which no runtime would be found."""

Story = Callable[[Case, Mapping[str, object], object], object]


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    """What is seen of a hook with these options, as soon as that is unlike what was seen before."""
    own = KoordinatorNode(tmp_path)
    write(own.state / "prepared" / f"{UID}.json", claim_json(gpu_json(), nic_json()))
    base = Options(
        node_name=NODE,
        state_dir=own.state,
        socket_path=tmp_path / "nri.sock",
        plugin_index="90",
        exempt=frozenset(),
    )

    def told(case: Case, other: Mapping[str, object], unlike: object) -> object:
        metrics = Metrics()
        monkeypatch.setattr(service, "Metrics", lambda: metrics)
        hook = Hook(dataclasses.replace(base, **case.beside(tmp_path), **other), case.version, metrics)
        try:
            wait_for(lambda: case.seen(hook) != unlike)
            return case.seen(hook)
        finally:
            hook.end()

    return told


@pytest.mark.parametrize("name", CASES)
def test_it_acts(story: Story, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    default = story(case, {}, None)
    assert story(case, {name: case.other(tmp_path)}, default) != default


def test_every_option_is_tried() -> None:
    assert {each.name for each in dataclasses.fields(Options)} == CASES.keys() | REQUIRED
