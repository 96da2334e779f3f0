"""What the GPU Operator says on a Node, and how far the driver is to be free for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordra.api.objects import Object
from koordra.kubelet_plugin.nvidia_driver.release_wanted import (
    BETWEEN_ATTEMPTS,
    NOBODY,
    PauseMemory,
    ReleaseWanted,
    after_pause,
    loaded_driver,
    wanted_by_command,
    wanted_by_node,
)

CLIENT = "nvidia.com/gpu.deploy.client"
STATE = "nvidia.com/gpu-driver-upgrade-state"


def node(*, unschedulable: bool = False, policy: str | None = None, **labels: str) -> Object:
    annotations = {"nvidia.com/gpu-driver-upgrade-enabled": policy} if policy else {}
    named = {"client": CLIENT, "dcgm": "nvidia.com/gpu.deploy.dcgm", "state": STATE}
    return {
        "metadata": {
            "name": "n",
            "labels": {named[key]: value for key, value in labels.items()},
            "annotations": annotations,
        },
        "spec": {"unschedulable": True} if unschedulable else {},
    }


@pytest.mark.parametrize(
    ("state", "taint", "evict", "let_go"),
    [
        ("upgrade-required", False, False, False),
        ("cordon-required", True, False, False),
        ("wait-for-jobs-required", True, False, False),
        ("pod-deletion-required", True, True, False),
        ("drain-required", True, True, False),
        ("node-maintenance-required", True, True, False),
        ("post-maintenance-required", True, True, True),
        ("pod-restart-required", True, True, True),
        ("validation-required", True, False, False),
        ("uncordon-required", False, False, False),
        ("upgrade-done", False, False, False),
        ("upgrade-failed", False, False, False),
        ("a-new-word", False, False, False),
    ],
)
def test_each_state_of_the_upgrade_policy(state: str, taint: bool, evict: bool, let_go: bool) -> None:
    wanted = wanted_by_node(node(state=state))

    assert (bool(wanted), wanted.evict, wanted.let_go) == (taint, evict, let_go)
    assert not taint or state in wanted.reason


@pytest.mark.parametrize("value", ["paused-for-driver-upgrade", "custom_paused-for-driver-upgrade"])
@pytest.mark.parametrize("label", ["client", "dcgm"])
def test_a_paused_component_makes_koordra_let_go_and_evicts_nobody(label: str, value: str) -> None:
    wanted = wanted_by_node(node(**{label: value}))

    assert wanted
    assert wanted.let_go
    assert not wanted.evict


def test_without_a_policy_a_paused_and_cordoned_node_is_emptied() -> None:
    paused = {"client": "paused-for-driver-upgrade"}

    assert wanted_by_node(node(unschedulable=True, **paused)).evict
    assert wanted_by_node(node(unschedulable=True, **paused)).tried_again
    assert not wanted_by_node(node(unschedulable=True, policy="true", **paused)).evict
    assert wanted_by_node(node(unschedulable=True)) == NOBODY


def test_the_policy_and_a_pause_together_want_what_both_want() -> None:
    wanted = wanted_by_node(node(policy="true", state="drain-required", client="paused-for-driver-upgrade"))

    assert (wanted.evict, wanted.let_go) == (True, True)
    assert "drain-required" in wanted.reason
    assert CLIENT in wanted.reason


@pytest.mark.parametrize("value", ["true", "false", ""])
def test_components_that_run_or_are_off_ask_nothing(value: str) -> None:
    assert wanted_by_node(node(client=value, dcgm=value)) == NOBODY


def test_nobody_is_asked_on_a_node_without_the_operator() -> None:
    assert wanted_by_node({"metadata": {"name": "n"}}) == NOBODY
    assert wanted_by_command().evict


PAUSE = ReleaseWanted("paused", evict=True, let_go=True, tried_again=True)


def test_between_two_attempts_of_driver_manager_the_node_stays_empty() -> None:
    _, memory = after_pause(PAUSE, PauseMemory(), loaded="580.65", now=100.0)

    wanted, memory = after_pause(NOBODY, memory, loaded="580.65", now=110.0)
    assert wanted.evict
    assert not wanted.let_go

    wanted, memory = after_pause(NOBODY, memory, loaded="580.65", now=100.0 + BETWEEN_ATTEMPTS)
    assert wanted == NOBODY
    assert after_pause(NOBODY, memory, loaded="580.65", now=110.0)[0] == NOBODY  # it is over


def test_a_new_driver_ends_it() -> None:
    _, memory = after_pause(PAUSE, PauseMemory(), loaded="580.65", now=100.0)

    assert after_pause(NOBODY, memory, loaded="", now=110.0)[0].evict  # unloaded, and not there yet
    assert after_pause(NOBODY, memory, loaded="590.10", now=110.0)[0] == NOBODY


def test_an_upgrade_by_policy_ends_with_its_label() -> None:
    by_policy = ReleaseWanted("pod-restart-required", evict=True, let_go=True)
    _, memory = after_pause(by_policy, PauseMemory(), loaded="580.65", now=100.0)

    assert after_pause(NOBODY, memory, loaded="580.65", now=110.0)[0] == NOBODY


def test_the_same_driver_loaded_again_is_another_one(tmp_path: Path) -> None:
    module = tmp_path / "sys/module/nvidia"
    assert loaded_driver(tmp_path) == ""
    module.mkdir(parents=True)
    before = loaded_driver(tmp_path)
    module.rename(tmp_path / "old")
    module.mkdir()

    assert before
    assert loaded_driver(tmp_path) not in ("", before)


def test_an_attempt_that_only_pauses_does_not_forget_the_one_that_evicted() -> None:
    _, memory = after_pause(PAUSE, PauseMemory(), loaded="580.65", now=100.0)
    only = ReleaseWanted("paused", let_go=True)

    wanted, memory = after_pause(only, memory, loaded="580.65", now=200.0)
    assert wanted.evict
    assert wanted.let_go
    assert after_pause(NOBODY, memory, loaded="580.65", now=210.0)[0].evict
