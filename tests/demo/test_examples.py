"""Every folder of deploy/examples by its name, as a person runs it, two at a time: what its example.yaml
says comes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from koordra_devcluster.demo import examples
from koordra_devcluster.demo.outcome import differences

pytestmark = pytest.mark.long
LONGEST = 900
"""Seconds for one example on a busy machine."""


def shown(name: str) -> str:
    """What is not as the example says, "" where all is."""
    command = [sys.executable, "-m", "koordra", "demo", "--example", name, "-o", "json"]
    done = subprocess.run(
        [*command, "--timeout", str(LONGEST)],
        capture_output=True,
        text=True,
        timeout=2 * LONGEST,
        check=False,
    )
    if done.returncode != 0:
        return f"{name}: exit code {done.returncode}\n{done.stderr[-3000:]}"
    found = differences(examples.load(name).outcome, json.loads(done.stdout))
    return f"{name}: {'; '.join(found)}" if found else ""


def test_every_example_comes_out_as_it_says() -> None:
    with ThreadPoolExecutor(2) as two:
        wrong = list(filter(None, two.map(shown, examples.names())))
    assert not wrong, "\n\n".join(wrong)
