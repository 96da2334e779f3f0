"""Parts of the card's time in the self test: what it makes of figures, and two programs of a stand-in for
PyTorch beside each other on the fake driver, whose kernels take real time here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.gpu_shares import rows_of, steps_of
from koordra.kubelet_plugin.selftest.core_shares import Measured, judged
from tests.fakes.gpu_machine import GpuMachine
from tests.fakes.native import ROOT
from tests.unit.kubelet_plugin.selftest.conftest import selftest_of

PACKAGES = ROOT / "tests" / "fakes" / "cuda_packages"
SHORT = (
    "import sys; from koordra.kubelet_plugin.selftest import core_shares as c; c.SECONDS = 1.0; c.STARTS_WITHIN = 3.0; "
    "sys.argv = ['koordra', *sys.argv[4:]]; from koordra.cli.main import main; main()"
)


def measured(percent: int, part: float, *, charged: float = 1.0, late: float = 0.0) -> Measured:
    return Measured(percent, part, 5.0, late, charged if percent else 0.0, 0.0)


def test_a_limit_without_effect_is_a_problem() -> None:
    alone = [measured(0, 100.0)]
    kept = judged([alone, [measured(30, 31.0)], [measured(10, 8.0), measured(90, 85.0)]], 100.0)
    assert (kept.status, kept.found) == ("ok", "30% got 31.0%; 10% got 8.0%; 90% got 85.0%")
    assert judged([alone, [measured(30, 93.0)]], 100.0).status == "problem"
    unseen = judged([alone, [measured(30, 30.0, charged=0.0)]], 100.0)
    assert (unseen.status, "seen no launch" in unseen.found) == ("problem", True)
    late = judged([alone, [measured(30, 90.0, late=3.0)]], 100.0)
    assert (late.status, "not comparable" in late.found) == ("ok", True)


@pytest.mark.long
@pytest.mark.parametrize("load", ["small", "gemm", "graph"])
def test_two_programs_share_the_card_in_claims_of_their_own(
    gpu: GpuMachine, tmp_path: Path, load: str
) -> None:
    run, report = selftest_of(gpu, before=[sys.executable, "-c", SHORT]), tmp_path / "r.tar.gz"
    only = ("--only", f"cores: {load}", "--report", str(report))
    steps = run("--container", "process", *only, PYTHONPATH=str(PACKAGES))
    step = steps[f"cores: {load}"]
    trials = step["details"]["trials"]
    assert list(trials) == ["no limit", "30%", "30% and 70%", "10% and 90%"]
    assert trials["no limit"][0]["chargedSeconds"] == 0
    for name in ("30%", "30% and 70%", "10% and 90%"):
        for one in trials[name]:
            assert one["chargedSeconds"] > 0  # what it waited depends on how fast the machine's kernels run
    rows = list(rows_of(steps_of(report)))
    assert [row[:3] for row in rows[:2]] == [(load, "no limit", "no limit"), (load, "30%", "30 %")]
    assert len(rows) == 6
