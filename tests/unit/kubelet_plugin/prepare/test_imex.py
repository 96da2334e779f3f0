"""IMEX channels of claims: the node is in the domain of their gang, in one at a time, and Prepare waits for
the others."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordra.api import kinds, names
from koordra.api.opaque.imex import ImexDomain
from koordra.api.resource_class import CONFIG_MAPS
from koordra.errors import ApiUnreachable, PrepareError
from koordra.kubelet_plugin.claims.checkpoint import decode, encode, texts_of
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.node_check.readings.host_files import HostFiles
from koordra.kubelet_plugin.nvidia_driver.homes import HostRoot, named_home
from koordra.kubelet_plugin.prepare.device_guard import guard_of
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.kubelet_plugin.prepare.imex_loop import LOOKS_EACH, ImexLoop, why_not_offered
from koordra.kubelet_plugin.prepare.imex_membership import ADDRESS_AGE, DomainNotReady, ImexMembership
from koordra.kubelet_plugin.publish.node_inventory import InventorySource, inventory_of
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.publish.resource_slices import build_devices
from koordra.node_state.disk import Disk
from koordra.node_state.imex import DomainStatus, ImexFolder, decode_domain, encode_status, supervising
from koordra.topology.partitions import FabricInfo
from koordra.topology.presets import write_machine
from koordra.topology.problems import Discovery
from tests.fakes.disks import DyingDisk, Killed, StepDisk
from tests.fakes.kube_api import FakeKubeApi
from tests.fakes.node_claims import ANY_ISOLATION, NODE, claim, gpu, parameters, result, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of

CLIQUE = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.32766"
TRAIN, OTHER = ImexDomain("gang team-a/train", CLIQUE), ImexDomain("gang team-a/other", CLIQUE)
GPU = "gpu-0008-06-00-0"
CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"


@pytest.fixture(scope="session")
def tray(tmp_path_factory: pytest.TempPathFactory) -> Discovery:
    root = tmp_path_factory.mktemp("tray")
    write_machine("gb200-nvl72", root, serial=NODE)
    return discover(root)


class Tray(PluginNode):
    """A node of a domain whose other daemons the test plays, by what `koordra imex` says."""

    def __init__(self, folder: Path, found: Discovery) -> None:
        offering = Offering(imex=True, isolation=ANY_ISOLATION)
        super().__init__(folder, inventory_of(found, offering=offering))
        self.api: Any = FakeKubeApi()
        self.folder, self.now = ImexFolder(self.paths.state), 1000.0
        for number, name in enumerate((NODE, "node-b", "node-c")):
            self.api.create(
                kinds.NODES,
                {
                    "metadata": {"name": name},
                    "status": {"addresses": [{"type": "InternalIP", "address": f"10.0.0.{number + 1}"}]},
                },
            )

    def membership(self, disk: Disk | None = None) -> ImexMembership:
        return ImexMembership(
            self.api,
            node=self.name,
            namespace="koordra-system",
            folder=self.folder,
            disk=disk or StepDisk(),
            clock=lambda: self.now,
        )

    def unrepaired(self, disk: Disk | None = None, **more: Any) -> DeviceState:
        found = super().unrepaired(disk, **more)
        found._imex = self.membership(disk)
        return found

    def told(self, domain: ImexDomain, *nodes: str) -> None:
        """The controller's word; none: the domain is over."""
        data = {str(number): node for number, node in enumerate(nodes)}
        body = {"metadata": {"name": domain.object_name, "namespace": "koordra-system"}, "data": data}
        if any(one["metadata"]["name"] == domain.object_name for one in self.api.all(CONFIG_MAPS)):
            self.api.delete(CONFIG_MAPS, domain.object_name, namespace="koordra-system")
        if nodes:
            self.api.create(CONFIG_MAPS, body)

    def said(self, domain: ImexDomain, *reached: int, ready: bool = True, detail: str = "") -> None:
        """The word of `koordra imex`."""
        status = DomainStatus(domain.domain, domain.clique, ready, reached, detail)
        Disk().replace(self.folder.status, encode_status(status), mode=0o600)

    def domain(self) -> dict[str, str] | None:
        """The nodes of the domain that the node is in."""
        data = Disk().read(self.folder.domain)
        return {node.name: node.address for node in decode_domain(data).nodes} if data is not None else None


@pytest.fixture
def node(tmp_path: Path, tray: Discovery) -> Tray:
    return Tray(tmp_path, tray)


def channels(
    number: int, domain: ImexDomain | None = TRAIN, *, config: tuple[dict[str, Any], ...] = ()
) -> dict[str, Any]:
    share = f"5c1f0000-0000-5000-8000-0000000000{number:02d}"
    given = [result("imex", names.IMEX_DEVICE, share=share)]
    entries = [*config, *([domain.entry()] if domain else [])]
    return claim(number, *given, config=entries)


def prepare(node: Tray, obj: dict[str, Any]) -> Any:
    node.claims.put(obj)
    return node.plugin().prepare(ref_of(obj))


def refusal(node: Tray, obj: dict[str, Any]) -> str:
    with pytest.raises(PrepareError) as caught:
        prepare(node, obj)
    assert not any(obj["metadata"]["uid"] in name for name in node.files())
    return str(caught.value)


def complete(node: Tray, domain: ImexDomain = TRAIN) -> None:
    node.told(domain, NODE, "node-b")
    node.said(domain, 0, 1)


def test_a_claim_has_channel_0_of_its_gangs_domain(node: Tray) -> None:
    complete(node)
    prepare(node, channels(1))
    (device,) = node.spec(uid(1))["devices"]
    nodes = device["containerEdits"]["deviceNodes"]
    assert [(one["path"], one["major"], one["minor"]) for one in nodes] == [(CHANNEL, 234, 0)]
    assert node.domain() == {NODE: "10.0.0.1", "node-b": "10.0.0.2"}
    (held,) = node.record(uid(1))["devices"]
    assert held["type"] == "imex"


def test_the_class_gives_all_channels(node: Tray) -> None:
    complete(node)
    prepare(node, channels(1, config=(parameters("ImexConfig", source="FromClass", channels="All"),)))
    (device,) = node.spec(uid(1))["devices"]
    assert len(device["containerEdits"]["deviceNodes"]) == 2048
    text = refusal(node, channels(2, config=(parameters("ImexConfig", channels="All"),)))
    assert "channels: is for the operator to say" in text


def test_prepare_waits_for_every_node_and_the_node_stays_in_the_domain_meanwhile(node: Tray) -> None:
    assert "has not said yet that node node-a is in the domain of gang team-a/train" in refusal(
        node, channels(1)
    )
    node.told(TRAIN, NODE, "node-b")
    assert "koordra imex has not started the daemon yet" in refusal(node, channels(1))
    assert node.domain() == {NODE: "10.0.0.1", "node-b": "10.0.0.2"}, "so that the others find it"
    node.said(OTHER, 0, 1)
    assert "has not started the daemon yet" in refusal(node, channels(1)), "that of another domain"
    node.said(TRAIN, ready=False, detail="the IMEX daemon is not ready: INITIALIZING")
    assert "not ready: INITIALIZING" in refusal(node, channels(1))
    node.said(TRAIN, 0)
    text = refusal(node, channels(1))
    assert text.startswith("ResourceClaim team-a/claim-1: ImexDomainNotReady: domain of gang team-a/train")
    assert "the daemon waits for node-b (10.0.0.2)" in text
    assert node.domain() is not None
    assert not node.holders(), "no device is held by who waits"
    node.said(TRAIN, 0, 1)
    prepare(node, channels(1))
    assert node.holders() == {uid(1)}


def test_one_call_waits_for_a_while(node: Tray, monkeypatch: pytest.MonkeyPatch) -> None:
    node.told(TRAIN, NODE)
    obj = channels(1)
    node.claims.put(obj)
    state, slept = node.plugin(), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            node.said(TRAIN, 0)

    monkeypatch.setattr("koordra.kubelet_plugin.prepare.device_state.time.sleep", sleep)
    state._waits = (1.0, 2.0, 3.0)
    state.prepare(ref_of(obj))
    assert slept == [1.0, 2.0]
    (node.paths.state / "imex" / "status.json").unlink()
    other = channels(2)
    node.claims.put(other)
    with pytest.raises(DomainNotReady):
        state.prepare(ref_of(other))
    assert slept == [1.0, 2.0, 1.0, 2.0, 3.0], "and then the kubelet asks again"


def test_members_of_one_gang_share_the_domain_and_the_last_one_ends_it(node: Tray) -> None:
    complete(node)
    for number in (1, 2):
        prepare(node, channels(number))
    state = node.plugin()
    state.unprepare(ref_of(channels(1)))
    assert node.domain() is not None
    state.unprepare(ref_of(channels(2)))
    assert node.domain() is None


def test_two_gangs_are_never_in_different_domains_of_one_node(node: Tray) -> None:
    complete(node)
    complete(node, OTHER)
    node.said(TRAIN, 0, 1)
    prepare(node, channels(1))
    text = refusal(node, channels(2, OTHER))
    assert "ImexDomainInUse: by ResourceClaim team-a/claim-1 this node is in another IMEX domain" in text
    assert "that of gang team-a/train" in text
    node.plugin().unprepare(ref_of(channels(1)))
    node.said(OTHER, 0, 1)
    prepare(node, channels(2, OTHER))
    assert "that of gang team-a/other" in refusal(node, channels(1)), "the other way round, too"


def test_who_waits_for_a_domain_keeps_others_out_until_it_is_unprepared(node: Tray) -> None:
    node.told(TRAIN, NODE, "node-b")
    refusal(node, channels(1))
    complete(node, OTHER)
    assert "ImexDomainInUse" in refusal(node, channels(2, OTHER))
    node.plugin().unprepare(ref_of(channels(1)))
    assert node.domain() is None
    prepare(node, channels(2, OTHER))


@pytest.mark.parametrize(
    ("domain", "why"),
    [
        (None, "names no domain"),
        (replace(TRAIN, clique=CLIQUE.replace("32766", "5")), "is in clique"),
    ],
)
def test_channels_that_nobody_gave_a_domain_are_given_to_nobody(
    node: Tray, domain: ImexDomain | None, why: str
) -> None:
    complete(node, domain or TRAIN)
    assert why in refusal(node, channels(1, domain))
    assert node.domain() is None


def test_a_claim_cannot_name_its_domain_itself(node: Tray) -> None:
    complete(node)
    obj = channels(1)
    obj["spec"] = {"devices": {"config": [{"opaque": TRAIN.entry()["opaque"]}]}}
    assert "ImexDomain is written by koordra's controller" in refusal(node, obj)


def test_an_api_server_that_is_away_refuses(node: Tray, monkeypatch: pytest.MonkeyPatch) -> None:
    complete(node)

    def away(*_: Any, **__: Any) -> Any:
        raise ApiUnreachable("no answer")

    monkeypatch.setattr(node.api, "get", away)
    assert "the nodes of its IMEX domain cannot be read: no answer" in refusal(node, channels(1))


def test_a_plugin_without_the_option_refuses(node: Tray) -> None:
    complete(node)
    obj = channels(1)
    node.claims.put(obj)
    state = PluginNode.unrepaired(node)
    with pytest.raises(PrepareError, match="started without --imex"):
        state.prepare(ref_of(obj))


def test_the_capability_of_gpus_gives_no_channel_of_a_gangs_domain(node: Tray) -> None:
    entry = parameters("GpuConfig", source="FromClass", driverCapabilities=["all", "imex"])
    text = refusal(node, claim(3, gpu("gpu", GPU, "189471Mi"), config=[entry]))
    assert "ask for one of class imex-channel.koordra.io" in text


# crashes


def test_killed_between_any_two_steps_the_next_start_puts_it_right(tmp_path: Path, tray: Discovery) -> None:
    step = 0
    while True:
        node = Tray(tmp_path / str(step), tray)
        complete(node)
        obj = channels(1)
        node.claims.put(obj)
        disk = DyingDisk(step)
        with suppress(Killed):
            node.plugin(disk).prepare(ref_of(obj))
        if not disk.died:
            break
        state = node.plugin()
        in_it = any(record.imex for record in node.checkpoint().claims)
        assert state.imex_domain() == (TRAIN if in_it else None)
        assert in_it or node.domain() is None
        state.prepare(ref_of(obj))
        assert node.domain() is not None
        state.unprepare(ref_of(obj))
        assert node.domain() is None
        step += 1
    assert step > 5


def test_a_plugin_that_starts_anew_resumes_the_domain(node: Tray) -> None:
    complete(node)
    prepare(node, channels(1))
    shutil.rmtree(node.folder.path)
    state, membership = node.plugin(), node.membership()
    assert state.imex_domain(membership.nodes_of) == TRAIN
    assert node.domain() == {NODE: "10.0.0.1", "node-b": "10.0.0.2"}


def test_what_is_left_of_a_domain_without_claims_goes(node: Tray) -> None:
    complete(node)
    node.membership().enter(TRAIN, node.membership().nodes_of(TRAIN))
    assert node.domain() is not None
    assert node.plugin().imex_domain() is None
    assert node.domain() is None


def test_the_daemon_of_another_domain_than_the_claims_ends_before_theirs_begins(node: Tray) -> None:
    complete(node)
    prepare(node, channels(1))
    node.told(OTHER, NODE)
    node.membership().enter(OTHER, node.membership().nodes_of(OTHER))
    state = node.plugin()
    assert state.imex_domain() == TRAIN
    assert node.domain() is None
    state.imex_domain(node.membership().nodes_of)
    assert node.domain() == {NODE: "10.0.0.1", "node-b": "10.0.0.2"}


def test_a_lost_checkpoint_ends_no_domain_and_lets_nobody_in(node: Tray) -> None:
    complete(node)
    prepare(node, channels(1))
    node.paths.checkpoint.write_bytes(b"{")
    state = node.plugin()
    assert state.imex_domain() == TRAIN, "its containers use it"
    assert node.domain() is not None
    complete(node, OTHER)
    assert "one that was lost with the checkpoint" in refusal(node, channels(2, OTHER))
    node.said(TRAIN, 0, 1)
    prepare(node, channels(1))
    assert node.plugin().imex_domain() == TRAIN


def test_a_checkpoint_without_channels_is_what_an_earlier_koordra_reads(node: Tray) -> None:
    complete(node)
    prepare(node, claim(1, gpu("gpu", GPU, "189471Mi")))
    data = node.paths.checkpoint.read_bytes()
    assert b"imex" not in data
    node.plugin().unprepare(ref_of(channels(1)))
    prepare(node, channels(2))
    found = decode(node.paths.checkpoint.read_bytes())
    assert found.claims[0].imex == TRAIN
    assert decode(encode(texts_of(found, known={}))) == found


# nodes that come and go


def test_nodes_that_come_and_go_are_told_to_the_daemon(node: Tray) -> None:
    complete(node)
    prepare(node, channels(1))
    state, membership = node.plugin(), node.membership()
    node.told(TRAIN, NODE, "node-c")
    state.imex_domain(membership.nodes_of)
    assert node.domain() == {NODE: "10.0.0.1", "node-c": "10.0.0.3"}
    node.api.edit(kinds.NODES, "node-c", lambda one: one["status"]["addresses"][0].update(address="10.0.0.9"))
    node.now += ADDRESS_AGE
    state.imex_domain(membership.nodes_of)
    assert node.domain() == {NODE: "10.0.0.1", "node-c": "10.0.0.9"}
    node.told(TRAIN)
    with pytest.raises(DomainNotReady):
        state.imex_domain(membership.nodes_of)
    assert node.domain() is not None, "as long as its claims are prepared here"


# what is offered


def files(root: Path, **processes: str) -> HostFiles:
    for number, (name, cgroup) in enumerate(processes.items()):
        folder = root / "proc" / str(100 + number)
        folder.mkdir(parents=True)
        (folder / "comm").write_text(f"{name.replace('_', '-')}\n")
        (folder / "cgroup").write_text(cgroup)
    return HostFiles(root)


def test_channels_are_offered_while_koordra_alone_runs_the_daemon(tmp_path: Path) -> None:
    folder, stop = ImexFolder(tmp_path / "state"), threading.Event()
    pod = files(tmp_path / "pod", nvidia_imex="0::/kubepods.slice/kubepods-pod1.slice/cri-1\n")
    home = tmp_path / "driver"
    driver = named_home(home, HostRoot(tmp_path, tmp_path))
    assert "has no nvidia-imex" in why_not_offered(pod, folder, None)
    assert "has no nvidia-imex" in why_not_offered(pod, folder, driver)
    (home / "usr/bin").mkdir(parents=True)
    (home / "usr/bin/nvidia-imex").touch(mode=0o755)
    assert "`koordra imex` does not run on this node" in why_not_offered(pod, folder, driver)
    with supervising(folder, stop):
        assert why_not_offered(pod, folder, driver) == ""
        of_host = files(tmp_path / "host", nvidia_imex="0::/system.slice/nvidia-imex.service\n")
        text = why_not_offered(of_host, folder, driver)
        assert "the host runs an nvidia-imex of its own (pid 100)" in text
        assert "systemctl disable --now nvidia-imex.service" in text
        wanted = tmp_path / "boot/etc/systemd/system/multi-user.target.wants"
        wanted.mkdir(parents=True)
        (wanted / "nvidia-imex.service").symlink_to("/lib/systemd/system/nvidia-imex.service")
        assert "would start at the next boot" in why_not_offered(HostFiles(tmp_path / "boot"), folder, driver)


def test_nothing_is_published_that_may_not_be_given_out(tmp_path: Path, tray: Discovery) -> None:
    source = InventorySource(tmp_path, offering=Offering(imex=True))
    source.set(tray)
    assert names.IMEX_DEVICE not in source.current().published
    assert "it is not known yet" in (source.current().refusal(names.IMEX_DEVICE) or "")
    assert source.offer_imex("")
    published = source.current().published[names.IMEX_DEVICE]
    assert published.attributes[names.ATTR_CLIQUE].value == CLIQUE
    assert published.allow_multiple_allocations
    assert not source.offer_imex("")
    assert source.offer_imex("the host runs one")
    assert names.IMEX_DEVICE not in source.current().published
    assert "the host runs one" in (source.current().refusal(names.IMEX_DEVICE) or "")


@pytest.mark.parametrize("native", [True, False])
def test_channels_are_for_joint_nodes_whose_cards_are_in_one_clique(tray: Discovery, native: bool) -> None:
    offering, machine = Offering(imex=True), tray.machine
    if not native:
        alone = replace(machine.gpus[0], fabric=FabricInfo("another", 1))
        machine = replace(machine, gpus=(alone, *machine.gpus[1:]))
    devices = build_devices(machine, mode="native" if native else "joint", offering=offering)
    assert names.IMEX_DEVICE not in {device["name"] for device in devices}


def test_no_container_opens_a_channel_without_a_claim(tray: Discovery) -> None:
    guard = guard_of(tray.machine, node_name=NODE)
    (found,) = [one for one in guard.devices if one.name == names.IMEX_DEVICE]
    assert len(found.nodes) == 2048
    assert (found.nodes[0].path, found.nodes[0].major) == (CHANNEL, 234)


def test_the_loop_keeps_offer_and_domain(node: Tray) -> None:
    complete(node)
    prepare(node, channels(1))
    said, state = list[str](), node.plugin()
    loop = ImexLoop(state, node.membership(), why_not=lambda: "why", offer=said.append)
    node.told(TRAIN, NODE, "node-c")
    for _ in range(LOOKS_EACH + 1):
        loop.step()
    assert said == ["why", "why"], "not at every step"
    assert node.domain() == {NODE: "10.0.0.1", "node-c": "10.0.0.3"}
    node.told(TRAIN)
    loop.step()
