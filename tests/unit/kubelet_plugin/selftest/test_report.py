"""The report: written after every step, in one document, without secrets."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from koordra.errors import NodeError
from koordra.kubelet_plugin.selftest.report import (
    Finding,
    Report,
    Step,
    allowed_environment,
    in_words,
    ok,
    problem,
    skipped,
)


def document(bundle: Path) -> dict[str, Any]:
    with tarfile.open(bundle) as tar:
        file = tar.extractfile("koordra-selftest/report.json")
        assert file is not None
        return dict(json.load(file))


def test_a_run_that_is_killed_leaves_the_steps_until_then(tmp_path: Path) -> None:
    bundle = tmp_path / "report.tar.gz"
    report = Report(version="1", bundle=bundle)
    report.add(Step("one", ok("fine", bytes=3), 0.5))
    assert [step["name"] for step in document(bundle)["steps"]] == ["one"]
    report.add(Step("two", problem("bad", "mend it"), 1.0))
    report.add(Step("three", skipped("nothing there")))
    said = document(bundle)
    assert said["finished"] is False
    assert said["problems"] == 1
    assert said["steps"] == [
        {"name": "one", "status": "ok", "found": "fine", "seconds": 0.5, "details": {"bytes": 3}},
        {"name": "two", "status": "problem", "found": "bad", "remedy": "mend it", "seconds": 1.0},
        {"name": "three", "status": "skipped", "reason": "nothing there"},
    ]
    report.finish()
    assert document(bundle)["finished"] is True


def test_attached_files_are_in_the_bundle_and_bounded(tmp_path: Path) -> None:
    bundle = tmp_path / "report.tar.gz"
    report = Report(version="1", bundle=bundle)
    report.attach("programs/a.txt", "text")
    report.attach("long.txt", b"x" * (5 << 20) + b"end")
    report.finish()
    with tarfile.open(bundle) as tar:
        long = tar.extractfile("koordra-selftest/long.txt")
        assert long is not None
        content = long.read()
        assert "koordra-selftest/programs/a.txt" in tar.getnames()
    assert len(content) == 4 << 20
    assert content.endswith(b"end")


def test_a_bundle_that_cannot_be_written_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    report = Report(version="1", bundle=tmp_path / "file" / "report.tar.gz")
    with pytest.raises(NodeError, match="cannot be written"):
        report.finish()


def test_only_variables_of_named_kinds_are_shown() -> None:
    shown = allowed_environment(
        {
            "PATH": "/bin",
            "CUDA_HOME": "/usr/local/cuda",
            "NCCL_DEBUG": "INFO",
            "AWS_SECRET_ACCESS_KEY": "s",
            "GITHUB_TOKEN": "t",
            "NVIDIA_API_KEY": "k",
            "KOORDRA_PASSWORD": "p",
        }
    )
    assert shown == {"PATH": "/bin", "CUDA_HOME": "/usr/local/cuda", "NCCL_DEBUG": "INFO"}


def test_a_problem_is_told_with_its_remedy() -> None:
    assert in_words(Step("cdi", problem("no libcuda", "name it"), 1.23)) == (
        "problem  cdi                              no libcuda (1.2 s)\n         -> name it\n"
    )
    assert in_words(Step("jax", skipped("not installed"))) == (
        "skipped  jax                              not installed\n"
    )


def test_what_programs_have_printed_does_no_harm_to_a_terminal() -> None:
    told = in_words(Step("smi", problem("it said \033[2J\n\x00\ufffd\ufffd no", "see")))
    assert told == "problem  smi                              it said [2J no\n         -> see\n"


def test_whatever_a_step_raises_the_next_one_follows(tmp_path: Path) -> None:
    report = Report(version="1", bundle=tmp_path / "r.tar.gz")

    def fail() -> Finding:
        raise IndexError("tuple index out of range")

    report.step("one", fail)
    report.step("two", lambda: ok("fine"))
    assert [step.finding.status.value for step in report.steps] == ["problem", "ok"]
    assert report.steps[0].finding.found == "IndexError: tuple index out of range"
    with tarfile.open(tmp_path / "r.tar.gz") as tar:
        file = tar.extractfile("koordra-selftest/errors/one.txt")
        assert file is not None
        assert b"in fail" in file.read()
