"""Two racks of NVL72, 18 trays each: where a gang of 32 trays goes, and the IMEX domains of gangs that ask
for channels: the controller writes their nodes with the rights of its ServiceAccount."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import pytest

from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.api.opaque.imex import ImexDomain
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN
from koordra.controller.gangs.declared.workload_kind import COMPLETION_INDEX
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.topology import presets
from koordra.topology.presets.facts import preset
from koordra_devcluster.apiserver.resources import JOBS
from tests.cluster.nodes import made_up
from tests.cluster.test_gangs import PATIENCE, pod_spec
from tests.cluster.test_joint_allocation import Workload, request
from tests.cluster.waiting import eventually
from tests.cluster.without_kubelet import ends_deleted

pytestmark = pytest.mark.cluster

CONFIG_MAPS: Final = Kind("", "v1", "configmaps", "ConfigMap")
HERE: Final = {"koordra.io/test-trays": "true"}
CLUSTER: Final = "0a1b2c3d-c8aa-45e1-9e07-e1e51be99c31"
TRAYS: Final = 18
RACK_OF: Final = {f"koordra-test-tray-{rack}-{number:02}": rack for rack in (1, 2) for number in range(TRAYS)}


def tray(rack: int) -> presets.Preset:
    document = presets.load("gb200-nvl72").document
    fabric = {"fabric": {"cluster": CLUSTER, "clique": rack}}
    return preset({**document, "gpu": {**document["gpu"], **fabric}}, name=f"tray of rack {rack}")


@pytest.fixture(scope="module")
def racks(client: KubeClient, controller: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    del controller
    machines = {node: tray(rack) for node, rack in RACK_OF.items()}
    labels = dict.fromkeys(RACK_OF, HERE)
    folder = tmp_path_factory.mktemp("racks")
    with made_up(client, labels, folder, machines=machines, offering=Offering(imex=True)):
        yield


class Gangs(Workload):
    def start(self, gang: str, size: int, template: str, *, on: str = "", **said: str) -> None:
        """An Indexed Job. `on`: the node that its pods ask for."""
        notes = {GANG: gang, GANG_MIN: str(size)}
        notes |= {f"koordra.io/{key.replace('_', '-')}": text for key, text in said.items()}
        place = {"kubernetes.io/hostname": on} if on else HERE
        spec = {
            "completionMode": "Indexed",
            "completions": size,
            "parallelism": size,
            "template": {
                "metadata": {"annotations": notes, "labels": {"job": gang}},
                "spec": {**pod_spec(template), "nodeSelector": place},
            },
        }
        body = {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": {"name": gang}, "spec": spec}
        self.client.create(JOBS, body, namespace=self.namespace)

    def end(self, *gangs: str) -> None:
        for gang in gangs:
            with suppress(NotFound):
                self.client.delete(JOBS, gang, namespace=self.namespace, propagation="Background")

        def gone() -> bool:
            ends_deleted(self.client, self.namespace)
            return not any(self.members(gang) for gang in gangs)

        eventually(gone, "the end of the gangs' pods")

    def members(self, gang: str) -> list[Object]:
        return self.client.list(kinds.PODS, namespace=self.namespace, label_selector=f"job={gang}")[0]

    def placed(self, gang: str, size: int) -> list[str]:
        """Each member's node, by completion index, once all are bound."""

        def look() -> list[Object] | None:
            found = [pod for pod in self.members(gang) if pod["spec"].get("nodeName")]
            return found if len(found) == size else None

        found = eventually(look, f"binding of gang {gang}", timeout=PATIENCE)
        found.sort(key=lambda pod: int(objects.labels_of(pod)[COMPLETION_INDEX]))
        return [pod["spec"]["nodeName"] for pod in found]

    def domain(self, gang: str, rack: int) -> dict[str, str]:
        """Number -> node, as the plugins of the nodes read it; empty where there is no such domain."""
        domain = ImexDomain(f"gang {self.namespace}/{gang}", f"{CLUSTER}.{rack}")
        with suppress(NotFound):
            found = self.client.get(CONFIG_MAPS, domain.object_name, namespace="koordra-system")
            assert objects.annotations_of(found)[names.IMEX_DOMAIN] == domain.domain
            return dict(found["data"])
        return {}


@pytest.fixture
def gangs(client: KubeClient, namespace: str, racks: None) -> Iterator[Gangs]:
    found = Gangs(client, namespace)
    channel = request("imex", names.CLASS_IMEX)
    found.template("tray", [request("gpu", names.CLASS_GPU, count=4), channel])
    found.template("half", [request("gpu", names.CLASS_GPU, count=2), channel])
    yield found
    found.end("train", "other")


@pytest.mark.parametrize(
    ("said", "sizes"),
    [({}, [14, 18]), ({"gang_slice_size": "16", "gang_slice_topology": "nvlink"}, [16, 16])],
    ids=["without slices", "slices of 16"],
)
def test_32_trays_on_two_racks_of_18(gangs: Gangs, said: dict[str, str], sizes: list[int]) -> None:
    gangs.start("train", 32, "tray", **said)
    nodes = gangs.placed("train", 32)
    assert len(set(nodes)) == 32
    racks = [RACK_OF[node] for node in nodes]
    assert sorted(Counter(racks).values()) == sizes
    if said:
        assert [len(set(racks[at : at + 16])) for at in (0, 16)] == [1, 1]
    for rack in (1, 2):
        mine = {node for node in nodes if RACK_OF[node] == rack}
        eventually(lambda rack=rack, mine=mine: set(gangs.domain("train", rack).values()) == mine, "domain")
        assert set(gangs.domain("train", rack)) == {str(number) for number in range(len(mine))}
    gangs.end("train")
    eventually(lambda: not gangs.domain("train", 1) and not gangs.domain("train", 2), "the domains' end")


def test_a_node_is_in_one_domain_and_keeps_its_number_in_it(gangs: Gangs) -> None:
    """Three members of two GPUs are on two trays, one of which has two GPUs left for others. The member there
    moves."""
    gangs.start("train", 3, "half", gang_topology="nvlink", gang_hold="0")
    nodes = gangs.placed("train", 3)
    (rack,) = {RACK_OF[node] for node in nodes}
    before = eventually(lambda: gangs.domain("train", rack), "the domain")
    assert set(before.values()) == set(nodes)

    lost = min(nodes, key=nodes.count)
    gangs.start("other", 1, "half", on=lost)

    def refused() -> bool:
        told = [
            event["message"] for pod in gangs.members("other") for event in gangs.events(objects.name(pod))
        ]
        return any(
            f"its IMEX channels are in the domain of gang {gangs.namespace}/train" in each for each in told
        )

    eventually(refused, "the Event that says whose channels they are", timeout=PATIENCE)
    assert not any(pod["spec"].get("nodeName") for pod in gangs.members("other"))

    gangs.client.patch(kinds.NODES, lost, {"spec": {"unschedulable": True}})
    try:
        (pod,) = [pod for pod in gangs.members("train") if pod["spec"]["nodeName"] == lost]
        gangs.client.delete(kinds.PODS, objects.name(pod), namespace=gangs.namespace, grace_period=0)

        def replaced() -> bool:
            ends_deleted(gangs.client, gangs.namespace)
            here = [one for one in gangs.members("train") if one["spec"].get("nodeName")]
            return len(here) == 3 and lost not in [one["spec"]["nodeName"] for one in here]

        eventually(replaced, "the member's replacement", timeout=PATIENCE)
        (new,) = set(gangs.placed("train", 3)) - set(nodes)
        stay = {number: node for number, node in before.items() if node != lost}

        def told() -> bool:
            now = gangs.domain("train", rack)
            return set(now.values()) == {*stay.values(), new} and now.items() >= stay.items()

        eventually(told, "the domain's new node, the others with their numbers")
    finally:
        gangs.client.patch(kinds.NODES, lost, {"spec": {"unschedulable": None}})

    assert gangs.placed("other", 1) == [lost], "its channels are free again"
