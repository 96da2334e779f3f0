"""What `koordra node selftest` found on a real card of parts of its time, and of contexts: from its report to
benchmarks/results.

    KOORDRA_SELFTEST_REPORT=report.tar.gz python -m benchmarks gpu_shares
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks._results import table, write

CORES, CONTEXT, CARDS = "cores: ", "context-size", "nvidia-smi"
HEADER = (
    "load",
    "trial",
    "share",
    "part of what it does without a limit",
    "per s",
    "us per launch",
    "s waited",
)


def steps_of(report: Path) -> dict[str, Mapping[str, Any]]:
    with tarfile.open(report) as tar:
        file = tar.extractfile("koordra-selftest/report.json")
        assert file is not None
        return {step["name"]: step for step in json.load(file)["steps"]}


def rows_of(steps: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for name, step in steps.items():
        trials = (step.get("details") or {}).get("trials", {}) if name.startswith(CORES) else {}
        for trial, programs in trials.items():
            for one in programs:
                share = f"{one['share']} %" if one["share"] else "no limit"
                figures = (one["perSecond"], one["launchMicroseconds"], one["waitedSeconds"])
                yield name.removeprefix(CORES), trial, share, f"{one['part']} %", *map(str, figures)


def main() -> None:
    report = os.environ.get("KOORDRA_SELFTEST_REPORT")
    if report is None:
        print("no card: KOORDRA_SELFTEST_REPORT names no report of `koordra node selftest`")
        return
    steps = steps_of(Path(report))
    kept = {
        name: step
        for name, step in steps.items()
        if name.startswith(CORES) or name.endswith((CONTEXT, CARDS))
    }
    rows = list(rows_of(kept))
    if not rows:
        raise SystemExit(f"{report}: no figures of parts of the card's time: {kept}")
    contexts = "\n".join(
        f"- {name}: {step.get('found')}" for name, step in kept.items() if name.endswith(CONTEXT)
    )
    card = f"The card: {steps.get(CARDS, {}).get('found', 'unknown')}."
    write(
        "gpu-shares",
        {"steps": kept},
        "\n\n".join(("# Parts of a GPU's time", card, table(HEADER, rows), contexts)),
    )
    print(table(HEADER, rows))


if __name__ == "__main__":
    main()
