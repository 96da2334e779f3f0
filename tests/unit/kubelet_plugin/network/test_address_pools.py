"""Pools of addresses: never one address for two pods, whatever the plugin is killed in; the parts of nodes;
what is refused, with figures."""

from __future__ import annotations

import ipaddress
import json
import re
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from koordra.errors import Conflict, InvalidManifest, NotFound, PrepareError
from koordra.kubelet_plugin.network.address_pools import SCHEMA, NodePool, Pool, free_address, read_pools
from koordra.kubelet_plugin.network.consumers import ClaimSource, Consumers
from koordra.kubelet_plugin.network.node_parts import NAME, NetworkPools, NodeParts, PartsInUse
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.kubelet_plugin.publish.node_inventory import NodeInventory, inventory_of
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.node_state import claim_network
from koordra.node_state.disk import Disk
from koordra.topology.problems import Discovery
from tests.fakes.disks import DyingDisk, Killed, StepDisk
from tests.fakes.node_claims import ANY_ISOLATION, NIC_0, NIC_0B, NIC_1, NODE, claim, nic, parameters, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of

POOLS = """
schema: koordra.io/network-pools/v1
pools:
  - name: rails
    perNode: 29
    networks:
      - {cidr: 10.10.0.0/24, rail: 0, gateway: 10.10.0.6, routes: [10.0.0.0/8]}
      - {cidr: 10.11.0.0/24, rail: 1}
      - {cidr: 10.99.0.0/24}
  - name: wide
    perNode: 64
    networks: [{cidr: "fd00::/48"}]
"""


def pools() -> dict[str, Pool]:
    return dict(read_pools(POOLS, source="pools.yaml"))


def with_part(pool: Pool, number: int) -> NodePool:
    """With the part of this number of each network."""
    parts = (islice(each.cidr.subnets(new_prefix=pool.per_node), number, None) for each in pool.networks)
    return NodePool(pool, tuple(map(next, parts)))


def consumers(number: int = 0) -> Consumers:
    found = pools()
    given = {name: with_part(pool, number) for name, pool in found.items()}
    return Consumers(pods=("pod-1",), pools=found, given=given)


def plugin(node: PluginNode, disk: Disk | None = None, *, of: Consumers | None = None) -> DeviceState:
    return node.networked(of or consumers(), disk=disk)


def wanting(number: int, *devices: Any, pool: str = "rails", **of_claim: Any) -> dict[str, Any]:
    config = [parameters("RdmaConfig", source="FromClass", network={"pool": pool})]
    config += [parameters("RdmaConfig", network=of_claim)] if of_claim else []
    return claim(number, *(devices or (nic("nic", NIC_0, "1"),)), config=config)


def prepared(node: PluginNode, obj: dict[str, Any], state: DeviceState | None = None) -> list[Any]:
    node.claims.put(obj)
    record = (state or plugin(node)).prepare(ref_of(obj))
    return [device.network for device in record.devices]


def refusal(node: PluginNode, obj: dict[str, Any]) -> str:
    with pytest.raises(PrepareError) as caught:
        prepared(node, obj)
    return str(caught.value)


def known(node: PluginNode) -> dict[str, set[str]]:
    """Every address that is written anywhere on the node: address -> the claims that have it."""
    found: dict[str, set[str]] = {}
    for record in node.checkpoint().of_boot(node.inventory.boot_id):
        for device in record.devices:
            for address in device.network.addresses if device.network else ():
                found.setdefault(address, set()).add(record.ref.uid)
    for network in claim_network.read_networks(node.paths, Disk()):
        for _, plan in network.plans:
            for address in plan.addresses:
                found.setdefault(address, set()).add(network.uid)
    return found


def test_each_nic_gets_an_address_of_its_rail(node: PluginNode) -> None:
    first, second = prepared(node, wanting(1, nic("a", NIC_0, "1"), nic("b", NIC_1, "1")))
    assert first.addresses[0].startswith("10.10.0.")
    assert first.addresses[0].endswith("/24")
    assert first.routes == (("10.0.0.0/8", "10.10.0.6"),)
    assert second.addresses[0].startswith("10.11.0.")
    assert second.routes == ()
    plugin(node).unprepare(ref_of(wanting(1)))
    assert known(node) == {}


def test_a_part_gives_all_that_is_usable_and_says_when_it_is_used_up(node: PluginNode) -> None:
    """Of the first part's eight addresses the network's own and the gateway's are nobody's."""
    state = plugin(node)
    given = [prepared(node, wanting(number), state)[0].addresses[0] for number in range(6)]
    assert {*given} == {f"10.10.0.{last}/24" for last in (1, 2, 3, 4, 5, 7)}
    text = refusal(node, wanting(9))
    assert (
        "PoolExhausted: pool rails: this node's part 10.10.0.0/29 of 10.10.0.0/24 has 8 addresses, 6 of them"
        in text
    )
    # What is given back can be had again, by whoever comes next.
    state.unprepare(ref_of(wanting(2)))
    assert prepared(node, wanting(9))[0].addresses == (given[2],)


def test_an_address_that_was_just_given_up_is_not_the_next_one() -> None:
    pool = with_part(pools()["wide"], 0)
    given = {free_address(pool, rail=None, key=f"claim-{number}", used=())[0] for number in range(64)}
    assert len(given) == 64


@pytest.mark.parametrize(
    ("obj", "complaint"),
    [
        (
            wanting(1, pool="absent"),
            "there is no pool absent of addresses on this node, only rails, wide; add it",
        ),
        (
            claim(
                1,
                nic("nic", NIC_0, "1"),
                config=[
                    parameters("RdmaConfig", source="FromClass", network={"addresses": ["10.11.0.9/24"]})
                ],
            ),
            "10.11.0.9/24 is of pool rails, which gives its addresses itself",
        ),
    ],
)
def test_what_would_make_two_owners_of_an_address_is_refused(
    node: PluginNode, obj: dict[str, Any], complaint: str
) -> None:
    assert complaint in refusal(node, obj)
    assert node.holders() == set()


def test_a_rail_without_a_network_is_refused() -> None:
    pool = replace(pools()["rails"], networks=pools()["rails"].networks[:2])
    with pytest.raises(PrepareError, match="networks of rails 0, 1, and the NIC is on rail 7"):
        free_address(with_part(pool, 0), rail=7, key="x", used=())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(0, 7), st.none() | st.integers(0, 45)), min_size=1, max_size=14))
def test_no_address_is_ever_two_claims_whatever_the_plugin_is_killed_in(
    tmp_path_factory: pytest.TempPathFactory, inventory: NodeInventory, steps: list[tuple[int, int | None]]
) -> None:
    """Claims come and go on a part of six addresses; each call may be the plugin's last, at any step of the
    disk. `held` is what the kubelet was answered."""
    node = PluginNode(tmp_path_factory.mktemp("pool"), inventory)
    held: dict[int, str] = {}
    leaving: set[int] = set()
    for number, dies_at in steps:
        obj = wanting(number)
        disk = DyingDisk(dies_at) if dies_at is not None else StepDisk()
        with suppress(Killed):
            state = plugin(node, disk)
            if number in held:
                leaving.add(number)
                state.unprepare(ref_of(obj))
                leaving.discard(number)
                del held[number]
            else:
                try:
                    held[number] = prepared(node, obj, state)[0].addresses[0]
                except PrepareError as error:
                    assert "PoolExhausted" in str(error)
                    assert len(known(node)) == 6
        assert all(len(claims) == 1 for claims in known(node).values())
        for other, address in held.items():
            if other not in leaving:
                assert known(node)[address] == {uid(other)}
        for other in sorted(leaving):  # the kubelet repeats what was not answered
            plugin(node).unprepare(ref_of(wanting(other)))
            leaving.discard(other)
            del held[other]
    # A restarted kubelet asks again: the pods keep their addresses.
    for number, address in held.items():
        assert prepared(node, wanting(number))[0].addresses == (address,)


def test_a_lost_checkpoint_forgets_no_address(node: PluginNode) -> None:
    """What a recovered claim's pod has is in the file by which it got it. The others are on the other port of
    the card, and so on the same rail: how much of its NIC a recovered claim has is not known."""
    (plan,) = prepared(node, wanting(1))
    node.paths.checkpoint.write_text("{")
    others = [wanting(number, nic("nic", NIC_0B, "1")) for number in range(2, 8)]
    given = {prepared(node, obj)[0].addresses[0] for obj in others[:-1]}
    assert plan.addresses[0] not in given
    assert len(given) == 5
    assert "PoolExhausted" in refusal(node, others[-1])
    assert prepared(node, wanting(1))[0].addresses == plan.addresses


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("schema: koordra.io/network-pools/v1", "schema: x"), "schema: is no list of pools"),
        (("perNode: 29", "perNode: 23"), "a part of /23 is none of 10.10.0.0/24"),
        (("perNode: 29", "perNode: 32"), "a part of /32 is none of"),
        (("perNode: 29", ""), "perNode: it is missing"),
        (("10.11.0.0/24, rail: 1", "10.11.0.0/24, rail: 0"), "two networks are of one rail"),
        (("10.11.0.0/24", "10.10.0.128/25"), "10.10.0.0/24 of rails and 10.10.0.128/25 of rails overlap"),
        (("10.11.0.0/24", "10.11.0.1/24"), "has host bits set"),
        (("gateway: 10.10.0.6", "gateway: none"), "gateway: 'none' does not appear to be an IPv4 or IPv6"),
        (("gateway: 10.10.0.6", "gateway: 10.12.0.6"), "10.12.0.6 is not in 10.10.0.0/24"),
        (("routes: [10.0.0.0/8]", 'routes: ["fd00::/8"]'), "fd00::/8 is not of the kind of 10.10.0.0/24"),
        (("rail: 1", "exclude: [10.12.0.0/28]"), "10.12.0.0/28 is not in 10.11.0.0/24"),
        (("name: wide", "name: rails"), "two pools have one name"),
        (("rail: 1", "rial: 1"), "rial: there is no such field"),
        (("schema", "{"), "is not YAML"),
    ],
)
def test_misspelt_pools_are_refused_by_name(change: tuple[str, str], complaint: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        read_pools(POOLS.replace(*change, 1), source="pools.yaml")
    assert complaint in str(caught.value)
    assert "pools.yaml" in str(caught.value)


# The parts of nodes.


class FakeConfigMap:
    """One ConfigMap with its version; `between` is called before a write, as another node would come
    between."""

    def __init__(self, **data: str) -> None:
        self.object: dict[str, Any] | None = {"metadata": {"resourceVersion": "1"}, "data": data}
        self.between: Any = None

    def get(self, kind: Any, name: str, *, namespace: str) -> Any:
        assert (kind.plural, name, namespace) == ("configmaps", NAME, "koordra-system")
        if self.object is None:
            raise NotFound(name)
        return json.loads(json.dumps(self.object))

    def patch(self, kind: Any, name: str, body: Any, *, namespace: str) -> Any:
        assert self.object is not None
        if self.between:
            (step, self.between) = (self.between, None)
            step()
        if body["metadata"]["resourceVersion"] != self.object["metadata"]["resourceVersion"]:
            raise Conflict("changed")
        self.write(body["data"])

    def write(self, data: dict[str, str]) -> None:
        assert self.object is not None
        version = str(int(self.object["metadata"]["resourceVersion"]) + 1)
        self.object = {"metadata": {"resourceVersion": version}, "data": {**self.object["data"], **data}}


def parts_of(api: Any, node: str, pool: Pool) -> list[str]:
    return [str(part) for part in NodeParts(api, node=node, namespace="koordra-system").of(pool).parts]


def pool_of(*networks: str, per_node: int, name: str = "rails", **more: Any) -> Pool:
    listed = [{"cidr": cidr, "rail": rail, **more} for rail, cidr in enumerate(networks)]
    document = {"schema": SCHEMA, "pools": [{"name": name, "perNode": per_node, "networks": listed}]}
    return read_pools(json.dumps(document), source="pools.yaml")[name]


def test_every_node_has_parts_of_its_own_and_keeps_them() -> None:
    api = FakeConfigMap()
    pool = pool_of("10.10.0.0/16", "10.11.0.0/16", per_node=26)
    found = [parts_of(api, node, pool) for node in ("a", "b", "a")]
    assert found == [
        ["10.10.0.0/26", "10.11.0.0/26"],
        ["10.10.0.64/26", "10.11.0.64/26"],
        ["10.10.0.0/26", "10.11.0.0/26"],
    ]
    api.between = lambda: api.write({"10.10.0.128-26": "e", "10.11.0.128-26": "e"})
    assert parts_of(api, "d", pool) == ["10.10.0.192/26", "10.11.0.192/26"]
    links = pool_of("10.13.0.0/30", per_node=31)
    assert [parts_of(api, node, links) for node in ("a", "b")] == [["10.13.0.0/31"], ["10.13.0.2/31"]]
    halves = pool_of("10.12.0.0/24", per_node=25)
    assert [parts_of(api, node, halves) for node in ("a", "b")] == [["10.12.0.0/25"], ["10.12.0.128/25"]]
    assert parts_of(api, "a", pool_of("fd00:1::/48", per_node=64)) == ["fd00:1::/64"]
    assert parts_of(api, "b", pool_of("fd00:1::/48", per_node=64)) == ["fd00:1:0:1::/64"]
    assert api.object is not None
    assert api.object["data"]["fd00_1_0_1__-64"] == "b"
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]+", key) for key in api.object["data"])


@pytest.mark.parametrize(
    ("changed", "of_a", "of_b"),
    [
        (pool_of("10.10.0.0/16", per_node=26, name="renamed"), "10.10.0.0/26", "10.10.0.64/26"),
        (pool_of("10.10.0.0/16", per_node=27), "10.10.0.0/26", "10.10.0.64/27"),
        (pool_of("10.10.0.0/16", per_node=24), "10.10.0.0/26", "10.10.1.0/24"),
        (pool_of("10.10.0.0/17", per_node=26), "10.10.0.0/26", "10.10.0.64/26"),
        (pool_of("10.8.0.0/13", per_node=26), "10.10.0.0/26", "10.8.0.0/26"),
        (pool_of("10.10.128.0/17", per_node=26), "10.10.128.0/26", "10.10.128.64/26"),
        (pool_of("10.20.0.0/16", "10.10.0.0/16", per_node=26), "10.10.0.0/26", "10.10.0.64/26"),
        (pool_of("10.10.0.0/16", per_node=26, exclude=["10.10.0.0/22"]), "10.10.0.0/26", "10.10.4.0/26"),
    ],
)
def test_a_pool_that_is_changed_while_it_is_used_gives_nobody_what_another_has(
    changed: Pool, of_a: str, of_b: str
) -> None:
    """Renamed, cut anew, larger, smaller, moved, with another network before it, with an exclusion."""
    api = FakeConfigMap()
    parts_of(api, "a", pool_of("10.10.0.0/16", per_node=26))
    assert (parts_of(api, "a", changed)[-1], parts_of(api, "b", changed)[-1]) == (of_a, of_b)
    assert api.object is not None
    taken = [ipaddress.ip_network(key.replace("-", "/")) for key in api.object["data"]]
    assert not any(one.overlaps(other) for one, other in combinations(taken, 2))


def test_no_part_left_is_said_with_figures() -> None:
    pool = pool_of("10.10.0.0/24", per_node=29)
    api = FakeConfigMap(**{f"10.10.0.{8 * number}-29": f"n{number}" for number in range(32)}, nonsense="x")
    with pytest.raises(
        PrepareError, match=r"no part of /29 of 10\.10\.0\.0/24 of pool rails is free, 32 nodes have"
    ):
        parts_of(api, "late", pool)
    assert parts_of(api, "n7", pool) == ["10.10.0.56/29"]
    api.object = None
    with pytest.raises(PrepareError, match="koordra-node-parts does not exist; add the component"):
        parts_of(api, "late", pool)


def test_a_network_of_which_all_is_excluded_ends_at_once() -> None:
    """Of a network of IPv6 nobody can look at every address."""
    pool = pool_of("fd00::/48", per_node=64, exclude=["fd00::/64"])
    assert parts_of(FakeConfigMap(), "a", pool) == ["fd00:0:0:1::/64"]
    holed = pool_of("fd00::/48", per_node=64, exclude=["fd00::/65", "fd00:0:0:0:8000::/66"])
    given = NodePool(holed, (ipaddress.ip_network("fd00::/64"),))
    (address, _) = free_address(given, rail=0, key="k", used=())
    assert ipaddress.ip_interface(address).ip in ipaddress.ip_network("fd00:0:0:0:c000::/66")
    closed = pool_of("fd00::/48", per_node=64, exclude=["fd00::/65", "fd00:0:0:0:8000::/65"])
    with pytest.raises(PrepareError, match="PoolExhausted"):
        free_address(NodePool(closed, given.parts), rail=0, key="k", used=())


def test_a_link_of_two_has_two_addresses() -> None:
    """RFC 3021: a /31 has no addresses of its own."""
    pool = pool_of("10.10.0.0/31", per_node=31)
    given = NodePool(pool, (ipaddress.ip_network("10.10.0.0/31"),))
    first = free_address(given, rail=0, key="k", used=())[0].partition("/")[0]
    second = free_address(given, rail=0, key="k", used={first})[0].partition("/")[0]
    assert {first, second} == {"10.10.0.0", "10.10.0.1"}


def test_lost_entries_are_taken_again_by_whose_claims_have_addresses_of_them(tmp_path: Path) -> None:
    """The ConfigMap went with its namespace, and was made again without entries."""
    file = tmp_path / "pools.yaml"
    file.write_text(POOLS)
    api: Any = FakeConfigMap()
    used: set[str] = set()
    parts = NodeParts(api, node="b", namespace="koordra-system", in_use=lambda: used)
    keeps = PartsInUse(NetworkPools(file, parts.of), lambda: used)
    keeps.step()
    assert api.object["data"] == {}, "without addresses nobody asks"
    used |= {"10.10.0.11", "192.168.9.9"}
    keeps.step()
    taken = {"10.10.0.8-29": "b", "10.11.0.0-29": "b", "10.99.0.0-29": "b"}
    assert api.object["data"] == taken
    keeps.step()
    assert api.object["data"] == taken
    other = NodeParts(api, node="a", namespace="koordra-system")
    rails = read_pools(POOLS, source="pools.yaml")["rails"]
    assert str(other.of(rails).parts[0]) == "10.10.0.0/29"


def test_a_lost_part_that_another_node_has_by_now_gives_no_address_and_is_told(tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    file.write_text(POOLS)
    api: Any = FakeConfigMap(**{"10.10.0.8-29": "a"})
    parts = NodeParts(api, node="b", namespace="koordra-system", in_use=lambda: {"10.10.0.11"})
    with capture_logs() as lines:
        PartsInUse(NetworkPools(file, parts.of), lambda: {"10.10.0.11"}).attempt()
    (line,) = lines
    assert line["event"] == "node_parts_not_kept"
    assert "node a has 10.10.0.8/29 since, which has 10.10.0.11" in line["error"]
    assert api.object["data"] == {"10.10.0.8-29": "a"}
    with pytest.raises(PrepareError, match="end the pods with addresses of it on one of both nodes"):
        parts.of(read_pools(POOLS, source="pools.yaml")["rails"])


def test_the_pools_of_a_claims_class_are_read_with_this_nodes_number(tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    file.write_text(POOLS)
    api: Any = FakeConfigMap(**{"10.10.0.0-29": "other"})
    parts = NodeParts(api, node=NODE, namespace="koordra-system")
    source = ClaimSource(api, pools=NetworkPools(file, parts.of, of_host=lambda: {"192.168.1.7": "eth0"}))
    found = source.consumers(wanting(1))
    assert {name: str(given.parts[0]) for name, given in found.given.items()} == {"rails": "10.10.0.8/29"}
    assert ([*found.pools], found.of_host) == (["rails", "wide"], {"192.168.1.7": "eth0"})
    assert ClaimSource(api, pools=NetworkPools(None, parts.of)).consumers(wanting(1)).pools == {}


def test_a_file_that_was_misspelt_later_is_the_trouble_of_new_claims_with_addresses_alone(
    node: PluginNode, tmp_path: Path
) -> None:
    """A restarted kubelet asks for running pods' claims again."""
    file = tmp_path / "pools.yaml"
    file.write_text("pools: [")
    source = ClaimSource(FakeConfigMap(), pools=NetworkPools(file, NodeParts))  # type: ignore[arg-type]
    (plan,) = prepared(node, wanting(1))
    broken = source.consumers(wanting(1))
    assert prepared(node, wanting(1), plugin(node, of=broken)) == [plan]
    with pytest.raises(PrepareError, match=r"pools of addresses cannot be read: .*pools.yaml"):
        prepared(node, wanting(2), plugin(node, of=replace(broken, pods=("pod-2",))))
    assert source.consumers(claim(3, nic("nic", NIC_0, "1"))).problem == ""


def test_no_claim_takes_an_address_of_the_node_or_of_another_claim(node: PluginNode) -> None:
    def asking(number: int, address: str) -> dict[str, Any]:
        config = [parameters("RdmaConfig", source="FromClass", network={"addresses": [address]})]
        return claim(number, nic("nic", NIC_0, "1"), config=config)

    of = replace(consumers(), of_host={"192.168.1.7": "eth0"})
    with pytest.raises(
        PrepareError,
        match=r"192\.168\.1\.7/24 is this node's or another claim's; give each claim an address of",
    ):
        prepared(node, asking(1, "192.168.1.7/24"), plugin(node, of=of))
    (plan,) = prepared(node, asking(2, "192.168.1.8/24"), plugin(node, of=of))
    with pytest.raises(PrepareError, match=r"192\.168\.1\.8/16 is this node's or another claim's"):
        prepared(node, asking(3, "192.168.1.8/16"), plugin(node, of=of))
    assert prepared(node, asking(2, "192.168.1.8/24"), plugin(node, of=of)) == [plan]


def test_a_pool_with_an_address_of_the_node_gives_none(node: PluginNode) -> None:
    for own, refuses in (("10.11.0.77", True), ("10.12.0.1", False), ("fd00::1", False)):
        of = replace(consumers(), of_host={own: "eth0", "127.0.0.1": "lo", "fe80::1": "eth0"})
        if refuses:
            with pytest.raises(
                PrepareError, match=r"own address 10\.11\.0\.77 is in 10\.11\.0\.0/24 of pool rails"
            ):
                prepared(node, wanting(1), plugin(node, of=of))
        else:
            assert prepared(node, wanting(1), plugin(node, of=of))
            plugin(node).unprepare(ref_of(wanting(1)))


def test_a_claim_has_its_address_again_after_the_node_was_restarted(node: PluginNode) -> None:
    """It is not the one that its uid chooses, which another claim had then."""
    given = consumers().given["rails"]

    def chosen(number: int) -> str:
        return free_address(given, rail=0, key=f"{uid(number)}/{NIC_0}", used=())[0]

    other = next(number for number in range(2, 99) if chosen(number) == chosen(1))
    state = plugin(node)
    (before,) = [prepared(node, wanting(number), state)[0] for number in (other, 1)][1:]
    assert before.addresses != (chosen(1),)
    machine = replace(node.inventory.machine, boot_id="after")
    node.inventory = inventory_of(Discovery(machine, ()), offering=Offering(isolation=ANY_ISOLATION))
    assert prepared(node, wanting(1)) == [before]


def test_addresses_are_of_the_part_and_never_of_the_networks_ends() -> None:
    pool = pools()["rails"]
    last = with_part(pool, 31)
    used: set[str] = set()
    for _ in range(7):
        address, network = free_address(last, rail=1, key="k", used=used)
        used.add(address.partition("/")[0])
        assert ipaddress.ip_address(address.partition("/")[0]) in last.parts[pool.networks.index(network)]
    assert "10.11.0.255" not in used
    with pytest.raises(PrepareError, match="PoolExhausted"):
        free_address(last, rail=1, key="k", used=used)
