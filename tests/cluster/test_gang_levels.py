"""Gangs on three levels with labels of somebody's own, none of them one that koordra knows: levels that the
operator wrote (`--topology-levels`), and levels of a Topology of Kueue's, whose CRD is installed meanwhile.

Both divide the same eight nodes of eight GPUs: two rows of two racks of two. Racks of different rows have the
same names. The operator's halve the row of nodes, and Kueue's put every other node into the same row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pytest

from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.controller.cache.changes import LOOK_AGAIN
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN
from koordra.controller.gangs.declared.workload_kind import COMPLETION_INDEX
from koordra.errors import Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.resources import CRDS, JOBS
from tests.cluster.conftest import LEVELS
from tests.cluster.nodes import made_up
from tests.cluster.test_gangs import PATIENCE, pod_spec
from tests.cluster.test_joint_allocation import Workload, request
from tests.cluster.waiting import eventually
from tests.cluster.without_kubelet import ends_deleted

pytestmark = pytest.mark.cluster

HERE: Final = {"koordra.io/test-levels": "true"}
SIZE: Final = 8
TOPOLOGIES: Final = Kind("kueue.x-k8s.io", "v1beta2", "topologies", "Topology", namespaced=False)
KUEUE: Final = "kueue.x-k8s.io/podset"


@dataclass(frozen=True)
class Levels:
    """By which words the levels are called, and which labels say the domains."""

    words: tuple[str, str, str]
    labels: tuple[str, str, str]
    order: tuple[int, ...]
    """The nodes, side by side."""

    def path(self, node: int) -> tuple[str, str, str]:
        """Hall, row, rack."""
        at = self.order.index(node)
        return "hall", f"row-{at // 4}", f"rack-{at // 2 % 2}"

    @property
    def kueues(self) -> bool:
        return self.words == self.labels


OF_KUEUE: Final = tuple(f"kueue.example.com/{level}" for level in ("hall", "row", "rack"))
WRITTEN = Levels(tuple(LEVELS), tuple(LEVELS.values()), tuple(range(SIZE)))  # type: ignore[arg-type]
KUEUES = Levels(OF_KUEUE, OF_KUEUE, (0, 2, 4, 6, 1, 3, 5, 7))  # type: ignore[arg-type]
NODES = {
    f"koordra-test-l{number}": {
        **dict(zip(WRITTEN.labels, WRITTEN.path(number), strict=True)),
        **dict(zip(KUEUES.labels, KUEUES.path(number), strict=True)),
        **HERE,
    }
    for number in range(SIZE)
}


@pytest.fixture(scope="module")
def nodes_with_levels(
    client: KubeClient, controller: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    del controller
    with made_up(client, NODES, tmp_path_factory.mktemp("levels")):
        yield


@pytest.fixture(scope="module")
def kueue(client: KubeClient) -> Iterator[None]:
    """Its kind, as far as koordra reads it, and one of these."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    crd = {
        "apiVersion": CRDS.api_version,
        "kind": CRDS.kind,
        "metadata": {"name": f"{TOPOLOGIES.plural}.{TOPOLOGIES.group}"},
        "spec": {
            "group": TOPOLOGIES.group,
            "names": {"kind": TOPOLOGIES.kind, "plural": TOPOLOGIES.plural, "singular": "topology"},
            "scope": "Cluster",
            "versions": [
                {
                    "name": TOPOLOGIES.version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": schema}}},
                }
            ],
        },
    }
    crd["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved, a test's"}  # type: ignore[index]
    ours = True
    try:
        client.create(CRDS, crd)
    except Conflict:
        ours = False
    levels = [{"nodeLabel": label} for label in (*KUEUES.labels, "kubernetes.io/hostname")]
    body = {
        "apiVersion": TOPOLOGIES.api_version,
        "kind": TOPOLOGIES.kind,
        "metadata": {"name": "koordra-test"},
        "spec": {"levels": levels},
    }

    def made() -> bool:
        try:
            client.create(TOPOLOGIES, body)
        except Conflict:
            return True
        except NotFound:
            return False
        return True

    eventually(made, "the Topology")
    yield
    client.delete(TOPOLOGIES, "koordra-test")
    if ours:
        client.delete(CRDS, f"{TOPOLOGIES.plural}.{TOPOLOGIES.group}")


class Gangs(Workload):
    def start(self, size: int, template: str = "node", **said: str) -> None:
        """An Indexed Job of so many pods; `said`: what its annotations say, gang_topology for instance."""
        notes = {GANG: "train", GANG_MIN: str(size)}
        notes |= {
            key if "/" in key else f"koordra.io/{key.replace('_', '-')}": text for key, text in said.items()
        }
        spec = {
            "completionMode": "Indexed",
            "completions": size,
            "parallelism": size,
            "template": {
                "metadata": {"annotations": notes},
                "spec": {**pod_spec(template), "nodeSelector": HERE},
            },
        }
        body = {
            "apiVersion": JOBS.api_version,
            "kind": JOBS.kind,
            "metadata": {"name": "train"},
            "spec": spec,
        }
        self.client.create(JOBS, body, namespace=self.namespace)

    def end(self) -> None:
        with suppress(NotFound):
            self.client.delete(JOBS, "train", namespace=self.namespace, propagation="Background")
        for number in range(SIZE):
            with suppress(NotFound):
                self.client.delete(kinds.PODS, f"taken-{number}", namespace=self.namespace, grace_period=0)
        eventually(lambda: ends_deleted(self.client, self.namespace), "the end of the gang's pods")

    def take(self, *nodes: int) -> None:
        for number in nodes:
            spec = pod_spec("node") | {"nodeSelector": {"kubernetes.io/hostname": f"koordra-test-l{number}"}}
            body = {"metadata": {"name": f"taken-{number}"}, "spec": spec}
            self.client.create(kinds.PODS, body, namespace=self.namespace)
        for number in nodes:
            self.bound(f"taken-{number}")

    def members(self) -> list[Object]:
        found, _ = self.client.list(kinds.PODS, namespace=self.namespace)
        return [pod for pod in found if GANG in objects.annotations_of(pod)]

    def placed(self, size: int) -> list[int]:
        """The number of each member's node, by completion index, once all are bound."""

        def look() -> list[Object] | None:
            found = [pod for pod in self.members() if pod["spec"].get("nodeName")]
            return found if len(found) == size else None

        found = eventually(look, "binding of the gang", timeout=PATIENCE + LOOK_AGAIN)
        found.sort(key=lambda pod: int(objects.labels_of(pod)[COMPLETION_INDEX]))
        return [int(pod["spec"]["nodeName"][-1]) for pod in found]

    def waits(self, text: str) -> None:
        """Nobody is bound, and an Event says this."""

        def told() -> bool:
            found, _ = self.client.list(kinds.EVENTS, namespace=self.namespace)
            mine = {objects.name(pod) for pod in self.members()}
            return any(
                text in event["message"] for event in found if event["involvedObject"].get("name") in mine
            )

        eventually(told, f"an Event with {text!r}", timeout=PATIENCE + LOOK_AGAIN)
        assert not any(pod["spec"].get("nodeName") for pod in self.members())


@pytest.fixture(params=[WRITTEN, KUEUES], ids=["written", "Kueue"])
def levels(request: pytest.FixtureRequest) -> Levels:
    found: Levels = request.param
    if found.kueues:
        request.getfixturevalue("kueue")
    return found


@pytest.fixture
def gangs(client: KubeClient, namespace: str, nodes_with_levels: None) -> Iterator[Gangs]:
    found = Gangs(client, namespace)
    for name, count in (("node", 8), ("half", 4)):
        found.template(name, [request("gpu", names.CLASS_GPU, count=count)])
    yield found
    found.end()


def test_one_level_is_required_and_a_narrower_one_preferred(gangs: Gangs, levels: Levels) -> None:
    """A node of each row is taken, in its first rack: three are left in each, of which two are in one
    rack."""
    _, row, rack = levels.words
    gangs.take(levels.order[0], levels.order[4])
    gangs.start(2, gang_topology=row, gang_topology_preferred=rack)
    pair = [levels.path(node) for node in gangs.placed(2)]
    assert pair[0] == pair[1]
    assert pair[0][2] == "rack-1"
    gangs.end()

    gangs.take(levels.order[0], levels.order[4])
    gangs.start(3, gang_topology=row, gang_topology_preferred=rack)
    assert len({levels.path(node)[:2] for node in gangs.placed(3)}) == 1


def test_domains_of_one_name_in_different_rows_are_not_one(gangs: Gangs, levels: Levels) -> None:
    gangs.start(3, gang_topology=levels.words[2])
    word = levels.words[2]
    gangs.waits(f"2 of 3 members fit in one {word}")
    gangs.end()
    gangs.start(5, gang_topology=levels.words[1])
    gangs.waits(f"4 of 5 members fit in one {levels.words[1]}")


def test_slices_in_layers_are_whole_in_their_domains(gangs: Gangs, levels: Levels) -> None:
    """A rack has four places for half a node each, and a row eight. Without slices they would be filled one
    after the other."""
    hall, row, rack = levels.words
    gangs.start(6, "half", gang_topology=hall, gang_slice_size="3", gang_slice_topology=rack)
    found = [levels.path(node) for node in gangs.placed(6)]
    assert sorted(Counter(found).values()) == [3, 3]
    assert [len(set(found[at : at + 3])) for at in (0, 3)] == [1, 1]
    gangs.end()

    gangs.start(6, "half", gang_topology=hall)
    assert sorted(Counter(levels.path(node) for node in gangs.placed(6)).values()) == [2, 4]
    gangs.end()

    layers = {"gang_slice_size": "6,3,1", "gang_slice_topology": f"{row},{rack},node"}
    gangs.start(12, "half", gang_topology=hall, **layers)
    found = [levels.path(node) for node in gangs.placed(12)]
    assert sorted(Counter(path[:2] for path in found).values()) == [6, 6]
    assert [len({path[:2] for path in found[at : at + 6]}) for at in (0, 6)] == [1, 1]
    assert [len(set(found[at : at + 3])) for at in (0, 3, 6, 9)] == [1, 1, 1, 1]


def test_pod_sets_in_the_words_of_kueue(gangs: Gangs, kueue: None) -> None:
    """Two nodes are taken so that two racks of different rows are whole, and the gang's two slices fit in
    these alone."""
    _, row, rack = KUEUES.words
    gangs.take(KUEUES.order[0], KUEUES.order[6])
    said = {
        f"{KUEUE}-required-topology": KUEUES.words[0],
        f"{KUEUE}-slice-required-topology": rack,
        f"{KUEUE}-slice-size": "2",
    }
    gangs.start(4, **said)
    found = [KUEUES.path(node) for node in gangs.placed(4)]
    assert [len(set(found[at : at + 2])) for at in (0, 2)] == [1, 1]
    assert sorted(set(found)) == [("hall", "row-0", "rack-1"), ("hall", "row-1", "rack-0")]
    gangs.end()
    gangs.start(4, **{f"{KUEUE}-preferred-topology": row})
    assert len({KUEUES.path(node)[:2] for node in gangs.placed(4)}) == 1
