"""Claims that wait, one for every sort of reason: what `koordra explain` says of each, and the Event that the
controller's next pass would write.

Each manifest of waiting/ says in its first lines what is wrong with it, and of which cluster (clusters.py) it
is asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from koordra.api import objects
from koordra.cli.cluster.explain import explain
from koordra.controller.cache.changes import tables_of
from koordra.controller.reconcile.dry_run import dry_run_claims
from koordra.controller.reporting import claim_events
from tests.unit.explain.clusters import Dict, cluster

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
    """What the controller would write of each claim that waits."""
    text = manifest.read_text()
    own: list[Dict] = [one for one in yaml.safe_load_all(text) if one]
    everything = [*cluster(header(text)[1]["cluster"]), *own]
    found = dry_run_claims(tables_of(everything), refused={}, now=datetime.now(UTC))
    claims = {objects.key(one): one for one in everything if one["kind"] == "ResourceClaim"}
    for key, placement in sorted(found.items()):
        if placement.node is None:
            event = claim_events.waiting(claims[key], (), placement.reasons.get(key, ()))
            assert len(event.message.encode()) <= claim_events.LONGEST_MESSAGE
            yield f"{event.reason}: {event.message}"


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_what_a_person_reads(manifest: Path, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    about = header(manifest.read_text())[0]
    said = explained(manifest, tmp_path)
    assert all(entry.count("\n") < MOST_LINES for entry in said.split("\n\n"))
    told = "".join(f"\nEvent {event}\n" for event in events(manifest))
    golden(f"explain/waiting/{manifest.stem}.txt", f"{about}\n\n{said}{told}")


def test_there_are_forty_and_more() -> None:
    assert len(MANIFESTS) >= 40
