"""Networks that take longer than a runtime waits: begun once, finished all the same, and never two at a time
for one pod."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from koordra.errors import NodeError
from koordra.kubelet_plugin.network.patient_networks import PatientNetworks
from koordra.node_state.claim_network import Sandbox
from tests.patience import PATIENCE


class SlowNetworks:
    """Attaches once it may, and fails if it is told to."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.steps: list[str] = []
        self.fails: list[Exception] = []

    def attach(self, sandbox: Sandbox) -> None:
        self.steps.append(f"attach {sandbox.id}")
        assert self.may.wait(PATIENCE)
        self.steps.append(f"attached {sandbox.id}")
        if self.fails:
            raise self.fails.pop()

    def detach(self, sandbox: Sandbox) -> None:
        self.steps.append(f"detach {sandbox.id}")


def tried_again(step: Callable[[], None]) -> None:
    """As the kubelet does."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return step()
        except NodeError:
            assert time.monotonic() < end


def sandbox(number: int, pod: str = "p") -> Sandbox:
    return Sandbox(f"s{number}", f"uid-{pod}", pod, "team-a", "/run/netns/x")


@pytest.fixture
def slow() -> SlowNetworks:
    return SlowNetworks()


def impatient(slow: Any) -> PatientNetworks:
    return PatientNetworks(slow, patience=0.01)


def test_what_takes_long_is_begun_once_and_found_at_the_next_try(slow: SlowNetworks) -> None:
    networks = impatient(slow)
    for _ in range(3):
        with pytest.raises(NodeError, match="pod team-a/p: its network is still being made or taken back"):
            networks.attach(sandbox(1))
    assert slow.steps == ["attach s1"]
    slow.may.set()
    tried_again(lambda: networks.attach(sandbox(1)))
    assert slow.steps[:2] == ["attach s1", "attached s1"]


def test_a_pods_other_sandbox_and_its_end_wait_and_other_pods_do_not(slow: SlowNetworks) -> None:
    networks = impatient(slow)
    for step in (networks.attach, networks.attach, networks.detach):
        with pytest.raises(NodeError, match="still being made"):
            step(sandbox(1 if step == networks.detach else 2))
    tried_again(lambda: networks.detach(sandbox(1, "other")))
    assert slow.steps == ["attach s2", "detach s1"]
    with pytest.raises(NodeError, match="still being made"):
        networks.attach(sandbox(7))
    assert "attach s7" not in slow.steps
    slow.may.set()
    tried_again(lambda: networks.attach(sandbox(7)))
    tried_again(lambda: networks.detach(sandbox(7)))
    assert slow.steps[2] == "attached s2"
    assert slow.steps[-3:] == ["attach s7", "attached s7", "detach s7"]


def test_an_error_is_that_of_the_network_and_the_next_try_begins_anew(slow: SlowNetworks) -> None:
    slow.may.set()
    slow.fails = [NodeError("NoRoutableGID: mlx5_7 would carry nothing")]
    networks = PatientNetworks(slow, patience=PATIENCE)  # type: ignore[arg-type]
    with pytest.raises(NodeError, match="NoRoutableGID"):
        networks.attach(sandbox(1))
    networks.attach(sandbox(1))
    assert slow.steps == ["attach s1", "attached s1"] * 2
