"""Whether a program of a limited claim was limited: by what it changed in the claim's region, and by what the
card had more in use."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from koordra.kubelet_plugin.isolation.limiter import usage
from koordra.kubelet_plugin.isolation.limiter.usage import CardUse, ClaimUse
from koordra.kubelet_plugin.selftest.container import Command
from koordra.kubelet_plugin.selftest.judgement import Expected
from koordra.kubelet_plugin.selftest.limiter_watch import LimiterWatch, watched
from koordra.kubelet_plugin.selftest.programs import card_memory
from koordra.kubelet_plugin.selftest.report import Finding, Status, ok
from tests.fakes.descriptors import more_than_select_takes

GIB = 1 << 30
EXPECTED = Expected("GPU-1", 80 * GIB, limit=8 * GIB)


def use(*, started: int, denied: int = 0) -> ClaimUse:
    return ClaimUse("c", (CardUse("GPU-1", 8 * GIB, 0, 0, denied),), (), started, 0)


def judged(monkeypatch: pytest.MonkeyPatch, now: ClaimUse, *, more: int | None = None) -> Finding:
    monkeypatch.setattr(usage, "read", lambda _folder: now)
    watch = LimiterWatch(Path("region"), use(started=4, denied=2), more)
    return watch.judged(ok("computes", total=1), EXPECTED)


def test_a_program_that_took_a_slot_was_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(monkeypatch, use(started=6, denied=5), more=8 * GIB + 700)
    assert found.status is Status.OK
    assert found.details == {
        "total": 1,
        "limiter": {"processes": 2, "refused": 3},
        "moreOnCard": 8 * GIB + 700,
    }


def test_one_that_took_none_was_not_whoever_was_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(monkeypatch, use(started=4, denied=2))
    assert found.status is Status.PROBLEM
    assert "computes; the limiter was not in force" in found.found


def test_more_on_the_card_than_the_limit_and_contexts_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(monkeypatch, use(started=5), more=11 * GIB)
    assert found.status is Status.PROBLEM
    assert "11.00 GiB more on the card by NVML, of 8.00 GiB" in found.found
    assert judged(monkeypatch, use(started=5), more=None).status is Status.OK


def watching(code: str) -> Command:
    return Command((sys.executable, "-c", code), {})


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("import sys; print('watching', flush=True); sys.stdin.read(); print('[5, 12]')", 7),
        ("raise SystemExit('no NVML')", None),
        ("print('watching', flush=True); print('[5')", None),
    ],
)
def test_what_nvml_says_beside_the_program_counts_if_it_says_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, more: int | None
) -> None:
    monkeypatch.setattr(usage, "read", lambda _folder: use(started=0))
    with more_than_select_takes(), watched(tmp_path, watching(code)) as watch:
        pass
    assert watch is not None
    assert watch.more == more


def test_a_watcher_that_cannot_be_started_says_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(usage, "read", lambda _folder: use(started=0))
    with watched(tmp_path, Command(("/nonexistent",), {})) as watch:
        pass
    assert watch is not None
    assert watch.more is None
    with watched(None, Command((), {})) as none:
        assert none is None


def test_the_most_of_the_card_s_memory_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, ends = iter([3, 9, 4]), iter([[], [], [1]])

    class Nvml:
        def __init__(self, library: str) -> None:
            assert library == "/lib/nvml"

        def cards(self) -> list[str]:
            return ["GPU-0", "GPU-1"]

        def uuid(self, card: str) -> str:
            return card

        def memory(self, card: str) -> tuple[int, int]:
            assert card == "GPU-1"
            return 80, next(figures)

    monkeypatch.setattr(card_memory, "Nvml", Nvml)
    monkeypatch.setattr(card_memory.select, "select", lambda *_: (next(ends), [], []))
    monkeypatch.setattr(sys, "argv", ["card_memory", "/lib/nvml", "GPU-1"])
    card_memory.watch()
    said, figures_said = capsys.readouterr().out.splitlines()
    assert (said, json.loads(figures_said)) == ("watching", [3, 9])
