"""Files that an earlier version wrote are read and written byte for byte: after an upgrade they are there,
and a plugin and a hook of different versions share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordra.kubelet_plugin.claims.checkpoint import recover_record
from koordra.kubelet_plugin.claims.claim_record import State
from koordra.node_state import claim_network, layout, prepared_claim
from koordra.node_state.claim_network import NetworkKind, PlannedDevice
from koordra.node_state.disk import Disk
from koordra.node_state.layout import StateFolder
from koordra.node_state.reader import StateReader

UID = "11111111-2222-3333-4444-555555555555"
WRITTEN = Path(__file__).parent / "written"


@pytest.mark.parametrize(
    ("file", "decode", "encode"),
    [
        ("prepared.json", prepared_claim.decode, prepared_claim.encode),
        ("guarded.json", prepared_claim.decode_guard, prepared_claim.encode_guard),
        ("network.json", claim_network.decode, claim_network.encode),
        ("attached.json", claim_network.decode_attached, claim_network.encode_attached),
    ],
)
def test_bytes_of_the_version_before_are_read_and_written_again(
    file: str, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]
) -> None:
    data = (WRITTEN / file).read_bytes()
    assert encode(decode(data)) == data
    torn = data.replace(b'"schema"', b'"scheme"')
    with pytest.raises(ValueError, match=r"record\.schema: missing"):
        decode(torn)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    for file, path in (
        ("prepared.json", StateFolder(tmp_path).prepared_file(UID)),
        ("guarded.json", StateFolder(tmp_path).guarded),
        ("network.json", StateFolder(tmp_path).network_file(UID)),
        ("attached.json", StateFolder(tmp_path).attached_file(UID)),
    ):
        Disk().replace(path, (WRITTEN / file).read_bytes(), mode=layout.MODE)
    return tmp_path


def test_the_hook_finds_what_an_earlier_plugin_wrote(state: Path) -> None:
    reader = StateReader(state, node_name="node-a")
    claim = reader.claim("KOORDRA_CLAIM_11111111_2222_3333_4444_555555555555")
    assert claim is not None
    assert (str(claim), claim.memlock, [device.type for device in claim.devices]) == (
        "team/train",
        True,
        ["gpu", "nic"],
    )
    assert (prepared_claim.NUMA_AFFINITY, "true") in claim.devices[0].env
    guard, planned, attached = reader.guard(), reader.planned(UID), reader.attached(UID)
    assert guard is not None
    assert planned is not None
    assert attached is not None
    assert [str(node) for node in guard.nodes] == [
        "/dev/nvidiactl (c 195:255)",
        "/dev/nvidia0 (c 195:0)",
    ]
    assert planned.interfaces == {"nic-0000-0c-00-0": "rail0"}
    assert attached.pod == "u"


def test_the_plugin_finds_what_an_earlier_hook_and_plugin_wrote(state: Path) -> None:
    (network,) = claim_network.read_networks(StateFolder(state), Disk())
    ((device, plan),) = network.plans
    assert (device, plan.kind, plan.vlan, plan.routes) == (
        "nic-0000-0c-00-0",
        NetworkKind.MOVE,
        7,
        (("10.1.0.0/16", "10.0.0.1"),),
    )
    (attached,) = claim_network.read_attached(StateFolder(state), Disk(), uid=UID)
    assert dict(attached.devices[0].before)["present"] == "ens1"
    record = recover_record(
        UID, StateFolder(state).prepared_file(UID).read_bytes(), pool="node-a", boot_id="b"
    )
    assert record is not None
    assert (record.state, record.nonce, len(record.devices)) == (
        State.RECOVERED,
        "0123456789abcdef" * 2,
        2,
    )


def test_what_this_version_added_is_written_only_where_it_says_something() -> None:
    """Bytes of the version before are written again above; a field that is used is there, and read."""
    network = claim_network.decode((WRITTEN / "network.json").read_bytes())
    (device, plan) = network.plans[0]
    assert plan.roce_port is None
    used = replace(network, plans=(PlannedDevice(device, replace(plan, roce_port=1)),))
    assert b'"rocePort": 1' in claim_network.encode(used)
    assert claim_network.decode(claim_network.encode(used)) == used
