"""`--context`, `-l`, `--watch` and `-o yaml` of what reads a cluster, as kubectl has them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from koordra.api import names
from koordra.api.kinds import DEVICE_CLASSES, NAMESPACES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordra.cli.cluster import cluster_objects
from koordra.cli.cluster.cluster_objects import Listed, Source, followed
from koordra.cli.main import cli
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.control_plane import ControlPlane
from tests.fakes.joint_cluster import claim, device_class, gpu_slice, node, pod

NODES_AND_RACKS = {"n0": "a", "n1": "b"}


def add_node(client: KubeClient, name: str, rack: str) -> None:
    wanted = node(name)
    wanted["metadata"]["labels"] = {**wanted["metadata"].get("labels", {}), "rack": rack}
    made = client.create(NODES, wanted)
    client.update(NODES, {**made, "status": node(name)["status"]}, subresource="status")
    client.create(RESOURCE_SLICES, gpu_slice(name, 1))


def add_claim(client: KubeClient, name: str, namespace: str, tier: str) -> None:
    wanted = claim(name, memory="120Gi")
    wanted["metadata"] |= {"namespace": namespace, "labels": {"tier": tier}}
    client.create(RESOURCE_CLAIMS, wanted, namespace=namespace)


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """Of two contexts: the current one of namespace default, and `team` of namespace team."""
    stop = threading.Event()
    plane = ControlPlane(tmp_path)
    plane.start(stop)
    client = new_client(str(plane.kubeconfig))
    client.negotiate()
    client.create(DEVICE_CLASSES, device_class(names.CLASS_GPU, "gpu"))
    client.create(NAMESPACES, {"metadata": {"name": "team"}})
    for name, rack in NODES_AND_RACKS.items():
        add_node(client, name, rack)
    add_claim(client, "ours", "default", "web")
    add_claim(client, "also-ours", "default", "batch")
    add_claim(client, "theirs", "team", "batch")
    client.create(PODS, pod("p", ["ours"]))
    config = json.loads(plane.kubeconfig.read_text())
    (current,) = config["contexts"]
    config["contexts"].append({"name": "team", "context": {**current["context"], "namespace": "team"}})
    path = tmp_path / "contexts"
    path.write_text(json.dumps(config))
    yield path
    stop.set()
    plane.close()


def told(kubeconfig: Path, *words: str) -> list[Any]:
    """The YAML documents of a command's answer."""
    asked = [*words, "--kubeconfig", str(kubeconfig), "-o", "yaml"]
    found = CliRunner().invoke(cli, asked, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return list(yaml.safe_load_all(found.stdout))


def claims_told(kubeconfig: Path, *words: str) -> set[str]:
    (document,) = told(kubeconfig, *words)
    return {f"{one['namespace']}/{one['name']}" for one in document["claims"]}


@pytest.mark.parametrize("command", ["claims", "explain"])
def test_context_namespace_and_labels_choose_claims(command: str, kubeconfig: Path) -> None:
    assert claims_told(kubeconfig, command) == {"default/ours", "default/also-ours"}
    assert claims_told(kubeconfig, command, "--context", "team") == {"team/theirs"}
    assert claims_told(kubeconfig, command, "-l", "tier=batch") == {"default/also-ours"}
    assert claims_told(kubeconfig, command, "-A", "-l", "tier=batch") == {"default/also-ours", "team/theirs"}


def test_the_context_is_the_one_that_a_named_claim_is_sought_in(kubeconfig: Path) -> None:
    assert claims_told(kubeconfig, "explain", "claim/theirs", "--context", "team") == {"team/theirs"}
    missing = CliRunner().invoke(cli, ["explain", "claim/theirs", "--kubeconfig", str(kubeconfig)])
    assert missing.exit_code
    assert "theirs" in str(missing.exception)


def test_labels_of_nodes_choose_devices(kubeconfig: Path) -> None:
    def nodes_told(*words: str) -> set[str]:
        (document,) = told(kubeconfig, "devices", *words)
        return {one["node"] for one in document["devices"]}

    assert nodes_told() == {"n0", "n1"}
    assert nodes_told("-l", "rack=b") == {"n1"}
    assert nodes_told("-l", "rack!=b", "--context", "team") == {"n0"}
    nobody = CliRunner().invoke(cli, ["devices", "--kubeconfig", str(kubeconfig), "--context", "nobody"])
    assert "nobody" in str(nobody.exception)


def new_claim(client: KubeClient) -> None:
    add_claim(client, "new", "default", "web")


def new_node(client: KubeClient) -> None:
    add_node(client, "n2", "c")


@pytest.mark.parametrize(
    ("command", "change", "kind", "entries", "second"),
    [
        ("claims", new_claim, RESOURCE_CLAIMS, "claims", {"new"}),
        ("explain", new_claim, RESOURCE_CLAIMS, "claims", {"ours", "also-ours", "new"}),
        ("devices", new_node, RESOURCE_SLICES, "devices", {"n2"}),
    ],
)
def test_watched_a_change_is_a_document_of_its_own(
    command: str,
    change: Callable[[KubeClient], None],
    kind: Any,
    entries: str,
    second: set[str],
    kubeconfig: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until Ctrl-C; here until the change has been shown. What explain says of one claim may change with
    every other, so it says all of it again."""

    def until_changed(client: KubeClient, sources: Sequence[Source]) -> Iterator[Listed]:
        with closing(followed(client, sources)) as moments:  # type: ignore[type-var]
            first = next(moments)
            yield first
            change(client)
            for moment in moments:
                if len(moment[kind]) > len(first[kind]):
                    yield moment
                    return

    monkeypatch.setattr(import_module(f"koordra.cli.cluster.{command}"), "followed", until_changed)
    before, after = told(kubeconfig, command, "--watch")
    key = "node" if command == "devices" else "name"
    assert {one[key] for one in after[entries]} == second
    assert not {one[key] for one in before[entries]} & (second - {"ours", "also-ours"})


@pytest.mark.parametrize("words", [["devices"], ["claims"], ["devices", "--watch"], ["claims", "--watch"]])
def test_that_the_cluster_is_read_is_told_while_it_lasts(
    words: list[str], kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on, during = list[str](), list[list[str]]()

    @contextmanager
    def progress(what: str, **_how: object) -> Iterator[None]:
        going_on.append(what)
        yield
        going_on.remove(what)

    def listed(client: KubeClient, sources: Sequence[Source]) -> Listed:
        del client, sources
        during.append(list(going_on))
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster_objects, "progress", progress)
    monkeypatch.setattr(cluster_objects, "listed", listed)
    CliRunner().invoke(cli, [*words, "--kubeconfig", str(kubeconfig)])
    assert during == [["reading the cluster"]]
