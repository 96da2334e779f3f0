"""Shares kept by something that is done to a card, on a real containerd: an instance that is made for the
claim, a client of the card's MPS daemon, a turn on the card. Classes name the backend; what is given is
decided by the allocator, from what the plugin has published.

The driver is a double (card_driver.py), which the plugin runs in the host's root as in production. What a
container may open is the kernel's word.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from click.testing import CliRunner

from koordra.api import kinds, names, resource_class
from koordra.api.elastic import elastic_gpu
from koordra.api.objects import Object
from koordra.cli.main import cli
from koordra.placement import plan
from koordra.topology.location import DeviceNode
from koordra.topology.machine import Gpu
from tests.e2e.card_driver import CUT, CardDriver
from tests.e2e.containerd import Containerd, wait_until
from tests.e2e.cri import ContainerSpec, HostMount
from tests.e2e.node import NAMESPACE, NODE, KoordraNode, Prepared
from tests.e2e.test_containers import ALLOWED, REFUSED, dns_label, environment, node_of
from tests.unit.allocator import machines

pytestmark = pytest.mark.e2e

EVERYBODYS = {"nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"}
AS_BEFORE = {"mode": "DEFAULT", "timeslice": 0}


@pytest.fixture(scope="module")
def driver(node: KoordraNode) -> Iterator[CardDriver]:
    """The plugin with all three; what it found before comes back."""
    folder = Path(tempfile.mkdtemp(prefix="k"))
    made = CardDriver(folder, node.root, node.machine, state=node.state)
    made.install()
    before = {name: os.environ.get(name) for name in made.environment}
    os.environ |= made.environment
    try:
        node.restart_plugin(*made.options, "--allowed-isolation", "mps,mig", "--mig-on-demand")
        yield made
    finally:
        for name in before:
            del os.environ[name]
        node.plugin.stop()
        made.remove()
        node.restart_plugin()


class Claims:
    """Claims of a test and their pods."""

    def __init__(self, containerd: Containerd, node: KoordraNode, label: str) -> None:
        self._containerd, self._node, self._label = containerd, node, label
        self._made: list[Prepared] = []
        self._cluster: list[Object] = []
        self._pods: list[str] = []

    def prepare(self, cls: Object, spec: Object) -> tuple[Prepared, str]:
        """Allocated as the controller does it, then prepared; with the name of its device."""
        found: dict[str, Any] = {}

        def allocated() -> bool:
            planned = plan(self.pending(cls, spec))
            found.update(planned.allocations.get(f"{NAMESPACE}/c", {}))
            return bool(found)

        wait_until(allocated, "what the plugin publishes now", log=self._node.plugin.log)
        devices = found["devices"]
        name = f"{self._label}-{len(self._made)}"
        self._made.append(self._node.prepare(name, devices["results"], config=devices.get("config", ())))
        return self._made[-1], devices["results"][0]["device"]

    def pending(self, cls: Object, spec: Object) -> list[Object]:
        """What the plugin publishes and claims hold now, and a claim that waits."""
        slices, _ = self._node.api.list(kinds.RESOURCE_SLICES)
        held, _ = self._node.api.list(kinds.RESOURCE_CLAIMS)
        held = [one for one in held if one["metadata"]["name"] in {made.name for made in self._made}]
        claim = {**machines.claim("c", namespace=NAMESPACE), "spec": spec}
        self._cluster = [machines.node(NODE), *machines.device_classes(), cls, *slices, *held, claim]
        return self._cluster

    def told(self, *words: str) -> str:
        """What the command says of what was pending last."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"kind": "List", "apiVersion": "v1", "items": self._cluster}, file)
            file.flush()
            said = CliRunner().invoke(cli, [*words, "-f", file.name], env={"COLUMNS": "200"})
        return " ".join(said.output.split())

    def pod(self) -> str:
        self._pods.append(self._containerd.cri.run_pod(f"{self._label}-{len(self._pods)}"))
        return self._pods[-1]

    def run(self, claim: Prepared, **more: Any) -> str:
        return self._containerd.cri.run(self.pod(), "c", ContainerSpec(cdi=claim.all_cdi, **more))

    def end(self) -> None:
        while self._pods:
            self._containerd.cri.remove_pod(self._pods.pop())
        while self._made:
            self._node.unprepare(self._made.pop())


def of_resource_class(kept_by: str, *, allowed: Sequence[str] = (), **capacity: str) -> tuple[Object, Object]:
    """The DeviceClass of a ResourceClass, and the spec of a claim of it."""
    policy = {"isolation": kept_by, **({"allowedIsolation": list(allowed)} if allowed else {})}
    meant = {
        "kind": "ResourceClass",
        "metadata": {"name": "kept", "uid": "1"},
        "deviceType": "gpu",
        "policy": {"gpu": policy},
    }
    asked = machines.request("gpu", capacity=capacity)
    asked["exactly"]["deviceClassName"] = "kept"
    made = resource_class.device_class(meant, lookup=lambda *_: None, own_namespace="")
    return made, {"devices": {"requests": [asked]}}


def of_elastic_class(kept_by: str, *, memory: int, core: int) -> tuple[Object, Object]:
    """The same of an ElasticGPUClass and ElasticGPUClaim; memory in MiB."""
    meant = {
        "kind": "ElasticGPUClass",
        "metadata": {"name": "kept", "uid": "1"},
        "provisioner": "qgpu.provisioner.elasticgpu.io",
        "parameters": {"isolation": kept_by},
    }
    amounts = {"elasticgpu.io/gpu-memory": str(memory), "elasticgpu.io/gpu-core": str(core)}
    claim = {
        "kind": "ElasticGPUClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"elasticGPUClassName": "kept", "resources": {"requests": amounts}},
    }
    read = elastic_gpu.read_class(meant)
    return elastic_gpu.device_class(meant), elastic_gpu.claim_spec(elastic_gpu.requested(claim, read), read)


@pytest.fixture
def claims(
    containerd: Containerd, node: KoordraNode, driver: CardDriver, request: pytest.FixtureRequest
) -> Iterator[Claims]:
    del driver
    made = Claims(containerd, node, dns_label(request)[:40])
    yield made
    made.end()


def nvidia_nodes(containerd: Containerd, container: str) -> set[str]:
    """Below /dev, whatever their folder."""
    return {
        line.rpartition("/")[2]
        for line in containerd.cri.shell(
            container, "for each in /dev/nvidia* /dev/nvidia-caps/*; do echo $each; done"
        ).text.split()
        if "*" not in line and not line.endswith("nvidia-caps")
    }


def gpu_of(driver: CardDriver, device: str) -> Gpu:
    return next(gpu for gpu in driver.machine.gpus if gpu.name == device)


def can_be_opened(containerd: Containerd, container: str, nodes: Sequence[DeviceNode]) -> list[DeviceNode]:
    """Those that the kernel lets root of the container open, which makes the nodes itself."""
    numbers = " ".join(f"{node.major}:{node.minor}" for node in nodes)
    script = (
        f"for n in {numbers}; do mknod /tmp/$n c ${{n%:*}} ${{n#*:}}; echo $n; dd if=/tmp/$n count=1; done"
    )
    said = containerd.cri.shell(container, script).text
    answers = dict(re.findall(r"^(\d+:\d+)\n(dd: .*)$", said, re.MULTILINE))
    assert len(answers) == len(nodes), said
    assert all(ALLOWED in each or REFUSED in each for each in answers.values()), said
    return [node for node in nodes if ALLOWED in answers[f"{node.major}:{node.minor}"]]


def cards_of(driver: CardDriver) -> list[DeviceNode]:
    return [node_of(gpu) for gpu in driver.machine.gpus]


def test_a_slice_is_made_for_its_claim_and_is_all_that_the_container_gets(
    containerd: Containerd, driver: CardDriver, claims: Claims
) -> None:
    first, place = claims.prepare(*of_elastic_class("mig", memory=18 << 10, core=19))
    second, other = claims.prepare(*of_elastic_class("mig", memory=9 << 10, core=10))
    card = driver.machine.gpus[CUT]
    assert place == f"{card.name}-mig-1g20gb-6"
    assert other.startswith(f"{card.name}-mig-1g10gb")
    assert len(driver.instances()) == 2
    nodes: list[set[str]] = []
    for claim in (first, second):
        container = claims.run(claim)
        found = nvidia_nodes(containerd, container)
        own = {name for name in found if name.startswith("nvidia-cap")}
        assert found == {*EVERYBODYS, f"nvidia{card.minor}"} | own
        assert len(own) == 2
        # Those to partition cards and to watch them, and all that other instances could have.
        every = [driver.capability(minor) for minor in (1, 2, *range(3, 3 + 15 * 9))]
        opened = can_be_opened(containerd, container, [*cards_of(driver), *every])
        assert {node.path.rpartition("/")[2] for node in opened} == {*own, f"nvidia{card.minor}"}
        nodes.append(own)
    assert nodes[0].isdisjoint(nodes[1])
    claims.end()
    assert driver.instances() == []


def test_shares_of_a_card_are_clients_of_its_mps_daemon(
    containerd: Containerd, node: KoordraNode, driver: CardDriver, claims: Claims
) -> None:
    first, device = claims.prepare(*of_resource_class("mps", memory="10Gi", cores="30"))
    second, other = claims.prepare(*of_resource_class("mps", memory="20Gi", cores="50"))
    assert device == other, "the second fills the card"
    card = gpu_of(driver, device)
    daemon = driver.daemon(card)
    assert daemon
    assert driver.card(card)["mode"] == "EXCLUSIVE_PROCESS"
    containers = [claims.run(claim) for claim in (first, second)]
    for container, memory, cores in zip(containers, ("10240M", "20480M"), ("30", "50"), strict=True):
        env = environment(containerd, container)
        assert env["CUDA_MPS_PIPE_DIRECTORY"] == "/run/koordra/mps/pipe"
        assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={memory}"
        assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == cores
        assert "control" in containerd.cri.shell(container, "ls /run/koordra/mps/pipe").text.split()
        assert (
            "Read-only file system"
            in containerd.cri.shell(container, "echo x > /run/koordra/mps/pipe/x").text
        )
        assert nvidia_nodes(containerd, container) == {*EVERYBODYS, f"nvidia{card.minor}"}
        assert can_be_opened(containerd, container, cards_of(driver)) == [node_of(card)]
    # One /dev/shm for both and for the daemon, which has the host's root.
    containerd.cri.shell(containers[0], "echo mapped > /dev/shm/x")
    assert containerd.cri.shell(containers[1], "cat /dev/shm/x").text == "mapped\n"
    assert Path(f"/proc/{daemon}/root/dev/shm/x").read_text() == "mapped\n"
    folder = node.state / "mps/cards" / device
    # Who holds no share of the card reaches neither, whatever its pod mounts.
    for part in ("pipe", "shm"):
        spec = ContainerSpec(mounts=[HostMount(str(folder / part), "/mnt")])
        with pytest.raises(grpc.RpcError, match="koordra"):
            containerd.cri.run(claims.pod(), part, spec)
    claims.end()
    assert driver.card(card) == AS_BEFORE
    wait_until(lambda: not Path(f"/proc/{daemon}").exists(), "the daemon's end")
    assert not folder.exists()
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()


@pytest.fixture
def turns(node: KoordraNode, driver: CardDriver) -> None:
    """The plugin with time-slicing."""
    node.restart_plugin(*driver.options, "--allowed-isolation", "timeslicing")


@pytest.mark.usefixtures("turns")
def test_a_card_is_given_out_in_turns(containerd: Containerd, driver: CardDriver, claims: Claims) -> None:
    cls, spec = of_resource_class("timeslicing", memory="10Gi", cores="30")
    cls["spec"]["config"].append(machines.config("GpuConfig", timeSlice="Long"))
    first, device = claims.prepare(cls, spec)
    second, other = claims.prepare(cls, spec)
    assert device == other
    card = gpu_of(driver, device)
    assert driver.card(card) == {"mode": "DEFAULT", "timeslice": 3}
    assert not driver.daemon(card)
    for claim in (first, second):
        container = claims.run(claim)
        assert not [name for name in environment(containerd, container) if "MPS" in name]
        assert nvidia_nodes(containerd, container) == {*EVERYBODYS, f"nvidia{card.minor}"}
        assert can_be_opened(containerd, container, cards_of(driver)) == [node_of(card)]
    claims.end()
    assert driver.card(card) == AS_BEFORE


@pytest.fixture
def mixed(node: KoordraNode, driver: CardDriver, tmp_path: Path) -> tuple[Gpu, Gpu]:
    """A node of which one card may be cut, one is kept by MPS and one by the limiter; no other has shares."""
    by_mps, by_limiter = [gpu for number, gpu in enumerate(driver.machine.gpus[:3]) if number != CUT]
    cards = [
        {"card": by_mps.uuid, "isolation": ["mps"]},
        {"card": by_limiter.uuid, "isolation": ["limiter"]},
    ]
    modes = tmp_path / "modes.yaml"
    modes.write_text(yaml.safe_dump({"nodeconfig": [{"name": NODE, "isolation": ["mig"], "cards": cards}]}))
    node.restart_plugin(*driver.options, "--mig-on-demand", "--node-modes", str(modes))
    return by_mps, by_limiter


def test_auto_is_the_first_word_that_the_card_has(
    containerd: Containerd, driver: CardDriver, claims: Claims, mixed: tuple[Gpu, Gpu]
) -> None:
    """A slice of a whole card or else a share of 60 GiB, of which a card has room for one: the claim's order
    decides between slice and share, the class's between the ways in which a share's card is kept."""
    cls, spec = of_resource_class("Auto", allowed=["limiter", "mps"], memory="60Gi", cores="60")
    share = {"name": "share", **spec["devices"]["requests"][0]["exactly"]}
    part = {**share, "name": "slice", "deviceClassName": names.CLASS_MIG}
    either = {"devices": {"requests": [{"name": "gpu", "firstAvailable": [part, share]}]}}
    by_mps, by_limiter = mixed
    _, place = claims.prepare(cls, either)
    assert place.startswith(f"{driver.machine.gpus[CUT].name}-mig-7g80gb")
    found: dict[str, tuple[Prepared, str]] = {}
    for _ in mixed:
        prepared, device = claims.prepare(cls, either)
        found[device] = prepared, claims.told("plan")
    assert set(found) == {by_mps.name, by_limiter.name}
    claims.pending(cls, either)
    assert "Does not fit" in claims.told("plan")
    for card, word in ((by_mps, "mps"), (by_limiter, "limiter")):
        prepared, before = found[card.name]
        assert f"isolation {word} (Auto: limiter, mps)" in before
        after = claims.told("explain", f"claim/{prepared.name}", "-n", NAMESPACE)
        assert f"{card.name} (isolation {word}: Auto, the first of limiter, mps that the node has)" in after
        container = claims.run(prepared)
        env = environment(containerd, container)
        assert ("CUDA_MPS_PIPE_DIRECTORY" in env) is (word == "mps")
        assert bool(driver.daemon(card)) is (word == "mps")
        limited = containerd.cri.shell(container, "ls /run/koordra/limiter").text.split()
        assert (prepared.uid in limited) is (word == "limiter")
        assert can_be_opened(containerd, container, cards_of(driver)) == [node_of(card)]
