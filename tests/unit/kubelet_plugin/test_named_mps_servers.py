"""MPS v3, where the driver has it: each claim is a namespace of the card's server, with limits that no other
claim's change and no variable lifts; where it has it not, the card goes by the second version."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from koordra.kubelet_plugin.publish.node_inventory import NodeInventory
from koordra.node_state.layout import mps_namespace
from tests.fakes.node_claims import GPU_0, GPU_1, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare, ref_of, refusal
from tests.unit.kubelet_plugin.test_card_backends import Cards, cards_of, env_of, problems, share


@pytest.fixture
def node(inventory: NodeInventory) -> Iterator[PluginNode]:
    """In a short folder, as a state directory is: the path of a socket has 107 bytes."""
    folder = Path(mkdtemp(dir="/tmp"))
    yield PluginNode(folder, inventory)
    shutil.rmtree(folder)


@pytest.fixture
def cards(node: PluginNode, tmp_path: Path) -> Iterator[Cards]:
    for found in cards_of(node, tmp_path):
        (found.folder / "mps-v3").touch()
        yield found


def namespaces(cards: Cards) -> set[str]:
    rows = cards.told("namespace", "list", "--server=k", "--format=csv,noheader").splitlines()
    return {row.partition(",")[0] for row in rows}


def test_each_claim_has_limits_of_its_own_at_the_server(cards: Cards, node: PluginNode) -> None:
    record = prepare(node, share(1))
    prepare(node, share(2, memory="20Gi", cores="50"))
    assert cards.client(1) == "30 10240M\n", "a larger neighbour changes nothing"
    assert cards.client(2) == "50 20480M\n"
    env = env_of(record)
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == "/run/koordra/mps/pipe"
    assert not {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"} & env.keys()
    mounts = {mount.container_path: mount for mount in record.devices[0].edits.mounts}
    sockets = Path(mounts["/run/koordra/mps/pipe"].host_path)
    assert sockets == cards.pipe / "k" / mps_namespace(uid(1)), "and nobody else's"
    assert "ro" in mounts["/run/koordra/mps/pipe"].options
    assert [file.name for file in sockets.iterdir()] == ["control"]
    assert cards.of()["mode"] == "EXCLUSIVE_PROCESS"


def test_a_claim_that_goes_takes_its_namespace_along(cards: Cards, node: PluginNode) -> None:
    for number in (1, 2):
        prepare(node, share(number))
    plugin = node.plugin()
    plugin.unprepare(ref_of(share(1)))
    assert namespaces(cards) == {"default", mps_namespace(uid(2))}
    plugin.unprepare(ref_of(share(2)))
    assert cards.of()["mode"] == "DEFAULT"
    assert not cards.pipe.parent.exists()


@pytest.mark.parametrize("gone", ["daemon", "server"])
def test_what_is_gone_is_made_again_for_all_claims(cards: Cards, node: PluginNode, gone: str) -> None:
    """Clients of a daemon whose server has ended would run without MPS."""
    plugin = node.plugin()
    for obj in (share(1), share(2, cores="50")):
        node.claims.put(obj)
        plugin.prepare(ref_of(obj))
    if gone == "daemon":
        cards.kill_daemon()
    else:
        cards.told("ends")
    assert problems(plugin) == {}
    assert (cards.client(1), cards.client(2)) == ("30 10240M\n", "50 10240M\n")
    assert cards.of()["mode"] == "EXCLUSIVE_PROCESS"
    assert problems(node.plugin()) == {}, "nor does another plugin change anything"


def test_limits_that_cannot_be_set_leave_no_namespace_without_any(cards: Cards, node: PluginNode) -> None:
    prepare(node, share(1))
    (cards.folder / "refuses-limits").touch()
    assert "Not Supported" in refusal(node, share(2))
    (cards.folder / "refuses-limits").unlink()
    assert namespaces(cards) == {"default", mps_namespace(uid(1))}
    assert problems(node.plugin()) == {}


def test_a_fault_is_told(cards: Cards, node: PluginNode) -> None:
    prepare(node, share(1))
    cards.told("fault")
    (problem,) = problems(node.plugin()).values()
    assert problem.startswith("MPS server k is in Fault")


def test_the_version_is_told(cards: Cards, node: PluginNode) -> None:
    prepare(node, share(1))
    look = node.plugin().look_at_cards()[GPU_0]
    assert dict(look.status) == {"servers": "1 Ready", "limits": "each claim's own (MPS v3)"}


def test_a_card_goes_by_one_version_until_it_is_given_back(cards: Cards, node: PluginNode) -> None:
    """A driver that is upgraded under claims: their containers have the sockets of the second version."""
    (cards.folder / "mps-v3").unlink()
    prepare(node, share(1))
    (cards.folder / "mps-v3").touch()
    record = prepare(node, share(2))
    assert env_of(record)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=10240M"
    prepare(node, share(3, GPU_1))
    looks = node.plugin().look_at_cards()
    assert {device: look.status["limits"] for device, look in looks.items()} == {
        GPU_0: "the largest share's (MPS v2)",
        GPU_1: "each claim's own (MPS v3)",
    }
    for number in (1, 2):
        node.plugin().unprepare(ref_of(share(number)))
    prepare(node, share(4))
    assert cards.client(4) == "30 10240M\n"


def test_sockets_whose_paths_are_too_long_go_by_the_second_version(
    cards: Cards, node: PluginNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("koordra.kubelet_plugin.isolation.mps.backend._LONGEST_SOCKET", 60)
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" in env_of(prepare(node, share(1)))
