"""What containers of a gang's members are told: through Prepare, as the CDI file that the runtime reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from koordra.api.opaque.gang_member import MOST_BYTES, GangMember, decode_gang_member
from koordra.api.opaque.parameters import decode
from koordra.errors import InvalidParameters
from koordra.kubelet_plugin.cdi.container_files import hostfile, local_address
from tests.fakes.node_claims import GPU_0, NIC_0, claim, gpu, nic, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare, refusal

MEMBER = GangMember(
    gang="llama",
    rank=2,
    size=4,
    node_rank=1,
    nodes=2,
    local_rank=0,
    local_size=2,
    domains={"block": "b1", "nvlink": "rack-7"},
    rails=("0",),
    leader="llama-0.llama",
    hosts=("llama-0.llama", "llama-1.llama", "llama-2.llama", "llama-3.llama"),
    slots=(1, 1, 1, 1),
)


def of_gang(number: int, member: GangMember) -> dict[str, Any]:
    obj = claim(number, gpu("gpu", GPU_0), nic("nic", NIC_0))
    obj["status"]["allocation"]["devices"].setdefault("config", []).append(member.entry())
    return obj


def test_a_member_is_told_its_rank_and_where_the_others_are(
    node: PluginNode, golden: Callable[[str, str], None]
) -> None:
    prepare(node, of_gang(1, MEMBER))
    golden("kubelet_plugin/job.cdi.json", node.shown(node.paths.cdi_file(uid(1))))
    file = node.paths.claim_folder(uid(1)) / "hostfile"
    assert file.read_text() == "".join(f"llama-{rank}.llama slots=1\n" for rank in range(4))
    aliases = node.paths.claim_folder(uid(1)) / "hostaliases"
    assert aliases.read_text() == "".join(f"rank-{rank:05d} llama-{rank}.llama\n" for rank in range(4))


def test_the_files_come_back_when_they_were_lost(node: PluginNode) -> None:
    prepare(node, of_gang(1, MEMBER))
    file = node.paths.claim_folder(uid(1)) / "hostfile"
    before = file.read_bytes()
    file.unlink()
    prepare(node, of_gang(1, MEMBER))
    assert file.read_bytes() == before


def test_a_gang_too_large_for_a_claim_has_ranks_but_no_hosts(node: PluginNode) -> None:
    hosts = tuple(f"worker-{rank}.workers.team.svc" for rank in range(1000))
    large = GangMember("big", 999, 1000, hosts=hosts, slots=(8,) * 1000, leader=hosts[0])
    assert len(str(large.to_dict())) < MOST_BYTES
    prepare(node, of_gang(1, large))
    env = node.spec(uid(1))["devices"][0]["containerEdits"]["env"]
    assert "KOORDRA_RANK=999" in env
    assert "KOORDRA_LEADER=worker-0.workers.team.svc" in env
    assert [entry for entry in env if entry.startswith("KOORDRA_HOST")] == [
        f"KOORDRA_HOSTALIASES=/run/koordra.io/job/{uid(1)}/hostaliases"
    ]
    aliases = node.paths.claim_folder(uid(1)) / "hostaliases"
    assert aliases.read_text() == "rank-00000 worker-0.workers.team.svc\n"


def test_names_say_the_rank_of_each_where_a_lost_member_has_none(node: PluginNode) -> None:
    gap = replace(MEMBER, hosts=MEMBER.hosts[:3], slots=(1, 1, 1), host_ranks=(0, 2, 3))
    assert decode_gang_member(gap.to_dict(), object="c", field="f") == gap
    prepare(node, of_gang(1, gap))
    env = node.spec(uid(1))["devices"][0]["containerEdits"]["env"]
    assert "KOORDRA_HOST_RANKS=0,2,3" in env
    assert "KOORDRA_LOCAL_ADDR=rank-00002" in env
    lines = (node.paths.claim_folder(uid(1)) / "hostaliases").read_text().splitlines()
    assert lines == ["rank-00000 llama-0.llama", "rank-00002 llama-1.llama", "rank-00003 llama-2.llama"]


def test_names_sort_as_ranks_do() -> None:
    """As c10d sorts them, as text."""
    ranks = [0, 1, 9, 10, 11, 99, 100, 5000, 99_999]
    assert sorted(map(local_address, reversed(ranks))) == [*map(local_address, ranks)]


def test_a_launcher_without_gpus_has_no_slot() -> None:
    assert hostfile("launcher:0,worker-0:8,[fd00::1]:4") == b"worker-0 slots=8\n[fd00::1] slots=4\n"


def test_a_claim_cannot_say_its_own_rank() -> None:
    with pytest.raises(InvalidParameters, match="GangMember"):
        decode(MEMBER.to_dict(), object="claim", field="spec")


def test_a_rank_that_the_scheduler_copied_out_of_a_claim_is_refused(node: PluginNode) -> None:
    """In native mode, where the webhook was not there to refuse it."""
    obj = of_gang(1, MEMBER)
    opaque = obj["status"]["allocation"]["devices"]["config"][-1]["opaque"]
    obj["spec"]["devices"] = {"config": [{"opaque": opaque}]}
    told = refusal(node, obj)
    assert "spec.devices.config" in told
    assert "GangMember" in told


def test_what_is_written_is_read() -> None:
    assert decode_gang_member(MEMBER.to_dict(), object="c", field="f") == MEMBER


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank", -1),
        ("rank", "0"),
        ("size", True),
        ("leader", "a\nb"),
        ("hosts", ["a b", "c", "d", "e"]),
        ("slots", [1]),
        ("hostRanks", [1]),
        ("hostRanks", [0, 1, 2, "3"]),
        ("domains", {"block": "x\ny"}),
        ("rails", "01"),
        ("surprise", 1),
        ("apiVersion", "koordra.io/v9"),
    ],
)
def test_what_nobody_writes_is_refused(node: PluginNode, field: str, value: object) -> None:
    parameters = {**MEMBER.to_dict(), field: value}
    obj = of_gang(1, MEMBER)
    obj["status"]["allocation"]["devices"]["config"][-1]["opaque"]["parameters"] = parameters
    assert field in refusal(node, obj)
