"""The report of a self test: one step after the other, each with what was found, and written anew after each.

A machine with a GPU may be there for minutes only, so that a run may be killed at any moment: what it has
found by then is on disk. With `--report` that is a bundle to attach to an issue:

    report.json              this document
    discovery.json           the machine as koordra sees it
    specs/<claim>.json       the CDI specs that were applied
    programs/<step>.txt      what a program printed beside its answer, and the libraries it had mapped
    errors/<step>.txt        where koordra itself failed
    nvidia-smi.txt, ...      what other programs of the machine say (facts.py)

It holds no secrets: of the environment only variables of named kinds, of specs no nonces.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from koordra.errors import KoordraError, NodeError
from koordra.node_state.disk import Disk, reported

SCHEMA: Final = "koordra.io/selftest/v1"
_UNPRINTABLE: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ufffd]+")
_MOST: Final = 4 << 20
"""Bytes of one file of the bundle; of a longer one the end is kept."""


class Status(StrEnum):
    OK = "ok"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """`found` in words, `remedy` where there is a problem, or the reason for which a step was skipped;
    `details` are figures."""

    status: Status
    found: str
    remedy: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


def ok(found: str, **details: Any) -> Finding:
    return Finding(Status.OK, found, details=details)


def problem(found: str, remedy: str, **details: Any) -> Finding:
    return Finding(Status.PROBLEM, found, remedy, details)


def skipped(reason: str, **details: Any) -> Finding:
    return Finding(Status.SKIPPED, reason, details=details)


@dataclass(frozen=True, slots=True)
class Step:
    """`seconds` are None for a step that did not run."""

    name: str
    finding: Finding
    seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        found = self.finding
        reason = "reason" if found.status is Status.SKIPPED else "found"
        return {
            "name": self.name,
            "status": found.status.value,
            reason: found.found,
            **({"remedy": found.remedy} if found.remedy else {}),
            **({"seconds": round(self.seconds, 2)} if self.seconds is not None else {}),
            **({"details": dict(found.details)} if found.details else {}),
        }


def in_words(step: Step) -> str:
    """A line, and the remedy of a problem below it."""
    seconds = f" ({step.seconds:.1f} s)" if step.seconds is not None else ""
    found = _UNPRINTABLE.sub(" ", step.finding.found)  # some of it is what programs have printed
    text = f"{step.finding.status.value:<8} {step.name:<32} {found}{seconds}\n"
    return text + (f"{'':<8} -> {step.finding.remedy}\n" if step.finding.remedy else "")


class Report:
    """`bundle` None: nothing is written. `shown` is called with every step as it ends."""

    def __init__(
        self,
        *,
        version: str,
        bundle: Path | None = None,
        shown: Callable[[Step], None] = lambda _step: None,
        disk: Disk | None = None,
    ) -> None:
        self.steps: list[Step] = []
        self.finished = False
        self._version = version
        self._bundle = bundle
        self._shown = shown
        self._disk = disk or Disk()
        self._files: dict[str, bytes] = {}

    def add(self, step: Step) -> None:
        """Raises NodeError where the bundle cannot be written."""
        self.steps.append(step)
        self._shown(step)
        self._write()

    def step(self, name: str, act: Callable[[], Finding]) -> Finding:
        """Act and report; whatever is raised is a problem of this step, and the next one follows."""
        began = time.monotonic()
        try:
            finding = act()
        except KoordraError as error:
            finding = problem(str(error), "see what it names; if that is as it should be, attach this report")
        except Exception as error:  # noqa: BLE001  (a driver's answer that nobody has seen yet, for one)
            self.attach(f"errors/{name}.txt", traceback.format_exc())
            finding = problem(f"{type(error).__name__}: {error}", "attach this report to an issue")
        self.add(Step(name, finding, time.monotonic() - began))
        return finding

    def attach(self, name: str, content: str | bytes) -> None:
        """A file of the bundle, written with the next step."""
        data = content.encode(errors="replace") if isinstance(content, str) else content
        self._files[name] = data[-_MOST:]

    def finish(self) -> None:
        self.finished = True
        self._write()

    @property
    def problems(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.finding.status is Status.PROBLEM)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "koordra": self._version,
            "finished": self.finished,
            "problems": len(self.problems),
            "steps": [step.to_dict() for step in self.steps],
        }

    def _write(self) -> None:
        if self._bundle is None:
            return
        document = (json.dumps(self.to_dict(), indent=1) + "\n").encode()
        with reported(NodeError, self._bundle, "written"):
            self._disk.replace(
                self._bundle, archive({"report.json": document, **self._files}), mode=0o644, durable=False
            )


def archive(files: Mapping[str, bytes]) -> bytes:
    """A compressed tar of these files, in one folder."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"koordra-selftest/{name}")
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    return made.getvalue()


_SHOWN_VARIABLES: Final = (
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "TZ",
    "CC",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "VIRTUAL_ENV",
)
_SHOWN_KINDS: Final = (
    "CUDA_",
    "NCCL_",
    "NVIDIA_",
    "PYTORCH_",
    "TORCH_",
    "TRITON_",
    "XLA_",
    "JAX_",
    "UCX_",
    "KOORDRA_",
)
_SECRET: Final = ("TOKEN", "SECRET", "PASS", "KEY", "CREDENTIAL", "AUTH")


def allowed_environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that programs get and reports show: those of which it is known what they are."""
    return {
        name: value
        for name, value in variables.items()
        if name in _SHOWN_VARIABLES
        or (name.startswith(_SHOWN_KINDS) and not any(word in name.upper() for word in _SECRET))
    }
