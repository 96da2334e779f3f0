"""The results of a node's checks, in words and as one document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from koordra.kubelet_plugin.node_check.result import CheckResult

_STATUS_WIDTH: Final = len("not-applicable")


def document(results: Sequence[CheckResult]) -> dict[str, Any]:
    return {"checks": [asdict(result) for result in results]}


def in_words(results: Sequence[CheckResult]) -> str:
    """A line for each check, the remedy of a problem below it, and a summary."""
    width = max((len(result.name) for result in results), default=0)
    lines = []
    for result in results:
        lines.append(f"{result.status:{_STATUS_WIDTH}}  {result.name:{width}}  {result.found}")
        if result.remedy:
            lines.append(f"{'':{_STATUS_WIDTH}}  {'':{width}}  remedy: {result.remedy}")
    problems = sum(result.status == "problem" for result in results)
    lines.append(f"{len(results)} checks, {problems or 'no'} problem{'' if problems == 1 else 's'}")
    return "\n".join(lines) + "\n"
