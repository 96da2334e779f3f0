"""Fixtures that every suite shares: golden files and the folder of shared test data."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
# The programs that tests start find the checkout's packages where this process finds them (`pythonpath` in pyproject.toml).
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), str(ROOT / "devcluster"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
GOLDEN = Path(__file__).resolve().parent / "golden"

# Deterministic in CI and on a laptop alike; no deadline, since a machine under load is not a bug.
# `make soak` asks for many more examples, and for other ones each time.
EXAMPLES = os.environ.get("KOORDRA_EXAMPLES")
settings.register_profile(
    "koordra",
    deadline=None,
    derandomize=EXAMPLES is None,
    max_examples=int(EXAMPLES or 100),
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("koordra")


# Tests with processes, sockets and other people's clocks get a second try: a busy machine may starve one of them for
# seconds. The summary names every rerun ("R"); each is a defect to look into, not noise.
LIVE = (
    "cluster",
    "demo",
    "e2e",
    "unit/controller",
    "unit/deploy",
    "unit/devcluster",
    "unit/elastic",
    "unit/kube",
    "unit/kubelet_plugin",
    "unit/legacy",
    "unit/limiter",
    "unit/nri",
    "unit/peers",
    "unit/webhook",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folders = tuple(ROOT / "tests" / name for name in LIVE)
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in folders):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regen", action="store_true", help="rewrite golden files; review the diff")


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
