"""The rows of tenant.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.cluster import InstalledCluster
from tests.attacks.row import Attack, Outcome
from tests.attacks.scene import Scene, attack, judge
from tests.attacks.tenant import TENANT


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledCluster]:
    found = InstalledCluster(tmp_path_factory.mktemp("cluster"))
    yield found
    found.close()


@pytest.mark.parametrize("row", [row for row in TENANT if row.runs], ids=lambda row: row.name)
def test_tenant(cluster: InstalledCluster, row: Attack) -> None:
    judge(cluster, row)


def selecting(expression: str) -> dict[str, object]:
    return {"selectors": [{"cel": {"expression": expression}}]}


@attack("nested-parentheses")
def nested_parentheses(scene: Scene) -> Outcome:
    expression = "(" * 20 + "true" + ")" * 20
    scene.claim("nested", exactly=selecting(expression))
    scene.pod("nested", "nested")
    scene.wait(lambda: scene.allocated("nested"), "placed")
    return "bounded"
