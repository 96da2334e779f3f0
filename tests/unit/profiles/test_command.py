"""`koordra profile` and `koordra profiler`, against an API server that passes on to the plugins of two
nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from koordra.api.kinds import PODS, TRAINING_JOBS
from koordra.api.objects import Object
from koordra.api.resource_class import CONFIG_MAPS
from koordra.cli.cluster.use.profile import history as history_of
from koordra.cli.cluster.use.profile.history import PERIOD, TOLD, History
from koordra.cli.cluster.use.profile.job_status import MOST_PODS, MOST_TEMPLATES, status_of
from koordra.cli.cluster.use.profile.plots import amount, spark
from koordra.compat.settings import Settings
from koordra.compat.settings_document import with_document
from koordra.errors import NotFound
from koordra.kube.client import KubeClient
from koordra.kubelet_plugin.sampling.pod_use import PodKey
from koordra.kubelet_plugin.sampling.profiles import Recording
from koordra.profiles.profile import JobRef, PodProfile, Profile
from koordra.profiles.series import Series
from koordra.profiles.store import open_store
from koordra.profiles.summary import Summary
from koordra_devcluster.apiserver.resources import CRDS
from tests.cluster.waiting import eventually
from tests.unit.compat.pods import asking
from tests.unit.profiles.test_recommendation import HAMI, SETTINGS, N, rewritten
from tests.unit.use.served_cluster import Cluster, Served

TRAINING = Path(__file__).resolve().parents[3] / "deploy" / "kustomize" / "training"
GIB = 1 << 30
START = 1_764_000_000
CARD = 80 * GIB


def profile(
    pod: str, uid: str, *, node: str = "n0", place: str = "team", scale: int = 1, seconds: int = 3600
) -> PodProfile:
    """A GPU that is half busy, then idle; memory that grows."""
    summaries = {series: Summary(series.resolution) for series in Series}
    for number in range(seconds // 60):
        at, half = (START + 60 * (number + 1)) * 1000, number < seconds // 120
        for series, value in (
            (Series.GPU, 500 if half else 0),
            (Series.SM, 180 if half else 20),
            (Series.GPU_MEMORY, (6 + number // 10) * GIB),
            (Series.CPU, 2500),
            (Series.MEMORY, 3 * GIB),
            (Series.RDMA, 1_500_000_000 if half else 0),
        ):
            summaries[series].add(at, 60_000, value * scale)
    return PodProfile(place, pod, uid, node, START, START + seconds, summaries, CARD)


def served(client: KubeClient) -> bool:
    try:
        return client.list(TRAINING_JOBS, namespace="team")[0] == []
    except NotFound:
        return False


class Nodes:
    """What plugins of nodes serve; each profile on the node that it names."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.profiles = cluster, list[PodProfile]()

    def text(self, node: str, path: str) -> str | None:
        own = {PodKey(one.namespace, one.pod, one.uid): one for one in self.profiles if one.node == node}
        return json.dumps(Recording(node, own).document) if path == "/profiles" else None

    def pod(
        self,
        name: str,
        *,
        job: str = "train",
        kind: str = "PyTorchJob",
        node: str = "n0",
        ask: Mapping[str, int] = HAMI,
        settings: Settings = SETTINGS,
        **more: Any,
    ) -> PodProfile:
        body: Object = rewritten(asking(ask), settings)
        body["metadata"] |= {"name": name, "namespace": "team", **more}
        body["metadata"]["ownerReferences"] = [
            {
                "apiVersion": "kubeflow.org/v1",
                "kind": kind,
                "name": job,
                "uid": f"uid-{job}",
                "controller": True,
            }
        ]
        body["spec"].pop("resourceClaims", None)
        for raw in body["spec"]["containers"]:
            raw.pop("resources", None)
        made = self.cluster.client.create(PODS, body, namespace="team")
        self.profiles.append(profile(name, made["metadata"]["uid"], node=node))
        return self.profiles[-1]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    cluster = Cluster(tmp_path)
    found = Nodes(cluster)
    with (
        Served(lambda path: found.text("n0", path)) as first,
        Served(lambda path: found.text("n1", path)) as second,
    ):
        cluster.plugin("n0", first)
        cluster.plugin("n1", second)
        yield found
    cluster.close()


@pytest.mark.long
def test_a_job_is_shown_with_the_share_that_would_have_done(
    nodes: Nodes, golden: Callable[[str, str], None]
) -> None:
    nodes.pod("train-0")
    nodes.pod("train-1", node="n1")
    nodes.pod("other-0", job="other")
    run = nodes.cluster.run
    shown = run("profile", "train", "-n", "team", "--prometheus", "none")
    assert shown.exit_code == 0, shown.output
    text = shown.stdout
    for uid in (one.uid for one in nodes.profiles):
        assert uid not in text
    golden("profiles/profile.txt", text)
    document = json.loads(
        run("profile", "pytorchjob/train", "-n", "team", "--prometheus", "none", "-o", "json").stdout
    )
    (one,) = document["profiles"]
    assert [pod["pod"] for pod in one["pods"]] == ["train-0", "train-1"]
    assert one["recommendation"]["words"] == {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": "12544",
        "nvidia.com/gpucores": "25",
    }
    assert one["series"]["gpuMemory"]["peak"] == 11 * GIB
    drawn = run("profile", "train", "-n", "team", "--prometheus", "none", "-o", "svg")
    ElementTree.fromstring(drawn.stdout)
    assert "gpumem 12544" in drawn.stdout
    single = run("profile", "train-1", "-n", "team", "--prometheus", "none", "-o", "json")
    assert [pod["pod"] for pod in json.loads(single.stdout)["profiles"][0]["pods"]] == ["train-1"]
    each = run("profile", "train", "-n", "team", "--prometheus", "none", "--per-pod")
    assert "pod train-1 on n1, 1 h 0 min" in each.stdout
    away = run("profile", "train", "-n", "team", "--prometheus", "http://127.0.0.1:1")
    assert "what nodes know alone: http://127.0.0.1:1" in away.stderr
    assert away.stdout == text
    missing = run("profile", "nothing", "-n", "team", "--prometheus", "none")
    assert missing.exit_code == 1
    assert "team/nothing: no node has a profile of it" in str(missing.exception)


@pytest.mark.long
def test_history_is_kept_told_and_used_again(nodes: Nodes, tmp_path: Path) -> None:
    url, clock = f"sqlite:///{tmp_path / 'profiles.db'}", [float(START)]
    client = nodes.cluster.client
    client.create(CRDS, yaml.safe_load((TRAINING / "trainingjobs.yaml").read_text()))
    eventually(lambda: served(client), "TrainingJobs")
    job = client.create(
        TRAINING_JOBS,
        {
            "metadata": {"name": "train"},
            "spec": {
                "framework": "PyTorch",
                "minReplicas": 1,
                "maxReplicas": 1,
                "template": {"spec": {"containers": [{"name": "a", "image": "x"}]}},
            },
        },
        namespace="team",
    )
    nodes.pod("train-0", kind="TrainingJob")
    ref = {
        "apiVersion": "koordra.io/v1alpha1",
        "kind": "TrainingJob",
        "name": "train",
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    client.patch(PODS, "train-0", {"metadata": {"ownerReferences": [ref]}}, namespace="team")

    def recommended() -> str | None:
        found = client.get(TRAINING_JOBS, "train", namespace="team")["metadata"].get("annotations") or {}
        text: str | None = found.get("koordra.io/recommended-share")
        return text

    history = History(client, open_store(url), lambda: clock[0])
    assert history.attempt().at_most == PERIOD
    assert history.was_successful
    told = client.get(TRAINING_JOBS, "train", namespace="team")["status"]["profile"]
    assert told["pods"] == 1
    assert "gpumem 12544" in told["templates"][0]["recommendation"]
    assert told["ofPods"][0]["series"]["sm"]["peak"] == 180
    assert recommended() == told["templates"][0]["recommendation"]
    # The pod goes, and koordra profiler starts again: whose it was is known from before.
    client.delete(PODS, "train-0", namespace="team", grace_period=0)
    nodes.profiles[0] = replace(profile("train-0", nodes.profiles[0].uid, seconds=7200, scale=20))
    clock[0] += TOLD + 1
    later = History(client, open_store(url), lambda: clock[0])
    later.attempt()
    (kept,) = open_store(url).of_job("team", "train")
    assert kept.profile.until == START + 7200
    assert (
        client.get(TRAINING_JOBS, "train", namespace="team")["status"]["profile"]["templates"][0]["series"][
            "sm"
        ]["seconds"]
        == 7200
    )
    assert recommended() is None  # it used all that it asked for
    # Another job that runs the same, by another name.
    nodes.profiles.clear()
    nodes.pod("again-0", job="again")
    shown = nodes.cluster.run(
        "profile", "again", "-n", "team", "--prometheus", "none", "--store", url, "-o", "json"
    )
    assert json.loads(shown.stdout)["profiles"][0]["ranBefore"] == 1
    past = nodes.cluster.run(
        "profile", "train", "-n", "team", "--prometheus", "none", "--store", url, "-o", "json"
    )
    assert json.loads(past.stdout)["profiles"][0]["job"]["kind"] == "TrainingJob"


@pytest.mark.long
def test_words_are_in_the_units_that_the_operator_has_set(nodes: Nodes, tmp_path: Path) -> None:
    said = {"hami": {"memoryFactor": 512}}
    client = nodes.cluster.client
    ask = {N + "gpu": 1, N + "gpumem": 79, N + "gpucores": 50}
    nodes.pod("train-0", ask=ask, settings=with_document(Settings(), said, source="settings"))

    def words() -> dict[str, str]:
        shown = nodes.cluster.run("profile", "train", "-n", "team", "--prometheus", "none", "-o", "json")
        found: dict[str, str] = json.loads(shown.stdout)["profiles"][0]["recommendation"]["words"]
        return found

    body = {
        "metadata": {"name": "koordra-legacy-settings"},
        "data": {"settings.yaml": yaml.safe_dump(said), "notes": "of nobody's"},
    }
    client.create(CONFIG_MAPS, body, namespace="koordra-system")
    # 11 GiB and a tenth, of 512 MiB each.
    assert words() == {N + "gpu": "1", N + "gpumem": "25", N + "gpucores": "25"}
    # What cannot be read costs the profiler nothing else.
    broken = {"data": {"settings.yaml": "hami: 5"}}
    client.patch(CONFIG_MAPS, "koordra-legacy-settings", broken, namespace="koordra-system")
    store = open_store(f"sqlite:///{tmp_path / 'profiles.db'}")
    assert History(client, store, lambda: float(START)).attempt().at_most == PERIOD
    assert len(store.of_job("team", "train")) == 1


@pytest.mark.long
def test_a_node_that_does_not_answer_is_told_and_costs_nothing_else(nodes: Nodes, tmp_path: Path) -> None:
    nodes.pod("train-0")
    nodes.cluster.plugin("n2", 1)
    garbled = Served(lambda path: '{"pods": [{"namespace": 5}]}')
    forged = Served(
        lambda path: json.dumps(Recording("n0", {PodKey("team", "x", "y"): profile("x", "y")}).document)
    )
    with garbled as third, forged as fourth:
        nodes.cluster.plugin("n3", third)
        nodes.cluster.plugin("n4", fourth)
        shown = nodes.cluster.run("profile", "train", "-n", "team", "--prometheus", "none")
        assert shown.exit_code == 0, shown.output
        assert "node n2 is not known" in shown.stderr
        assert "node n3 is not known: its plugin's profiles cannot be read" in shown.stderr
        assert nodes.cluster.run("profile", "x", "-n", "team", "--prometheus", "none").exit_code == 1


@pytest.mark.long
def test_one_turn_asks_for_so_many_pods_and_the_next_for_more(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_of, "AT_ONCE", 2)
    nodes.profiles = [profile(f"gone-{number}", f"uid-{number}", seconds=600) for number in range(5)]
    store = open_store(f"sqlite:///{tmp_path / 'profiles.db'}")
    history = History(nodes.cluster.client, store, lambda: float(START))
    for known in (2, 4, 5, 5):
        history.attempt()
        assert len([number for number in range(5) if store.of_pod(f"uid-{number}")]) == known


def test_a_status_is_bounded() -> None:
    profiles = [
        (
            Profile(
                JobRef("team", "TrainingJob", "j", "u"),
                f"t{number}",
                tuple(
                    profile(f"p-{number}-{pod}", f"{number}-{pod}", scale=pod + 1, seconds=600)
                    for pod in range(8)
                ),
            ),
            "text",
        )
        for number in range(6)
    ]
    found = status_of(profiles, at="2026-11-29T00:00:00Z")
    assert (found["pods"], len(found["templates"]), len(found["ofPods"])) == (48, MOST_TEMPLATES, MOST_PODS)
    assert {one["pod"].rpartition("-")[2] for one in found["ofPods"]} == {"7", "6", "5"}
    assert len(json.dumps(found)) < 40_000


@pytest.mark.parametrize(
    ("values", "highest", "bars"),
    [
        ((0, 50, 100), 100, "▁▄█"),
        ((None, 7), 7, "·█"),
        ((0, 0), 0, "▁▁"),
        ((), 5, ""),
        ((1 << 60,), 1 << 60, "█"),
    ],
)
def test_bars(values: tuple[int | None, ...], highest: int, bars: str) -> None:
    assert spark(values, highest) == bars


@pytest.mark.parametrize(
    ("series", "value", "text"),
    [
        (Series.SM, 180, "18%"),
        (Series.GPU, 3250, "3.25"),
        (Series.CPU, 40, "0.04"),
        (Series.GPU_MEMORY, 11 * GIB, "11.0Gi"),
        (Series.MEMORY, 1000, "1000"),
        (Series.RDMA, 1_500_000_000, "1.5GB/s"),
        (Series.RDMA, 7, "7B/s"),
    ],
)
def test_amounts_in_the_words_of_people(series: Series, value: int, text: str) -> None:
    assert amount(series, value) == text
