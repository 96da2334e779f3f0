"""How a program answers: one line on standard output, whatever happens in it short of a crash. It ends with
the self test, also where that is killed."""

from __future__ import annotations

import ctypes
import importlib
import json
import re
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARK = "koordra-selftest-answer: "
_PDEATHSIG = 1
_DRIVER = re.compile(r"lib(cuda|nvidia|nvcu|koordra)[^/]*$")


class LackingError(Exception):
    """What the program tries is not installed here."""


def library(name: str) -> Any:
    """The package that is tried."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        raise LackingError(f"{name} is not installed for {sys.executable}") from error


def torch_with_cuda() -> Any:
    torch = library("torch")
    if torch.version.cuda is None:
        raise LackingError(f"PyTorch {torch.__version__} is built without CUDA")
    return torch


def answer(ask: Callable[[], dict[str, Any]]) -> None:
    """Ask, and print the answer with the driver's libraries that are mapped now."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    try:
        document = ask()
    except LackingError as lacking:
        document = {"lacking": str(lacking)}
    except Exception as error:  # noqa: BLE001  (whatever a library raises is what is to be told)
        traceback.print_exc()
        text = str(error).strip().splitlines()
        document = {"failure": f"{type(error).__name__}: {text[0][:300] if text else ''}"}
    document["mapped"] = mapped()
    sys.stdout.write(f"\n{MARK}{json.dumps(document)}\n")
    sys.stdout.flush()


def mapped() -> list[str]:
    """The paths of the driver's libraries, and of the limiter's, in this process."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count(" ") >= 5 and "/" in line}
    return sorted(path for path in paths if _DRIVER.search(path))
