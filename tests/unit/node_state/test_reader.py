"""The plugin's state is believed only when it is exactly what it should be, and read again when it was
replaced."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordra.errors import CheckpointError
from koordra.node_state.claim_ref import marker_of
from koordra.node_state.reader import StateReader
from tests.unit.nri.node_state import (
    GPU0,
    GUARDED,
    MARKER,
    NODE,
    OTHER_UID,
    UID,
    claim,
    claim_json,
    gpu_json,
    guarded_json,
    nic_json,
    write,
)


@pytest.fixture
def state(tmp_path: Path) -> StateReader:
    return StateReader(tmp_path, node_name=NODE)


def test_a_claim_is_found_by_its_marker(tmp_path: Path, state: StateReader) -> None:
    write(tmp_path / "prepared" / f"{UID}.json", claim_json(gpu_json(), nic_json(), memlock=True))
    found = state.claim(MARKER)
    assert found == claim(gpu_json(), nic_json(), memlock=True)
    assert found.devices[0].nodes == (GPU0,)
    assert found.devices[1].ib_device == "mlx5_0"


def test_guarded_nodes_are_read(tmp_path: Path, state: StateReader) -> None:
    assert state.guard() is None
    write(tmp_path / "guarded.json", guarded_json())
    assert state.guard() == GUARDED


def test_guarded_nodes_of_another_node_are_not_believed(tmp_path: Path) -> None:
    write(tmp_path / "guarded.json", guarded_json())
    with pytest.raises(CheckpointError, match="about node node-a, not node-b"):
        StateReader(tmp_path, node_name="node-b").guard()


@pytest.mark.parametrize(
    "marker",
    [
        marker_of(OTHER_UID),
        "KOORDRA_CLAIM_",
        "KOORDRA_CLAIM_../x",
        "KOORDRA_CLAIM_A/B",
        "KOORDRA_CLAIM_" + "A" * 300,
    ],
)
def test_a_marker_without_a_record_is_no_claim(state: StateReader, marker: str) -> None:
    assert state.claim(marker) is None


def test_a_replaced_record_is_read_again_and_a_removed_one_is_gone(
    tmp_path: Path, state: StateReader
) -> None:
    path = write(tmp_path / "prepared" / f"{UID}.json", claim_json(gpu_json()))
    first = state.claim(MARKER)
    assert state.claim(MARKER) is first  # not even decoded again
    write(tmp_path / "new", claim_json(gpu_json(), nic_json())).rename(path)
    second = state.claim(MARKER)
    assert second is not None
    assert len(second.devices) == 2
    path.unlink()
    assert state.claim(MARKER) is None


def without(field: str) -> Callable[[dict[str, Any]], object]:
    return lambda record: record.pop(field)


def changed(*path: str | int, to: Any) -> Callable[[dict[str, Any]], object]:
    def change(record: Any) -> None:
        for step in path[:-1]:
            record = record[step]
        record[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (without("nonce"), r"record\.nonce: missing"),
        (changed("extra", to=1), r"record\.extra: not a field"),
        (changed("schema", to="koordra.io/prepared/v2"), "schema: 'koordra.io/prepared/v2', expected"),
        (changed("nonce", to="granted"), "nonce: not 32 hexadecimal digits"),
        (changed("nonce", to=""), "nonce: not 32 hexadecimal digits"),
        (changed("marker", to="KOORDRA_CLAIM_X"), "marker: "),
        (changed("claim", to=[]), "claim: expected dict, found list"),
        (changed("claim", "uid", to=OTHER_UID), "marker: "),
        (changed("memlock", to=1), "memlock: expected bool, found int"),
        (changed("devices", to={}), "devices: expected list"),
        (
            changed("devices", 0, "type", to="fpga"),
            r"devices\[0\]\.type: 'fpga' is none of gpu, imex, mig, nic, remote, vf",
        ),
        (changed("devices", 0, "type", to=[]), r"devices\[0\]\.type: expected str"),
        (changed("devices", 0, "env", "A", to=1), r"devices\[0\]\.env\[A\]: expected str"),
        (changed("devices", 0, "deviceNodes", 0, "major", to=True), "major: expected int, found bool"),
        (changed("devices", 0, "deviceNodes", 0, "path", to="dev/x"), "path: 'dev/x' is not absolute"),
        (changed("devices", 0, "deviceNodes", 0, "type", to="p"), "type: 'p' is none of b, c"),
    ],
)
def test_a_record_that_is_not_exactly_right_is_not_believed(
    tmp_path: Path, state: StateReader, change: Callable[[dict[str, Any]], object], text: str
) -> None:
    record = claim_json(gpu_json())
    change(record)
    write(tmp_path / "prepared" / f"{UID}.json", record)
    with pytest.raises(CheckpointError, match=text):
        state.claim(MARKER)


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", "\x00", "[" * 100_000, '{"schema": "koordra.io/prepared/v1"}']
)
def test_a_torn_record_is_not_believed(tmp_path: Path, state: StateReader, text: str) -> None:
    write(tmp_path / "prepared" / f"{UID}.json", text)
    write(tmp_path / "guarded.json", text)
    with pytest.raises(CheckpointError, match="unusable"):
        state.claim(MARKER)
    with pytest.raises(CheckpointError, match="unusable"):
        state.guard()


def test_a_record_under_the_name_of_another_claim_is_not_believed(tmp_path: Path, state: StateReader) -> None:
    write(tmp_path / "prepared" / f"{UID}.json", claim_json(gpu_json(), uid=OTHER_UID))
    with pytest.raises(CheckpointError, match=f"is about claim {OTHER_UID}"):
        state.claim(MARKER)


def test_links_other_peoples_files_and_folders_are_not_believed(tmp_path: Path, state: StateReader) -> None:
    path = tmp_path / "prepared" / f"{UID}.json"
    elsewhere = write(tmp_path / "elsewhere.json", claim_json(gpu_json()))
    path.parent.mkdir()
    path.symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match="cannot be read"):
        state.claim(MARKER)
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match="not a regular file"):
        state.claim(MARKER)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match="not a regular file"):
        state.claim(MARKER)
    path.unlink()
    write(path, claim_json(gpu_json())).chmod(0o622)
    with pytest.raises(CheckpointError, match="another user"):
        state.claim(MARKER)
    path.chmod(0o600)
    os.truncate(path, 5 << 20)
    with pytest.raises(CheckpointError, match="is the most"):
        state.claim(MARKER)
