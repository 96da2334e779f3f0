"""Fixtures that every suite shares: golden files and the folder of shared test data."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from koordra import logs

ROOT = Path(__file__).resolve().parent.parent
# The programs that tests start find the checkout's packages where this process finds them (`pythonpath` in
# pyproject.toml).
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), str(ROOT / "devcluster"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
GOLDEN = Path(__file__).resolve().parent / "golden"

# Deterministic in CI and on a laptop alike; no deadline, since a machine under load is not a bug. `make test`
# takes the profile "fast", `make test-long` runs the same tests with "full", and `make soak` with many more
# examples, drawn anew; `make mutants` only wants to know that a test fails, and looks for no smaller example.
EXAMPLES = os.environ.get("KOORDRA_EXAMPLES")
for profile, examples, phases in (
    ("fast", 20, tuple(Phase)),
    ("full", 100, tuple(Phase)),
    ("mutants", 20, (Phase.explicit, Phase.generate)),
):
    settings.register_profile(
        profile,
        deadline=None,
        derandomize=EXAMPLES is None,
        max_examples=int(EXAMPLES or examples),
        phases=phases,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
settings.load_profile("fast")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A second try for the tests marked `second_try(reason=...)`; the summary names every one that needed it
    ("R")."""
    for item in items:
        for mark in item.iter_markers("second_try"):
            if not mark.kwargs.get("reason"):
                raise pytest.UsageError(f"{item.nodeid}: second_try needs a reason")
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """A command that runs in this process blocks the signals that end it: what later tests start would not
    end by them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        return (yield)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the run cost, its workers and every other process that it has waited for included."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in spent)
    terminalreporter.write_line(f"CPU time: {seconds / 60:.1f} minutes ({seconds:.0f} s)")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regen", action="store_true", help="rewrite golden files; review the diff")


@pytest.fixture(autouse=True, scope="module")
def quiet_logs() -> None:
    """Each file begins as a process that nobody has told to log more: commands that run in the tests' own
    process configure it for all that comes after."""
    logs.configure(level="warning")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: the text equals tests/golden/<name>, or becomes it with --regen."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--regen"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path.relative_to(ROOT)} is missing; make it with pytest --regen"
        assert text == path.read_text(), f"differs from {path.relative_to(ROOT)}; see pytest --regen"

    return compare


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of test vectors: KOORDRA_DATA, or shared/data beside the checkout; skips where absent."""
    folder = Path(os.environ.get("KOORDRA_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no test vectors: {folder} is absent (set KOORDRA_DATA)")
    return folder
