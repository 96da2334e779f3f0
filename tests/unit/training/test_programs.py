"""The programs of the example training-jobs, as processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import yaml

from tests.patience import PATIENCE

EXAMPLES = Path(__file__).parents[3] / "deploy" / "examples"


def programs(folder: Path) -> Path:
    for file, name in (
        ("gang-programs.yaml", "gang-programs"),
        ("training-jobs/training-jobs.yaml", "training-programs"),
    ):
        documents = yaml.safe_load_all((EXAMPLES / file).read_text())
        (found,) = (one for one in documents if one["metadata"]["name"] == name)
        for path, text in found["data"].items():
            (folder / path).write_text(text)
    return folder


def test_a_rank_that_has_not_heard_the_answer_is_answered_again(tmp_path: Path) -> None:
    leader = socket.gethostname()  # where such a program listens: 127.0.1.1 on Debian
    with socket.create_server((leader, 0)) as free:
        port = free.getsockname()[1]
    told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": leader, "MASTER_PORT": str(port)}
    command = [sys.executable, programs(tmp_path) / "static.py"]
    with subprocess.Popen(command, env={**os.environ, **told}, stdout=subprocess.PIPE, text=True) as rank:

        def hears(*, says_so: bool) -> str:
            with socket.create_connection((leader, port), PATIENCE) as line, line.makefile("rw") as talk:
                talk.write("1\n")
                talk.flush()
                answer: str = talk.readline()
                if says_so:
                    talk.write("\n")
                return answer

        asked = 0
        try:
            for _ in range(int(PATIENCE / 0.05)):
                with suppress(ConnectionRefusedError):
                    asked += hears(says_so=False) == "[0, 1]\n"
                time.sleep(0.05)
                assert rank.poll() is None
                if asked == 20:  # within which rank 0 would have ended
                    break
            assert asked == 20
            assert hears(says_so=True) == "[0, 1]\n"
            assert rank.wait(PATIENCE) == 0
        finally:
            rank.kill()
        assert rank.stdout is not None
        assert "rank 0 of 2: met [0, 1]" in rank.stdout.read()
