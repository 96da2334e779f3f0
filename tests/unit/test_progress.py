"""That something goes on is said on stderr: on a terminal it comes and goes, elsewhere it is one line, and
who asked for a document hears nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordra.cli import progress as module
from koordra.cli.main import cli
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


@pytest.mark.parametrize(
    ("command", "module", "arguments", "said"),
    [
        ("debug dump", "koordra.cli.debug", ["--root", "{folder}"], ["looking at the node"]),
        ("node check", "koordra.cli.progress", ["--root", "{folder}"], ["looking at the node"]),
        (
            "explain",
            "koordra.cli.cluster.file_answers",
            ["-f", "{folder}/one.yaml"],
            ["reading the files", "planning"],
        ),
    ],
)
def test_commands_that_take_long_say_on_a_terminal_that_they_go_on(
    command: str,
    module: str,
    arguments: list[str],
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "one.yaml").write_text("{apiVersion: v1, kind: Node, metadata: {name: n}}")
    heard: list[tuple[str, bool]] = []

    @contextmanager
    def told(what: str, *, line: bool = True) -> Iterator[None]:
        heard.append((what, line))
        yield

    monkeypatch.setattr(import_module(module), "progress", told)
    given = [each.format(folder=tmp_path) for each in arguments]
    CliRunner().invoke(cli, [*command.split(), *given], catch_exceptions=False)
    assert heard == [(one, False) for one in said], "and nowhere else: what they print is read by programs"
