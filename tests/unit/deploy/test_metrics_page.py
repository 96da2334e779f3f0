"""docs/metrics.md is what the code declares, by Prometheus' rules, and the rendered manifests serve it."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from koordra.metrics import Instrument, Metrics
from koordra.metrics.instruments import Sort
from koordra.nri.hook.oci import RULES
from tests.fakes.documented_metrics import PAGE, PROCESSES, ROOT, declared, of_process, page, rows
from tests.fakes.kustomized import built

EVERYTHING = [instrument for of in declared().values() for instrument in of]
NOT_BASE = re.compile(r"_(milli|micro|kilo|mega|giga|minutes|hours|days|bits|gib|mib|gb|mb|percent|ms)(_|$)")
COMPONENTS = ("legacy", "elastic", "pod-network")


def test_the_page_is_made_of_the_code(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text()
    if request.config.getoption("--regen"):
        PAGE.write_text(page(text))
        return
    assert text == page(text), "make it anew: pytest --regen tests/unit/deploy/test_metrics_page.py"
    assert {name for of in rows(text).values() for name in of} == {each.name for each in EVERYTHING}


@pytest.mark.parametrize("instrument", EVERYTHING, ids=lambda each: each.name)
def test_names_follow_prometheus_rules(instrument: Instrument) -> None:
    name, unit = instrument.name, instrument.unit
    assert re.fullmatch(r"koordra_[a-z][a-z0-9]*(_[a-z0-9]+)+", name)
    assert name.endswith("_total") == (instrument.sort is Sort.COUNTER)
    assert not re.search(r"_(count|sum|bucket|created)$|_(gauge|counter|histogram)(_|$)", name)
    assert name.endswith("_info") == (name == "koordra_build_info")
    assert not NOT_BASE.search(name), "base units"
    assert instrument.sort is not Sort.HISTOGRAM or unit == "seconds"
    assert instrument.meaning[0].isupper() or instrument.meaning[0] == "1"
    assert not instrument.meaning.endswith(".")
    assert "|" not in instrument.meaning
    names = [label.name for label in instrument.labels]
    assert len(set(names)) == len(names)
    for label in instrument.labels:
        assert re.fullmatch(r"[a-z][a-z_]*|UUID|GPU_I_ID", label.name)
        assert label.name not in ("le", "quantile", "job", "instance")
        assert label.values or label.bound
        assert len(set(label.values)) == len(label.values) <= 64
    assert len(list(instrument.known_values())) <= 160, "each is a series from the start"


def test_what_is_registered_passes_promtool() -> None:
    """With the lint of Prometheus itself, where it is installed (Debian: prometheus)."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here")
    for who in PROCESSES:
        metrics = Metrics()
        for instrument in of_process(who, "legacy"):
            if instrument.name != "koordra_build_info":
                getattr(metrics, instrument.sort.value)(instrument)
        found = subprocess.run(
            [promtool, "check", "metrics"], input=metrics.text(), capture_output=True, text=True, check=False
        )
        assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_the_rules_of_the_hook_are_those_that_it_refuses_by() -> None:
    said = set()
    for path in (ROOT / "koordra" / "nri" / "hook").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Refusal"):
                said |= {one.value for one in node.args[:1] if isinstance(one, ast.Constant)}
            if isinstance(node, ast.keyword) and node.arg == "rule" and isinstance(node.value, ast.Constant):
                said.add(node.value.value)
            if isinstance(node, ast.arg) and node.arg == "rule":
                said.add("ForgedMarker")
    assert said | {"OtherPlugin"} == set(RULES)


@pytest.mark.parametrize("component", ["", *COMPONENTS])
def test_every_rendered_process_serves_metrics_on_its_port(tmp_path: Path, component: str) -> None:
    """Where two instances overlap on the host's network, in an update, no port is declared."""
    documents = built(tmp_path, *([component] if component else []))
    served: dict[str, str] = {}
    for (kind, _), document in documents.items():
        if kind not in ("Deployment", "DaemonSet"):
            continue
        pod: dict[str, Any] = document["spec"]["template"]["spec"]
        for container in pod["containers"]:
            (address,) = [
                argument.partition("=")[2]
                for argument in container["args"]
                if argument.startswith("--metrics-address=")
            ]
            port = {each["name"]: each["containerPort"] for each in container.get("ports", ())}.get("metrics")
            surges = document["spec"].get("updateStrategy", {}).get("rollingUpdate", {}).get("maxSurge")
            hidden = pod.get("hostNetwork") and surges
            assert port == (None if hidden else int(address.removeprefix(":")))
            served[container["args"][0]] = address
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                asked = container.get(probe, {})
                declared = [each["name"] for each in container.get("ports", ())]
                assert asked.get("httpGet", {}).get("port") in (None, *declared)
                # The longest step of a first pass on 10,000 nodes keeps the interpreter for 2.4 s.
                assert not asked or asked.get("timeoutSeconds", 1) >= 5
    assert set(served) == set(PROCESSES)
    assert len(set(served.values())) == len(served)


def test_the_policy_lets_monitoring_in_and_the_webhooks_callers(tmp_path: Path) -> None:
    """It concerns every pod of koordra's, by the ports that these have, and no other port is open."""
    documents = built(tmp_path, "metrics-policy")
    policy = documents["NetworkPolicy", "koordra-metrics"]["spec"]
    wanted = policy["podSelector"]["matchLabels"].items()
    everybody, monitoring = policy["ingress"]
    assert everybody == {"ports": [{"port": 9443}]}
    assert monitoring["from"] == [{"namespaceSelector": {"matchLabels": {"koordra.io/metrics": "allowed"}}}]
    for (kind, _), document in documents.items():
        if kind in ("Deployment", "DaemonSet"):
            pod = document["spec"]["template"]
            assert wanted <= pod["metadata"]["labels"].items()
            declared = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
            assert {port["port"] for port in monitoring["ports"]} <= declared
