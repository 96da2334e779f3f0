"""The rows of tests/attacks that need no API server of their own, against the one that there is, with its
scheduler and koordra's controller as a process."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.attacks.test_murphy
import tests.attacks.test_node
import tests.attacks.test_policy
import tests.attacks.test_tenant  # noqa: F401  (each registers what tries its rows)
from tests.attacks.cluster import InstalledCluster
from tests.attacks.page import TABLES
from tests.attacks.row import Attack
from tests.attacks.scene import judge
from tests.cluster.installation import Installation

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def attacked(
    controller: None,
    installed: Installation,
    kubeconfig: str,
    metrics_port: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[InstalledCluster]:
    del controller

    def metrics() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=30) as answer:
            return str(answer.read(), "utf-8")

    folder = tmp_path_factory.mktemp("attacked")
    found = InstalledCluster(Path(kubeconfig), folder, installed, metrics=metrics)
    yield found
    found.close()


@pytest.mark.parametrize(
    "row", [row for table in TABLES for row in table.on_any_cluster()], ids=lambda row: row.name
)
def test_attack(attacked: InstalledCluster, row: Attack) -> None:
    judge(attacked, row)
