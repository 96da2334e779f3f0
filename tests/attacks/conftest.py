"""One development cluster for the rows of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.development import DevelopmentCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevelopmentCluster]:
    found = DevelopmentCluster(tmp_path_factory.mktemp("cluster"))
    yield found
    found.close()
