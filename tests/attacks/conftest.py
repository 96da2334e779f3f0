"""One installed cluster for the rows of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.cluster import InstalledCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledCluster]:
    found = InstalledCluster(tmp_path_factory.mktemp("cluster"))
    yield found
    found.close()
