"""No setting of the plugin is a word without effect: a whole plugin runs on a machine with another value, and
publishes, prepares or writes something else."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from koordra.api import kinds
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.api.opaque.isolation import IsolationPolicy
from koordra.api.resource_class import CONFIG_MAPS
from koordra.kubelet_plugin.cdi.hook_program import HookProgram
from koordra.kubelet_plugin.isolation.limiter.backend import LIBRARIES, LimiterIsolation
from koordra.kubelet_plugin.nvidia_driver.homes import HostRoot, named_home
from koordra.kubelet_plugin.publish.node_modes import NodeModes
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.settings import Settings
from koordra.topology.presets.tree import MachineWriter
from tests.fakes import driver_homes
from tests.fakes import hami_core as hami
from tests.fakes.node_claims import NODE, claim, gpu, nic, parameters, uid
from tests.machines import catalogue
from tests.unit.kubelet_plugin.running_plugin import FakeApi, RunningPlugin, wait_for

MACHINE: Final = catalogue.load("rdma-drivers").machine(serial=NODE)
GPU: Final = "gpu-0000-16-00-0"
ROCE: Final = "nic-0000-31-00-0"
SHARE: Final = claim(
    1,
    gpu("gpu", GPU, "10Gi", cores="30"),
    config=[parameters("GpuConfig", isolation="limiter", coresPolicy="Hard")],
)
WHOLE_NIC: Final = claim(1, nic("nic", ROCE), config=[parameters("RdmaConfig", mode="Exclusive")])
RESERVED: Final = {**WHOLE_NIC["status"], "reservedFor": [{"resource": "pods", "name": "p", "uid": "pod-1"}]}
POOLED: Final = claim(
    1,
    nic("nic", ROCE),
    config=[parameters("RdmaConfig", source="FromClass", mode="Exclusive", network={"pool": "rails"})],
)
POOLS: Final = (
    "schema: koordra.io/network-pools/v1\n"
    "pools: [{name: rails, perNode: 26, networks: [{cidr: 10.10.0.0/16}]}]\n"
)
OVERLAY: Final = (
    'schema: koordra.io/overlay/v1\ngroups: [{switch: "ffff:ff:01.0", devices: ["0000:31:00.0"]}]\n'
)


class Api(FakeApi):
    """Also takes labels of the Node, and what the plugin writes into ConfigMaps."""

    def __init__(self) -> None:
        super().__init__(NODE)
        self.config_maps = set[str]()
        self.labelled: dict[str, str] = {}

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        if kind is kinds.PODS:
            return {"metadata": {"name": name, "uid": "pod-1"}}
        if kind is CONFIG_MAPS:
            return {"metadata": {"name": name, "resourceVersion": "1"}}
        return super().get(kind, name, namespace=namespace)

    def patch(
        self,
        kind: Kind,
        name: str,
        body: Object,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        if kind is CONFIG_MAPS:
            self.config_maps.add(f"{namespace}/{name}")
            return body
        if kind is kinds.NODES:
            self.labelled.update(body["metadata"]["labels"])
            return body
        return super().patch(kind, name, body, namespace=namespace, subresource=subresource)


@dataclass(frozen=True)
class Case:
    """Another value for the setting, made in a folder, and where that shows; `claim` is prepared, on a plugin
    that has `beside` besides."""

    other: Callable[[Path], object]
    seen: Callable[[RunningPlugin, Api, Any], object]
    claim: Object = field(default_factory=lambda: claim(1, gpu("gpu", GPU)))
    beside: Mapping[str, Any] = field(default_factory=dict)


def written(text: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        file = folder / "file.yaml"
        file.write_text(text)
        return file

    return write


def host_with_a_driver(folder: Path) -> HostRoot:
    driver_homes.libraries(folder / "host" / driver_homes.MULTI_ARCH)
    return HostRoot(folder / "host", Path("/"))


def named_driver(folder: Path) -> object:
    driver_homes.libraries(folder / "driver" / "lib64", str(MACHINE.driver_version))
    return partial(named_home, folder / "driver", HostRoot(folder / "host", Path("/")))


def published(plugin: RunningPlugin, _api: Api, _answer: Any) -> object:
    return plugin.api.devices()[GPU]


def prepared(plugin: RunningPlugin, _api: Api, _answer: Any) -> object:
    """The files that the claim's container gets."""
    spec = json.loads(plugin.paths.cdi_file(uid(1)).read_text())
    edits = [spec["containerEdits"], *(one["containerEdits"] for one in spec["devices"])]
    text = str([[one.get("mounts"), one.get("deviceNodes")] for one in edits])
    return text.replace(str(plugin.kubelet_root), "")


def limits(plugin: RunningPlugin, _api: Api, _answer: Any) -> object:
    return (plugin.paths.state / "limiter" / "claims" / uid(1) / "policy").read_bytes()


def hami_core(folder: Path) -> Path:
    hami.install(folder / "root/srv/vgpu")
    return Path("/srv/vgpu")


def config_maps(_plugin: RunningPlugin, api: Api, _answer: Any) -> object:
    return sorted(api.config_maps)


CASES: Final[Mapping[str, Case]] = {
    "mode": Case(lambda _: "native", published),
    "offering": Case(lambda _: Offering(slots_per_gpu=3), published),
    "modes": Case(lambda _: NodeModes(isolation=IsolationPolicy(("mps",))), published),
    "overlay": Case(written(OVERLAY), lambda plugin, *_: plugin.api.devices()[ROCE], WHOLE_NIC),
    "pod_uid": Case(
        lambda _: "a-pod",
        lambda plugin, *_: [path.name for path in (plugin.kubelet_root / "plugins_registry").iterdir()],
    ),
    "hook_folder": Case(
        lambda folder: folder / "hooks",
        lambda plugin, *_: (plugin.paths.state / "hook").exists(),
    ),
    "pod_network": Case(
        lambda _: True,
        lambda plugin, *_: (plugin.paths.state / "network" / f"{uid(1)}.json").exists(),
        WHOLE_NIC,
    ),
    "roce_without_network": Case(
        lambda _: "refuse", lambda _plugin, _api, answer: answer.error, {**WHOLE_NIC, "status": RESERVED}
    ),
    "network_pools": Case(
        written(POOLS), lambda _plugin, _api, answer: answer.error, POOLED, {"pod_network": True}
    ),
    "namespace": Case(lambda _: "other", config_maps, beside={"on_overuse": "evict"}),
    "on_overuse": Case(lambda _: "evict", config_maps),
    "host": Case(host_with_a_driver, prepared),
    "driver_root": Case(named_driver, prepared),
    "limiter_context": Case(lambda _: 600 << 20, limits, SHARE),
    "limiter_strict": Case(lambda _: True, limits, SHARE),
    "limiter_cores": Case(lambda _: True, limits, SHARE),
    "legacy_node_labels": Case(lambda _: True, lambda _plugin, api, _answer: api.labelled),
    "hami_core": Case(
        hami_core, published, beside={"offering": Offering(isolation=IsolationPolicy(("hami-core",)))}
    ),
}
REQUIRED: Final = {"node", "kubelet_root", "paths"}
"""Without which no plugin of these tests would be found."""


Story = Callable[[Case, Mapping[str, object], object], object]


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    """What is seen of a plugin with these settings that has published and prepared, as soon as that is unlike
    what was seen before. The node has what `make -C native` builds, as far as it matters."""
    root, built = tmp_path / "root", tmp_path / "built"
    MachineWriter(root).write(MACHINE)
    built.mkdir()
    for name in LIBRARIES:
        (built / name).write_bytes(b"built")
    (built / "koordra-cdi-hook").write_text("#!/bin/sh\necho 'koordra-cdi-hook: it is called as' >&2\n")
    for of in (LimiterIsolation, HookProgram):
        monkeypatch.setitem(of.__init__.__kwdefaults__, "installed", (built,))

    def told(case: Case, other: Mapping[str, object], unlike: object) -> object:
        with tempfile.TemporaryDirectory(prefix="k") as folder:
            api = Api()
            plugin = RunningPlugin(Path(folder), root, api=api, **case.beside, **other)
            api.claims = {"claim-1": case.claim}
            with plugin.serving():
                assert wait_for(api.devices)
                answer = plugin.prepare()
                wait_for(lambda: case.seen(plugin, api, answer) != unlike)
                return case.seen(plugin, api, answer)

    return told


@pytest.mark.parametrize("name", CASES)
def test_it_acts(story: Story, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    default = story(case, {}, None)
    assert story(case, {name: case.other(tmp_path)}, default) != default


def test_every_setting_is_tried() -> None:
    assert {each.name for each in dataclasses.fields(Settings)} == CASES.keys() | REQUIRED
