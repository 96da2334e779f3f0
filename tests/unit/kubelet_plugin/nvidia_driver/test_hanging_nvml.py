"""NVML that hangs while it is initialised or shut down: whoever is not in that call goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from koordra.kubelet_plugin.nvidia_driver import nvml_session
from koordra.kubelet_plugin.nvidia_driver.nvml_session import NvmlLetGo, NvmlLibrary, NvmlUnavailable
from tests.patience import PATIENCE


class Hanging:
    """Calls of the library, one of which hangs in the first thread that makes it until it is released."""

    def __init__(self, hangs: str) -> None:
        self.hangs, self.reached, self.released = hangs, threading.Event(), threading.Event()

    def call(self, name: str) -> None:
        if name == self.hangs and not self.reached.is_set():
            self.reached.set()
            assert self.released.wait(PATIENCE)


@pytest.fixture(params=["nvmlInit", "nvmlShutdown"])
def hanging(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    found = Hanging(request.param)
    for name in ("nvmlInit", "nvmlShutdown"):
        monkeypatch.setattr(nvml_session.pynvml, name, lambda name=name: found.call(name))
    monkeypatch.setattr(nvml_session, "OPENS_WITHIN", 0.01)
    yield found
    found.released.set()


def test_a_call_that_hangs_stops_nobody_else(hanging: Hanging) -> None:
    library, over = NvmlLibrary(), threading.Event()

    def first() -> None:
        with library.session():
            pass
        over.set()

    threading.Thread(target=first, daemon=True).start()
    assert hanging.reached.wait(PATIENCE)
    with pytest.raises(NvmlUnavailable, match=f"{hanging.hangs} has not returned"), library.session():
        pass
    assert not library.let_go(within=0.01), "the library is in use"
    with pytest.raises(NvmlUnavailable), library.session():
        pass
    library.take_up()
    assert library.wait_until_taken_up(within=0.01)
    with pytest.raises(NvmlUnavailable, match="a call of NVML"), library.alone(within=0.01):
        pass
    hanging.released.set()
    assert over.wait(PATIENCE)
    assert library.let_go(within=PATIENCE)
    with pytest.raises(NvmlLetGo), library.session():
        pass
    library.take_up()
    with library.session(), library.session():
        pass


def test_one_that_fails_is_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise nvml_session.pynvml.NVMLError(nvml_session.pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(nvml_session.pynvml, "nvmlInit", fails)
    library = NvmlLibrary()
    for _ in range(2):
        with pytest.raises(NvmlUnavailable), library.session():
            pass
    assert library.let_go(within=PATIENCE)
