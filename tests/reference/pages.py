"""Every page of docs/reference, by its file's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.reference import chart_values, commands, devices, examples, parameters, words

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "parameters.md": parameters.page,
    "devices.md": devices.page,
    "reasons.md": words.reasons,
    "events.md": words.events,
    "names.md": words.api_names,
    "commands.md": commands.page,
    "exit-codes.md": words.exit_codes,
    "chart-values.md": chart_values.page,
    "../../deploy/examples/README.md": examples.page,
}
