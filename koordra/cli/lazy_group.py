"""A group of commands that are listed from a table and imported one by one, when they are used: so the help
of a group imports click and nothing else."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from koordra.spelling import meant


class LazyGroup(click.Group):
    """`commands_by_name`: name -> (where the command is, `module:attribute`; its line in the help).
    `installed_with`: a distribution that is not always there -> how it is installed."""

    def __init__(
        self,
        *arguments: Any,
        commands_by_name: Mapping[str, tuple[str, str]],
        installed_with: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self._commands = commands_by_name
        self._installed_with = installed_with or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(self._commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands:
            return None
        module, _, name = self._commands[cmd_name][0].partition(":")
        try:
            command: click.Command = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            remedy = self._installed_with.get(error.name or "")
            if remedy is None:
                raise
            raise click.UsageError(f"{ctx.info_name} {cmd_name} is not installed; type: {remedy}") from error
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """With the command that may have been meant, which click cannot tell of commands not yet imported."""
        word = args[0]
        if word not in self._commands and not word.startswith("-") and not ctx.resilient_parsing:
            close = meant(word, self._commands)
            ctx.fail(f"No such command {word!r}." + (f" Did you mean {close!r}?" if close else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._commands[name][1]) for name in sorted(self._commands)])
