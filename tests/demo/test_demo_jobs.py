"""`koordra demo --jobs` as a person runs it: three gangs, of which one waits and one grows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.long


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, since unix sockets live in it."""
    folder = Path(tempfile.mkdtemp(prefix="kj-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_one_job_waits_for_another_and_one_grows(folder: Path) -> None:
    command = [sys.executable, "-m", "koordra", "demo", "--jobs", "-o", "json", "--timeout", "900"]
    done = subprocess.run(
        [*command, "--dir", str(folder)], capture_output=True, text=True, timeout=1000, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    shown = json.loads(done.stdout)
    jobs = {job["name"]: job["pods"] for job in shown["jobs"]}
    assert [pod["phase"] for pod in jobs["pretrain"]] == ["Succeeded"] * 4
    assert [pod["phase"] for pod in jobs["finetune"]] == ["Running"] * 3
    assert [pod["phase"] for pod in jobs["elastic"]] == ["Running"] * 3
    assert sorted(pod["rank"] for pod in jobs["finetune"]) == [0, 1, 2]
    running = [pod["node"] for pod in (*jobs["finetune"], *jobs["elastic"])]
    assert sorted(running) == [f"node-{number}" for number in range(6)]
    assert len({pod["block"] for pod in jobs["pretrain"]}) == 2
    told = {(event["reason"], event["message"].split(":")[0]) for event in shown["events"]}
    assert ("GangWaiting", "gang default/finetune") in told
    assert ("GangStarts", "gang default/pretrain") in told
    assert ("GangGrows", "gang default/elastic") in told
    assert len(shown["containers"]) == 6
    assert shown["pending"] == []
