"""Rules and dashboards that are shipped: they name metrics and labels that there are, and every alert has its
page. That they work is shown with a Prometheus (tests/e2e/test_monitoring.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.prometheus import DEPLOY, dashboards, queries
from tests.fakes.documented_metrics import ROOT, declared

RUNBOOKS = ROOT / "docs" / "runbooks"
RULES = [
    rule
    for path in sorted((DEPLOY / "prometheus-rules").glob("*.yaml"))
    for group in yaml.safe_load(path.read_text()).get("spec", {}).get("groups", ())
    for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
LABELS = {each.name: {label.name for label in each.labels} for of in declared().values() for each in of}
OF_TARGETS = {"instance", "job", "namespace", "le"}
_METRIC = re.compile(r"(?<![\w:])(?:(?:\w+:)+)?koordra_\w+(?::\w+)*")
_SELECTOR = re.compile(r"(koordra_[a-z_]+)\{([^}]*)\}")


def every_query() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule.get("alert") or rule["record"], rule["expr"]
    for name, board in dashboards().items():
        for title, asked in queries(board).items():
            yield from ((f"{name}: {title}", query) for query in asked)


QUERIES = list(every_query())


def declared_name(name: str) -> str:
    return name if name in LABELS else re.sub(r"_(bucket|sum|count)$", "", name)


@pytest.mark.parametrize(
    ("where", "query"), QUERIES, ids=[f"{where}-{n}" for n, (where, _) in enumerate(QUERIES)]
)
def test_a_query_is_of_metrics_and_labels_that_there_are(where: str, query: str) -> None:
    del where
    found = set(_METRIC.findall(query))
    assert found or "DCGM" in query or query.startswith("up{") or "up{" in query
    for name in found:
        assert name in RECORDED or declared_name(name) in LABELS, name
    for name, selectors in _SELECTOR.findall(query):
        asked = {one.split("=")[0].strip("!~ ") for one in re.findall(r"(\w+\s*[=!]~?)", selectors)}
        assert {re.sub(r"[^\w]", "", one) for one in asked} <= LABELS[declared_name(name)] | OF_TARGETS, name


def test_every_alert_has_its_page_and_every_page_its_alert() -> None:
    pages = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == set(ALERTS)
    index = (RUNBOOKS / "README.md").read_text()
    for name, rule in ALERTS.items():
        assert rule["annotations"]["runbook"] == f"docs/runbooks/{name}.md"
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        text = (RUNBOOKS / f"{name}.md").read_text()
        assert text.startswith(f"# {name}\n\n**{rule['labels']['severity']}**")
        assert rule["expr"] in text, "the page shows another expression"
        assert all(f"**{part}**" in text for part in ("Look", "Do", "It is over when"))
        assert f"[{name}]({name}.md) | {rule['labels']['severity']} |" in index


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_dashboards_are_told_apart_and_choose_their_prometheus() -> None:
    boards = dashboards()
    assert len({board["uid"] for board in boards.values()}) == len(boards) == 3
    for name, board in boards.items():
        document = yaml.safe_load((DEPLOY / "grafana-dashboards" / f"{name}.yaml").read_text())
        assert document["metadata"]["labels"]["grafana_dashboard"] == "1"
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids)
        assert {panel["datasource"]["uid"] for panel in board["panels"] if panel["type"] != "row"} == {
            "${datasource}"
        }
        assert "datasource" in [one["name"] for one in board["templating"]["list"]]
        assert len(json.dumps(board)) < 900_000, "a ConfigMap holds a mebibyte"
