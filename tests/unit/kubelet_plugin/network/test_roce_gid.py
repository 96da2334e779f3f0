"""The routable address of a RoCE NIC in the pod: which entries of its table count, and that a pod without one
does not start."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest

from koordra.errors import NodeError
from koordra.kubelet_plugin.network import interface_gate
from koordra.kubelet_plugin.network.netlink_links import NetlinkLinks, inside
from koordra.kubelet_plugin.network.pod_network import PodNetworks
from koordra.kubelet_plugin.network.roce_gid import (
    ATTEMPTS,
    has_gid,
    in_pods_sysfs,
    require_gid,
    routable_gids,
)
from koordra.node_state.claim_network import NetworkKind
from koordra.node_state.layout import StateFolder
from tests.fakes.node_claims import uid
from tests.fakes.pod_links import HOST, FakeLinks, FakeRdma
from tests.patience import PATIENCE
from tests.unit.kubelet_plugin.network.test_pod_network import (
    MACVLAN,
    MOVE,
    ip,
    netns,
    prepared,
    sandbox,
    veth,
)

__all__ = ["netns", "veth"]

OWN = "0000:0000:0000:0000:0000:ffff:c0a8:0a05"
LINK_LOCAL = "fe80:0000:0000:0000:0a00:27ff:fe00:0001"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


def table(sys: Path, *entries: tuple[str, str], device: str = "mlx5_7", port: int = 1) -> Path:
    """The port's table of addresses, as the kernel shows it: empty places have no type."""
    folder = sys / "class/infiniband" / device / f"ports/{port}"
    for number, (gid, kind) in enumerate(entries):
        for path, text in ((folder / "gids", gid), (folder / "gid_attrs/types", kind)):
            path.mkdir(parents=True, exist_ok=True)
            if text:
                (path / str(number)).write_text(f"{text}\n")
    return sys


DEFAULTS = ((LINK_LOCAL, "IB/RoCE v1"), (LINK_LOCAL, "RoCE v2"), (EMPTY, ""))


@pytest.mark.parametrize(
    ("addresses", "gids"),
    [
        (["192.168.10.5/24"], {OWN}),
        (["fd00::5/64", "fe80::1/64"], {"fd00:0000:0000:0000:0000:0000:0000:0005"}),
        (["169.254.3.4/16", "127.0.0.1", "::1"], set()),
    ],
)
def test_only_routable_addresses_make_routable_gids(addresses: list[str], gids: set[str]) -> None:
    assert routable_gids(addresses) == gids


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ((*DEFAULTS, (OWN, "IB/RoCE v1"), (OWN, "RoCE v2")), True),
        (DEFAULTS, False),
        ((*DEFAULTS, (OWN, "IB/RoCE v1")), False),
        ((*DEFAULTS, ("0000:0000:0000:0000:0000:ffff:c0a8:0a06", "RoCE v2")), False),
        ((*DEFAULTS, (OWN, "")), False),
        ((), False),
    ],
)
def test_an_entry_is_the_pods_by_its_address_and_version(
    tmp_path: Path, entries: tuple[tuple[str, str], ...], found: bool
) -> None:
    """Neighbours on the NIC have entries of their own, and interfaces of the same name."""
    table(tmp_path, (EMPTY, ""), *entries)
    assert has_gid(tmp_path, "mlx5_7", 1, wanted={OWN}) is found
    assert has_gid(tmp_path, "mlx5_8", 1, wanted={OWN}) is None


def test_the_kernel_is_given_time_and_not_for_ever() -> None:
    looks: list[bool] = []
    slept: list[float] = []

    def look(wanted: Collection[str]) -> bool:
        looks.append(True)
        return len(looks) == 3

    there = ["192.168.10.5/24"]
    found = require_gid(look, device="mlx5_7", interface="rail0", addresses=lambda: there, sleep=slept.append)
    assert (found, len(slept)) == (there, 2)
    with pytest.raises(
        NodeError, match=r"NoRoutableGID: mlx5_7 has no RoCE v2 address .*192.168.10.5/24, which rail0"
    ):
        require_gid(
            lambda _: False, device="mlx5_7", interface="rail0", addresses=lambda: there, sleep=slept.append
        )
    assert len(slept) == 2 + ATTEMPTS - 1
    assert sum(slept) < 1.0  # the runtime waits 2 s for all that its plugins do


def test_a_device_that_is_gone_is_said_to_be() -> None:
    with pytest.raises(NodeError, match="mlx5_7 is not in /sys/class/infiniband"):
        require_gid(lambda _: None, device="mlx5_7", interface="rail0", addresses=lambda: ["10.0.0.5/8"])


def test_an_address_that_a_router_gives_later_counts_and_a_link_local_one_never() -> None:
    asked: list[Collection[str]] = []

    def addresses() -> Collection[str]:
        asked.append(())
        return ["fe80::5/64"] if len(asked) < 4 else ["fe80::5/64", "2001:db8::5/64"]

    def look(wanted: Collection[str]) -> bool:
        assert wanted == {"2001:0db8:0000:0000:0000:0000:0000:0005"}
        return True

    found = require_gid(look, device="m", interface="rail0", addresses=addresses, sleep=lambda _: None)
    assert "2001:db8::5/64" in found
    with pytest.raises(NodeError, match=r"rail0 has no routable address .* or have a router"):
        require_gid(
            look, device="m", interface="rail0", addresses=lambda: ["fe80::5/64"], sleep=lambda _: None
        )


ROCE = replace(MOVE, roce_port=1)


@pytest.mark.parametrize("plan", [ROCE, replace(MACVLAN, ib_device="mlx5_7", roce_port=1)])
def test_no_container_starts_before_the_address_is_there(tmp_path: Path, netns: str, plan: object) -> None:
    prepared(tmp_path, plan)  # type: ignore[arg-type]
    links = FakeLinks("eth7")
    before = dict(links.where)
    table(tmp_path / "sys", *DEFAULTS)
    rdma = FakeRdma(links, "mlx5_7", exclusive=False)
    pods = PodNetworks(tmp_path, links=links, rdma=rdma, sys=tmp_path / "sys")
    with pytest.raises(NodeError, match="NoRoutableGID"):
        pods.attach(sandbox(netns))
    gate = interface_gate.gate_file(StateFolder(tmp_path), uid(1))
    assert not gate.exists()
    assert [claim.devices[0].gid_ready for claim in pods.attached()] == [False]
    assert pods.ready() == ()
    # The interface waits in the pod: one that goes in and out at every try never gets a router's address.
    steps = list(links.steps)
    table(tmp_path / "sys", *DEFAULTS, (OWN, "RoCE v2"))
    pods.attach(sandbox(netns))
    assert gate.exists()
    assert links.steps == steps
    assert [claim.devices[0].gid_ready for claim in pods.ready()] == [True]
    pods.detach(sandbox(netns))
    assert links.where == before


def test_a_pod_that_never_gets_its_address_gives_all_back(tmp_path: Path, netns: str) -> None:
    prepared(tmp_path, ROCE)
    links = FakeLinks("eth7")
    table(tmp_path / "sys", *DEFAULTS)
    pods = PodNetworks(
        tmp_path, links=links, rdma=FakeRdma(links, "mlx5_7", exclusive=False), sys=tmp_path / "sys"
    )
    with pytest.raises(NodeError, match="NoRoutableGID"):
        pods.attach(sandbox(netns))
    other = tmp_path / "netns-2"
    other.touch()
    with pytest.raises(NodeError, match="NoRoutableGID"):  # a sandbox that the kubelet made anew
        pods.attach(sandbox(str(other), 2))
    assert {namespace for namespace, _ in links.where} == {str(other)}
    pods.release_claim(uid(1))
    assert links.where == FakeLinks("eth7").where
    assert pods.attached() == ()


def test_a_nic_that_moves_takes_the_addresses_along_that_it_has_on_the_host(
    tmp_path: Path, netns: str
) -> None:
    prepared(tmp_path, replace(ROCE, addresses=()))
    links = FakeLinks("eth7")
    table(tmp_path / "sys", ("0000:0000:0000:0000:0000:ffff:0a09:0001", "RoCE v2"))
    rdma = FakeRdma(links, "mlx5_7", exclusive=False)
    pods = PodNetworks(tmp_path, links=links, rdma=rdma, sys=tmp_path / "sys")
    pods.attach(sandbox(netns))
    assert links.where[netns, "rail0"].addresses == ("10.9.0.1/24",)
    pods.detach(sandbox(netns))
    assert links.where == FakeLinks("eth7").where


def test_a_nic_without_any_address_is_refused_with_the_remedy(tmp_path: Path, netns: str) -> None:
    prepared(tmp_path, replace(ROCE, addresses=()))
    links = FakeLinks("eth7")
    links.where[HOST, "eth7"] = replace(links.where[HOST, "eth7"], addresses=())
    pods = PodNetworks(tmp_path, links=links, rdma=FakeRdma(links, "mlx5_7", exclusive=False), sys=tmp_path)
    with pytest.raises(NodeError, match=r"would carry nothing: rail0 has no routable address .*network.pool"):
        pods.attach(sandbox(netns))


def test_where_devices_have_namespaces_the_pods_own_table_is_read(tmp_path: Path, netns: str) -> None:
    prepared(tmp_path, ROCE)
    links = FakeLinks("eth7")
    pods_own = table(tmp_path / "inside", (OWN, "RoCE v2"))
    entered: list[str] = []

    def below(path: str, task: object) -> bool | None:
        entered.append(path)
        found: bool | None = task(pods_own)  # type: ignore[operator]
        return found

    pods = PodNetworks(
        tmp_path, links=links, rdma=FakeRdma(links, "mlx5_7"), sys=tmp_path / "sys", pods_sysfs=below
    )
    pods.attach(sandbox(netns))
    assert entered == [netns]
    assert pods.attached()[0].devices[0].gid_ready is True


@pytest.mark.parametrize("exclusive", [False, True])
def test_what_multus_attached_is_looked_at_too(tmp_path: Path, netns: str, exclusive: bool) -> None:
    """Its interface has whatever name the network has; its address is one of the pod's. In mode exclusive
    rdma-cni has moved the device, which the host does not see any more."""
    plan = replace(MOVE, kind=NetworkKind.OTHERS, host_interface="", interface="", roce_port=1)
    prepared(tmp_path, plan)
    links = FakeLinks("eth7")
    links.where[netns, "net1"] = replace(links.where[HOST, "eth7"], addresses=("192.168.10.5/24",))
    seen = table(tmp_path / ("inside" if exclusive else "sys"), *DEFAULTS)
    pods = PodNetworks(
        tmp_path,
        links=links,
        rdma=FakeRdma(links, exclusive=exclusive),
        sys=tmp_path / "sys",
        pods_sysfs=lambda path, task: task(tmp_path / "inside"),
    )
    with pytest.raises(NodeError, match="NoRoutableGID: mlx5_7 has no RoCE v2 address"):
        pods.attach(sandbox(netns))
    table(seen, *DEFAULTS, (OWN, "RoCE v2"))
    pods.attach(sandbox(netns))
    assert pods.attached()[0].devices[0].gid_ready is True
    pods.detach(sandbox(netns))
    assert links.steps == []


def advertise(interface: str, prefix: str) -> None:
    """A router's advertisement of a network in which hosts make their own address (RFC 4861, 4862)."""
    option = struct.pack("!BBBBIII", 3, 4, 64, 0xC0, 3600, 3600, 0) + ipaddress.IPv6Address(prefix).packed
    with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as link:
        link.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        link.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, socket.if_nametoindex(interface))
        link.sendto(struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 0, 0, 0) + option, ("ff02::1", 0))


def test_a_real_address_that_a_router_gives_is_waited_for(tmp_path: Path, veth: tuple[str, str]) -> None:
    """The other end of the veth is the router. The first container comes too early; one link-local address is
    not enough. What the router gave the interface on the host stays behind and comes back with it."""
    name, path = veth
    router = f"{name}z"
    for end, setting, value in ((router, "accept_dad", 0), (router, "forwarding", 1), (name, "accept_ra", 1)):
        knob = Path(f"/proc/sys/net/ipv6/conf/{end}/{setting}")
        if not knob.exists():
            pytest.skip("no IPv6 in this kernel")
        knob.write_text(f"{value}\n")
    ip("link", "set", "dev", router, "up")
    ip("addr", "flush", "dev", name, "scope", "global")
    links = NetlinkLinks(tmp_path)
    prepared(tmp_path, replace(ROCE, bus_id="", host_interface=name, addresses=(), routes=(), mtu=None))
    (tmp_path / "sys").mkdir()

    def kernel(_netns: str, task: Callable[[Path], bool | None]) -> bool | None:
        """The table of a port has an entry for each address of the pod's interface."""
        state = links.state_in(path, "rail0")
        there = [
            LINK_LOCAL,
            *(ipaddress.ip_interface(each).ip.exploded for each in (state.addresses if state else ())),
        ]
        return task(table(tmp_path / "sys", *((entry, "RoCE v2") for entry in there)))

    rdma = FakeRdma(FakeLinks(), "mlx5_7")
    pods = PodNetworks(tmp_path, links=links, rdma=rdma, sys=tmp_path / "sys", pods_sysfs=kernel)
    with pytest.raises(NodeError, match="rail0 has no routable address in the pod"):
        pods.attach(sandbox(path))

    def routed() -> bool:
        advertise(router, "2001:db8:77::")
        state = links.state_in(path, "rail0")
        return state is not None and any(each.startswith("2001:db8:77:") for each in state.addresses)

    until(routed)
    pods.attach(sandbox(path))
    (device,) = pods.attached()[0].devices
    assert device.gid_ready is True
    assert any(each.startswith("2001:db8:77:") for each in device.addresses)
    assert not any(each.startswith("fe80") for each in device.addresses)
    pods.detach(sandbox(path))

    def at_home() -> bool:
        advertise(router, "2001:db8:77::")
        return "2001:db8:77:" in ip("-6", "addr", "show", "dev", name, "dynamic")

    until(at_home)
    assert links.state(name).addresses == ()


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_real_address_of_ipv6_can_be_used_at_once(tmp_path: Path, veth: tuple[str, str]) -> None:
    """Asking the network for a duplicate takes a second, in which a program that binds to it fails."""
    name, path = veth
    ip("link", "set", "dev", f"{name}z", "up")
    prepared(
        tmp_path,
        replace(
            MOVE, bus_id="", host_interface=name, addresses=("fd00:77::5/64",), routes=(), ib_device=None
        ),
    )
    PodNetworks(tmp_path, links=NetlinkLinks(tmp_path)).attach(sandbox(path))

    def bind() -> None:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as mine:
            mine.bind(("fd00:77::5", 0))

    inside(path, bind)


def test_the_real_sysfs_of_a_pods_namespace(veth: tuple[str, str]) -> None:
    """Interfaces stand for RDMA devices, which this machine may have none of: both are of the namespace in
    which sysfs was mounted."""
    name, path = veth
    here = {entry.name for entry in Path("/sys/class/net").iterdir()}

    def listed(sys: Path) -> list[str]:
        return sorted(os.listdir(sys / "class/net"))  # noqa: PTH208

    try:
        assert name not in in_pods_sysfs(path, listed)
    except NodeError as error:
        pytest.skip(f"sysfs cannot be mounted here: {error}")
    NetlinkLinks().move_into(name, netns=path, as_name="rail0")
    assert "rail0" in in_pods_sysfs(path, listed)
    assert {entry.name for entry in Path("/sys/class/net").iterdir()} == here - {name}
    NetlinkLinks().move_back("rail0", netns=path, as_name=name)
    assert NetlinkLinks().addresses_in(path) == {}
