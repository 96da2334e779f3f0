"""Debian's own Prometheus, unpacked privately, and what its promtool says of rules over scripted scrapes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml
from prometheus_client.parser import text_string_to_metric_families

from koordra_devcluster.demo.installation import free_port
from tests.e2e.conftest import CACHE
from tests.e2e.debian import unpacked
from tests.patience import PATIENCE

HEALTHY: Final = 20
"""Minutes before a cause."""
FIRED: Final = HEALTHY + 30
UP: Final = "# TYPE up gauge\nup{{}} {}\n"
"""As Prometheus writes it of a target."""
DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "kustomize"


def programs() -> Path:
    """The folder with `prometheus` and `promtool`. Raises Unavailable."""
    there = shutil.which("promtool")
    if there and shutil.which("prometheus"):
        return Path(there).parent
    return unpacked(CACHE, ("prometheus",)) / "usr" / "bin"


def shipped_rules(folder: Path) -> list[Path]:
    """The rule files that the component prometheus-rules stands for."""
    found = []
    for path in sorted((DEPLOY / "prometheus-rules").glob("*.yaml")):
        document = yaml.safe_load(path.read_text())
        if document["kind"] == "PrometheusRule":
            found.append(folder / path.name)
            found[-1].write_text(yaml.safe_dump(document["spec"]))
    return found


def dashboards() -> dict[str, dict[str, Any]]:
    """By file."""
    found = {}
    for path in sorted((DEPLOY / "grafana-dashboards").glob("*.yaml")):
        document = yaml.safe_load(path.read_text())
        if document["kind"] == "ConfigMap":
            (text,) = document["data"].values()
            found[path.stem] = json.loads(text)
    return found


def queries(board: Mapping[str, Any], **variables: str) -> dict[str, list[str]]:
    """By panel, with Grafana's variables as it puts them in: a range of six hours, everything chosen."""
    values = {"__rate_interval": "5m", "__range": "6h", "namespace": ".*", **variables}

    def filled(text: str) -> str:
        for name, value in values.items():
            text = text.replace(f"${name}", value)
        assert "$" not in text, text
        return text

    section, found = "", {}
    for panel in board["panels"]:
        if panel["type"] == "row":
            section = panel["title"]
            continue
        title = f"{section}: {panel['title']}" if section else panel["title"]
        assert title not in found
        found[title] = [filled(target["expr"]) for target in panel["targets"]]
    return found


@dataclass
class Scrapes:
    """What Prometheus has scraped of processes, once a minute, from minute 0 on."""

    minutes: int = 0
    series: dict[str, list[str]] = field(default_factory=dict)

    def take(
        self, texts: Mapping[str, str], *, minutes: int = 1, since: float = 0.0, pace: float = 0.0
    ) -> None:
        """The same for so many minutes. `texts` by job; `since`: the Unix time of minute 0, for which
        promtool has 0; `pace`: by how much instants grow each minute."""
        for job, text in texts.items():
            for name, value in self._samples(job, text):
                first, more = (value - since, pace) if "_timestamp_seconds" in name else (value, 0.0)
                if "_oldest_seconds" in name and value:  # an age
                    more = 60.0
                values = self.series.setdefault(name, [])
                values += ["_"] * (self.minutes - len(values))
                values += [repr(first + more * minute) for minute in range(minutes)]
        self.minutes += minutes

    def _samples(self, job: str, text: str) -> Iterator[tuple[str, float]]:
        target = {"job": job, "instance": "node-a", "namespace": "koordra-system"}
        for family in text_string_to_metric_families(text):
            for one in family.samples:
                labels = target | {key: value for key, value in one.labels.items() if value}
                written = ",".join(f"{key}={json.dumps(value)}" for key, value in sorted(labels.items()))
                yield f"{one.name}{{{written}}}", one.value


@dataclass(frozen=True, slots=True)
class Question:
    """What a query gives at that minute: values by labels, or, of one without labels, its value."""

    query: str
    minute: int
    wanted: Mapping[str, float]


def alert_case(
    name: str,
    before: Mapping[str, str],
    stands: Sequence[Mapping[str, str]],
    *,
    since: float = 0.0,
    goes_on: bool = False,
    number: int = 0,
) -> tuple[str, Scrapes, list[Question]]:
    """That the alert fires when its cause has stood for a while, and not before. `before` and `stands`: what
    was scraped, the latter a minute apart, its last one for good; `since`: Unix time of minute 0; `goes_on`:
    what is dated is done again each minute while all is well."""
    scrapes, pace = Scrapes(), 60.0 if goes_on else 0.0
    scrapes.take(before, minutes=HEALTHY, since=since, pace=pace)
    for texts in stands:
        scrapes.take(texts, since=since - pace * HEALTHY)
    scrapes.take(stands[-1], minutes=FIRED + 1 - scrapes.minutes, since=since - pace * HEALTHY)
    fires = f'ALERTS{{alertname="Koordra{name}",alertstate="firing"}}'
    fired = f"clamp_max(count(count_over_time({fires}[{FIRED - HEALTHY - 1}m])) or vector(0), 1)"
    questions = [Question(fired, HEALTHY - 1, {"{}": 0}), Question(fired, FIRED, {"{}": 1})]
    return f"{name} {number}", scrapes, questions


def ask(folder: Path, binaries: Path, cases: Sequence[tuple[str, Scrapes, Sequence[Question]]]) -> None:
    """`promtool test rules` with the shipped rules: all cases, each by a name."""
    tests = [
        {
            "interval": "1m",
            "name": name,
            "input_series": [
                {"series": series, "values": " ".join(values)} for series, values in scrapes.series.items()
            ],
            "promql_expr_test": [
                {
                    "expr": each.query,
                    "eval_time": f"{each.minute}m",
                    "exp_samples": [{"labels": key, "value": value} for key, value in each.wanted.items()],
                }
                for each in questions
            ],
        }
        for name, scrapes, questions in cases
    ]
    document = {
        "rule_files": [str(path) for path in shipped_rules(folder)],
        "evaluation_interval": "1m",
        "tests": tests,
    }
    (folder / "cases.yaml").write_text(yaml.safe_dump(document, width=1 << 20))
    done = subprocess.run(
        [binaries / "promtool", "test", "rules", folder / "cases.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, re.sub(r"\n\s*\n", "\n", done.stdout + done.stderr)[-6000:]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running one."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector now."""
        with urlopen(f"{self.url}/api/v1/query?{urlencode({'query': expression})}", timeout=PATIENCE) as got:
            answer = json.load(got)
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def wait_for(self, expression: str, wanted: Callable[[list[dict[str, Any]]], bool]) -> None:
        ends = time.monotonic() + PATIENCE
        while True:
            found = self.query(expression)
            if wanted(found):
                return
            assert time.monotonic() < ends, (expression, found)
            time.sleep(0.2)


@contextmanager
def running(folder: Path, binaries: Path, configuration: Path) -> Iterator[Prometheus]:
    """With its data in the folder, on loopback."""
    port = free_port()
    command = [
        binaries / "prometheus",
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            ends = time.monotonic() + PATIENCE
            while True:
                assert process.poll() is None, (folder / "prometheus.log").read_text()
                try:
                    with urlopen(f"{url}/-/ready", timeout=PATIENCE):
                        break
                except OSError:
                    assert time.monotonic() < ends
                    time.sleep(0.1)
            yield Prometheus(url)
        finally:
            process.terminate()
