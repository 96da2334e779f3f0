"""EIO on any one open of the files of a claim's region: Prepare is refused and comes through the next time,
and no other claim is affected."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordra.api.opaque.parameters import GpuConfig
from koordra.errors import PrepareError
from koordra.kubelet_plugin.isolation.limiter import region
from koordra.kubelet_plugin.isolation.limiter.backend import LimiterIsolation
from koordra.kubelet_plugin.isolation.limiter.report import read_all, verdicts
from tests.fakes.isolation import keep_nothing
from tests.long import mostly_long
from tests.unit.limiter.test_backend import SHARE, UUID, installed

__all__ = ["installed"]
GIB = 1 << 30
A, B = (f"{digit}0000000-0000-0000-0000-000000000000" for digit in "ab")


class FailingOpen:
    """`at`: which open of a file below `folder` (from 0) fails, and no other; None: none. `opened` lists
    those that were reached."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder, self.at, self.opened = str(folder), -1, list[str]()
        monkeypatch.setattr(io, "open", self._failing(io.open))
        monkeypatch.setattr(os, "open", self._failing(os.open))

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opening(path: Any, *args: Any, **named: Any) -> Any:
            if isinstance(path, (str, Path)) and str(path).startswith(self.folder):
                self.opened.append(Path(path).name)
                if len(self.opened) == self.at + 1:
                    raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return real(path, *args, **named)

        return opening

    def fail(self, at: int) -> None:
        self.at, self.opened = at, []


def test_any_one_open_of_a_start_fails_and_the_next_one_completes_it(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(100):
        limiter = LimiterIsolation(tmp_path / str(at), installed=[installed])
        failing = FailingOpen(monkeypatch, limiter.claims)
        failing.fail(at)
        try:
            limiter.prepare(SHARE, GpuConfig(), keep_nothing)
        except PrepareError as error:
            assert "Input/output error" in str(error)
            assert SHARE.claim_uid in str(error)
            assert failing.opened[-1] in str(error)
            limiter.prepare(SHARE, GpuConfig(), keep_nothing)
        finally:
            limiter.broker.forget(SHARE.claim_uid)
            monkeypatch.undo()
        (use,) = read_all(limiter.claims).values()
        assert [(device.uuid, device.limit) for device in use.devices] == [(SHARE.uuid, SHARE.memory_bytes)]
        if at >= len(failing.opened):
            assert at > 5
            return
    raise AssertionError("it never got through")


@pytest.mark.parametrize("at", mostly_long(range(8), fast=4))
def test_a_region_that_cannot_be_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    for uid in (A, B):
        region.allow(tmp_path / uid, claim=uid, uuid=UUID, limit=GIB)
    before = verdicts(read_all(tmp_path))
    assert before.keys() == {A, B}
    failing = FailingOpen(monkeypatch, tmp_path)
    failing.fail(at)
    found = read_all(tmp_path)
    assert failing.opened, "it opens them by these ways"
    others = {uid for uid in (A, B) if found.get(uid) is not None}
    assert others
    failing.fail(-1)
    assert verdicts(read_all(tmp_path)) == before
