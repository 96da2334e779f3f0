"""A card whose driver, or whose daemon, does not answer: it keeps its own claims waiting, and no others."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import pytest

from koordra.api.opaque.parameters import GpuConfig
from koordra.errors import PrepareError
from koordra.kubelet_plugin.isolation import card_calls
from koordra.kubelet_plugin.isolation.backend import Card, Keep, Realised, Share
from koordra.kubelet_plugin.isolation.packages import backends
from koordra.kubelet_plugin.nvidia_driver.driver_programs import DriverPrograms
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from tests.fakes.isolation import JournalledBackend
from tests.fakes.node_claims import GPU_0, GPU_1, claim, gpu, parameters
from tests.patience import PATIENCE
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of

T = TypeVar("T")
MPS = [parameters("GpuConfig", isolation="mps")]
FIRST = claim(1, gpu("gpu", GPU_0, "10Gi"), config=MPS)
SAME_CARD = claim(2, gpu("gpu", GPU_0, "10Gi", share="s2"), config=MPS)
OTHER_CARD = claim(3, gpu("gpu", GPU_1, "10Gi"), config=MPS)


class Hanging(JournalledBackend):
    """Its calls for GPU_0 that are named hang until they are woken."""

    def __init__(self, *calls: str) -> None:
        self.set_cards: dict[str, str] = {}
        self.shares: dict[str, str] = {}
        super().__init__(self.shares, self.set_cards)
        self.calls = set(calls)
        self.entered, self.woken = threading.Event(), threading.Event()

    def given_up(self, call: Callable[[], T]) -> T:
        """How a call is made: one that has come to where it hangs is given up at once."""
        with_answer: Future[T] = Future()
        threading.Thread(target=lambda: _put(with_answer, call), name="isolation-call", daemon=True).start()
        deadline = time.monotonic() + PATIENCE
        while not with_answer.done():
            assert time.monotonic() < deadline
            if self.entered.is_set():
                self.entered.clear()
                raise TimeoutError("no answer")
            time.sleep(0.002)
        return with_answer.result()

    def _hang(self, call: str, device: str) -> None:
        if call in self.calls and device == GPU_0 and not self.woken.is_set():
            self.entered.set()
            assert self.woken.wait(PATIENCE)

    def card_start(self, card: Card, config: GpuConfig | None, keep: Keep) -> None:
        self._hang("card_start", card.device)
        super().card_start(card, config, keep)

    def prepare(self, share: Share, config: GpuConfig, keep: Keep) -> Realised:
        self._hang("prepare", share.device)
        return super().prepare(share, config, keep)

    def verify(self, card: Card) -> str | None:
        self._hang("verify", card.device)
        return super().verify(card)


def _put(answer: Future[T], call: Callable[[], T]) -> None:
    try:
        answer.set_result(call())
    except BaseException as error:  # noqa: BLE001  (raised again by who waits)
        answer.set_exception(error)


@pytest.fixture
def backend(node: PluginNode) -> Iterator[Hanging]:
    found = Hanging()
    node.backends = {**backends(), "mps": found}
    for obj in (FIRST, SAME_CARD, OTHER_CARD):
        node.claims.put(obj)
    yield found
    found.woken.set()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def no_call_is_left() -> bool:
    return not any(thread.name == "isolation-call" for thread in threading.enumerate())


def test_while_a_card_is_looked_at_claims_of_others_are_prepared(node: PluginNode, backend: Hanging) -> None:
    plugin = node.plugin()
    plugin.prepare(ref_of(FIRST))
    backend.calls.add("verify")
    with ThreadPoolExecutor() as pool:
        look = pool.submit(plugin.look_at_cards)
        assert backend.entered.wait(PATIENCE)
        plugin.prepare(ref_of(OTHER_CARD))
        plugin.unprepare(ref_of(OTHER_CARD))
        waiting = pool.submit(plugin.prepare, ref_of(SAME_CARD))
        backend.woken.set()
        assert waiting.result(PATIENCE).devices[0].device == GPU_0
        assert look.result(PATIENCE)[GPU_0].problem is None
    assert backend.set_cards[GPU_0] == "mps for 2"


def test_another_instance_of_the_plugin_waits_for_the_card_too(node: PluginNode, backend: Hanging) -> None:
    plugin = node.plugin()
    plugin.prepare(ref_of(FIRST))
    backend.calls.add("verify")
    with ThreadPoolExecutor() as pool:
        pool.submit(plugin.look_at_cards)
        assert backend.entered.wait(PATIENCE)
        beside = node.unrepaired(patience=0.05)
        with pytest.raises(
            PrepareError, match=r"BackendUnavailable: another call for the card has not returned"
        ):
            beside.prepare(ref_of(SAME_CARD))
        beside.prepare(ref_of(OTHER_CARD))
        backend.woken.set()
    node.unrepaired().prepare(ref_of(SAME_CARD))


@pytest.mark.parametrize("call", ["card_start", "prepare"])
def test_a_call_that_hangs_is_given_up_and_keeps_its_card_alone(
    node: PluginNode, backend: Hanging, call: str
) -> None:
    backend.calls.add(call)
    plugin = node.unrepaired(patience=0.05, run=backend.given_up)
    with pytest.raises(PrepareError, match=rf"isolation mps: {call} of .*: no answer"):
        plugin.prepare(ref_of(FIRST))
    again = "has not returned yet"
    for operation, obj in ((plugin.prepare, FIRST), (plugin.prepare, SAME_CARD), (plugin.unprepare, FIRST)):
        with pytest.raises(PrepareError, match=rf"isolation mps: {call} of .* {again}"):
            operation(ref_of(obj))
    for look in plugin.look_at_cards().values():
        assert again in str(look.problem)
    plugin.prepare(ref_of(OTHER_CARD))
    backend.woken.set()
    until(no_call_is_left)
    plugin.prepare(ref_of(FIRST))
    plugin.unprepare(ref_of(FIRST))
    assert {each.partition("/")[2] for each in backend.shares} == {GPU_1}
    assert [each.device for each in node.checkpoint().cards] == [GPU_1]


def test_a_look_that_hangs_is_told_and_not_repeated(node: PluginNode, backend: Hanging) -> None:
    plugin = node.unrepaired(patience=0.05, run=backend.given_up)
    for obj in (FIRST, OTHER_CARD):
        plugin.prepare(ref_of(obj))
    backend.calls.add("verify")
    first, second = plugin.look_at_cards(), plugin.look_at_cards()
    assert "verify of" in str(first[GPU_0].problem)
    assert "no answer" in str(first[GPU_0].problem)
    assert "has not returned yet" in str(second[GPU_0].problem)
    assert first[GPU_1].problem is second[GPU_1].problem is None
    assert [thread.name for thread in threading.enumerate()].count("isolation-call") == 1
    backend.woken.set()
    until(no_call_is_left)
    assert plugin.look_at_cards()[GPU_0].problem is None


def test_no_room_for_a_thread_keeps_no_card(
    node: PluginNode, backend: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    plugin: DeviceState = node.unrepaired(patience=0.05)
    with monkeypatch.context() as patched:
        patched.setattr(card_calls, "spawn", none)
        with pytest.raises(PrepareError, match="can't start new thread"):
            plugin.prepare(ref_of(FIRST))
    plugin.prepare(ref_of(FIRST))


def test_a_program_that_leaves_a_daemon_behind_has_ended() -> None:
    """The daemon keeps what it was started with."""
    programs = DriverPrograms(lambda *_, **__: ["sh", "-c", "sleep 600 & echo $!"])
    daemon = int(programs.run("nvidia-cuda-mps-control", "-d"))
    os.kill(daemon, signal.SIGKILL)
