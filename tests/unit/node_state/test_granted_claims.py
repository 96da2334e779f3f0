"""What containers hold, by the hook's ledger: one reading for as long as nothing changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koordra.node_state.granted_claims import DIRECTORY, ContainerName, GrantedContainers
from koordra.nri.hook.ledger import Granted, GrantedDevice, Ledger

UID = "8d0c3a52-5b0e-4b57-9d2b-4a3f6f1d2c11"
SECOND = 1_000_000_000


def add(state: Path, container: str, *devices: str) -> None:
    held = tuple(GrantedDevice("team", "claim", UID, device, "gpu", None) for device in devices)
    Ledger(state).add(container, Granted("", (), frozenset(), held, container=("team", "pod", container)))


def stamp(state: Path, at: int) -> None:
    os.utime(state / DIRECTORY, ns=(at, at))


def test_two_entries_within_one_tick_of_the_kernel_are_both_seen(tmp_path: Path) -> None:
    now = [10 * SECOND]
    granted = GrantedContainers(tmp_path, clock=lambda: now[0])
    add(tmp_path, "c1", "gpu-0")
    stamp(tmp_path, now[0])
    assert set(granted.by_id()) == {"c1"}
    add(tmp_path, "c2", "gpu-1", "nic-0")
    stamp(tmp_path, now[0])
    found = granted.by_id()
    assert set(found) == {"c1", "c2"}
    assert found["c2"].name == ContainerName("team", "pod", "c2")
    assert (found["c2"].claims, found["c2"].devices) == ((UID,), {"gpu-1", "nic-0"})
    now[0] += 2 * SECOND
    assert granted.by_id() is granted.by_id(), "nothing is read while nothing changes"
    assert granted.of_claims()[UID] == (
        ContainerName("team", "pod", "c1"),
        ContainerName("team", "pod", "c2"),
    )


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": "x"}', '{"schema": "koordra.io/nri-granted/v1", "devices": [1]}']
)
def test_an_entry_that_says_nothing_sensible_grants_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / DIRECTORY / "c1.json").write_text(text)
    granted = GrantedContainers(tmp_path)
    assert granted.claims_of("c1") == ()
    assert granted.by_id()["c1"].devices == frozenset()
    assert granted.claims_of("other") == ()
