"""The routable address of a RoCE NIC in the pod: which entries of its table count, and that a pod without one
does not start."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from koordra.errors import NodeError
from koordra.kubelet_plugin.network import network_decision
from koordra.kubelet_plugin.network.netlink_links import NetlinkLinks
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
from tests.unit.kubelet_plugin.network.test_pod_network import (
    MACVLAN,
    MOVE,
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
    require_gid(look, device="mlx5_7", interface="rail0", addresses=there, sleep=slept.append)
    assert len(slept) == 2
    with pytest.raises(
        NodeError, match=r"NoRoutableGID: mlx5_7 has no RoCE v2 address .*192.168.10.5/24, which rail0"
    ):
        require_gid(lambda _: False, device="mlx5_7", interface="rail0", addresses=there, sleep=slept.append)
    assert len(slept) == 2 + ATTEMPTS - 1
    assert sum(slept) < 1.0  # the runtime waits 2 s for all that its plugins do


def test_a_device_that_is_gone_is_said_to_be() -> None:
    with pytest.raises(NodeError, match="mlx5_7 is not in /sys/class/infiniband"):
        require_gid(lambda _: None, device="mlx5_7", interface="rail0", addresses=["10.0.0.5/8"])


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
    assert links.where == before
    gate = network_decision.gate_file(StateFolder(tmp_path), uid(1))
    assert not gate.exists()
    table(tmp_path / "sys", *DEFAULTS, (OWN, "RoCE v2"))
    pods.attach(sandbox(netns))
    assert gate.exists()
    (claim,) = pods.attached()
    assert claim.devices[0].gid_ready is True


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


def test_what_multus_attached_is_looked_at_too(tmp_path: Path, netns: str) -> None:
    """Its interface has whatever name the network has; its address is one of the pod's."""
    plan = replace(MOVE, kind=NetworkKind.OTHERS, host_interface="", interface="", roce_port=1)
    prepared(tmp_path, plan)
    links = FakeLinks("eth7")
    links.where[netns, "net1"] = replace(links.where[HOST, "eth7"], addresses=("192.168.10.5/24",))
    pods = PodNetworks(tmp_path, links=links, rdma=FakeRdma(links), sys=table(tmp_path / "sys", *DEFAULTS))
    with pytest.raises(NodeError, match="NoRoutableGID"):
        pods.attach(sandbox(netns))
    table(tmp_path / "sys", *DEFAULTS, (OWN, "RoCE v2"))
    pods.attach(sandbox(netns))
    pods.detach(sandbox(netns))
    assert links.steps == []


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
    assert NetlinkLinks().addresses_in(path) == ()
