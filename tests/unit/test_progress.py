"""That something goes on is said on stderr: on a terminal it comes and goes, elsewhere it is one line, and
who asked for a document hears nothing."""

from __future__ import annotations

import threading

import pytest

from koordra.cli import progress as module
from koordra.cli.progress import progress
from tests.patience import PATIENCE


def shown(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the line was shown twice."""
    monkeypatch.setattr(module, "PERIOD", 0.01)
    seen, twice, show = [], threading.Event(), module.Progress.show

    def counted(self: module.Progress, seconds: float) -> None:
        show(self, seconds)
        seen.append(seconds)
        if len(seen) > 1:
            twice.set()

    monkeypatch.setattr(module.Progress, "show", counted)
    return twice


def test_on_a_terminal_it_comes_and_goes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = shown(monkeypatch)
    with progress("planning", after=0.0, on_terminal=True) as told:
        assert twice.wait(PATIENCE)
        told.far(1, 4)
        with told.aside():
            print("a line of the result")
    told_of = capsys.readouterr()
    assert told_of.out == "a line of the result\n"
    assert told_of.err.startswith("\r\x1b[Kplanning, 0 s\r\x1b[Kplanning, 0 s")
    assert told_of.err.endswith("\r\x1b[K")


def test_aside_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = shown(monkeypatch)
    with progress("planning", after=0.0, on_terminal=True) as told:
        assert twice.wait(PATIENCE)
        with told.aside():
            capsys.readouterr()
            threading.Event().wait(0.1)
            assert capsys.readouterr().err == ""


def test_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    told = module.Progress("x" * 200 + "\x07")
    told.show(3.0)
    assert capsys.readouterr().err == "\r\x1b[K" + "x" * 79
    told = module.Progress("replaying")
    told.far(3, 4)
    told.show(3.0)
    assert capsys.readouterr().err == "\r\x1b[Kreplaying: 75 %"


def test_elsewhere_it_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said, say = threading.Event(), module.say

    def told(text: str, *, err: bool) -> None:
        say(text, err=err)
        said.set()

    monkeypatch.setattr(module, "say", told)
    with progress("planning", after=0.0):
        assert said.wait(PATIENCE)
    assert capsys.readouterr() == ("", "koordra: planning ...\n")


@pytest.mark.parametrize("silent", [{"silent": True}, {"line": False}])
def test_silence(silent: dict[str, bool], capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    with progress("planning", after=0.0, **silent):
        assert threading.active_count() == before
    assert capsys.readouterr() == ("", "")


def test_what_is_quick_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), progress("dividing", after=PATIENCE):
        _ = 1 / 0
    assert capsys.readouterr() == ("", "")
