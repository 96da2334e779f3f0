"""docs/reference/commands.md: every command of `koordra`, and every option."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from koordra.cli.main import cli
from tests.reference.docstrings import sentence, table

ABOVE = """\
# Commands

`koordra COMMAND --help` says the same. `kubectl koordra` is the same program.
"""


def page() -> str:
    return ABOVE + "".join(_sections(cli, click.Context(cli, info_name="koordra", **cli.context_settings)))


def _sections(command: click.Command, ctx: click.Context) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            if inner is not None and not inner.hidden:
                yield from _sections(inner, click.Context(inner, info_name=name, parent=ctx))
        return
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    yield f"\n## {ctx.command_path}\n\n    {usage}\n\n{_help(command)}"
    rows = [row for parameter in command.get_params(ctx) if (row := _row(parameter, ctx))]
    if rows:
        yield f"\n{table(('option', 'meaning'), rows)}"


def _help(command: click.Command) -> str:
    text = inspect.cleandoc((command.help or command.short_help or "").partition("\f")[0]).replace(
        "\b\n", "\n"
    )
    shown = []
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        example = any(line.startswith("  ") for line in lines) or paragraph.startswith("\n")
        shown.append("\n".join(f"    {line.strip()}" if example else line.strip() for line in lines))
    return "\n\n".join(shown) + "\n"


def _row(parameter: click.Parameter, ctx: click.Context) -> tuple[str, str] | None:
    if not isinstance(parameter, click.Option) or parameter.hidden or "--help" in parameter.opts:
        return None
    record = parameter.get_help_record(ctx)
    if record is None:
        return None
    option, meaning = record
    return f"`{option}`".replace("|", "\\|"), sentence(meaning) + (
        "" if meaning.endswith(("]", ".")) else "."
    )
