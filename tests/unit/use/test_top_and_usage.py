"""`koordra top` and `koordra usage`: what of samples they make, and both against an API server that passes on
to the plugins of two nodes, and to a Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from click.testing import CliRunner

from koordra.api import objects
from koordra.api.kinds import RESOURCE_CLAIMS, SERVICES, Kind
from koordra.api.objects import Object
from koordra.cli.cluster.use import usage as usage_of
from koordra.cli.cluster.use.readings import (
    CORES,
    GPU_SECONDS,
    MEMORY,
    MEMORY_USED,
    RECEIVED,
    Device,
    Holder,
    Reading,
    rates,
    uses,
)
from koordra.cli.cluster.use.top import allocator, use_rows
from koordra.cli.main import cli
from koordra.metrics import samples
from koordra_devcluster.apiserver.resources import ENDPOINT_SLICES as SLICES
from tests.fakes.joint_cluster import claim
from tests.fakes.kube_api import FakeKubeApi
from tests.unit.use.served_cluster import Cluster, Served, allocated

GIB = 1 << 30


def granted(pod: str, claim: str, uuid: str, *, cores: float, container: str = "c") -> list[Reading]:
    labels = {"namespace": "team", "pod": pod, "container": container, "claim": claim, "device": uuid}
    labels |= {"UUID": uuid, "GPU_I_ID": ""}
    return [Reading(CORES, labels, cores, "n0"), Reading(MEMORY, labels, cores * GIB, "n0")]


def used(name: str, pod: str, uuid: str, value: float, *, container: str = "c") -> Reading:
    labels = {"namespace": "team", "pod": pod, "container": container, "UUID": uuid, "GPU_I_ID": ""}
    return Reading(name, labels, value, "n0")


def test_what_containers_have_together_is_granted_once_and_used_by_each() -> None:
    readings = [
        *granted("p", "c", "GPU-a", cores=50, container="one"),
        *granted("p", "c", "GPU-a", cores=50, container="two"),
        *granted("p", "c", "GPU-b", cores=50),
        used(MEMORY_USED, "p", "GPU-a", 3.0, container="one"),
        used(MEMORY_USED, "p", "GPU-a", 4.0, container="two"),
        used(MEMORY_USED, "q", "GPU-a", 9.0),
    ]
    ((holder, use),) = uses(readings, [used(GPU_SECONDS, "p", "GPU-b", 0.5)], {}).items()
    assert holder == Holder("team", "p", "c")
    assert (use.gpus, use.memory, use.memory_used, use.gpus_used) == (1.0, 100 * GIB, 7.0, 0.5)
    assert use.devices == {Device("GPU-a", ""), Device("GPU-b", "")}
    assert use.received is None, "not known, which is not 0"


def test_ports_are_those_of_the_claim_s_nics() -> None:
    readings = [*granted("p", "c", "GPU-a", cores=50), *granted("p", "d", "GPU-b", cores=50)]
    port = {"namespace": "team", "pod": "p", "container": "c", "port": "1"}
    rated = [Reading(RECEIVED, {**port, "device": device}, 5.0) for device in ("nic-0", "nic-1")]
    found = uses(readings, rated, {("team", "c"): frozenset(("nic-0",))})
    assert [found["team", "p", name].received for name in ("c", "d")] == [5.0, None]  # type: ignore[index]


@pytest.mark.parametrize(("before", "after", "wanted"), [(100.0, 104.0, [0.4]), (100.0, 3.0, [0.3])])
def test_a_rate_is_of_what_grew_and_of_what_began_anew(
    before: float, after: float, wanted: list[float]
) -> None:
    first, then = (used(GPU_SECONDS, "p", "GPU-a", value) for value in (before, after))
    other = used(GPU_SECONDS, "new", "GPU-a", 7.0)
    assert [one.value for one in rates([first], [then, other], seconds=10)] == pytest.approx(wanted)
    assert rates([first], [then._replace(node="n1")], seconds=10) == [], "another node's"


def test_everybody_who_has_devices_is_there_whoever_allocated_them() -> None:
    readings = [
        *granted("runs", "mine", "GPU-a", cores=25),
        *granted("annotated", "", "GPU-b", cores=50),
        *granted("elsewhere", "not-listed", "GPU-c", cores=100),
    ]
    claims = [
        allocated("mine", "gpu-a"),
        allocated("native", "gpu-d", manager="kube-scheduler"),
        claim("waits"),
    ]
    found = use_rows(claims, readings, [], namespace="team")
    assert [(row["pod"], row["claim"], row["allocatedBy"], row["gpus"]["granted"]) for row in found] == [
        ("", "native", "kube-scheduler", None),
        ("annotated", "", "Koordinator", 0.5),
        ("runs", "mine", "koordra", 0.25),
    ]
    assert allocator(claim("waits")) == ""
    assert use_rows([], readings, [], namespace="other") == []


class Labelled(FakeKubeApi):
    def list(self, kind: Kind, *, label_selector: str = "", **where: Any) -> tuple[list[Object], str]:
        """By labels and their values."""
        found, version = super().list(kind, **where)
        key, _, value = label_selector.partition("=")
        return [one for one in found if not key or objects.labels_of(one).get(key) == value], version


class Kept:
    """A Prometheus that knows of one pod."""

    def query(self, expression: str) -> list[Reading]:
        return [] if expression.startswith("rate(") else granted("runs", "web", "GPU-a", cores=25)


def test_options_say_which_claims_how_often_and_who_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    api, module = Labelled(), import_module("koordra.cli.cluster.use.top")
    for name, tier in (("web", "a"), ("batch", "b")):
        made = allocated(name, "gpu-a")
        made["metadata"]["labels"] = {"tier": tier}
        api.create(RESOURCE_CLAIMS, made)
    monkeypatch.setattr(module, "connect", lambda _access: api)
    monkeypatch.setattr(module, "namespace_of", lambda _access, _scope: "team")
    monkeypatch.setattr(module, "prometheus", lambda _client, named: Kept() if named else None)
    monkeypatch.setattr(module, "_live", lambda _client, _interval: iter([([], [])] * 2))

    def told(*words: str) -> list[list[str]]:
        shown = CliRunner().invoke(cli, ["top", "-o", "yaml", *words], catch_exceptions=False)
        return [[row["claim"] for row in one["top"]] for one in yaml.safe_load_all(shown.stdout)]

    assert told() == [["batch", "web"]]
    assert told("-l", "tier=a") == [["web"]]
    assert told("--watch") == [["batch", "web"], ["batch", "web"]]
    for where, pods in (((), ["", ""]), (("--prometheus", "monitoring/p"), ["", "runs"])):
        shown = CliRunner().invoke(cli, ["top", "-o", "json", *where], catch_exceptions=False)
        assert [row["pod"] for row in json.loads(shown.stdout)["top"]] == pods


def test_between_two_readings_are_as_many_seconds_as_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    module, slept = import_module("koordra.cli.cluster.use.top"), list[float]()
    monkeypatch.setattr(module, "connect", lambda _access: Labelled())
    monkeypatch.setattr(module, "namespace_of", lambda _access, _scope: "team")
    monkeypatch.setattr(module, "_read", lambda _client, _wanted: SimpleNamespace(readings=(), silent={}))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append))
    for more in ((), ("--interval", "3")):
        CliRunner().invoke(cli, ["top", "--prometheus", "none", *more], catch_exceptions=False)
    assert slept == [10.0, 3.0]


def test_samples_are_those_of_the_names_asked_for() -> None:
    text = 'a_total{x="1"} 2\na_total_more{x="1"} 3\nb 4\n# HELP a_total words\n'
    assert list(samples(text, ["a_total"])) == [("a_total", {"x": "1"}, 2.0)]
    assert list(samples("<html>koordra", ["<html>koordra"])) == []


def plugin_text(path: str) -> str | None:
    """As a kubelet plugin's: two hours of a share of a quarter, and of another node's whole card one."""
    place = 'namespace="team",pod="p",container="c"'
    card = 'UUID="GPU-a",GPU_I_ID=""'
    return (
        f'{CORES}{{{place},claim="mine",device="gpu-a",{card}}} 25\n'
        f'{MEMORY}{{{place},claim="mine",device="gpu-a",{card}}} {10 * GIB}\n'
        f"{MEMORY_USED}{{{place},{card}}} {2 * GIB}\n"
        f"{GPU_SECONDS}{{{place},{card}}} 7\n"
        'koordra_namespace_gpu_seconds_total{namespace="team",kind="share",model="H100"} 1800\n'
        'koordra_namespace_gpu_seconds_total{namespace="other",kind="gpu",model="H100"} 3600\n'
        if path == "/metrics"
        else None
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    found.close()


@pytest.mark.long
def test_every_node_is_asked_through_the_api_server(cluster: Cluster) -> None:
    with Served(plugin_text) as port:
        cluster.plugin("n0", port)
        cluster.plugin("n1", 1)
        cluster.claim("mine")
        shown = cluster.run("top", "-n", "team", "--interval", "1", "-o", "json")
        assert shown.exit_code == 0, shown.output
        (row,) = json.loads(shown.stdout)["top"]
        assert (row["pod"], row["claim"], row["gpus"]) == ("p", "mine", {"granted": 0.25, "used": 0.0})
        assert row["memoryBytes"] == {"granted": 10 * GIB, "used": 2 * GIB}
        assert "node n1 is not known" in shown.stderr
        table = cluster.run("top", "-A", "--interval", "1").stdout
        assert table.split()[:5] == ["NAMESPACE", "POD", "CLAIM", "NODE", "GPUS"]
        assert "0.25" in table
        assert "10.0Gi" in table
        hours = cluster.run("usage", "-o", "json")
        assert json.loads(hours.stdout)["usage"] == [
            {"namespace": "other", "model": "H100", **hours_of(gpu=1.0)},
            {"namespace": "team", "model": "H100", **hours_of(share=0.5)},
        ]
        assert (
            "no Prometheus: counted since the plugins started, between 2026-11-28T10:00:00Z" in hours.stderr
        )
        assert "node n1 is not counted" in hours.stderr
        refused = cluster.run("usage", "--since", "7d")
        assert refused.exit_code != 0
        assert "name one with --prometheus" in str(refused.exception)


def hours_of(**hours: float) -> dict[str, float]:
    rows = {f"{kind}Hours": hours.get(kind, 0.0) for kind in ("gpu", "share", "mig")}
    return {**rows, "totalHours": sum(rows.values())}


def vector(*rows: tuple[Mapping[str, str], float]) -> str:
    result = [{"metric": dict(labels), "value": [1.0, str(value)]} for labels, value in rows]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})


@pytest.mark.long
@pytest.mark.parametrize("operated", [True, False])
def test_a_prometheus_is_asked_where_there_is_one(cluster: Cluster, operated: bool) -> None:
    asked: list[str] = []

    def answer(path: str) -> str | None:
        (query,) = parse_qs(urlsplit(path).query)["query"]
        asked.append(query)
        if "increase" in query:
            return vector(({"namespace": "team", "kind": "gpu", "model": "H100"}, 7200.0))
        return vector(({}, 1.0))

    with Served(answer) as port:
        where = ["--prometheus", f"http://127.0.0.1:{port}/"]
        if operated:
            where = []
            service: Object = {
                "metadata": {"name": "prometheus-operated", "labels": {"operated-prometheus": "true"}},
                "spec": {"ports": [{"name": "web", "port": 9090}], "clusterIP": "None"},
            }
            cluster.client.create(SERVICES, service, namespace="monitoring")
            endpoint_slice: Object = {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": "p", "labels": {"kubernetes.io/service-name": "prometheus-operated"}},
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}],
                "ports": [{"name": "web", "port": port, "protocol": "TCP"}],
            }
            cluster.client.create(SLICES, endpoint_slice, namespace="monitoring")
        shown = cluster.run("usage", "--since", "7d", *where)
        assert shown.exit_code == 0, shown.output
        assert shown.stdout.splitlines()[1].split() == ["team", "H100", "2.00", "0.00", "0.00", "2.00"]
        assert any("[604800s]" in query for query in asked)
        assert "figures since" not in shown.stderr
        for wrong in ("7", "-7d", "7y", "1e9h", "7d; drop"):
            refused = cluster.run("usage", "--since", wrong, *where)
            assert "24h" in str(refused.exception), wrong


def test_figures_that_begin_later_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    class Young:
        where = "Prometheus a/b"

        def query(self, expression: str) -> list[Reading]:
            return [Reading("", {}, usage_of.datetime.now(usage_of.UTC).timestamp() - 600)]

    usage_of.kept(Young(), "7d")  # type: ignore[arg-type]
    assert "has figures since" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["x", "/x", "a/", "a/b/c", "ftp://x"])
def test_a_prometheus_that_is_no_place_is_refused(named: str) -> None:
    from koordra.cli.cluster.use.prometheus import prometheus
    from koordra.errors import InvalidInput

    with pytest.raises(InvalidInput, match="--prometheus"):
        prometheus(None, named)  # type: ignore[arg-type]
