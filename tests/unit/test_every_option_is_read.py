"""No option of a command is a word without effect: its command reads it, or hands it on to something that
does. What it then does is for each command's own tests, and each is given in one of them."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

import click
import pytest

from tests.attacks.test_every_option import EVERY
from tests.conftest import ROOT
from tests.unit.test_every_option_reaches_its_process import OTHERS

pytestmark = pytest.mark.long

SOURCES = [
    path for top in ("koordra", "devcluster/koordra_devcluster") for path in (ROOT / top).rglob("*.py")
]


def reads(nodes: Sequence[ast.stmt]) -> Iterator[str]:
    """Variables, attributes and entries of which the value is taken."""
    for node in (each for one in nodes for each in ast.walk(one)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            yield str(node.slice.value)


@functools.cache
def read_anywhere() -> Counter[str]:
    """How often, in everything but generated code."""
    trees = [ast.parse(path.read_text()) for path in SOURCES if "_proto" not in path.parts]
    return Counter(name for tree in trees for name in reads(tree.body))


def body_of(command: click.Command) -> tuple[set[str], list[ast.stmt]]:
    """The command's function: what it names among its parameters, and what it does."""
    function = inspect.unwrap(command.callback)  # type: ignore[arg-type]
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef)
    return set(inspect.signature(function).parameters), tree.body


@pytest.mark.parametrize("words", dict.fromkeys(words for words, _, _ in EVERY.values()))
def test_each_is_read(words: str) -> None:
    ((_, command, _), *_) = (entry for entry in EVERY.values() if entry[0] == words)
    named, body = body_of(command)
    here = set(reads(body))
    for parameter in command.params:
        name = str(parameter.name)
        assert name in here if name in named else read_anywhere()[name], f"nobody looks at {name}"


def test_an_option_that_nobody_reads_is_seen() -> None:
    @click.command()
    @click.option("--dead")
    @click.option("--alive")
    def command(dead: str, alive: str) -> None:
        click.echo(alive)

    named, body = body_of(command)
    assert named - set(reads(body)) == {"dead"}
    assert not read_anywhere()["an_option_of_nobodys"]


@functools.cache
def words_of_tests() -> list[frozenset[str]]:
    paths = [path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_every")]
    return [frozenset(re.findall(r"-{0,2}\w[\w-]*", path.read_text())) for path in paths]


def test_each_is_given_in_a_test_of_its_command() -> None:
    """But those of processes, which are tried one by one, those of the cluster's double, and where the API
    server is, which all commands say alike (test_every_command_connects.py)."""
    alone = {
        name: (words, command, {*parameter.opts, *parameter.secondary_opts})
        for name, (words, command, parameter) in EVERY.items()
        if isinstance(parameter, click.Option) and parameter.name not in ("kubeconfig", "context")
        if words not in OTHERS and not words.startswith("devcluster ")
    }

    def is_given(words: str, command: click.Command, spelled: set[str]) -> bool:
        """Where the command or its function is named, too."""
        named = {words.rpartition(" ")[2], inspect.unwrap(command.callback).__name__}  # type: ignore[arg-type]
        return any(named & found and spelled & found for found in words_of_tests())

    assert not [name for name, option in alone.items() if not is_given(*option)]
    assert not is_given("explain", alone["explain --when"][1], {"--an-option-of-nobodys"})
