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

from koordra.allocator.search.search import Search
from koordra.allocator.search.solution import Outcome
from koordra.api import objects
from koordra.cli.cluster.claim_text import claim_text, last_word
from koordra.cli.cluster.explain import explain
from koordra.cli.cluster.object_text import pod_text
from koordra.compat.settings import Settings
from koordra.controller.allocation.reserved.quotas import Quotas
from koordra.controller.allocation.writes import Writer
from koordra.controller.explain.answer import answer
from koordra.controller.explain.forecast.admission import admitted
from koordra.controller.explain.leader_view import leader_view
from koordra.controller.explain.question import Question, Subject, question_of
from koordra.controller.quota.claim_usage import ClaimUsage
from koordra.controller.quota.held_back import HeldBack
from koordra.controller.quota.held_seats import HeldSeats
from koordra.controller.quota.published import PublishedDevices
from koordra.controller.quota.usage import QuotaUsage
from koordra.controller.reconcile.reconciler import Reconciler
from koordra.controller.reporting.claim_events import LONGEST_MESSAGE, ClaimEvent
from tests.fakes.kube_api import KINDS, FakeCaches, FakeKubeApi
from tests.unit.allocator.machines import device_classes
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
    given = header(manifest.read_text())[1]
    published = folder / "cluster.json"
    published.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": cluster(given["cluster"])}))
    features = ["--features", given["features"]] if "features" in given else []
    asked = ["-f", str(published), "-f", str(manifest), *features, *given.get("asked", "").split()]
    found = CliRunner().invoke(explain, asked, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


class Leader:
    """A controller over the cluster and the manifest's objects, for a minute. `told`: what it reports."""

    def __init__(self, given: dict[str, str], own: list[Dict]) -> None:
        api, now = FakeKubeApi(), 1000.0
        self.told: list[ClaimEvent] = []
        for obj in (*cluster(given["cluster"]), *own):
            if obj["kind"] in KIND_NAMED:
                api.create(KIND_NAMED[obj["kind"]], obj)
        caches = FakeCaches(api)
        writer = Writer(api, may_write=lambda: True, now=lambda: NOW)  # type: ignore[arg-type]
        self.reconciler = Reconciler(
            caches,  # type: ignore[arg-type]
            writer,
            clock=lambda: now,
            report=self.told.append,
            quotas=quotas_of(own),
        )
        for _ in range(2):
            caches.deliver()
            self.reconciler.reconcile()
            now += 60

    def says(self, word: str) -> str:
        question = question_of(word, "default")
        assert question is not None
        text = {Subject.POD: pod_text, Subject.CLAIM: claim_text}[question.subject]
        return text(answer(leader_view(self.reconciler), question)[question.subject])


def quotas_of(own: list[Dict]) -> Quotas:
    """As the leader counts them (controller/quota)."""
    usage = QuotaUsage(Settings(), clock=lambda: 0.0)
    claims = ClaimUsage(usage, PublishedDevices())
    quotas = [obj for obj in own if obj["kind"] == "ResourceQuota"]
    for obj in (*device_classes(), *own):
        if obj["kind"] == "DeviceClass":
            claims.on_class("ADDED", obj)
        elif obj["kind"] == "ResourceClaim":
            claims.on_claim("ADDED", obj)
    return HeldBack(usage, HeldSeats(usage.known), lambda _: quotas, lambda *_: None, claims.amounts)


def events(leader: Leader) -> Iterator[str]:
    for event in leader.told:
        assert len(event.message.encode()) <= LONGEST_MESSAGE
        if event.warning:
            about = ", ".join(f"{one['kind']} {objects.name(one)}" for one in event.about)
            yield f"{event.reason} on {about}: {event.message}"


def stored(manifests: list[Dict]) -> list[Dict]:
    """As an API server has them, to which koordra's classes were applied before."""
    tables = admitted([*device_classes(), *manifests], Settings()).cluster.values()
    known = {objects.name(one) for one in device_classes()}
    found = [obj for table in tables for obj in table.values() if objects.name(obj) not in known]
    return [*found, *(one for one in manifests if one["kind"] == "ResourceQuota")]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_what_a_person_reads(
    manifest: Path, tmp_path: Path, golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = manifest.read_text()
    about, given = header(text)
    if "search" in given:
        run = Search.run

        def short_of_breath(search: Search) -> Outcome:
            search.budget = int(given["search"])
            return run(search)

        monkeypatch.setattr(Search, "run", short_of_breath)
    own = stored([one for one in yaml.safe_load_all(text) if one])
    # Of gates that are off the API server drops the fields (test_decisions).
    told = None if "features" in given else Leader(given, own)
    said = f"{told.says(given['leader'])}\n" if told and "leader" in given else explained(manifest, tmp_path)
    assert all(entry.count("\n") < MOST_LINES for entry in said.split("\n\n"))
    reported = "".join(f"\nEvent {event}\n" for event in events(told)) if told else ""
    golden(f"explain/waiting/{manifest.stem}.txt", f"{about}\n\n{said}{reported}")


def test_there_are_forty_and_more() -> None:
    assert len(MANIFESTS) >= 40


@pytest.mark.parametrize("stem", ["all-cards-in-use", "memory-beyond-every-card", "beyond-a-quota"])
def test_what_the_controller_said_last_is_not_told_again(stem: str) -> None:
    text = (MANIFESTS[0].parent / f"{stem}.yaml").read_text()
    leader = Leader(header(text)[1], stored([one for one in yaml.safe_load_all(text) if one]))
    (event,) = [one for one in leader.told if one.warning and one.about[0]["kind"] == "ResourceClaim"]
    question = Question(Subject.CLAIM, "default", objects.name(event.about[0]))
    entry = answer(leader_view(leader.reconciler), question)[Subject.CLAIM]
    assert list(last_word({**entry, "controller": f"{event.reason}: {event.message}"}, 2)) == []
    old = "Tainted: claim c: 2 nodes"
    assert list(last_word({**entry, "controller": old}, 2)) == [f"  the controller said last: {old}"]
