"""Who has the plugin's socket, a kubelet that lost its mind or another program of the node's root, asks for
what is not its claim's. The claim is what the API says it is, whoever asks, and however often."""

from __future__ import annotations

from typing import Any

import pytest

from koordra._proto.dra import dra_v1_pb2
from koordra.kubelet_plugin.dra.dra_service import Calls, DraService, PluginMetrics
from koordra.metrics import Metrics
from tests.fakes.node_claims import GPU_0, GPU_1, claim, gpu, uid
from tests.unit.kubelet_plugin.conftest import PluginNode

OTHERS = "5c1f0000-0000-4000-8000-0000000000ff"


class Waiting:
    def is_active(self) -> bool:
        return True


class Kubelet:
    """Calls the service as the kubelet's socket would."""

    def __init__(self, node: PluginNode) -> None:
        calls = Calls(node.plugin(), PluginMetrics(Metrics()), on_done=lambda call, done: None)
        self._service = DraService(calls, dra_v1_pb2, with_share_id=True)

    def prepare(self, *asked: tuple[str, str, str]) -> Any:
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=_claims(asked))
        return self._service.NodePrepareResources(request, Waiting()).claims

    def unprepare(self, *asked: tuple[str, str, str]) -> Any:
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=_claims(asked))
        return self._service.NodeUnprepareResources(request, Waiting()).claims


def _claims(asked: tuple[tuple[str, str, str], ...]) -> list[Any]:
    return [dra_v1_pb2.Claim(namespace=place, name=name, uid=claim_uid) for place, name, claim_uid in asked]


@pytest.fixture
def kubelet(node: PluginNode) -> Kubelet:
    node.claims.put(claim(1, gpu("gpu", GPU_0)))
    return Kubelet(node)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("team-a", "claim-1", OTHERS), "another claim under this name"),
        (("team-a", "claim-2", uid(1)), "does not exist in the API"),
        (("team-b", "claim-1", uid(1)), "does not exist in the API"),
        (("team-a", "claim-1", ""), "cannot be a claim's"),
        (("", "claim-1", uid(1)), "cannot be a claim's"),
        (("team-a", "", uid(1)), "cannot be a claim's"),
        (("team-a", "claim-1", f"../../{uid(1)}"), "cannot be a claim's"),
        (("team-a", "claim-1", uid(1).upper() + "X"), "cannot be a claim's"),
        (("team-a", "claim-1", f"{uid(1)}\n"), "cannot be a claim's"),
        (("team-a", "claim-1", "x" * 1_000_000), "cannot be a claim's"),
    ],
)
def test_a_claim_that_is_not_the_one_of_the_api_gets_nothing(
    node: PluginNode, kubelet: Kubelet, asked: tuple[str, str, str], told: str
) -> None:
    ((_, answer),) = kubelet.prepare(asked).items()
    assert told in answer.error
    assert len(answer.error) < 1000
    assert not answer.devices
    assert node.files() == set()
    ((_, answer),) = kubelet.unprepare(asked).items()
    assert answer.error == "", "what is not there is unprepared"


@pytest.mark.parametrize("field", ["pool", "driver", "nowhere"])
def test_what_was_allocated_elsewhere_gets_nothing_here(
    node: PluginNode, kubelet: Kubelet, field: str
) -> None:
    """On another node, by another driver, or not at all any more."""
    obj = claim(1, gpu("gpu", GPU_0))
    if field == "nowhere":
        del obj["status"]["allocation"]
    else:
        (result,) = obj["status"]["allocation"]["devices"]["results"]
        result[field] = "node-b" if field == "pool" else "gpu.example.com"
    node.claims.put(obj)
    answer = kubelet.prepare(("team-a", "claim-1", uid(1)))[uid(1)]
    assert bool(answer.error) is (field != "driver"), "a claim of others is none of ours"
    assert not answer.devices
    assert node.files() == set()


def test_a_call_again_and_again_is_one_prepare(node: PluginNode, kubelet: Kubelet) -> None:
    """Replayed, in one batch and in many, by one claim and in a thousand that are not there."""
    mine = ("team-a", "claim-1", uid(1))
    first = kubelet.prepare(mine)[uid(1)]
    files = node.files()
    nobody = [("team-a", f"claim-{number}", uid(number)) for number in range(100, 1100)]
    again = kubelet.prepare(mine, *nobody, mine)
    assert len(again) == 1001
    assert again[uid(1)] == first
    assert node.files() == files
    assert node.holders() == {uid(1)}
    kubelet.unprepare(mine, mine)
    assert node.files() == set()
    node.claims.claims.clear()
    assert "does not exist" in kubelet.prepare(mine)[uid(1)].error, (
        "the claim is gone, and so are its devices"
    )


def test_the_same_uid_under_other_names_is_what_the_api_says(node: PluginNode, kubelet: Kubelet) -> None:
    """Two claims of one uid in a batch: the answer has room for one, and neither gets the other's."""
    node.claims.put(claim(2, gpu("gpu", GPU_1)))
    forged, mine = ("team-a", "claim-2", uid(1)), ("team-a", "claim-1", uid(1))
    assert "another claim under this name" in kubelet.prepare(mine, forged)[uid(1)].error
    (device,) = kubelet.prepare(forged, mine)[uid(1)].devices
    assert device.device_name == GPU_0
    assert [each.startswith(f"koordra.io/claim={uid(1)}-{GPU_0}") for each in device.cdi_device_ids] == [True]
    assert node.holders() == {uid(1)}
