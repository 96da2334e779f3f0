"""No setting of the controller is a word without effect: a whole controller runs over an API server in memory
with another value, and something comes of it that does not come without."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pytest

from koordra.api import names, objects
from koordra.api.elastic.elastic_gpu import ELASTIC_CLASSES
from koordra.api.kinds import (
    DEVICE_CLASSES,
    LEASES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    TRAINING_JOBS,
    Kind,
)
from koordra.api.objects import Object
from koordra.compat.dialect.allocation import DIALECT_LABEL
from koordra.controller import run as run_module
from koordra.controller.autoscale.settings import AutoscaleSettings
from koordra.controller.cache.placeholders import is_ask
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN, GANG_TOPOLOGY
from koordra.controller.legacy.settings import LegacySettings
from koordra.controller.legacy.templates import LAST_USED, stamp
from koordra.controller.reconcile.leadership import LeaseTimes
from koordra.controller.run import run
from koordra.controller.settings import Settings
from koordra.metrics import Metrics
from koordra.profiles.config_map import CONFIG_MAP
from tests.fakes.joint_cluster import claim, device_class, gpu_slice, node, pod
from tests.fakes.streaming_api import StreamingApi
from tests.patience import PATIENCE
from tests.unit.autoscale.world import group
from tests.unit.legacy.cluster import Cluster as LegacyPods
from tests.unit.legacy.cluster import of_kind
from tests.unit.legacy.cluster import pod as legacy_pod
from tests.unit.training.training_cluster import spec as training_spec


class Api(StreamingApi):
    """Two nodes of two GPUs, and one with NICs for those who only want to be seen."""

    timeout = 0.1
    """Nobody waits for the last Events."""

    def __init__(self) -> None:
        super().__init__()
        self.read = set[str]()
        for name, sort in ((names.CLASS_GPU, "gpu"), (names.CLASS_NIC, "nic")):
            self.create(DEVICE_CLASSES, device_class(name, sort))
        for name in ("n0", "n1", "nics"):
            self.create(NODES, node(name))
        for name in ("n0", "n1"):
            gpus = gpu_slice(name, 2)
            for number, device in enumerate(gpus["spec"]["devices"]):
                device["attributes"] |= {"uuid": {"string": f"GPU-{name}-{number}"}, "minor": {"int": number}}
            self.create(RESOURCE_SLICES, gpus)
        nics = gpu_slice("nics", 8)
        for device in nics["spec"]["devices"]:
            device["attributes"]["type"] = {"string": "nic"}
        self.create(RESOURCE_SLICES, nics)

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        self.read.add(f"{namespace}/{name}")
        return super().get(kind, name, namespace=namespace)

    def wants(self, name: str, *, pod_is: Mapping[str, Any] | None = None, **asked: Any) -> None:
        """A claim with its pod."""
        self.create(RESOURCE_CLAIMS, claim(name, **asked))
        self.create(PODS, pod(name, [name], **(pod_is or {})))

    def nodes_of(self, name: str) -> list[str]:
        found = objects.status_of(self.get(RESOURCE_CLAIMS, name, namespace="default"))
        return [
            str(one["pool"])
            for one in objects.fields(objects.fields(found.get("allocation")).get("devices")).get("results")
            or ()
        ]

    def bind(self, name: str) -> None:
        (node_name, *_) = self.nodes_of(name)
        user = {
            "resource": "pods",
            "name": name,
            "uid": objects.uid(self.get(PODS, name, namespace="default")),
        }
        self.edit(RESOURCE_CLAIMS, name, lambda one: one["status"].update(reservedFor=[user]))
        self.edit(PODS, name, lambda one: one["spec"].update(nodeName=node_name))

    def annotate(self, kind: Kind, name: str, said: Mapping[str, str]) -> None:
        self.edit(kind, name, lambda one: one["metadata"].setdefault("annotations", {}).update(said))


def nothing(_api: Api) -> None:
    return


@dataclass(frozen=True)
class Case:
    """`before` is there when the controller starts; each of `later` comes when what came before has been seen
    to; then `seen` is true with this value, and false without."""

    value: Any
    seen: Callable[[Api, Metrics], object]
    before: Callable[[Api], object] = nothing
    later: Sequence[Callable[[Api], object]] = ()
    beside: Mapping[str, Any] = field(default_factory=dict)


def a_gpu_of_each_node_is_taken(api: Api) -> None:
    for number in range(2):
        api.wants(f"held-{number}", pod_is={"nodeSelector": {"kubernetes.io/hostname": f"n{number}"}})


def a_whole_node_is_wanted(api: Api) -> None:
    for name in ("held-0", "held-1"):
        api.bind(name)
    api.wants("large", count=2)


def what_is_left_is_wanted(api: Api) -> None:
    for name in ("small-0", "small-1"):
        api.wants(name)


def a_pod_of_another_stack(api: Api) -> None:
    uses = {"name": "main", "image": "x", "resources": {"claims": [{"name": "c", "request": "gpu"}]}}
    api.wants("c", pod_is={"containers": [uses]})
    api.annotate(PODS, "c", {DIALECT_LABEL: "hami"})


def two_racks(api: Api) -> None:
    for name in ("n0", "n1"):
        api.edit(NODES, name, lambda one: one["metadata"]["labels"].update({"dc/hall": "h"}))
    for number in range(2):
        name = f"w{number}"
        api.wants(name, pod_is={"gates": [names.JOINT_GATE]}, count=2)
        api.annotate(PODS, name, {GANG: "g", GANG_MIN: "2", GANG_TOPOLOGY: "hall"})


def a_busy_node(api: Api) -> None:
    asks = [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "32"}}}]
    api.create(PODS, pod("busy", [], containers=asks, nodeName="n1"))


def low_priority_everywhere(api: Api) -> None:
    for name in ("low-0", "low-1"):
        api.wants(name, count=2, pod_is={"priority": 1})


def somebody_of_high_priority(api: Api) -> None:
    for name in ("low-0", "low-1"):
        api.bind(name)
    api.wants("high", pod_is={"priority": 1000})


def immediate(*claims: str) -> Callable[[Api], None]:
    def made(api: Api) -> None:
        for name in claims:
            api.create(RESOURCE_CLAIMS, claim(name, annotations={names.MODE_LABEL: names.IMMEDIATE}))

    return made


def an_unused_template(api: Api, *, since: float = 1e6) -> None:
    pods = LegacyPods()
    pods.store(pods.admitted(legacy_pod({"nvidia.com/gpu": 1})))
    (template,) = of_kind(pods)
    said = {LAST_USED: stamp(time.time() - since)}
    metadata = {**template["metadata"], "name": UNUSED, "annotations": said}
    api.create(RESOURCE_CLAIM_TEMPLATES, {**template, "metadata": metadata})


UNUSED: Final = "koordra-plain-" + "0" * 32


def there(api: Api, kind: Kind, name: str) -> bool:
    return any(objects.name(one) == name for one in api.all(kind))


def held_by(api: Api, identity: str, *, namespace: str = "koordra-system") -> bool:
    return any(
        objects.namespace(one) == namespace and one["spec"].get("holderIdentity") == identity
        for one in api.all(LEASES)
    )


ELECTED: Final = {"leader_elect": True}
CASES: Final[Mapping[str, Case]] = {
    "identity": Case("me", lambda api, _: held_by(api, "me"), beside=ELECTED),
    "leader_elect": Case(True, lambda api, _: api.all(LEASES)),
    "lease_namespace": Case("other", lambda api, _: held_by(api, "one", namespace="other"), beside=ELECTED),
    "starves_after": Case(
        1e-6,
        lambda api, _: not (api.nodes_of("small-0") and api.nodes_of("small-1")),
        before=a_gpu_of_each_node_is_taken,
        later=[a_whole_node_is_wanted, what_is_left_is_wanted],
    ),
    "peer_annotations": Case(
        True,
        lambda api, _: "hami.io/vgpu-node" in objects.annotations_of(api.get(PODS, "c", namespace="default")),
        before=a_pod_of_another_stack,
        later=[lambda api: api.bind("c")],
    ),
    "preemption": Case(
        True,
        lambda api, _: any(write.subresource == "eviction" for write in api.writes),
        before=low_priority_everywhere,
        later=[somebody_of_high_priority],
    ),
    "legacy": Case(
        LegacySettings(),
        lambda api, _: not there(api, RESOURCE_CLAIM_TEMPLATES, UNUSED),
        before=an_unused_template,
    ),
    "elastic_gpu": Case(
        True,
        lambda api, _: there(api, DEVICE_CLASSES, "shares"),
        before=lambda api: api.create(
            ELASTIC_CLASSES,
            {"metadata": {"name": "shares"}, "provisioner": "gpushare.provisioner.elasticgpu.io"},
        ),
    ),
    "training_jobs": Case(
        True,
        lambda api, _: any(objects.name(one).startswith("train-") for one in api.all(PODS)),
        before=lambda api: api.create(
            TRAINING_JOBS, {"metadata": {"name": "train"}, "spec": training_spec()}
        ),
    ),
    "learn_from_profiles": Case(True, lambda api, _: f"koordra-system/{CONFIG_MAP}" in api.read),
    "node_metrics": Case(False, lambda _, metrics: 'node="n0"' not in metrics.text()),
    "immediate_annotation": Case(True, lambda api, _: api.nodes_of("first"), before=immediate("first")),
    "immediate_devices": Case(
        1,
        lambda api, _: not api.nodes_of("second"),
        before=immediate("first", "second"),
        beside={"immediate_annotation": True},
    ),
    "topology_levels": Case(
        "hall=dc/hall", lambda api, _: api.nodes_of("w0") and api.nodes_of("w1"), before=two_racks
    ),
    "scoring_strategy": Case(
        "MostAllocated:cpu=1",
        lambda api, _: api.nodes_of("c") == ["n1"],
        before=a_busy_node,
        later=[lambda api: api.wants("c")],
    ),
    "autoscale": Case(
        AutoscaleSettings([group(gpus=4)], after=0.0),
        lambda api, _: any(is_ask(objects.key(one)) for one in api.all(PODS)),
        before=lambda api: api.wants("c", count=4),
    ),
}


Ran = Callable[[Settings, Case, bool], bool]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ran]:
    """A controller's passes, until what is asked for last has its devices; and until what is waited for is
    seen, if it is `awaited`. Whether it is."""
    api, metrics, over = Api(), Metrics(), threading.Event()

    def start(settings: Settings, case: Case, awaited: bool) -> bool:
        found: list[bool] = []

        def passes(
            one_pass: Callable[[], object],
            *,
            changed: threading.Event,
            stop: threading.Event,
            **_named: object,
        ) -> None:
            deadline = time.monotonic() + PATIENCE

            def until(done: Callable[[], object]) -> None:
                while not done() and time.monotonic() < deadline:
                    changed.wait(0.1)
                    changed.clear()
                    one_pass()

            for number, step in enumerate((nothing, *case.later)):
                step(api)
                last = f"last-{number}"
                api.wants(last, device_class=names.CLASS_NIC)
                until(lambda name=last: api.nodes_of(name))
                assert api.nodes_of(last)
                one_pass()
            until(lambda: not awaited or case.seen(api, metrics))
            found.append(bool(case.seen(api, metrics)))
            over.set()
            stop.wait(PATIENCE)

        monkeypatch.setattr(run_module, "run_passes", passes)
        case.before(api)
        run(api, settings, stop=over, metrics=metrics)  # type: ignore[arg-type]
        (is_seen,) = found
        return is_seen

    yield start
    over.set()


BASE: Final = Settings("one", leader_elect=False, times=LeaseTimes(lease=1.0, retry=0.05, timeout=0.3))


@pytest.mark.parametrize("awaited", [True, False], ids=["other", "default"])
@pytest.mark.parametrize("name", CASES)
def test_it_acts(ran: Ran, name: str, awaited: bool) -> None:
    case = CASES[name]
    base = dataclasses.replace(BASE, **case.beside)
    settings = dataclasses.replace(base, **{name: case.value}) if awaited else base
    assert ran(settings, case, awaited) is awaited


@pytest.mark.parametrize("grace", [600.0, 60.0])
def test_a_template_outlives_its_last_use_by_the_grace(ran: Ran, grace: float) -> None:
    before = partial(an_unused_template, since=300.0)
    settings = dataclasses.replace(BASE, legacy=LegacySettings(grace=grace))
    is_over = grace < 300.0
    assert ran(settings, dataclasses.replace(CASES["legacy"], before=before), is_over) is is_over


ELSEWHERE: Final = {"times": "test_terms.py"}
"""No option, but what tests of terms shorten."""


def test_every_setting_is_tried() -> None:
    assert {each.name for each in dataclasses.fields(Settings)} == CASES.keys() | ELSEWHERE.keys()
