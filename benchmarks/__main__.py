"""`make bench`: every benchmark of this folder, one after the other.

A benchmark is a module with `main()`. It prints ratios against a plain implementation that runs in the same
process, and absolute times with the machine they were measured on. Ratios are what is compared between
machines.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from benchmarks._machine import machine


def main(names: list[str]) -> None:
    folder = Path(__file__).parent
    found = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
    print(f"measured on: {machine()}")
    for name in names or found:
        print(f"\n{name}")
        importlib.import_module(f"benchmarks.{name}").main()


main(sys.argv[1:])
