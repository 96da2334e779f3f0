"""How the checks are reported: golden files of a healthy node and of one with problems, in words and JSON;
the table of the documentation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from koordra.kubelet_plugin.node_check.check_node import CHECKS
from koordra.kubelet_plugin.node_check.report import document, in_words
from tests.conftest import ROOT
from tests.fakes import node_files
from tests.fakes.node_files import CONTAINERD, GPUS, NodeFiles

Golden = Callable[[str, str], None]


def in_trouble(node: NodeFiles) -> None:
    node.edit(CONTAINERD, "enable_cdi = true", "enable_cdi = false")
    node.nvml({"migPending": True})
    node.remove("dev/nvidia-uvm")
    node.remove("sys/class/infiniband/mlx5_1/ports/1/gid_attrs")
    node.write(f"sys/bus/pci/devices/{GPUS[1]}/current_link_width", "4\n")


@pytest.mark.parametrize(("name", "change"), [("healthy", lambda _: None), ("trouble", in_trouble)])
def test_words_and_document(
    tmp_path: Path, golden: Golden, name: str, change: Callable[[NodeFiles], None]
) -> None:
    node = node_files.healthy(tmp_path)
    change(node)
    results = list(node.checked().values())
    golden(f"node_check/{name}.txt", in_words(results))
    golden(f"node_check/{name}.json", json.dumps(document(results), indent=2) + "\n")


def test_the_documentation_says_of_every_check_what_is_read() -> None:
    text = (ROOT / "docs" / "node-check.md").read_text()
    table = text.partition("| check | what is read | how it has to be |\n|---|---|---|\n")[2]
    rows = [line.strip("| ").split(" | ") for line in table.partition("\n\n")[0].splitlines()]
    assert [name for name, _what, _good in rows] == [f"`{name}`" for name in CHECKS]
