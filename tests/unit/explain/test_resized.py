"""A running claim whose shares were changed: what is told of it beside its allocation."""

from __future__ import annotations

from koordra.api.kinds import RESOURCE_CLAIMS
from koordra.cli.cluster.claim_text import _allocated
from koordra.controller.explain.isolation import resized_of
from tests.unit.reservations.test_resizes import Resizing


def test_present_limits_are_told_beside_the_allocation() -> None:
    cluster = Resizing()
    cluster.share("a")
    assert resized_of(cluster.api.get(RESOURCE_CLAIMS, "a"), cluster.holds()) is None
    cluster.wish("a", {"gpu": {"memory": "20Gi"}})
    cluster.wish("a", {"gpu": {"memory": "70Gi"}})
    found = resized_of(cluster.api.get(RESOURCE_CLAIMS, "a"), cluster.holds())
    assert found is not None
    assert found["limits"] == ["gpu-0: memory 20Gi (allocated 16Gi), cores 30%, Hard"]
    assert found["held"] == ["gpu-0: memory 4Gi beyond the allocation"]
    entry = {"pods": [], "devices": [], "placement": None, "isolation": [], "resized": found}
    text = " ".join(line.strip() for line in _allocated(entry, wide=False))
    assert (
        "changed while it runs: gpu-0: memory 20Gi (allocated 16Gi), cores 30%, Hard; gpu-0: memory 4Gi beyond"
        in text
    )
    assert "its last wish is not granted: Infeasible: request gpu: memory: 70Gi is asked for" in text
