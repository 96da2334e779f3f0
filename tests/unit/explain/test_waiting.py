"""Claims that wait, one for every sort of reason: what `koordra explain` says of each, and the Event that the
controller's next pass would write.

Each manifest of waiting/ says in its first lines what is wrong with it, and of which cluster (clusters.py) it
is asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml
from click.testing import CliRunner

from koordra.api import objects
from koordra.cli.cluster.explain import explain
from koordra.controller.allocation.writes import Writer
from koordra.controller.reconcile.reconciler import Reconciler
from koordra.controller.reporting.claim_events import LONGEST_MESSAGE, ClaimEvent
from tests.fakes.kube_api import KINDS, FakeCaches, FakeKubeApi
from tests.unit.explain.clusters import Dict, cluster

KIND_NAMED: Final = {kind.kind: kind for kind in KINDS}
NOW: Final = "2026-11-21T00:00:00Z"
MANIFESTS = sorted((Path(__file__).parent / "waiting").glob("*.yaml"))
MOST_LINES = 30


def header(text: str) -> tuple[str, dict[str, str]]:
    """What the manifest is about, and what it says of the cluster."""
    about, *rest = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
    return about, dict(line.split(": ", 1) for line in rest)


def explained(manifest: Path, folder: Path) -> str:
    _, given = header(manifest.read_text())
    published = folder / "cluster.json"
    published.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": cluster(given["cluster"])}))
    features = ["--features", given["features"]] if "features" in given else []
    asked = ["-f", str(published), "-f", str(manifest), *features, *given.get("asked", "").split()]
    found = CliRunner().invoke(explain, asked, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


def events(manifest: Path) -> Iterator[str]:
    """What the controller tells of what waits, in its first minute."""
    text = manifest.read_text()
    about = header(text)[1]
    if "features" in about:  # of gates that are off the API server drops the fields: test_decisions
        return
    api, told, now = FakeKubeApi(), list[ClaimEvent](), [1000.0]
    own: list[Dict] = [one for one in yaml.safe_load_all(text) if one]
    for obj in (*cluster(about["cluster"]), *own):
        if obj["kind"] in KIND_NAMED:
            api.create(KIND_NAMED[obj["kind"]], obj)
    caches = FakeCaches(api)
    writer = Writer(api, may_write=lambda: True, now=lambda: NOW)  # type: ignore[arg-type]
    leader = Reconciler(caches, writer, clock=lambda: now[0], report=told.append)  # type: ignore[arg-type]
    for _ in range(2):
        caches.deliver()
        leader.reconcile()
        now[0] += 60
    for event in told:
        assert len(event.message.encode()) <= LONGEST_MESSAGE
        if event.warning:
            about_what = ", ".join(f"{one['kind']} {objects.name(one)}" for one in event.about)
            yield f"{event.reason} on {about_what}: {event.message}"


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_what_a_person_reads(manifest: Path, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    about = header(manifest.read_text())[0]
    said = explained(manifest, tmp_path)
    assert all(entry.count("\n") < MOST_LINES for entry in said.split("\n\n"))
    told = "".join(f"\nEvent {event}\n" for event in events(manifest))
    golden(f"explain/waiting/{manifest.stem}.txt", f"{about}\n\n{said}{told}")


def test_there_are_forty_and_more() -> None:
    assert len(MANIFESTS) >= 40
