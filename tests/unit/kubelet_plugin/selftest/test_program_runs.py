"""A program's end as an answer: also one that crashes, hangs, or says nothing."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from koordra.kubelet_plugin.selftest import program_runs
from koordra.kubelet_plugin.selftest.container import Command
from koordra.kubelet_plugin.selftest.program_runs import Answer, read_answer, run
from koordra.kubelet_plugin.selftest.programs import library_search
from koordra.kubelet_plugin.selftest.programs.answer import MARK
from koordra.kubelet_plugin.selftest.trials import PROGRAMS
from tests.fakes.native import ROOT
from tests.patience import PATIENCE


def program(code: str, folder: Path, *, deadline: float = PATIENCE) -> Answer:
    return run(Command((sys.executable, "-c", code), dict(os.environ)), folder=folder, deadline=deadline)


def test_the_last_answer_counts_among_what_else_is_printed(tmp_path: Path) -> None:
    said = json.dumps({"a": 1})
    answer = program(f"print('noise'); print({MARK + said!r}); print('more')", tmp_path)
    assert answer.document == {"a": 1}
    assert "noise" in answer.output


def test_a_crash_is_told_with_its_signal(tmp_path: Path) -> None:
    answer = program("import os, sys; sys.stderr.write('Fatal\\n'); sys.stderr.flush(); os.abort()", tmp_path)
    assert answer.document is None
    assert answer.failure == "it crashed with SIGABRT: Fatal"


def test_a_program_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    answer = program(code, tmp_path, deadline=10.0)
    assert answer.failure == "it did not end within 10 s and was killed"
    stat, until = Path("/proc") / (tmp_path / "pid").read_text() / "stat", time.monotonic() + PATIENCE
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_program_without_an_answer_is_told_with_its_last_line(tmp_path: Path) -> None:
    answer = program("import sys; sys.stderr.write('no such thing\\n'); sys.exit(3)", tmp_path)
    assert answer.failure == "it ended with 3 and no answer: no such thing"


def test_a_program_that_cannot_be_started_is_a_failure(tmp_path: Path) -> None:
    answer = run(Command((str(tmp_path / "missing"),), {}), folder=tmp_path, deadline=PATIENCE)
    assert "cannot be started" in answer.failure


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (139, "it crashed with SIGSEGV: last"),
        (-9, "it crashed with SIGKILL: last"),
        (1, "it ended with 1 and no answer: last"),
        (0, "it ended with 0 and no answer: last"),
    ],
)
def test_an_end_in_a_namespace_reads_like_one_outside(code: int, failure: str) -> None:
    assert read_answer(code, "", "first\nlast\n", deadline=1.0).failure == failure


def test_what_is_lacking_and_what_failed_are_no_documents() -> None:
    assert (
        read_answer(0, f"{MARK}{json.dumps({'lacking': 'no torch'})}\n", "", deadline=1.0).lacking
        == "no torch"
    )
    assert read_answer(0, f'{MARK}{{"failure": "E: x"}}\n', "", deadline=1.0).failure == "E: x"
    assert read_answer(0, f"{MARK}[1]\n", "", deadline=1.0).document is None
    assert read_answer(125, "", "no container: EPERM\n", deadline=1.0).no_container


def test_a_program_that_cannot_be_killed_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs in the driver, where no signal reaches it."""
    left: list[int] = []
    kill = os.killpg
    monkeypatch.setattr(os, "killpg", lambda group, _number: left.append(group))
    monkeypatch.setattr(program_runs, "_KILLED_WITHIN", 0.1)
    with pytest.warns(ResourceWarning, match="still running"):
        answer = program("import time; time.sleep(600)", tmp_path, deadline=0.1)
    assert "did not end within" in answer.failure
    kill(left[0], signal.SIGKILL)


def test_a_program_that_prints_without_end_fills_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_runs, "_LARGEST_FILE", 1 << 20)
    answer = program("import time; time.sleep(1)\nwhile True: print('y' * 999, flush=True)", tmp_path)
    assert answer.document is None
    assert (tmp_path / "stdout").stat().st_size == 1 << 20


def test_the_cache_s_libcuda_for_32_bit_programs_is_no_second_one() -> None:
    listed = (
        "3 libs found in cache `/etc/ld.so.cache'\n"
        "\tlibcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1\n"
        "\tlibcuda.so.1 (libc6) => /lib/i386-linux-gnu/libcuda.so.1\n"
        "\tlibcuda.so.1 (libc6,x86-64, OS ABI: Linux 2.6.32) => /usr/local/nvidia/lib64/libcuda.so.1\n"
        "\tlibcuda.so (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so\n"
        "\tlibcudart.so.12 (libc6,AArch64) => /lib/libcudart.so.12\n"
        "Cache generated by: ldconfig (Debian GLIBC 2.36-9) stable release version 2.36\n"
    )
    assert library_search.in_listing(listed) == [
        "/lib/x86_64-linux-gnu/libcuda.so.1",
        "/usr/local/nvidia/lib64/libcuda.so.1",
    ]


LACKING = {
    "torch_tensors": ("torch", "__version__ = '2'\nclass version: cuda = None", "built without CUDA"),
    "torch_compiled": ("torch", "class version: cuda = '13'", "no C compiler"),
    "nccl_all_reduce": ("torch", "__version__ = '2'\nclass version: cuda = None", "built without CUDA"),
    "jax_arrays": ("jax", "__version__ = '0'", "no plugin for CUDA"),
    "cupy_arrays": ("none", "", "cupy is not installed"),
}


@pytest.mark.parametrize("name", sorted(LACKING))
def test_what_is_built_without_cuda_is_lacking(tmp_path: Path, name: str) -> None:
    """And so is what Triton needs of the machine."""
    library, text, reason = LACKING[name]
    (tmp_path / f"{library}.py").write_text(text)
    (tmp_path / "triton.py").touch()
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": str(tmp_path)}
    command = Command((sys.executable, "-m", f"{PROGRAMS}.{name}"), environment)
    assert reason in run(command, folder=tmp_path, deadline=PATIENCE).lacking
