"""Nodes with broken files: the checks never raise, never hang, and always answer in the documented form.

A healthy node is taken and some of its files are truncated, replaced by garbage, by folders, by named pipes
that nobody writes to, or by links in circles.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.kubelet_plugin.node_check.check_node import CHECKS
from koordra.kubelet_plugin.node_check.report import document, in_words
from koordra.kubelet_plugin.node_check.result import Status
from tests.fakes import node_files
from tests.fakes.node_files import CONTAINERD, KUBELET, NodeFiles
from tests.long import examples

GARBAGE: Final = (
    b"",
    b"\0\xff\xfe" * 9,
    b"[" * 5000,
    b"{" * 5000,
    b"-1\n",
    b"99999999999999999999999\n",
    b"0x\n",
    b'{"gpus": [[]], "devices": 3, "policyName": []}',
    b"version = 'x'\nimports = 3\n[plugins]\ncri = 1\n'io.containerd.cri.v1.runtime' = []\n",
    b"version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = 'maybe'\ncdi_spec_dirs = [3, {}]\n",
    b"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = \"\\u001b[2J\\nok  driver\"\n",
    b"cpuManagerPolicy: {a: [b]}\ncgroupDriver: 3\nfailCgroupV1: yes\n",
    b"a: &a [*a, *a]\n",
    b"kubelet\0--config\0",
    b"a\n" * 3000,
)
KINDS: Final = ("cut", "garbage", "folder", "pipe", "circle", "gone")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return node_files.healthy(tmp_path_factory.mktemp("healthy")).root


def files(root: Path) -> list[str]:
    return sorted(
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and not path.is_symlink()
    )


def spoil(path: Path, kind: str, garbage: bytes) -> None:
    content = path.read_bytes()
    if kind == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "garbage":
        path.write_bytes(garbage)
    else:
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "circle":
            path.symlink_to(path.name)


def answers_in_form(root: Path) -> None:
    results = NodeFiles(root).checked()
    assert list(results) == list(CHECKS)
    for result in results.values():
        assert result.status in get_args(Status)
        assert result.found.isprintable()
        assert bool(result.remedy) == (result.status == "problem")
    assert len(document(list(results.values()))["checks"]) == len(CHECKS)
    problems = sum(result.status == "problem" for result in results.values())
    assert in_words(list(results.values())).count("\n") == len(CHECKS) + problems + 1


@given(data=st.data())
@examples(60)
def test_broken_files_break_no_check(healthy: Path, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(prefix="n") as folder:
        root = Path(folder) / "node"
        shutil.copytree(healthy, root, symlinks=True, copy_function=_copy)
        for path in data.draw(st.lists(st.sampled_from(files(root)), min_size=1, max_size=12, unique=True)):
            if (root / path).is_file():
                spoil(root / path, data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from(GARBAGE)))
        answers_in_form(root)


def _copy(source: str, target: str) -> str:
    """copytree opens what it copies: of a device or a socket nothing is copied."""
    if Path(source).is_file():
        shutil.copyfile(source, target)
    return target


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize(
    "path",
    [
        CONTAINERD,
        f"{KUBELET}/config.yaml",
        "nvml.json",
        "proc/driver/nvidia/version",
        "proc/devices",
        "proc/locks",
        "proc/800/cmdline",
        f"{KUBELET}/cpu_manager_state",
    ],
)
def test_garbage_where_most_is_read(tmp_path: Path, path: str, garbage: bytes) -> None:
    node = node_files.healthy(tmp_path)
    node.write(path, garbage)
    answers_in_form(node.root)


def test_a_name_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    """Processes choose their names, and files their values."""
    node = node_files.healthy(tmp_path)
    node.write(CONTAINERD, GARBAGE[10])
    node.process(66, "\x1b[2Jpython", cgroup="0::/user.slice")
    node.link("proc/66/fd/1", node_files.OPENED)
    answers_in_form(node.root)
    assert "?[2J" in node.checked()["default-runtime"].found
