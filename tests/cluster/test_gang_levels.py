"""Gangs on three levels with labels of somebody's own, none of them one that koordra knows: levels that the
operator wrote (`--topology-levels`), and levels of other systems' objects, whose CRDs are installed
meanwhile: of a Topology of Kueue's, of KAI's, of Volcano's HyperNodes and of Koordinator's layers.

All divide the same eight nodes of eight GPUs: two rows of two racks of two. Racks of different rows have the
same names. The operator's halve the row of nodes, and the others put every other node into the same row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import pytest

from koordra.api import kinds, names, objects
from koordra.api.kinds import Kind
from koordra.api.objects import Object
from koordra.controller.cache import changes
from koordra.controller.cache.changes import LOOK_AGAIN
from koordra.controller.gangs.declared.annotations import GANG, GANG_MIN
from koordra.controller.gangs.declared.workload_kind import COMPLETION_INDEX
from koordra.errors import Conflict, NotFound
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.resources import JOBS
from tests.cluster.conftest import LEVELS
from tests.cluster.definitions import defined
from tests.cluster.nodes import made_up
from tests.cluster.test_gangs import PATIENCE, pod_spec
from tests.cluster.test_joint_allocation import Workload, request
from tests.cluster.waiting import eventually
from tests.cluster.without_kubelet import ends_deleted

pytestmark = pytest.mark.cluster

HERE: Final = {"koordra.io/test-levels": "true"}
SIZE: Final = 8
FABRICS: Final = {f"{kind.plural}.{kind.group}": kind for kind in reversed(changes.FABRICS)}
"""The newest version of each."""
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
OF_KAI: Final = tuple(f"kai.example.com/{level}" for level in ("hall", "row", "rack"))
OF_KOORDINATOR: Final = {
    f"{level}-layer": f"koordinator.example.com/{level}" for level in ("hall", "row", "rack")
}
WRITTEN = Levels(tuple(LEVELS), tuple(LEVELS.values()), tuple(range(SIZE)))  # type: ignore[arg-type]
KUEUES = Levels(OF_KUEUE, OF_KUEUE, (0, 2, 4, 6, 1, 3, 5, 7))  # type: ignore[arg-type]
NODES = {
    f"koordra-test-l{number}": {
        **dict(zip(WRITTEN.labels, WRITTEN.path(number), strict=True)),
        **dict(zip(KUEUES.labels, KUEUES.path(number), strict=True)),
        **dict(zip(OF_KAI, KUEUES.path(number), strict=True)),
        **dict(zip(OF_KOORDINATOR.values(), KUEUES.path(number), strict=True)),
        **HERE,
    }
    for number in range(SIZE)
}


def by_labels(*labels: str) -> Object:
    """A Topology's."""
    return {"levels": [{"nodeLabel": label} for label in (*labels, "kubernetes.io/hostname")]}


def layers() -> Object:
    """Koordinator's, of which each names the one around it."""
    around = ("ClusterTopologyLayer", *OF_KOORDINATOR)
    return {
        "networkTopologySpec": [
            {"topologyLayer": layer, "parentTopologyLayer": outer, "labelKey": [label]}
            for outer, (layer, label) in zip(around, OF_KOORDINATOR.items(), strict=False)
        ]
    }


def hypernodes() -> dict[str, Object]:
    """Volcano's: racks of nodes are of tier 1, rows of racks of tier 2."""
    made: dict[str, Object] = {}
    for at, number in enumerate(KUEUES.order):
        _, row, rack = KUEUES.path(number)
        inside = made.setdefault(f"{row}-{rack}", {"tier": 1, "members": []})["members"]
        inside.append({"type": "Node", "selector": {"exactMatch": {"name": f"koordra-test-l{number}"}}})
        if at % 2 == 0:
            racks = made.setdefault(row, {"tier": 2, "members": []})["members"]
            racks.append({"type": "HyperNode", "selector": {"exactMatch": {"name": f"{row}-{rack}"}}})
    return made


@pytest.fixture(scope="module")
def nodes_with_levels(
    client: KubeClient, controller: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    del controller
    with made_up(client, NODES, tmp_path_factory.mktemp("levels")):
        yield


@contextmanager
def said(client: KubeClient, kind: Kind, specs: Mapping[str, Object]) -> Iterator[None]:
    """The kind, as far as koordra reads it, and objects of it."""
    with defined(client, [kind]):
        for name, spec in specs.items():
            with suppress(Conflict):
                client.create(kind, {**kind.type_meta, "metadata": {"name": name}, "spec": spec})
        try:
            yield
        finally:
            for name in specs:
                client.delete(kind, name)


@pytest.fixture(scope="module")
def kueue(client: KubeClient) -> Iterator[None]:
    with said(client, FABRICS["topologies.kueue.x-k8s.io"], {"koordra-test": by_labels(*OF_KUEUE)}):
        yield


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


@pytest.mark.parametrize(
    ("kind", "specs", "rack"),
    [
        ("topologies.kai.scheduler", {"koordra-test": by_labels(*OF_KAI)}, OF_KAI[2]),
        ("hypernodes.topology.volcano.sh", hypernodes(), "tier-1"),
        ("clusternetworktopologies.scheduling.koordinator.sh", {"koordra-test": layers()}, "rack-layer"),
    ],
)
def test_levels_are_those_that_other_systems_objects_say(
    gangs: Gangs, kind: str, specs: dict[str, Object], rack: str
) -> None:
    """One rack of four is whole."""
    with said(gangs.client, FABRICS[kind], specs):
        gangs.take(*(KUEUES.order[at] for at in (0, 4, 6)))
        gangs.start(2, gang_topology=rack)
        assert {KUEUES.path(node) for node in gangs.placed(2)} == {("hall", "row-0", "rack-1")}
