"""NICs in and out of pods: the order, the way back after every kind of end, and the real moves with a veth as
stand-in."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordra.errors import CheckpointError, NodeError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord, DeviceRecord, State
from koordra.kubelet_plugin.network import interface_gate
from koordra.kubelet_plugin.network.netlink_links import NetlinkLinks, inside
from koordra.kubelet_plugin.network.pod_network import PodNetworks
from koordra.kubelet_plugin.network.rdma_links import NetlinkRdma, attribute, attributes
from koordra.kubelet_plugin.prepare.claim_files import network_of
from koordra.node_state import claim_network
from koordra.node_state.claim_network import NetworkKind, NetworkPlan, Sandbox
from koordra.node_state.claim_ref import ClaimRef
from koordra.node_state.disk import Disk
from koordra.node_state.layout import StateFolder
from tests.fakes.disks import DyingDisk, FailingDisk, Killed, StepDisk, UnreadableDisk
from tests.fakes.node_claims import uid
from tests.fakes.pod_links import HOST, FakeLinks, FakeRdma

MOVE = NetworkPlan(
    kind=NetworkKind.MOVE,
    bus_id="0000:5e:00.2",
    host_interface="eth7",
    interface="rail0",
    ib_device="mlx5_7",
    addresses=("192.168.10.5/24",),
    routes=(("10.0.0.0/8", "192.168.10.1"),),
    mtu=1400,
)
MACVLAN = replace(MOVE, kind=NetworkKind.MACVLAN, ib_device=None)


def prepared(state: Path, *plans: NetworkPlan, pods: tuple[str, ...] = ("pod-uid",)) -> None:
    """What Prepare leaves behind for claim 1."""
    record = ClaimRecord(
        ref=ClaimRef("team-a", "claim-1", uid(1)),
        pool="node-a",
        nonce="0" * 32,
        boot_id="boot",
        state=State.COMPLETED,
        devices=tuple(
            DeviceRecord(request="nic", device=f"nic-{index}", type="vf", identity="", network=plan)
            for index, plan in enumerate(plans)
        ),
        pods=pods,
    )
    Disk().replace(
        StateFolder(state).network_file(uid(1)), claim_network.encode(network_of(record)), mode=0o600
    )


@pytest.fixture
def netns(tmp_path: Path) -> str:
    """A path that exists, which is all that doubles look at."""
    path = tmp_path / "netns"
    path.touch()
    return str(path)


def sandbox(netns: str, number: int = 1, *, pod: str = "pod-uid") -> Sandbox:
    return Sandbox(id=f"sandbox-{number}", pod_uid=pod, pod="p", namespace="team-a", netns=netns)


def networks(state: Path, links: FakeLinks, rdma: FakeRdma | None = None) -> PodNetworks:
    return PodNetworks(state, links=links, rdma=rdma or FakeRdma(links, exclusive=False), sys=state / "sys")


def test_in_the_netdev_goes_first_and_out_the_rdma_link(tmp_path: Path, netns: str) -> None:
    prepared(tmp_path, MOVE)
    links = FakeLinks("eth7")
    rdma = FakeRdma(links, "mlx5_7")
    pods = networks(tmp_path, links, rdma)
    pods.attach(sandbox(netns, pod="somebody-else"))
    assert links.steps == []
    pods.attach(sandbox(netns))
    assert links.steps == ["eth7 into the pod as rail0", "rdma mlx5_7 into the pod", "configure rail0"]
    assert links.where[netns, "rail0"].addresses == ("192.168.10.5/24",)
    assert links.where[netns, "rail0"].mtu == 1400
    assert links.routes == [("rail0", "10.0.0.0/8", "192.168.10.1")]
    gate = json.loads(interface_gate.gate_file(StateFolder(tmp_path), uid(1)).read_text())
    assert [device["interface"] for device in gate["devices"]] == ["rail0"]
    # The runtime tries again, or asks twice: nothing more happens.
    pods.attach(sandbox(netns))
    assert len(links.steps) == 3

    pods.detach(sandbox(netns, pod="somebody-else"))
    assert len(links.steps) == 3
    pods.detach(sandbox(netns))
    assert links.steps[3:] == ["rdma mlx5_7 back", "rail0 back as eth7", "restore eth7"]
    assert links.where == {(HOST, "eth7"): FakeLinks("eth7").where[HOST, "eth7"]}
    assert rdma.where == {"mlx5_7": HOST}
    assert pods.attached() == ()
    pods.detach(sandbox(netns))
    assert len(links.steps) == 6


def test_a_share_gets_a_macvlan_and_the_host_keeps_its_interface(tmp_path: Path, netns: str) -> None:
    prepared(tmp_path, MACVLAN)
    links = FakeLinks("eth7")
    pods = networks(tmp_path, links)
    pods.attach(sandbox(netns))
    assert links.steps == ["macvlan rail0 on eth7", "configure rail0"]
    pods.detach(sandbox(netns))
    assert list(links.where) == [(HOST, "eth7")]


def test_efa_goes_by_its_rdma_device_alone(tmp_path: Path, netns: str) -> None:
    prepared(tmp_path, replace(MOVE, host_interface="", interface="rdmap97s0", ib_device="rdmap97s0"))
    links = FakeLinks()
    rdma = FakeRdma(links, "rdmap97s0")
    pods = networks(tmp_path, links, rdma)
    pods.attach(sandbox(netns))
    assert rdma.where == {"rdmap97s0": netns}
    assert interface_gate.gate_file(StateFolder(tmp_path), uid(1)).exists()
    pods.detach(sandbox(netns))
    assert links.steps == ["rdma rdmap97s0 into the pod", "rdma rdmap97s0 back"]


def test_a_lag_carries_the_macvlan_on_its_bond(tmp_path: Path, netns: str) -> None:
    """Its function has an interface of its own, which belongs to the bond."""
    prepared(
        tmp_path, replace(MACVLAN, host_interface="bond0", interface="bond0pod", ib_device="mlx5_bond_0")
    )
    links = FakeLinks("bond0", "ens1f0np0")
    links.of_function[MACVLAN.bus_id] = "ens1f0np0"
    networks(tmp_path, links).attach(sandbox(netns))
    assert links.steps[0] == "macvlan bond0pod on bond0"


@pytest.mark.parametrize(
    ("plan", "child"), [(replace(MOVE, vlan=100), "vlan 100"), (replace(MOVE, pkey=0x8001), "pkey 32769")]
)
def test_vlans_and_partitions_stand_on_top(tmp_path: Path, netns: str, plan: NetworkPlan, child: str) -> None:
    prepared(tmp_path, plan)
    links = FakeLinks("eth7")
    pods = networks(tmp_path, links)
    pods.attach(sandbox(netns))
    assert links.steps[0] == "eth7 into the pod as rail0.b"
    assert child in links.steps[1]
    pods.detach(sandbox(netns))
    assert list(links.where) == [(HOST, "eth7")]


def test_vlans_of_two_functions_of_a_long_name_do_not_meet(tmp_path: Path, netns: str) -> None:
    """The functions of a card differ at the end of the name."""
    plans = [
        replace(
            MOVE,
            vlan=7,
            bus_id=f"0000:5e:00.{n}",
            host_interface=f"enP5p193s0f0v{n}",
            interface=f"enP5p193s0f0v{n}",
        )
        for n in (1, 2)
    ]
    prepared(tmp_path, *plans)
    links = FakeLinks(*(plan.host_interface for plan in plans))
    networks(tmp_path, links, FakeRdma(links, exclusive=False)).attach(sandbox(netns))
    assert sum(namespace == netns for namespace, _ in links.where) == 4


def test_the_hosts_own_way_out_stays(tmp_path: Path, netns: str) -> None:
    prepared(tmp_path, MOVE)
    links = FakeLinks("eth7")
    links.needs["eth7"] = "it carries the host's default route"
    with pytest.raises(
        NodeError, match="HostNeedsNIC: eth7 stays on the host: it carries the host's default"
    ):
        networks(tmp_path, links).attach(sandbox(netns))
    assert links.steps == []
    prepared(tmp_path, MACVLAN)
    networks(tmp_path, links).attach(sandbox(netns))


def test_a_pod_on_the_hosts_network_is_refused(tmp_path: Path) -> None:
    prepared(tmp_path, MOVE)
    with pytest.raises(NodeError, match="the pod is on the host's network"):
        networks(tmp_path, FakeLinks("eth7")).attach(sandbox(""))


@pytest.mark.parametrize("plan", [MOVE, MACVLAN])
def test_a_second_pod_takes_nothing_from_the_first(tmp_path: Path, netns: str, plan: NetworkPlan) -> None:
    """It was reserved after Prepare, and a kubelet that started anew asked for the claim once more."""
    prepared(tmp_path, plan, pods=("pod-uid", "pod-2"))
    links = FakeLinks("eth7")
    pods = networks(tmp_path, links)
    pods.attach(sandbox(netns))
    before, attached = dict(links.where), pods.attached()
    other = tmp_path / "netns-2"
    other.touch()
    with pytest.raises(NodeError, match="is in pod pod-uid"):
        pods.attach(sandbox(str(other), 2, pod="pod-2"))
    assert links.where == before
    assert pods.attached() == attached
    assert interface_gate.gate_file(StateFolder(tmp_path), uid(1)).exists()
    pods.detach(sandbox(netns))
    pods.attach(sandbox(str(other), 2, pod="pod-2"))
    assert (str(other), "rail0") in links.where


def test_records_that_cannot_be_read_are_no_other_claims_trouble(tmp_path: Path, netns: str) -> None:
    """Unprepare of every claim comes by here, also of those without a network."""
    prepared(tmp_path, MOVE)
    links = FakeLinks("eth7")
    pods = networks(tmp_path, links)
    pods.attach(sandbox(netns))
    StateFolder(tmp_path).network_file(uid(3)).write_text("{")
    StateFolder(tmp_path).attached_file(uid(2)).write_text("{")
    pods.release_claim(uid(4))
    pods.release_claim(uid(1))
    assert list(links.where) == [(HOST, "eth7")]
    with pytest.raises(CheckpointError, match=uid(2)):
        pods.release_claim(uid(2))


def test_two_nics_or_none(tmp_path: Path, netns: str) -> None:
    """Whatever fails, what had moved is back, the container cannot start, and the next try succeeds."""
    second = replace(
        MOVE, bus_id="0000:5e:00.3", host_interface="eth8", interface="rail1", ib_device="mlx5_8"
    )
    prepared(tmp_path, MOVE, second)
    before = FakeLinks("eth7", "eth8").where
    for at in range(6):
        links = FakeLinks("eth7", "eth8")
        rdma = FakeRdma(links, "mlx5_7", "mlx5_8")
        pods = networks(tmp_path, links, rdma)
        links.fail_at = at
        with pytest.raises(NodeError, match="netlink"):
            pods.attach(sandbox(netns))
        assert links.where == before
        assert set(rdma.where.values()) == {HOST}
        assert not interface_gate.gate_file(StateFolder(tmp_path), uid(1)).exists()
        pods.attach(sandbox(netns))
        assert interface_gate.gate_file(StateFolder(tmp_path), uid(1)).exists()
        pods.detach(sandbox(netns))
        assert links.where == before


@pytest.mark.parametrize("then", ["attached again", "sandbox made anew", "stopped", "unprepared"])
def test_killed_between_any_two_steps(tmp_path: Path, netns: str, then: str) -> None:
    second = replace(
        MOVE, bus_id="0000:5e:00.3", host_interface="eth8", interface="rail1", ib_device="mlx5_8"
    )
    prepared(tmp_path, MOVE, second)
    before = FakeLinks("eth7", "eth8").where
    for at in range(6):
        links = FakeLinks("eth7", "eth8")
        rdma = FakeRdma(links, "mlx5_7", "mlx5_8")
        links.die_at = at
        with pytest.raises(KeyboardInterrupt):
            networks(tmp_path, links, rdma).attach(sandbox(netns))
        links.die_at = None
        assert not interface_gate.gate_file(StateFolder(tmp_path), uid(1)).exists()
        pods = networks(tmp_path, links, rdma)  # the next process
        match then:
            case "attached again":
                pods.attach(sandbox(netns))
            case "sandbox made anew":
                pods.attach(sandbox(netns, 2))
            case "stopped":
                pods.detach(sandbox(netns))
            case "unprepared":
                pods.release_claim(uid(1))
        if then in {"stopped", "unprepared"}:
            assert links.where == before
        else:
            assert {name for where, name in links.where if where == netns} == {"rail0", "rail1"}
            pods.detach(Sandbox("", "pod-uid", "", "", netns))
            assert links.where == before
        assert set(rdma.where.values()) == {HOST}
        assert pods.attached() == ()


def test_killed_between_any_two_writes_of_its_records(tmp_path: Path, netns: str) -> None:
    """Of where the network is, and of the gate: on the way in and on the way back."""
    before = FakeLinks("eth7").where
    counted = StepDisk()

    def made(state: Path, disk: StepDisk | None = None) -> tuple[PodNetworks, FakeLinks, FakeRdma]:
        links = FakeLinks("eth7")
        rdma = FakeRdma(links, "mlx5_7")
        return PodNetworks(state, links=links, rdma=rdma, disk=disk, sys=state / "sys"), links, rdma  # type: ignore[arg-type]

    prepared(tmp_path / "counted", MOVE)
    pods, _, _ = made(tmp_path / "counted", counted)
    pods.attach(sandbox(netns))
    way_in = len(counted.steps)
    pods.detach(sandbox(netns))
    assert 6 <= way_in < len(counted.steps)
    for at in range(len(counted.steps)):
        state = tmp_path / str(at)
        prepared(state, MOVE)
        pods, links, rdma = made(state, DyingDisk(at))
        with pytest.raises(Killed):  # noqa: PT012
            pods.attach(sandbox(netns))
            pods.detach(sandbox(netns))
        gate = interface_gate.gate_file(StateFolder(state), uid(1))
        inside = {name for where, name in links.where if where == netns}
        assert not gate.exists() or inside, "no container starts without its interface"
        after = networks(state, links, rdma)  # the next process
        if at < way_in:
            after.attach(sandbox(netns))
            assert {name for where, name in links.where if where == netns} == {"rail0"}
            assert gate.exists()
        after.detach(sandbox(netns))
        assert links.where == before, counted.steps[at]
        assert set(rdma.where.values()) == {HOST}
        assert after.attached() == ()
        assert not gate.exists()


def test_any_one_read_of_its_records_fails(tmp_path: Path, netns: str) -> None:
    """No container starts without its NIC, and no NIC stays in a pod that has ended."""
    before, at = FakeLinks("eth7").where, 0
    while True:
        state = tmp_path / str(at)
        prepared(state, MOVE)
        links = FakeLinks("eth7")
        rdma, disk = FakeRdma(links, "mlx5_7"), UnreadableDisk(at)
        pods = PodNetworks(state, links=links, rdma=rdma, disk=disk, sys=state / "sys")  # type: ignore[arg-type]
        failed = 0
        for step in (pods.attach, pods.detach):
            try:
                step(sandbox(netns))
            except CheckpointError as error:
                failed += 1
                assert str(state) in str(error)
                step(sandbox(netns))
        assert links.where == before
        if len(disk.reads) <= at:
            break
        assert failed == 1, disk.reads[at]
        at += 1
    assert at >= 5


def test_killed_on_the_way_back(tmp_path: Path, netns: str) -> None:
    prepared(tmp_path, MOVE)
    before = FakeLinks("eth7").where
    for at in range(3, 6):
        links = FakeLinks("eth7")
        rdma = FakeRdma(links, "mlx5_7")
        networks(tmp_path, links, rdma).attach(sandbox(netns))
        links.die_at = at
        with pytest.raises(KeyboardInterrupt):
            networks(tmp_path, links, rdma).detach(sandbox(netns))
        links.die_at = None
        networks(tmp_path, links, rdma).detach(sandbox(netns))
        assert links.where == before
        assert set(rdma.where.values()) == {HOST}


def test_a_namespace_that_is_gone_has_given_everything_back_by_itself(tmp_path: Path, netns: str) -> None:
    prepared(tmp_path, MOVE)
    links = FakeLinks("eth7")
    pods = networks(tmp_path, links)
    pods.attach(sandbox(netns))
    # The kernel returns the interface, under its name in the pod, down and without addresses.
    state = links.where.pop((netns, "rail0"))
    links.where[HOST, "rail0"] = replace(state, up=False, addresses=())
    Path(netns).unlink()
    links.host_name = lambda *, interface, bus_id: "rail0"  # type: ignore[method-assign]
    pods.detach(sandbox(netns))
    assert links.where == FakeLinks("eth7").where


def test_an_interface_that_a_container_renamed_comes_back(tmp_path: Path, netns: str) -> None:
    """Root with CAP_NET_ADMIN may; it is found by its function."""
    prepared(tmp_path, MOVE)
    links = FakeLinks("eth7")
    pods = networks(tmp_path, links)
    pods.attach(sandbox(netns))
    links.where[netns, "mine"] = links.where.pop((netns, "rail0"))
    links.of_function[MOVE.bus_id] = "mine"
    pods.detach(sandbox(netns))
    assert links.where == FakeLinks("eth7").where


def test_an_interface_that_is_nowhere_is_waited_for_while_its_function_has_one(
    tmp_path: Path, netns: str
) -> None:
    """A container took it into a namespace of its own, which the kernel ends after the container."""
    prepared(tmp_path, MOVE)
    links = FakeLinks("eth7")
    pods = networks(tmp_path, links)
    pods.attach(sandbox(netns))
    hidden = links.where.pop((netns, "rail0"))
    interfaces = tmp_path / "sys/bus/pci/devices" / MOVE.bus_id / "net"
    interfaces.mkdir(parents=True)
    with pytest.raises(NodeError, match=r"eth7 of 0000:5e:00\.2 is in neither host nor pod; tried again"):
        pods.detach(sandbox(netns))
    links.where[HOST, "dev7"] = replace(hidden, up=False, addresses=())
    links.of_function[MOVE.bus_id] = "dev7"
    pods.release_claim(uid(1))
    assert links.where == FakeLinks("eth7").where
    # A card that is gone is not waited for.
    pods.attach(sandbox(netns))
    links.where.pop((netns, "rail0"))
    interfaces.rmdir()
    pods.detach(sandbox(netns))
    assert pods.attached() == ()


def test_a_nic_that_does_not_come_back_keeps_no_other_in_the_pod(tmp_path: Path, netns: str) -> None:
    second = replace(
        MOVE, bus_id="0000:5e:00.3", host_interface="eth8", interface="rail1", ib_device="mlx5_8"
    )
    prepared(tmp_path, MOVE, second)
    links = FakeLinks("eth7", "eth8")
    pods = networks(tmp_path, links)
    pods.attach(sandbox(netns))
    hidden = links.where.pop((netns, "rail0"))
    (tmp_path / "sys/bus/pci/devices" / MOVE.bus_id / "net").mkdir(parents=True)
    with pytest.raises(NodeError, match=r"eth7 of .* is in neither host nor pod"):
        pods.detach(sandbox(netns))
    assert links.where[HOST, "eth8"] == FakeLinks("eth7", "eth8").where[HOST, "eth8"]
    links.where[netns, "rail0"] = hidden
    pods.detach(sandbox(netns))
    assert links.where == FakeLinks("eth7", "eth8").where


def test_a_function_in_switchdev_mode_is_not_taken_for_its_representors(tmp_path: Path) -> None:
    """After a pod's end its interface has another name, and those of its virtual functions are beside it."""
    folder = tmp_path / "bus/pci/devices/0000:5e:00.0/net"
    for name, label in (("eth0", "pf0vf0"), ("eth1", "pf0vf1"), ("rail0", "p0"), ("zz", "pf0sf88")):
        (folder / name).mkdir(parents=True)
        (folder / name / "phys_port_name").write_text(f"{label}\n")
    assert NetlinkLinks(tmp_path).host_name(interface="enp94s0np0", bus_id="0000:5e:00.0") == "rail0"


@pytest.mark.parametrize("at", range(12))
def test_a_full_disk_leaves_no_nic_behind(tmp_path: Path, netns: str, at: int) -> None:
    """At whichever step: the container does not start then, and once there is room the next try succeeds. A
    pod that ends first gives the NIC back although the disk is full."""
    second = replace(
        MOVE, bus_id="0000:5e:00.3", host_interface="eth8", interface="rail1", ib_device="mlx5_8"
    )
    before = FakeLinks("eth7", "eth8").where
    for ends in (False, True):
        prepared(tmp_path, MOVE, second)
        links = FakeLinks("eth7", "eth8")
        rdma, disk = FakeRdma(links, "mlx5_7", "mlx5_8"), FailingDisk(at, error=errno.ENOSPC)
        pods = PodNetworks(tmp_path, links=links, rdma=rdma, disk=disk, sys=tmp_path / "sys")  # type: ignore[arg-type]
        with contextlib.suppress(CheckpointError):
            pods.attach(sandbox(netns))
        if not ends:
            pods.attach(sandbox(netns))
            assert {name for where, name in links.where if where == netns} == {"rail0", "rail1"}
        disk.full = True
        pods.detach(sandbox(netns))
        assert links.where == before
        assert set(rdma.where.values()) == {HOST}


def test_guids_are_written_where_the_driver_takes_them(tmp_path: Path, netns: str) -> None:
    devices = tmp_path / "sys" / "bus" / "pci" / "devices"
    for bus_id in ("0000:5e:00.0", "0000:5e:00.2"):
        (devices / bus_id).mkdir(parents=True)
    (devices / "0000:5e:00.2" / "physfn").symlink_to("../0000:5e:00.0")
    (devices / "0000:5e:00.0" / "virtfn1").symlink_to("../0000:5e:00.2")
    (devices / "0000:5e:00.0" / "sriov" / "1").mkdir(parents=True)
    prepared(tmp_path, replace(MOVE, guid="0011:2233:4455:6677"))
    networks(tmp_path, FakeLinks("eth7")).attach(sandbox(netns))
    for field in ("node", "port"):
        written = (devices / "0000:5e:00.0" / "sriov" / "1" / field).read_text()
        assert written == "00:11:22:33:44:55:66:77"
    prepared(tmp_path, replace(MOVE, guid="0011:2233:4455:6677", bus_id="0000:5e:00.0"))
    with pytest.raises(NodeError, match="is not a virtual function"):
        networks(tmp_path, FakeLinks("eth7")).attach(sandbox(netns, 2))


def test_an_attachment_is_the_plugins_business(tmp_path: Path, netns: str) -> None:
    log = tmp_path / "calls"
    program = tmp_path / "cni" / "rail"
    program.parent.mkdir()
    program.write_text(
        # What is not written down before would not be taken back after a kill.
        f"#!/bin/sh\n[ -e {StateFolder(tmp_path).attached_file(uid(1))} ] || exit 1\n"
        f'echo "$CNI_COMMAND $CNI_IFNAME $CNI_CONTAINERID $K" >> {log}\ncat >> {log}\necho >> {log}\n'
        '[ "$CNI_COMMAND" = ADD ] && echo \'{"cniVersion":"1.0.0","ips":[{"address":"10.5.0.9/16"}]}\'\nexit 0\n'
    )
    program.chmod(0o755)
    config = json.dumps(
        {"cniVersion": "1.0.0", "name": "rail", "plugins": [{"type": "rail"}, {"type": "rail"}]}
    )
    plan = replace(MOVE, kind=NetworkKind.ATTACH, ib_device=None, cni=config)
    prepared(tmp_path, plan)
    pods = PodNetworks(tmp_path, links=FakeLinks("eth7"), sys=tmp_path, cni_dirs=[program.parent])
    pods.attach(sandbox(netns))
    (claim,) = pods.attached()
    assert claim.devices[0].addresses == ("10.5.0.9/16",)
    pods.detach(sandbox(netns))
    lines = log.read_text().splitlines()
    assert [line.split()[0] for line in lines if "rail0" in line and not line.startswith("{")] == [
        "ADD",
        "ADD",
        "DEL",
        "DEL",
    ]
    first = json.loads(lines[1])
    assert (first["deviceID"], first["name"]) == ("0000:5e:00.2", "rail")
    assert json.loads(lines[3])["prevResult"]["ips"]

    program.write_text('#!/bin/sh\necho \'{"code": 7, "msg": "no address left"}\'\nexit 1\n')
    with pytest.raises(NodeError, match="CNI plugin rail ADD: no address left"):
        pods.attach(sandbox(netns))
    assert pods.attached() == ()
    for name in ("../sh", "", "absent"):
        prepared(tmp_path, replace(plan, cni=json.dumps({"type": name})))
        with pytest.raises(Exception, match=r"is not a plugin type|is not in"):
            pods.attach(sandbox(netns))


# The RDMA protocol against a kernel that is a function.


class FakeKernel:
    """NETLINK_RDMA: answers the three commands that are used; `moves` are (device index, descriptor)."""

    def __init__(self, *, mode: int = 0) -> None:
        self.mode = mode
        self.devices = {3: "mlx5_7", 4: "mlx5_70"}
        self.moves: list[tuple[int, int]] = []

    def __call__(self, request: bytes) -> list[bytes]:
        length, kind, flags, _, _ = struct.unpack_from("=IHHII", request)
        assert length == len(request)
        client, command = kind >> 10, kind & 0x3FF
        assert client == 5
        body = attributes(request[16:])
        if command == 6:
            return [attribute(66, bytes([self.mode]))]
        if command == 1:
            assert flags & 0x300 == 0x300
            return [
                attribute(1, struct.pack("=I", index)) + attribute(2, name.encode() + b"\0")
                for index, name in self.devices.items()
            ]
        assert command == 2
        self.moves.append((struct.unpack("=I", body[1])[0], struct.unpack("=I", body[68])[0]))
        return []


def test_the_rdma_protocol(tmp_path: Path, netns: str) -> None:
    kernel = FakeKernel()
    entered: list[str] = []

    def enter(path: str, task: Callable[[], None]) -> None:
        entered.append(path)
        task()

    rdma = NetlinkRdma(kernel, enter=enter)
    assert rdma.exclusive()
    assert not NetlinkRdma(FakeKernel(mode=1)).exclusive()
    assert rdma.present("mlx5_7")
    assert not rdma.present("mlx5_1")
    rdma.move_into("mlx5_7", netns=netns)
    rdma.move_back("mlx5_70", netns=netns)
    assert [index for index, _ in kernel.moves] == [3, 4]
    assert entered == [netns]
    with pytest.raises(NodeError, match="no RDMA device mlx5_1"):
        rdma.move_into("mlx5_1", netns=netns)
    with pytest.raises(NodeError, match="is the pod still there"):
        rdma.move_into("mlx5_7", netns=str(tmp_path / "gone"))

    def no_rdma(request: bytes) -> list[bytes]:
        raise OSError(93, "Protocol not supported")

    assert not NetlinkRdma(no_rdma).exclusive()


def test_attributes_are_padded_and_read_back() -> None:
    packed = attribute(2, b"abc\0") + attribute(7, b"\x01") + attribute(9, b"")
    assert len(packed) % 4 == 0
    assert attributes(packed) == {2: b"abc\0", 7: b"\x01", 9: b""}
    assert attributes(b"\x01\x00") == {}
    assert attributes(b"\x00\x00\x01\x00" * 3) == {}


# The real thing, with a veth.


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def veth(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A veth on the host, in a namespace of the test, and the path of a pod's namespace. Needs root and the
    ip program."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    name = f"kt{os.getpid() % 100000}"
    pod = f"{name}p"
    try:
        ip("netns", "add", pod)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")
    try:
        try:
            ip("link", "add", name, "type", "veth", "peer", "name", f"{name}z")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no veth in this kernel: {error.stderr}")
        ip("addr", "add", "10.77.0.1/24", "dev", name)
        ip("link", "set", name, "mtu", "1450", "up")
        yield name, f"/var/run/netns/{pod}"
    finally:
        subprocess.run(["ip", "netns", "del", pod], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", f"{name}z"], check=False, capture_output=True)


def test_a_real_interface_goes_into_a_real_namespace_and_comes_back(
    tmp_path: Path, veth: tuple[str, str]
) -> None:
    name, netns = veth
    prepared(tmp_path, replace(MOVE, bus_id="", host_interface=name, ib_device=None))
    pods = PodNetworks(tmp_path, links=NetlinkLinks(tmp_path / "sys"), sys=tmp_path / "sys")
    before = NetlinkLinks().state(name)
    assert (before.mtu, before.up, before.addresses) == (1450, True, ("10.77.0.1/24",))
    pods.attach(sandbox(netns))
    assert NetlinkLinks().host_name(interface=name, bus_id="") is None
    state = NetlinkLinks().state_in(netns, "rail0")
    assert state is not None
    assert (state.mtu, state.up, state.mac, state.addresses) == (1400, True, before.mac, ("192.168.10.5/24",))
    shown = ip("-n", Path(netns).name, "route")
    assert "10.0.0.0/8 via 192.168.10.1 dev rail0" in shown
    (claim,) = pods.attached()
    assert claim.devices[0].mac == before.mac
    pods.attach(sandbox(netns))
    pods.detach(sandbox(netns))
    assert NetlinkLinks().state(name) == before
    assert NetlinkLinks().state_in(netns, "rail0") is None


def test_a_real_macvlan(tmp_path: Path, veth: tuple[str, str]) -> None:
    name, netns = veth
    prepared(tmp_path, replace(MACVLAN, bus_id="", host_interface=name, routes=(), mtu=None))
    pods = PodNetworks(tmp_path, links=NetlinkLinks(tmp_path / "sys"), sys=tmp_path / "sys")
    try:
        pods.attach(sandbox(netns))
    except NodeError as error:
        pytest.skip(f"no macvlan in this kernel: {error}")
    state = NetlinkLinks().state_in(netns, "rail0")
    assert state is not None
    assert state.addresses == ("192.168.10.5/24",)
    assert NetlinkLinks().state(name).up
    pods.detach(sandbox(netns))
    assert NetlinkLinks().state_in(netns, "rail0") is None


def test_a_real_interface_on_which_another_stands_stays(tmp_path: Path, veth: tuple[str, str]) -> None:
    """As a VLAN of the host does: it would lose its ground, and its routes."""
    name, netns = veth
    prepared(tmp_path, replace(MOVE, bus_id="", host_interface=name, ib_device=None))
    pods = PodNetworks(tmp_path)
    above = f"{name}m"
    try:
        ip("link", "add", "link", name, "name", above, "type", "macvlan")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no macvlan in this kernel: {error.stderr}")
    with pytest.raises(NodeError, match=f"HostNeedsNIC: {name} stays on the host: {above} stands on it"):
        pods.attach(sandbox(netns))
    assert NetlinkLinks().state(name).addresses == ("10.77.0.1/24",)
    ip("link", "del", above)
    pods.attach(sandbox(netns))
    # A macvlan that a pod has is none of the host's.
    pods.detach(sandbox(netns))
    prepared(tmp_path, replace(MACVLAN, bus_id="", host_interface=name, routes=(), mtu=None))
    pods.attach(sandbox(netns))
    assert NetlinkLinks().needed(name) is None


@pytest.mark.parametrize(
    "route",
    [
        "default via 10.78.0.9 dev one",
        "default nexthop via 10.79.0.9 dev two nexthop via 10.78.0.9 dev one",
        "-6 default via fd00:78::9 dev one",
    ],
)
def test_every_way_of_a_real_default_route_stays(tmp_path: Path, veth: tuple[str, str], route: str) -> None:
    """Also one of several, of which /proc/net/route shows the first. The namespace stands for the host's."""
    _, netns = veth
    here = ("-n", Path(netns).name)
    ip(*here, "link", "add", "one", "type", "veth", "peer", "name", "two")
    for interface, number in (("one", 78), ("two", 79)):
        ip(*here, "addr", "add", f"10.{number}.0.1/24", "dev", interface)
        ip(*here, "addr", "add", f"fd00:{number}::1/64", "dev", interface, "nodad")
        ip(*here, "link", "set", "dev", interface, "up")
    links = NetlinkLinks(tmp_path)
    assert inside(netns, lambda: links.needed("one")) is None
    ip(*here, "route", "add", "10.80.0.0/16", "via", "10.78.0.9", "dev", "one")
    ip(*here, "route", "add", "table", "101", "default", "via", "10.78.0.9", "dev", "one")
    assert inside(netns, lambda: links.needed("one")) is None
    family, rest = (("-6",), route[3:]) if route.startswith("-6") else ((), route)
    ip(*here, *family, "route", "add", *rest.split())
    assert inside(netns, lambda: links.needed("one")) == "it carries the host's default route"


def test_a_real_interface_answers_for_its_own_addresses_alone(tmp_path: Path, veth: tuple[str, str]) -> None:
    """Of two NICs in one network each would answer for both, and packets of RDMA for the one come to the
    other."""
    name, netns = veth
    prepared(tmp_path, replace(MACVLAN, bus_id="", host_interface=name, mtu=None, routes=()))
    PodNetworks(tmp_path, links=NetlinkLinks(tmp_path)).attach(sandbox(netns))

    def settings() -> list[str]:
        folder = Path("/proc/sys/net/ipv4/conf/rail0")
        return [(folder / knob).read_text().strip() for knob in ("arp_ignore", "arp_announce")]

    assert inside(netns, settings) == ["1", "2"]


def test_real_rails_have_each_their_own_way_to_the_others(tmp_path: Path, veth: tuple[str, str]) -> None:
    """RDMA asks for the way from its own interface. The pod's own default route stays the one for all else,
    though a pool says one, too."""
    name, netns = veth
    here = ("-n", Path(netns).name)
    ip(*here, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0z")
    ip(*here, "addr", "add", "10.244.0.5/24", "dev", "eth0")
    ip(*here, "link", "set", "dev", "eth0", "up")
    ip(*here, "addr", "add", "fd00:244::5/64", "dev", "eth0", "nodad")
    ip(*here, "route", "add", "default", "via", "10.244.0.1")
    ip(*here, "-6", "route", "add", "default", "via", "fd00:244::1")
    ip("link", "set", "dev", f"{name}z", "up")
    plans = [
        replace(
            MACVLAN,
            bus_id="",
            host_interface=name,
            interface=f"rail{rail}",
            mtu=None,
            addresses=(f"10.{rail}.0.5/24", f"fd00:{rail}::5/64"),
            routes=(
                *((to, f"10.{rail}.0.1") for to in ("10.8.0.0/13", "0.0.0.0/0")),
                ("::/0", f"fd00:{rail}::1"),
            ),
        )
        for rail in (10, 11)
    ]
    prepared(tmp_path, *plans)
    PodNetworks(tmp_path, links=NetlinkLinks(tmp_path)).attach(sandbox(netns))
    for rail in (10, 11):
        for to in ("10.12.0.9", "172.16.0.9"):
            found = ip(*here, "route", "get", to, "oif", f"rail{rail}")
            assert f"via 10.{rail}.0.1 dev rail{rail}" in found
    assert "via 10.244.0.1 dev eth0" in ip(*here, "route", "get", "1.1.1.1")
    assert "via fd00:244::1 dev eth0" in ip(*here, "-6", "route", "get", "2001:db8::1")
    assert "via fd00:11::1 dev rail11" in ip(*here, "-6", "route", "get", "2001:db8::1", "oif", "rail11")


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"mtu": 9000}, "MTU 9000 of rail0: .*; is it more than that of the NIC on the host"),
        (
            {"routes": (("10.0.0.0/8", "172.16.0.1"),)},
            "route to 10.0.0.0/8 via 172.16.0.1: .*has the interface",
        ),
    ],
)
def test_what_a_real_kernel_does_not_take_is_named(
    tmp_path: Path, veth: tuple[str, str], plan: dict[str, Any], said: str
) -> None:
    """A macvlan's packets are no larger than those of the NIC below it, whose MTU is 1450."""
    name, netns = veth
    base = replace(MACVLAN, bus_id="", host_interface=name, mtu=None, routes=())
    prepared(tmp_path, replace(base, **plan))
    with pytest.raises(NodeError, match=said):
        PodNetworks(tmp_path, links=NetlinkLinks(tmp_path)).attach(sandbox(netns))
    assert NetlinkLinks(tmp_path).state_in(netns, "rail0") is None


def test_a_pod_that_is_gone_says_so(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="is the pod still there"):
        inside(str(tmp_path / "gone"), lambda: None)
