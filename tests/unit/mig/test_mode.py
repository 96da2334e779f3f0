"""The MIG mode of a card, switched by hand: on the fake NVML, which switches Hopper at once and Ampere by a
reset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordra.cli.node.mig import mig
from koordra.errors import NodeError
from koordra.kubelet_plugin.isolation.mig.mode import switch_mode
from koordra.kubelet_plugin.nvidia_driver.homes import HomeSource
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLibrary
from koordra.kubelet_plugin.nvidia_driver.release import (
    REPORT,
    REPORT_FILE,
    REQUEST_FILE,
    Phase,
    ReleaseReport,
)
from tests.fakes.mig_card import MigCard
from tests.fakes.nvml_library import build
from tests.unit.kubelet_plugin.nvidia_driver.test_device_holders import Proc


def made(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, enabled: bool, architecture: str = "Hopper"
) -> MigCard:
    card = MigCard(folder, build(), enabled=enabled, architecture=architecture)
    for name, value in card.fake.environment.items():
        if name.startswith("KOORDRA_FAKE"):
            monkeypatch.setenv(name, value)
    return card


def mode(card: MigCard) -> list[int]:
    with NvmlLibrary(lambda: card.fake.library / "libnvidia-ml.so.1").session() as nvml:
        found: list[int] = nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByUUID(card.uuid))
    return found


def switch(
    card: MigCard, *, on: bool, reset: str | None = "and there is nobody to do it", takes: bool = True
) -> str:
    """`takes`: the card has the mode after a reset that was made."""

    def run() -> str | None:
        if reset is None and takes:
            _, pending = mode(card)
            state.write_text(state.read_text() + f"mode 0 {pending} {pending}\n")
        return reset

    state = card.fake.folder / "instances"
    library = NvmlLibrary(lambda: card.fake.library / "libnvidia-ml.so.1")
    return switch_mode(library.session, card.uuid, on=on, reset=run)


def test_hopper_is_switched_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = made(tmp_path, monkeypatch, enabled=False)
    assert switch(card, on=True).endswith("is on")
    assert mode(card) == [1, 1]
    assert switch(card, on=True).endswith("is on already")
    assert switch(card, on=False).endswith("is off")
    assert mode(card) == [0, 0]


def test_ampere_is_switched_by_a_reset_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = made(tmp_path, monkeypatch, enabled=False, architecture="Ampere")
    with pytest.raises(NodeError, match="it needs a reset, and there is nobody to do it; nothing is pending"):
        switch(card, on=True)
    assert mode(card) == [0, 0]
    assert switch(card, on=True, reset=None).endswith("is on, after a reset")
    assert mode(card) == [1, 1]


def test_a_reset_after_which_the_card_is_as_before_has_switched_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = made(tmp_path, monkeypatch, enabled=False, architecture="Ampere")
    with pytest.raises(NodeError, match="needs a reset, after which it is as before; nothing is pending"):
        switch(card, on=True, reset=None, takes=False)
    assert mode(card) == [0, 0]


def test_a_card_in_use_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Success, and not switched: a client is in the way."""
    card = made(tmp_path, monkeypatch, enabled=False)
    card.fake.processes((card.uuid, "compute", 4711, 1))
    with pytest.raises(NodeError, match="in use"):
        switch(card, on=True)
    assert mode(card)[0] == 0
    card.fake.order()
    assert switch(card, on=True).endswith("is on")


def run(card: MigCard, state: Path, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(HomeSource, "nvml", lambda _self: card.fake.library / "libnvidia-ml.so.1")
    options = ["--state-dir", str(state), "--root", str(card.fake.folder), "--timeout", "0"]
    found = CliRunner().invoke(mig, [*arguments, *options])
    return found.output if found.exception is None else str(found.exception)


def released(state: Path) -> None:
    state.mkdir()
    (state / REQUEST_FILE).write_text("token")
    report = ReleaseReport(Phase.RELEASED, "asked", nvml_closed=True, request="token")
    (state / REPORT_FILE).write_text(json.dumps(REPORT.write(report)))


def test_the_command_switches_a_card_of_a_released_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, state = made(tmp_path, monkeypatch, enabled=False), tmp_path / "plugin"
    released(state)
    assert run(card, state, "on", card.gpu.name, monkeypatch=monkeypatch).endswith("is on\n")
    assert mode(card) == [1, 1]
    assert (state / REQUEST_FILE).exists(), "somebody else's release stands"
    assert "knows no card 'GPU-none'" in run(card, state, "on", "GPU-none", monkeypatch=monkeypatch)
    card.make(card.place("1g.10gb", 0))
    assert "has MIG instances" in run(card, state, "off", card.uuid, monkeypatch=monkeypatch)
    assert mode(card) == [1, 1]
    card.remove()
    assert run(card, state, "off", card.uuid, monkeypatch=monkeypatch).endswith("is off\n")


def test_the_operator_says_what_resets_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card, state = made(tmp_path, monkeypatch, enabled=False, architecture="Ampere"), tmp_path / "plugin"
    released(state)
    reset, asked = tmp_path / "reset", tmp_path / "asked"
    reset.write_text(f"#!/bin/sh\necho $1 > {asked}\n")
    reset.chmod(0o755)

    def told(command: str) -> str:
        return run(card, state, "on", card.uuid, "--reset-with", command, monkeypatch=monkeypatch)

    assert "none was asked for (--reset-with)" in told("")
    assert "after which it is as before" in told(str(reset))
    assert asked.read_text().split() == [card.uuid]


def test_who_has_the_driver_open_below_the_root_is_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, state = made(tmp_path, monkeypatch, enabled=False), tmp_path / "plugin"
    released(state)
    Proc(card.fake.folder).process(4711, "/dev/null")
    assert "4711" in run(card, state, "on", card.uuid, monkeypatch=monkeypatch)
    assert mode(card) == [0, 0]


def test_without_a_plugin_that_lets_go_nothing_is_switched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, state = made(tmp_path, monkeypatch, enabled=False), tmp_path / "plugin"
    state.mkdir()
    assert "has not answered" in run(card, state, "on", card.uuid, monkeypatch=monkeypatch)
    assert mode(card) == [0, 0]
    assert not (state / REQUEST_FILE).exists(), "what it asked for itself is taken back"
